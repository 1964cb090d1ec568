"""The same as `glassblock bench engine`, whose options it takes; and where our engine's time goes.

    python -m tests.bench.engine --turns 3
    python -m tests.bench.engine --profile [--dtype bfloat16] [--threads 1]

The profile is of one run of the benchmark's workload: Python's functions, then torch's operators.
"""

import argparse
import cProfile
import pstats
import sys

import torch

from app.cli import main
from core.exec.bench_engine import run_ours, workload
from core.exec.build import use_threads
from core.exec.model import load_model


def profile(arguments: list[str]) -> int:
    """Prints the two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    loaded = load_model(dtype=options.dtype, device="cpu")
    if options.threads:
        use_threads(options.threads)
    jobs = workload(loaded.info.vocab_size)
    run_ours(loaded, jobs, record=True)
    with cProfile.Profile() as python:
        run_ours(loaded, jobs, record=True)
    pstats.Stats(python).sort_stats("tottime").print_stats(25)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as operators:
        run_ours(loaded, jobs, record=True)
    print(operators.key_averages().table(sort_by="self_cpu_time_total", row_limit=18))
    return 0


if __name__ == "__main__":
    asked = sys.argv[1:]
    if "--profile" in asked:
        asked.remove("--profile")
        sys.exit(profile(asked))
    sys.exit(main(["bench", "engine", *asked]))
