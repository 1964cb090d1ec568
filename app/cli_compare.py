"""`glassblock compare`: one workload through several memories on a real model.

It owns this subcommand's words, its progress line and its report. Running, figures and equal
tokens are `core.workload.compare`; the proof is `core.exec.prove`.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.interrupt import interruptible
from core.checks import check_number
from core.config import EngineConfig
from core.errors import ConfigError, TraceError
from core.workload.compare import (
    GAIN,
    SYSTEMS,
    Measured,
    configure,
    equal_tokens,
    figures,
    gain_report,
    measure,
    resized,
)

if TYPE_CHECKING:
    from core.exec.model import LoadedModel
    from core.exec.prove import Proof
    from core.trace.trace import Trace
    from core.workload.scenario import Scenario

__all__ = ["add_compare"]

_SCENARIO = "static_and_paged"
_PARTS = ("tokens", "reserved", "unused", "tail", "cached", "hole", "free")
_MOST_REPEATS = 100
_MOST_SLOTS = 1 << 24


def add_compare(commands: Any) -> None:
    """Adds the subcommand to the parser's commands."""
    parser = commands.add_parser(
        "compare", help="one workload through several memories: waste, speed, equal tokens"
    )
    parser.add_argument(
        "scenario", nargs="?", default=_SCENARIO,
        help=f"name of a scenario, or a .toml file (default: {_SCENARIO})",
    )  # fmt: skip
    parser.add_argument(
        "--systems", help=f"two or more of {','.join(SYSTEMS)} (default: {','.join(GAIN)})"
    )
    parser.add_argument("--slots", type=int, help="slots of every memory")
    parser.add_argument("--block-size", type=int, help="tokens a block")
    parser.add_argument("--max-num-seqs", type=int, help="sequences that run at once")
    parser.add_argument("--max-num-batched-tokens", type=int, help="token budget a step")
    parser.add_argument("--max-model-len", type=int, help="longest context")
    parser.add_argument("--repeat", type=int, default=1, help="interleaved rounds (default: 1)")
    parser.add_argument("--waterfall", action="store_true", help="where the gain comes from")
    parser.add_argument("--prove", action="store_true", help="compare the logits too")
    parser.add_argument("--model", help="folder, .gguf file or hub id (default: SmolLM2-135M)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--device", help="cpu, cuda or mps (default: the best there is)")
    parser.add_argument("--trace-dir", metavar="DIR", help="write every system's trace there")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    parser.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    from core.workload.scenario import find_scenario

    names = _systems(options)
    if not 1 <= options.repeat <= _MOST_REPEATS:
        raise ConfigError("range", name="repeat", value=options.repeat, low=1, high=_MOST_REPEATS)
    scenario = find_scenario(options.scenario)
    base = _base(scenario, options)
    configs = {name: configure(base, name) for name in names}
    folder = _folder(options.trace_dir)
    loaded = _load(options)
    with interruptible() as stop:
        play = _player(loaded, scenario, configs, stop)
        measured = measure(names, play, options.repeat, _tell)
    done, planned = sum(len(item.rates) for item in measured), len(names) * options.repeat
    if not done:
        print("glassblock: interrupted before the first run was done", file=sys.stderr)
        return 1
    for item in measured:
        if folder is not None:
            item.trace.save(folder / f"{item.system}.jsonl.gz")
    is_whole = done == planned
    proofs = _prove(loaded, scenario, configs, names) if options.prove and is_whole else []
    report = _report(measured, scenario, options, proofs)
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _print(report, measured)
    if not is_whole:
        kept = f"{done} of {planned} runs were done and are kept"
        print(f"glassblock: interrupted; {kept}", file=sys.stderr)
    return 0 if is_whole else 1


def _systems(options: argparse.Namespace) -> list[str]:
    names = [n.strip() for n in (options.systems or ",".join(GAIN)).split(",") if n.strip()]
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError("no_system", name=name, names=", ".join(SYSTEMS))
    if len(names) < 2:
        raise ConfigError("two_systems")
    if options.waterfall and names != list(GAIN):
        raise ConfigError("waterfall_systems", names=", ".join(GAIN))
    return names


def _base(scenario: "Scenario", options: argparse.Namespace) -> EngineConfig:
    """The scenario's settings with the given sizes; without a limit a fourth of the memory."""
    config = replace(scenario.config, kv_memory=None)
    if config.num_blocks is None:
        config = config.sized(1)
    if options.slots is not None:
        check_number("slots", options.slots, 1, _MOST_SLOTS)
    if options.block_size is not None or options.slots is not None:
        size = config.block_size if options.block_size is None else options.block_size
        config = resized(config, size, options.slots)
    given = {
        name: getattr(options, name)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
        if getattr(options, name) is not None
    }
    config = replace(config, **given)
    if config.max_model_len is None:
        config = replace(config, max_model_len=max(2, config.usable_slots // 4))
    return config


def _folder(name: str | None) -> Path | None:
    """The traces' folder, made where it is missing; told before the model loads."""
    if name is None:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError("unwritable", path=folder, detail=error.strerror) from error
    return folder


def _load(options: argparse.Namespace) -> "LoadedModel":
    print("glassblock: loading the model", file=sys.stderr)
    from core.exec.model import load_model

    return load_model(options.model, dtype=options.dtype or "auto", device=options.device)


def _player(
    loaded: "LoadedModel",
    scenario: "Scenario",
    configs: Mapping[str, EngineConfig],
    stop: threading.Event,
) -> "Callable[[str], Trace | None]":
    from core.exec.build import build_engine
    from core.workload.scenario import play

    def run(name: str) -> "Trace | None":
        engine = build_engine(loaded, configs[name], title=scenario.title)
        for _ in play(engine, scenario.arrivals):
            if stop.is_set():
                return None
        return engine.trace()

    return run


def _tell(turn: int, name: str) -> None:
    print(f"glassblock: round {turn}: {name}", file=sys.stderr)


def _prove(
    loaded: "LoadedModel",
    scenario: "Scenario",
    configs: Mapping[str, EngineConfig],
    names: Sequence[str],
) -> "list[Proof]":
    from core.exec.build import build_engine
    from core.exec.prove import Subject, prove

    def subject(name: str) -> Subject:
        return Subject(
            lambda tap: build_engine(loaded, configs[name], on_logits=tap), scenario.arrivals
        )

    print("glassblock: proving", file=sys.stderr)
    return prove([subject(name) for name in names])


# ------------------------------------------------------------------------- report


def _report(
    measured: Sequence[Measured],
    scenario: "Scenario",
    options: argparse.Namespace,
    proofs: "Sequence[Proof]",
) -> dict[str, Any]:
    model = dict(measured[0].trace.header.model)
    if options.waterfall and len(measured) == len(GAIN):
        return gain_report(measured, scenario.name, model)
    first = measured[0].trace
    systems = []
    for item in measured:
        equality = equal_tokens(first, item.trace)
        systems.append(
            {
                "system": item.system,
                "config": dict(item.trace.header.config),
                "tokens_per_second": round(item.rate, 2),
                "rates": [round(rate, 2) for rate in item.rates],
                "figures": figures(item.trace).to_dict(),
                "equal_tokens": equality.equal,
                "compared_tokens": equality.tokens,
                "same_tokens": equality.holds,
                "first_difference": asdict(equality.first) if equality.first else None,
            }
        )
    return {
        "scenario": scenario.name,
        "model": model,
        "measured": first.header.measured,
        "repeat": options.repeat,
        "slots": EngineConfig.from_dict(dict(first.header.config)).usable_slots,
        "systems": systems,
        "proofs": [
            {"system": item.system, "rows": asdict(proof.rows), "equal": proof.equality.holds}
            for item, proof in zip(measured[1:], proofs, strict=False)
        ],
    }


def _print(report: Mapping[str, Any], measured: Sequence[Measured]) -> None:
    model = report["model"]
    print(
        f"{report['scenario']} on {model['name']}, {model['dtype']}, {model['device']} (measured)"
    )
    head = "".join(f"{part:>10}" for part in _PARTS)
    print(f"{'':12}{head}{'running':>9}{'steps':>7}{'tokens/s':>10}{'preempted':>11}{'equal':>12}")
    for item in measured:
        own, equality = figures(item.trace), equal_tokens(measured[0].trace, item.trace)
        shares = "".join(f"{own.shares.get(part, 0.0):>10.1%}" for part in _PARTS)
        print(
            f"{item.system:12}{shares}{own.mean_running:>9.2f}{own.steps:>7}{item.rate:>10.1f}"
            f"{own.preemptions:>11}{f'{equality.equal}/{equality.tokens}':>12}"
        )
    for bar in report.get("bars", ()):
        share = "" if bar["share"] is None else f", {bar['share']:.0%} of the gain"
        print(f"{bar['system']:12}{bar['delta']:+10.1f} tokens/s, x{bar['factor']:.2f}{share}")
    for proof in report.get("proofs", ()):
        rows = proof["rows"]
        print(
            f"{proof['system']:12}{rows['compared']} rows of logits compared, largest difference "
            f"{rows['largest']:.4g} (request {rows['label']}, position {rows['position']})"
        )
