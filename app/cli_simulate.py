"""`glassblock simulate`: a workload through a system on modelled hardware, without a model.

It owns this subcommand's words, its progress line and its report. The simulation itself is
`core.workload.simulate`; the paper's reproductions are `core.workload.paper`.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli_faults import Flags, with_flags
from app.interrupt import interruptible
from app.sim_command import simulate_command
from core.checks import check_number
from core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.engine import Engine
    from core.exec.cost_model import Assumption, CostModel
    from core.workload.requests import Workload
    from core.workload.sim_result import SimulationResult
    from core.workload.simulate import Simulation, SimulationProgress

__all__ = ["add_simulate"]

_PAPERS = ("figure2", "table1", "sharing", "blocks")
_HARDWARE, _SHAPE = "a100-80gb", "llama-3.1-8b"


def add_simulate(commands: Any) -> None:
    """Adds the subcommand to the parser's commands."""
    parser = commands.add_parser(
        "simulate",
        help="a workload through a system, without a model; times are modelled",
        argument_default=argparse.SUPPRESS,
    )
    _add_workload(parser.add_argument_group("workload"))
    _add_system(parser.add_argument_group("system"))
    _add_cost(parser.add_argument_group("modelled hardware"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="machine output on stdout")
    output.add_argument("--out", metavar="FILE", help="keep the result, series included, as JSON")
    output.add_argument("--trace", metavar="FILE", help="write a trace (small workloads only)")
    output.add_argument("--paper", choices=_PAPERS, help="reproduce a part of the paper instead")
    parser.aliases = {own: _flag(name) for name, own in _RECIPE.items() if own}
    parser.set_defaults(command=_simulate)


def _add_workload(group: Any) -> None:
    group.add_argument("--workload", metavar="FILE", help='a workload file, or "synthetic"')
    group.add_argument(
        "--format", choices=("auto", "azure", "mooncake", "burstgpt", "sharegpt", "lengths")
    )
    group.add_argument("--skip-bad-rows", action="store_true", help="leave them out and count them")
    group.add_argument("--limit", type=int, help="only the first requests")
    group.add_argument("--rate-scale", type=float, help="arrivals this many times as fast")
    group.add_argument("--retime", type=float, metavar="RATE", help="draw Poisson arrivals instead")
    group.add_argument("--model", help="counts the tokens of a sharegpt file with its tokenizer")
    group.add_argument("--preset", choices=("sharegpt", "alpaca"), help="synthetic lengths")
    group.add_argument("--requests", type=int, help="synthetic: how many")
    group.add_argument("--rate", type=float, help="synthetic: arrivals a second")
    group.add_argument("--arrivals", choices=("poisson", "bursty", "fixed", "at_once"))
    group.add_argument("--lengths", choices=("fixed", "uniform", "lognormal"))
    group.add_argument("--prompt-mean", type=float, help="synthetic: tokens")
    group.add_argument("--output-mean", type=float, help="synthetic: tokens")
    group.add_argument("--prompt-cv", type=float, help="log-normal: standard deviation / mean")
    group.add_argument("--output-cv", type=float)
    group.add_argument("--max-total", type=int, help="synthetic: longest prompt and output")
    group.add_argument("--shared-prefix", type=int, help="synthetic: tokens that a group shares")
    group.add_argument("--groups", type=int, help="synthetic: different shared prefixes")
    group.add_argument("--seed", type=int)


def _add_system(group: Any) -> None:
    group.add_argument(
        "--system",
        choices=("paged", "orca-max", "orca-pow2", "orca-oracle", "static"),
        default="paged",
    )
    group.add_argument("--num-blocks", type=_blocks, metavar="N|unlimited", help="the pool")
    group.add_argument("--num-slots", type=int, help="the pool in slots instead")
    group.add_argument("--block-size", type=int, help="tokens a block (mooncake: 512, else 16)")
    group.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "fp8"),
        help="K and V in the model's dtype (default), or in one byte a number",
    )
    group.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction)
    group.add_argument("--semantics", choices=("paper", "v1"))
    group.add_argument("--max-num-seqs", type=int, help="(default 256)")
    group.add_argument("--max-num-batched-tokens", type=int, help="budget a step (default 2048)")
    group.add_argument("--max-model-len", type=int, help="longest context (default: the model's)")
    group.add_argument("--watermark", type=float)


def _add_cost(group: Any) -> None:
    group.add_argument("--hardware", default=_HARDWARE, help=f"(default {_HARDWARE})")
    group.add_argument("--model-shape", default=_SHAPE, help=f"(default {_SHAPE})")
    group.add_argument("--gpus", type=int, help="share the work evenly (default 1)")
    group.add_argument("--dtype", choices=("float16", "bfloat16", "float32", "fp8"))
    group.add_argument("--utilisation", type=float, default=0.9, help="of memory (default 0.9)")
    group.add_argument("--compute-efficiency", type=float, help="share of peak (default 0.6)")
    group.add_argument("--memory-efficiency", type=float, help="share of peak (default 0.8)")


def _blocks(text: str) -> int | str:
    """A number of blocks, or "unlimited".

    Raises:
        ArgumentTypeError: neither.
    """
    if text == "unlimited":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor unlimited") from None


# ------------------------------------------------------------------------ run


def _simulate(options: argparse.Namespace) -> int:
    given = vars(options)
    if "paper" in given:
        return _paper(given)
    trace = _writable_trace(given["trace"]) if "trace" in given else None
    out = _writable(given["out"]) if "out" in given else None
    simulation = _simulation(given)
    tell = _Progress()
    with interruptible() as cancel:
        result = simulation.run(tell.say, cancel)
    tell.clear()
    fault = _keep(simulation, result, out, trace)
    if given.get("json"):
        print(result.to_json(series=False))
    else:
        _print(result, given["flags"])
    if result.cancelled:
        print("glassblock: interrupted; what was done until then is kept", file=sys.stderr)
    if fault is not None:
        raise fault
    return 1 if result.cancelled else 0


def _keep(
    simulation: "Simulation", result: "SimulationResult", out: Path | None, trace: Path | None
) -> TraceError | None:
    """Writes the files; a fault comes back, so that the result is told before it."""
    try:
        if out is not None:
            _write(out, result.to_json())
            print(f"glassblock: result: {out}", file=sys.stderr)
        if trace is not None:
            simulation.trace().save(trace)
            print(f"glassblock: trace: {trace}", file=sys.stderr)
    except TraceError as fault:
        return fault
    return None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceError("unwritable", path=path, detail=error.strerror) from error


def _simulation(given: dict[str, Any]) -> "Simulation":
    from core.workload.simulate import Simulation

    cost = _cost_model(given)
    workload = _workload(given)
    config, assumptions = _config(given, workload, cost)
    return Simulation(
        workload,
        config,
        cost,
        system=given["system"],
        unlimited=given.get("num_blocks") == "unlimited",
        limit=given.get("limit"),
        rate_scale=given.get("rate_scale", 1.0),
        record="trace" in given,
        assumptions=assumptions,
        command=_command(given),
    )


def _command(given: dict[str, Any]) -> str:
    """The line that repeats the run; where its results go is no part of it."""
    return simulate_command({k: v for k, v in given.items() if k not in _NO_PART})


_NO_PART = ("command", "flags", "json", "out", "paper", "trace")


def _cost_model(given: dict[str, Any]) -> "CostModel":
    from core.capacity.hardware import find_hardware
    from core.capacity.shapes import find_shape
    from core.exec.cost_model import CostModel

    hardware = find_hardware(given["hardware"])
    settings: dict[str, Any] = {"dtype": next(iter(hardware.flops))}
    settings |= {name: given[name] for name in _COSTS if name in given}
    return CostModel(hardware, find_shape(given["model_shape"]), **settings)


_COSTS = ("gpus", "dtype", "kv_cache_dtype", "compute_efficiency", "memory_efficiency")


def _config(
    given: dict[str, Any], workload: "Workload", cost: "CostModel"
) -> "tuple[EngineConfig, list[Assumption]]":
    """The system's settings, and the assumption behind its pool when nobody gave a size."""
    from core.exec.cost_model import Assumption
    from core.workload.systems import system_config

    unlimited = given.get("num_blocks") == "unlimited"
    num_blocks = None if unlimited else given.get("num_blocks")
    derived = not unlimited and num_blocks is None and "num_slots" not in given
    size = given.get("block_size")
    if size is None and workload.format == "mooncake":
        size = workload.prefix_unit
    limits = {"max_model_len": _context(workload, cost), **given}
    config = system_config(
        given["system"],
        num_slots=given.get("num_slots"),
        num_blocks=2 if unlimited else num_blocks,
        block_size=size,
        memory_slots=_memory_slots(given, cost) if derived else 0,
        **{name: limits[name] for name in _SETTINGS if name in limits},
    )
    assumptions = []
    if derived:
        share = round(100 * given["utilisation"], 1)
        assumptions.append(Assumption("pool", {"slots": config.usable_slots, "utilisation": share}))
    if "max_model_len" not in given:
        assumptions.append(Assumption("context", {"limit": limits["max_model_len"]}))
    return config, assumptions


_SETTINGS = (
    "prefix_caching",
    "semantics",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "watermark",
    "kv_cache_dtype",
)


def _context(workload: "Workload", cost: "CostModel") -> int:
    """The longest context that an operator would allow for this workload: a power of two."""
    needed = max(2048, 1 << (workload.max_total - 1).bit_length())
    return min(cost.shape.max_len, needed)


def _memory_slots(given: dict[str, Any], cost: "CostModel") -> int:
    from core.capacity.shapes import kv_memory

    check_number("utilisation", given["utilisation"], 0.01, 1.0)
    memory = kv_memory(
        cost.hardware,
        cost.shape,
        dtype=cost.dtype,
        utilisation=given["utilisation"],
        gpus=cost.gpus,
    )
    return memory // cost.slot_bytes


def _workload(given: dict[str, Any]) -> "Workload":
    from core.workload.loading import load_workload
    from core.workload.synthetic import retime

    if "workload" not in given:
        raise ConfigError("no_workload")
    if "limit" in given:
        check_number("limit", given["limit"], 1, 1 << 31)
    if given["workload"] == "synthetic":
        return _synthetic(given)
    for name in _RECIPE:
        if name in given and name != "seed":
            raise ConfigError("simulate_option", option=_flag(name), needs="--workload synthetic")
    workload = load_workload(
        given["workload"],
        given.get("format", "auto"),
        skip_bad_rows=given.get("skip_bad_rows", False),
        limit=given.get("limit"),
        count=_counter(given["model"]) if "model" in given else None,
    )
    if "retime" not in given:
        return workload
    check_number("seed", given.get("seed", 0), 0, _MOST_SEED)
    try:
        return retime(workload, given["retime"], seed=given.get("seed", 0))
    except ConfigError as fault:  # of a rate, which has another flag
        raise ConfigError(fault.code, **{**fault.values, "name": "retime"}) from fault


_MOST_SEED = (1 << 63) - 1


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# Options that make a synthetic workload, and how `Recipe` calls them.
_RECIPE = {
    "preset": "",
    "requests": "count",
    "rate": "rate",
    "arrivals": "arrivals",
    "lengths": "lengths",
    "prompt_mean": "prompt_mean",
    "output_mean": "output_mean",
    "prompt_cv": "prompt_cv",
    "output_cv": "output_cv",
    "max_total": "max_total",
    "shared_prefix": "shared_prefix",
    "groups": "groups",
    "seed": "seed",
}


def _synthetic(given: dict[str, Any]) -> "Workload":
    from core.workload.synthetic import PRESETS, make

    preset = given.get("preset", "sharegpt")
    changes = {own: given[name] for name, own in _RECIPE.items() if own and name in given}
    return make(replace(PRESETS[preset], **changes), f"synthetic {preset}")


def _counter(model: str) -> Callable[[str], int]:
    """Tokens of a text, by the model's own tokenizer."""
    from core.exec.model import load_model

    codec = load_model(model, device="cpu").codec
    return lambda text: len(codec.encode(text))


# ---------------------------------------------------------------------- paper


def _paper(given: dict[str, Any]) -> int:
    """One reproduction; Ctrl-C ends it without a result."""
    from core.workload import paper

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: say so
    out = _writable(given["out"]) if "out" in given else None
    tell = _Progress()

    def share(done: float) -> None:
        tell.line(f"{given['paper']}: {done:.0%}")

    changes = {name: given[name] for name in ("seed", "requests") if name in given}
    result: Any
    if given["paper"] == "table1":
        result = paper.table1()
    elif given["paper"] == "sharing":
        result = paper.sharing(_engine_maker(given.get("model")), share, **changes)
    else:
        result = getattr(paper, given["paper"])(share, **changes)
    tell.clear()
    asked: dict[str, Any] = {"paper": given["paper"]}
    asked |= {name: given[name] for name in ("seed", "requests", "model") if name in given}
    record = paper.record(result, simulate_command(asked))
    plain = json.dumps(record, ensure_ascii=False)
    print(plain if given.get("json") else result.to_text())
    if out is not None:
        _write(out, plain)
    return 0


def _engine_maker(model: str | None) -> "Callable[[EngineConfig], Engine]":
    """Makes engines with one real model, which is loaded once."""
    from core.exec.build import build_engine
    from core.exec.model import load_model

    loaded = load_model(model)
    return lambda config: build_engine(loaded, config)


# ------------------------------------------------------------------- streams


def _writable(name: str) -> Path:
    """The path of a file to write; a place that can't take it is told before the work.

    Raises:
        ConfigError: the folder isn't there, or the name is a folder's.
    """
    path = Path(name)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError("out_place", path=name)
    return path


def _writable_trace(name: str) -> Path:
    from core.trace.trace import check_writable

    try:
        check_writable(name)
    except TraceError as fault:
        raise ConfigError(fault.code, **fault.values) from fault
    return Path(name)


class _Progress:
    """One line on stderr that is written over; a line every five seconds when it's no terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def say(self, now: "SimulationProgress") -> None:
        """How far the simulation is."""
        self.line(
            f"{now.done:,} of {now.total:,} requests, {now.running} running, "
            f"{now.waiting:,} waiting, {now.simulated_seconds:,.0f} s simulated"
        )

    def line(self, text: str) -> None:
        """The text, in place of the one before."""
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last > 5:
            self._last = time.monotonic()
            print(f"glassblock: {text}", file=sys.stderr)

    def clear(self) -> None:
        """Nothing is left of the line."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print(result: "SimulationResult", flags: Flags) -> None:
    total = result.summary
    print(f"{result.workload} ({result.source}) through {result.system}")
    for text in result.note_texts():
        print(f"  note: {text}")
    print(
        f"requests: {total.finished:,} of {total.requests:,} finished, {total.refused:,} refused, "
        f"{total.skipped_rows:,} rows skipped; {total.preemptions:,} preemptions"
    )
    for refusal in result.refusals:
        print(f"  request {refusal.number}: {with_flags(refusal.text(), flags)}")
    if total.refused > len(result.refusals):
        print(f"  and {total.refused - len(result.refusals):,} more")
    print(
        f"time: {total.simulated_seconds:,.1f} s modelled in {total.steps:,} steps "
        f"({total.wall_seconds:.1f} s measured here)"
    )
    print(
        f"speed: {total.generated_tokens:,} tokens, {total.tokens_per_second:,.1f} a second "
        f"(modelled); {total.mean_running:.2f} requests run on average, "
        f"{total.peak_running} at most"
    )
    for name, spread in (("to first token", total.latency.ttft), ("between tokens",
                         total.latency.itl), ("to the end", total.latency.e2e)):  # fmt: skip
        print(
            f"seconds {name} (modelled): mean {spread.mean:.3f}, p50 {spread.p50:.3f}, "
            f"p95 {spread.p95:.3f}, p99 {spread.p99:.3f}"
        )
    _print_memory(result)
    for text in result.assumption_texts():
        print(f"  assumes: {text}")
    print(f"repeat: {result.command}")


def _print_memory(result: "SimulationResult") -> None:
    total = result.summary
    size = "unlimited" if total.slots is None else f"{total.slots:,} slots"
    parts = ", ".join(
        f"{part.name} {getattr(total.breakdown, part.name):.2%}" for part in fields(total.breakdown)
    )
    print(f"memory ({size}, at most {total.peak_slots:,} owned): {parts}")
    if total.hit_rate is not None:
        print(f"prefix names in memory at admission: {total.hit_rate:.2%}")
    if total.token_hit_rate is not None:
        print(f"prompt tokens found by prefix: {total.token_hit_rate:.2%}")
