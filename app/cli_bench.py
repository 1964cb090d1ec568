"""`glassblock bench`: the project's own measurements, each beside its peer in the same run.

It owns the subcommand's words, the progress line and the command that repeats a run. What is
measured is `core.bench`, `core.exec.bench_*` and `app.bench_*`.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from core.bench.report import Report
from core.errors import ConfigError

__all__ = ["add_bench"]

_COUNTS = (
    "turns", "requests", "longest", "batch", "threads", "cases", "copied", "limit", "steps",
)  # fmt: skip
_Bench = Callable[[argparse.Namespace, str, Callable[[float], None]], Report]


def add_bench(commands: Any) -> None:
    """Adds the subcommand to the parser's commands."""
    parser = commands.add_parser("bench", help="measure this machine: engine, pool, kernels, …")
    kinds = parser.add_subparsers(metavar="WHAT", required=True, parser_class=type(parser))
    engine = _kind(kinds, "engine", _engine, 3, "tokens a second and latencies, and transformers'")
    engine.add_argument("--model", help="folder or hub id (default: SmolLM2-135M)")
    engine.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto"
    )
    engine.add_argument("--threads", type=int, help="of torch (default: as measured at start)")
    engine.add_argument("--requests", type=int, default=48, help="how many (default: 48)")
    engine.add_argument(
        "--batch", type=int, default=16,
        help="rows of a static batch; its memory is everybody's (default: 16)",
    )  # fmt: skip
    engine.add_argument(
        "--longest", type=int, default=128, help="tokens wanted at most (default: 128)"
    )
    engine.add_argument("--no-check", action="store_true", help="don't compare tokens before")
    pool = _kind(kinds, "pool", _pool, 15, "one operation of pool, manager, scheduler, and vLLM's")
    pool.add_argument(
        "--share", type=float, default=1.0,
        help="of the usual operations a turn, above 0 up to 1 (default: 1)",
    )  # fmt: skip
    kernels = _kind(kinds, "kernels", _kernels, 15, "decode attention's bandwidth, and a copy's")
    kernels.add_argument("--cases", type=int, help="only so many cases (default: all)")
    kernels.add_argument("--threads", type=int, help="of torch (default: as torch chooses)")
    kernels.add_argument(
        "--copied", type=int, default=64, help="MiB of the plain copy (default: 64)"
    )
    simulate = _kind(kinds, "simulate", _simulate, 1, "seconds and memory of the simulator")
    simulate.add_argument(
        "--azure", default="", metavar="FILE",
        help="Azure conversation trace (default: a synthetic workload)",
    )  # fmt: skip
    simulate.add_argument(
        "--mooncake", default="", metavar="FILE", help="Mooncake trace too (default: without)"
    )
    simulate.add_argument("--limit", type=int, help="only so many requests (default: all)")
    ui = _kind(kinds, "ui", _ui, 5, "opening the page and clicking, in Chromium")
    ui.add_argument("--steps", type=int, default=30, help="clicks (default: 30)")


def _kind(kinds: Any, name: str, bench: _Bench, turns: int, words: str) -> Any:
    parser = kinds.add_parser(name, help=words)
    parser.add_argument(
        "--turns", "--repeat", type=int, default=turns, help=f"of each way (default: {turns})"
    )
    parser.add_argument("--note", action="append", default=[], help="a sentence for the record")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there too")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    parser.set_defaults(command=partial(_run, name, bench))
    return parser


def _run(name: str, bench: _Bench, options: argparse.Namespace) -> int:
    _check(options)
    report = bench(options, _command(name, options), partial(_tell, name))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(json.dumps(report.plain(), ensure_ascii=False) if options.json else report.text())
    if options.out is not None:
        report.save(options.out)
        print(f"glassblock: result: {options.out}", file=sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuses what can't be measured before anything is loaded."""
    for option in _COUNTS:
        value = getattr(options, option, None)
        if value is not None and value < 1:
            raise ConfigError("bench_turns", name=option, value=value)
    share = getattr(options, "share", 1.0)
    if not 0 < share <= 1:
        raise ConfigError("bench_share", value=share)
    for option in ("azure", "mooncake"):
        file = getattr(options, option, "")
        if file and not Path(file).is_file():
            raise ConfigError("bench_file", name=option, file=file)
    out: Path | None = options.out
    if out is not None and (out.is_dir() or not out.resolve().parent.is_dir()):
        raise ConfigError("bench_out", file=str(out))


def _command(name: str, options: argparse.Namespace) -> str:
    """The command line that repeats the run; files by their names alone."""
    words = ["glassblock", "bench", name]
    for key, value in vars(options).items():
        if key in ("command", "flags", "json", "out", "note") or value in (None, False, "", 0):
            continue
        flag = "--" + key.replace("_", "-")
        words += [flag] if value is True else [flag, Path(str(value)).name]
    return shlex.join(words)


def _tell(name: str, done: float) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{name}: {done:.0%}", end="", file=sys.stderr, flush=True)


def _engine(options: argparse.Namespace, command: str, tell: Callable[[float], None]) -> Report:
    from core.exec import bench_engine
    from core.exec.build import use_threads
    from core.exec.model import load_model

    loaded = load_model(options.model, dtype=options.dtype, device="cpu")
    if options.threads is not None:
        use_threads(options.threads)
    jobs = bench_engine.workload(
        loaded.info.vocab_size, requests=options.requests, longest=options.longest
    )
    notes = list(options.note)
    if not options.no_check:
        exact = load_model(options.model, dtype="float32", device="cpu")
        bench_engine.check_tokens(exact, bench_engine.plain_model(exact), jobs)
        notes.append("Before: greedy tokens in float32 equal generate's for every prompt alone.")
        del exact
    plain = bench_engine.plain_model(loaded)
    return bench_engine.bench_engine(
        loaded, plain, jobs, batch=options.batch, turns=options.turns, command=command,
        notes=notes, tell=tell,
    )  # fmt: skip


def _pool(options: argparse.Namespace, command: str, tell: Callable[[float], None]) -> Report:
    from core.bench.pool import bench_pool

    return bench_pool(
        turns=options.turns, share=options.share, command=command, notes=options.note, tell=tell
    )


def _kernels(options: argparse.Namespace, command: str, tell: Callable[[float], None]) -> Report:
    from core.exec.bench_kernels import CASES, bench_kernels
    from core.exec.build import use_threads

    if options.threads is not None:
        use_threads(options.threads)
    return bench_kernels(
        cases=CASES[: options.cases],
        turns=options.turns,
        copied=options.copied << 20,
        command=command,
        notes=options.note,
        tell=tell,
    )


def _simulate(options: argparse.Namespace, command: str, tell: Callable[[float], None]) -> Report:
    from app.bench_simulate import bench_simulate

    return bench_simulate(
        azure=options.azure,
        mooncake=options.mooncake,
        limit=options.limit or 0,
        turns=options.turns,
        command=command,
        notes=options.note,
        tell=tell,
    )


def _ui(options: argparse.Namespace, command: str, tell: Callable[[float], None]) -> Report:
    from app.bench_ui import bench_ui

    return bench_ui(
        visits=options.turns, steps=options.steps, command=command, notes=options.note, tell=tell
    )
