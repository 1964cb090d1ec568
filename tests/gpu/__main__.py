"""Correctness, benchmarks and an engine run on this machine's GPU, in under eight minutes.

python -m tests.gpu                 everything, into assets/results/gpu_<name>.json
python -m tests.gpu --dry-run       the same code without a GPU, tiny, interpreted; no figures kept
python -m tests.gpu --only correctness --only engine

It needs torch, Triton and transformers, and neither a network nor the app's packages. Each part
that fails is reported and the others still run; the exit status is 1 if any failed.
"""

import argparse
import json
import os
import platform
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PARTS = ("correctness", "kernels", "engine")
RESULTS = Path(__file__).parents[2] / "assets" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts; 0 when all of them passed, 2 when there is no GPU to run them on."""
    options = _parser().parse_args(arguments)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything loads the kernels
    problem = _missing(options.dry_run)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    start = time.perf_counter()
    result: dict[str, Any] = {"machine": _machine(options.dry_run)}
    failed = []
    for part in options.only or PARTS:
        print(f"== {part}", flush=True)
        began = time.perf_counter()
        try:
            result[part] = _run(part, options.dry_run)
        except Exception as fault:  # one broken part must not cost the others' results
            traceback.print_exc()
            result[part] = {"failed": f"{type(fault).__name__}: {fault}"[:500]}
            failed.append(part)
        print(f"   {time.perf_counter() - began:.0f} s", flush=True)
    result["seconds"] = round(time.perf_counter() - start, 1)
    _write(result, options)
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny and interpreted, on the CPU")
    parser.add_argument("--only", action="append", choices=PARTS, help="run just this part")
    parser.add_argument("--output", type=Path, help="where to write, instead of assets/results")
    return parser


def _missing(dry_run: bool) -> str:
    """Why this machine can't run it, "" when it can."""
    for package in ("torch", "triton", "transformers"):
        try:
            __import__(package)
        except ImportError as fault:
            return f"tests.gpu needs the package {package}, which can't be imported: {fault}"
    import torch

    if not dry_run and not torch.cuda.is_available():
        return "tests.gpu found no CUDA or ROCm device; --dry-run runs it tiny, without one"
    return ""


def _machine(dry_run: bool) -> dict[str, Any]:
    import torch
    import transformers
    import triton

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "dry_run": dry_run,
    }
    if dry_run:
        return facts | {"device": "cpu, interpreted"}
    device = torch.cuda.get_device_properties(0)
    return facts | {
        "device": device.name,
        "total_memory": device.total_memory,
        "multiprocessors": device.multi_processor_count,
        "driver_runtime": torch.version.cuda or torch.version.hip,
    }


def _run(part: str, dry_run: bool) -> dict[str, Any]:
    if part == "correctness":
        from tests.gpu import correctness

        return correctness.run(dry_run)
    if part == "kernels":
        from tests.gpu import benchmarks

        return benchmarks.run(dry_run)
    from tests.gpu import engine_run

    return engine_run.run(dry_run)


def _write(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Keeps a GPU's figures; a dry run's go only where `--output` says."""
    text = json.dumps(result, indent=1) + "\n"
    path = options.output
    if path is None and not options.dry_run:
        name = re.sub(r"[^a-z0-9]+", "_", result["machine"]["device"].lower()).strip("_")
        path = RESULTS / f"gpu_{name}.json"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"written: {path.name}")


if __name__ == "__main__":
    sys.exit(main())
