"""How long a model takes until it is ready, in fresh processes: the first time and the second.

    python -m tests.bench.load [--dtype auto] [--repeat 3] [--model PATH]

The first start uses an empty cache folder, so it converts the embedded model and measures dtype
and threads. Each start is split into imports and the parts that `load_model` reports. Times are
printed, never asserted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_CHILD = """
import json, sys, time
marks = [("imports", time.perf_counter())]
from core.exec.model import load_model
marks.append(("open", time.perf_counter()))
load_model(
    sys.argv[2] or None,
    dtype=sys.argv[1],
    device="cpu",
    progress=lambda name: marks.append((name, time.perf_counter())),
)
parts = {name: end - start for (name, start), (_, end) in zip(marks, marks[1:])}
parts["total without imports"] = marks[-1][1] - marks[1][1]
print(json.dumps(parts))
"""


def start(cache: str, dtype: str, model: str) -> dict[str, float]:
    """Seconds of each part of one start in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, dtype, model],
        env={**os.environ, "GLASSBLOCK_CACHE": cache},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    parts: dict[str, float] = json.loads(done.stdout)
    return parts


def main() -> None:
    """Measures and prints a table, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--repeat", type=int, default=3, help="second starts")
    parser.add_argument("--model", default="", help="a folder or GGUF file; else the default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        first = start(cache, options.dtype, options.model)
        later = [start(cache, options.dtype, options.model) for _ in range(options.repeat)]
    second = {name: statistics.median(run[name] for run in later) for name in later[0]}
    print(f"{'seconds':24}{'first':>10}{'second':>10}")
    for name in dict.fromkeys((*first, *second)):
        cells = (f"{run[name]:10.2f}" if name in run else f"{'-':>10}" for run in (first, second))
        print(f"{name:24}{''.join(cells)}")
    print(json.dumps({"dtype": options.dtype, "first": first, "second": second}))


if __name__ == "__main__":
    main()
