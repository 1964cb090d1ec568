"""The `glassblock` command.

It owns the words of the command line and what goes to which stream: answers on stdout, progress
and faults on stderr. It does no work of its own; each subcommand calls the library. Exit codes:
0 success, 1 a failure, 2 a usage error. Heavy imports wait until a subcommand needs them.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from app.cli_bench import add_bench
from app.cli_compare import add_compare
from app.cli_faults import Flags, fault_text, with_flags
from app.cli_simulate import add_simulate
from core.config import EngineConfig
from core.errors import ConfigError, GlassblockError, RequestError, TraceError, WorkloadError
from core.request import SamplingParams

if TYPE_CHECKING:
    from core.engine import Engine, RequestOutput
    from core.trace.snapshot import Snapshot
    from core.workload.scenario import Arrival, Scenario

__all__ = ["main", "make_parser"]

_USAGE_ERRORS = (ConfigError, WorkloadError, RequestError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    _use_utf8()
    options = make_parser().parse_args(
        _with_default(sys.argv[1:] if arguments is None else arguments)
    )
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except GlassblockError as fault:
        print(f"glassblock: {fault_text(fault, options.flags)}", file=sys.stderr)
        return 2 if isinstance(fault, _USAGE_ERRORS) else 1
    except BrokenPipeError:
        # The reader has gone; keep the interpreter from complaining when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as fault:
        print(f"glassblock: {fault.strerror or fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("glassblock: interrupted", file=sys.stderr)
        return 1


def _with_default(arguments: Sequence[str]) -> list[str]:
    """`glassblock` alone, or with the app's options only, opens the app."""
    given = list(arguments)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help", "--version")):
        return ["serve", *given]
    return given


def _use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")


# --------------------------------------------------------------------- parsing


class _Parser(argparse.ArgumentParser):
    """One clear line on stderr instead of the whole usage.

    What it parses bears `flags`: what the innermost command calls its settings, for its faults.
    `aliases` are settings that the library calls otherwise than the flag.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.aliases: Flags = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if not hasattr(found, "flags"):
            named = {a.dest: a.option_strings[0] for a in self._actions if a.option_strings}
            found.flags = named | dict(self.aliases)
        return found, rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of every command; what it parses bears the `command` to call."""
    parser = _Parser(prog="glassblock", description="A KV cache you can see through.")
    parser.add_argument("--version", action="version", version=f"glassblock {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_serve(commands)
    _add_run(commands)
    _add_replay(commands)
    _add_verify(commands)
    add_simulate(commands)
    add_compare(commands)
    add_bench(commands)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("glassblock")
    except PackageNotFoundError:
        return "unknown"


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser("serve", help="open the app in the browser (the default)")
    parser.add_argument(
        "--port", type=int, help="port on 127.0.0.1 (default: a free one from 8501)"
    )
    parser.add_argument("--model", help="folder, .gguf file or hub id (default: SmolLM2-135M)")
    parser.add_argument("--lang", choices=("en", "zh"), help="language (default: the browser's)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.set_defaults(command=_serve)


def _add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run prompts or a scenario on a real model, without the app",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("scenario", nargs="?", help="name of a scenario, or a .toml file")
    parser.add_argument("--prompt", action="append", help="a prompt; may be given several times")
    parser.add_argument("--chat", action="store_true", help="wrap prompts in the chat template")
    parser.add_argument("--model", help="folder, .gguf file or hub id (default: SmolLM2-135M)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--device", help="cpu, cuda or mps (default: the best there is)")
    parser.add_argument("--trace", metavar="FILE", help="write the trace (.jsonl or .jsonl.gz)")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--semantics", choices=("paper", "v1"))
    engine.add_argument("--block-size", type=int, help="tokens a block")
    engine.add_argument("--num-blocks", type=int, help="blocks in the pool")
    engine.add_argument("--kv-memory", type=_bytes, help="the pool's size instead, e.g. 64MiB")
    engine.add_argument(
        "--gpu-memory-utilization", type=float, help="the pool from a trial instead (GPU only)"
    )
    engine.add_argument(
        "--backend",
        choices=("auto", "reference", "torch", "numba", "triton"),
        help="attention kernels (default: triton on a GPU, numba on a CPU, else torch)",
    )
    engine.add_argument(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        help="replay decode steps as CUDA graphs (default: where it can be done)",
    )
    engine.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "fp8"),
        help="how K and V are stored (default: as the model's dtype); fp8 takes one byte a number "
        "and rounds, so tokens may differ",
    )
    engine.add_argument("--allocator", choices=("paged", "contiguous"))
    engine.add_argument(
        "--reserve", choices=("max", "pow2", "exact"), help="slots of a region (contiguous)"
    )
    engine.add_argument(
        "--placement",
        choices=("first_fit", "best_fit", "buddy"),
        help="where a region goes (contiguous)",
    )
    engine.add_argument(
        "--batching",
        choices=("continuous", "static"),
        help="join at any step, or wait until the whole batch has ended",
    )
    engine.add_argument(
        "--max-model-len", type=int, help="longest context (default: the model's own)"
    )
    engine.add_argument("--max-num-seqs", type=int, help="sequences that run at once")
    engine.add_argument("--max-num-batched-tokens", type=int, help="token budget a step")
    engine.add_argument(
        "--policy", choices=("fcfs", "priority"), help="who is first in line, and the victim"
    )
    engine.add_argument(
        "--preemption",
        choices=("auto", "recompute", "swap"),
        help="what becomes of a victim's blocks",
    )
    engine.add_argument(
        "--watermark", type=float, help="share of the blocks that admission keeps free"
    )
    engine.add_argument("--num-host-blocks", type=int, help="swap space (paper)")
    engine.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        help="find full blocks by prefix",
    )
    engine.add_argument(
        "--chunked-prefill",
        action=argparse.BooleanOptionalAction,
        help="cut prompts that exceed the budget",
    )
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--n", type=int, help="parallel samples")
    sampling.add_argument("--beam-width", type=int, help="beam search (paper)")
    sampling.add_argument("--length-penalty", type=float)
    sampling.add_argument("--max-tokens", type=int)
    sampling.add_argument("--temperature", type=float, help="0 is greedy")
    sampling.add_argument("--top-k", type=int)
    sampling.add_argument("--top-p", type=float)
    sampling.add_argument("--min-p", type=float)
    sampling.add_argument("--repetition-penalty", type=float)
    sampling.add_argument("--stop", action="append", help="a stop string; may be repeated")
    sampling.add_argument("--seed", type=int)
    sampling.add_argument("--logprobs", type=int, help="alternatives to report for each token")
    sampling.add_argument("--ignore-eos", action="store_true")
    parser.set_defaults(command=_run)


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser("replay", help="the state of a trace at a step")
    parser.add_argument("trace", help="a trace file")
    parser.add_argument("--step", type=int, help="the step (default: the last)")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    parser.set_defaults(command=_replay)


def _add_verify(commands: Any) -> None:
    parser = commands.add_parser("verify", help="audit a trace, or a recorded vLLM sequence")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("trace", nargs="?", help="a trace file")
    what.add_argument("--sequence", metavar="FILE", help="operations and states recorded from vLLM")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    parser.set_defaults(command=_verify)


def _bytes(text: str) -> int:
    """Bytes of "64MiB", "1.5GB", "1048576".

    Raises:
        ArgumentTypeError: not a size.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    units |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    units |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
    number = text.rstrip("BbIiKkMmGg ")
    unit = text[len(number) :].strip().upper()
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 64MiB") from None


# ------------------------------------------------------------------------- run


def _run(options: argparse.Namespace) -> int:
    given = vars(options)
    scenario = _scenario(given)
    target = _writable(given.get("trace"))
    tell = _Progress()
    engine = _build(scenario, given, tell)
    if target is not None:
        _check_traceable(engine)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: keep what was done
    interrupted = _play(engine, scenario.arrivals, tell)
    tell.clear()
    outputs = engine.outputs()
    if given.get("json"):
        print(json.dumps(_run_json(engine, outputs), ensure_ascii=False))
    else:
        _print_outputs(engine, outputs)
    if target is not None:
        engine.trace().save(target)
        print(f"glassblock: trace: {target}", file=sys.stderr)
    for output in outputs:
        if output.error:
            why = with_flags(output.error, options.flags)
            print(f"glassblock: request {output.request_id}: {why}", file=sys.stderr)
    return 1 if interrupted or any(output.error for output in outputs) else 0


def _scenario(given: dict[str, Any]) -> "Scenario":
    """What to run: a scenario with the given changes, or the given prompts."""
    from core.workload.scenario import Arrival, Scenario, find_scenario

    engine = _chosen(EngineConfig, given)
    params = _chosen(SamplingParams, given)
    if "stop" in params:
        params["stop"] = tuple(params["stop"])
    if "kv_memory" in engine or "gpu_memory_utilization" in engine:
        engine.setdefault("num_blocks", None)
    if "scenario" in given and "prompt" in given:
        raise ConfigError("scenario_and_prompt")
    if "scenario" in given:
        return find_scenario(given["scenario"]).with_changes(engine, params)
    if "prompt" not in given:
        raise ConfigError("nothing_to_run")
    if params.get("beam_width", 1) > 1:
        engine.setdefault("semantics", "paper")  # the only one that has beams
    arrivals = tuple(
        Arrival(prompt, SamplingParams(**params), chat=given.get("chat", False))
        for prompt in given["prompt"]
    )
    return Scenario("prompt", {}, {}, EngineConfig(**engine), arrivals)


def _chosen(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    return {field.name: given[field.name] for field in fields(cls) if field.name in given}


def _writable(name: str | None) -> Path | None:
    """The trace's path; a place that can't take it is told before the model loads."""
    if name is None:
        return None
    from core.trace.trace import check_writable

    try:
        check_writable(name)
    except TraceError as fault:
        raise ConfigError(fault.code, **fault.values) from fault
    return Path(name)


def _check_traceable(engine: "Engine") -> None:
    """A trace that nobody could read is told before the run."""
    from core.trace.trace import check_layout

    try:
        check_layout(engine.header.layout)
    except TraceError as fault:
        raise ConfigError(fault.code, **fault.values) from fault


def _build(scenario: "Scenario", given: dict[str, Any], tell: "_Progress") -> "Engine":
    if given.get("backend") == "numba" and scenario.config.kv_cache_dtype == "fp8":
        raise ConfigError("numba_fp8")  # on any device, so before the model is loaded
    tell.say("loading the model")
    from core.exec.build import build_engine
    from core.exec.model import load_model

    loaded = load_model(
        given.get("model"),
        dtype=given.get("dtype", "auto"),
        device=given.get("device"),
        progress=lambda stage: tell.say(f"model: {stage}"),
    )
    return build_engine(
        loaded,
        scenario.config,
        backend=given.get("backend", "auto"),
        cuda_graphs=given.get("cuda_graphs", "auto"),
        title=scenario.title,
    )


def _play(engine: "Engine", arrivals: "tuple[Arrival, ...]", tell: "_Progress") -> bool:
    """Runs to the end; whether it was interrupted (what was done until then is kept)."""
    from core.workload.scenario import play

    try:
        for record in play(engine, arrivals):
            if record.error:
                tell.clear()
                print(f"glassblock: step {record.step} failed: {record.error}", file=sys.stderr)
            running, waiting = len(engine.scheduler.running), len(engine.scheduler.waiting)
            tell.say(f"step {record.step}: {running} running, {waiting} waiting")
    except KeyboardInterrupt:
        tell.clear()
        print("glassblock: interrupted; keeping what was done", file=sys.stderr)
        return True
    return False


def _run_json(engine: "Engine", outputs: "list[RequestOutput]") -> dict[str, Any]:
    summary = engine.summary()
    return {
        "requests": [
            {
                "id": output.request_id,
                "prompt": output.prompt,
                "prompt_token_ids": output.prompt_token_ids,
                "outputs": [asdict(completion) for completion in output.outputs],
                "error": output.error,
            }
            for output in outputs
        ],
        "summary": {
            **asdict(summary),
            "tokens_per_second": round(summary.tokens_per_second, 2),
            "hit_rate": round(summary.hit_rate, 4),
        },
        "model": dict(engine.header.model),
        "config": engine.config.to_dict(),
    }


def _print_outputs(engine: "Engine", outputs: "list[RequestOutput]") -> None:
    for output in outputs:
        print(f"[{output.request_id}] {output.prompt}")
        for number, completion in enumerate(output.outputs, start=1):
            mark = f" {number}." if len(output.outputs) > 1 else ""
            print(f"  ->{mark} {completion.text} ({completion.finish_reason})")
    total, model = engine.summary(), engine.header.model
    where = f"{model['name']}, {model['dtype']}, {model['device']}"
    if engine.config.kv_cache_dtype == "fp8":
        where += ", KV in fp8"
    print(
        f"{total.steps} steps, {total.generated_tokens} tokens in {total.seconds:.2f} s "
        f"({total.tokens_per_second:.1f} tokens/s, measured on {where}); "
        f"{total.preemptions} preemptions, prefix hit rate {total.hit_rate:.0%}"
    )


# ------------------------------------------------------------- replay, verify


def _replay(options: argparse.Namespace) -> int:
    from core.trace.metrics import final_lengths
    from core.trace.trace import load_trace

    trace = load_trace(options.trace)
    _warn(trace.warning)
    snapshot = trace.snapshot(options.step)
    state = _replay_json(snapshot, final_lengths(trace))
    if options.json:
        print(json.dumps(state, ensure_ascii=False))
    else:
        _print_state(snapshot, state)
    return 0


def _replay_json(snapshot: "Snapshot", finals: dict[str, int]) -> dict[str, Any]:
    from core.trace.metrics import breakdown, hit_rate

    state = snapshot.state()
    slots = breakdown(snapshot, finals)
    return {
        "step": snapshot.step,
        "block_tables": state.block_tables,
        "host_tables": state.host_tables,
        "ref_counts": state.ref_counts,
        "free_queue": state.free_queue,
        "cached": state.cached,
        "regions": {
            start: {"request": request, "sequence": seq, "length": length, "size": size}
            for start, (request, seq, length, size) in state.regions.items()
        },
        "running": state.running,
        "waiting": state.waiting,
        "swapped": state.swapped,
        "computed_tokens": state.computed,
        "usage": {
            "owned_blocks": snapshot.num_owned,
            "cached_free_blocks": snapshot.num_cached_free,
            "free_blocks": snapshot.num_free,
            "usage": round(slots.usage, 6),
            "hit_rate": asdict(hit_rate(snapshot)),
        },
        "breakdown": asdict(slots),
    }


def _print_state(snapshot: "Snapshot", state: dict[str, Any]) -> None:
    from core.trace.metrics import free_pieces

    labels = snapshot.labels()
    print(f"step {state['step']}")
    for name in ("running", "waiting", "swapped"):
        print(f"{name}: {', '.join(labels[request] for request in state[name]) or '-'}")
    for seq_id, table in state["block_tables"].items():
        counts = state["ref_counts"]
        blocks = " ".join(f"{b}x{counts[b]}" if counts[b] > 1 else str(b) for b in table)
        print(f"table of {labels[seq_id]}: {blocks}")
    for start, region in sorted(state["regions"].items()):
        owner = labels[region["sequence"] or region["request"]]
        spare = "" if region["sequence"] else " (spare)"
        print(f"region at slot {start}: {region['size']} slots of {owner}{spare}")
    if snapshot.layout.is_contiguous:
        pieces = " ".join(f"{start}+{size}" for start, size in free_pieces(snapshot))
        print(f"free pieces, by address: {pieces or '-'}")
    queue = [
        f"{b}#{state['cached'][b][:4]}" if b in state["cached"] else str(b)
        for b in state["free_queue"]
    ]
    if not snapshot.layout.is_contiguous:
        print(f"free block queue, head first: {' '.join(queue) or '-'}")
    slots = state["breakdown"]
    print("slots: " + ", ".join(f"{name} {count}" for name, count in slots.items()))


def _verify(options: argparse.Namespace) -> int:
    return _verify_sequence(options) if options.sequence else _verify_trace(options)


def _verify_trace(options: argparse.Namespace) -> int:
    from core.trace.trace import load_trace
    from core.trace.verify import verify

    trace = load_trace(options.trace)
    _warn(trace.warning)
    report = verify(trace)
    if options.json:
        print(json.dumps({**asdict(report), "ok": report.ok, "warning": trace.warning}))
    else:
        for fault in report.violations:
            print(f"event {fault.index}, step {fault.step}: {fault.promise}: {fault.detail}")
        found = (
            f"{len(report.violations)} broken promises"
            if report.violations
            else "every promise held"
        )
        print(f"{options.trace}: {report.events} events, {report.steps} steps: {found}")
    return 0 if report.ok and not trace.warning else 1


def _verify_sequence(options: argparse.Namespace) -> int:
    from core.vllm_sequence import compare_sequence

    equal, difference = compare_sequence(options.sequence)
    if options.json:
        plain = None if difference is None else asdict(difference)
        print(json.dumps({"equal_lines": equal, "difference": plain, "ok": difference is None}))
    elif difference is None:
        print(f"{options.sequence}: all {equal} lines equal")
    else:
        print(
            f"{options.sequence}: line {difference.line} differs in {difference.part}: "
            f"vLLM {difference.expected}, ours {difference.actual}"
        )
    return 0 if difference is None else 1


def _warn(warning: str) -> None:
    if warning:
        print(f"glassblock: warning: {warning}", file=sys.stderr)


# ------------------------------------------------------------------- the rest


def _serve(options: argparse.Namespace) -> int:
    if options.port is not None and not 1 <= options.port <= 65535:
        raise ConfigError("range", name="port", value=options.port, low=1, high=65535)
    from app.serve import serve

    serve(
        port=options.port,
        model=options.model,
        lang=options.lang,
        open_browser=not options.no_browser,
    )
    return 0


class _Progress:
    """One line on stderr that is written over; nothing when stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._last = 0.0

    def say(self, text: str) -> None:
        now = time.monotonic()
        if not self._shown:
            if text.startswith(("loading", "model")):
                print(f"glassblock: {text}", file=sys.stderr)
        elif now - self._last > 0.05:
            self._last = now
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
