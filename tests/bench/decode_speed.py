"""Decode attention against block size, batch, context and shared heads, on this machine.

python -m tests.bench.decode_speed                  a table
python -m tests.bench.decode_speed --threads 1 --out FILE     the Kernel lab page's record
"""

import argparse
from pathlib import Path

from core.exec.decode_speed import measure


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=301)
    parser.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    run = measure(repeats=asked.repeats, threads=asked.threads)
    machine = f"{run.processor}, {run.threads} threads, torch {run.torch}"
    print(f"{run.model}, {run.dtype}, {run.backend}, {machine}")
    print(f"copy {run.copy_rate / 1e9:.1f} GB/s, matmul {run.matmul_rate / 1e9:.0f} GFLOP/s")
    for point in run.points:
        case, time = point.case, point.time
        print(
            f"{case.sweep:10} block {case.block_size:3} seqs {case.num_seqs:2} context "
            f"{case.context:4} kv heads {case.num_kv_heads} {1000 * time.fastest:8.3f} ms "
            f"(median {1000 * time.median:.3f}) "
            f"{point.bytes_read / time.fastest / 1e9:6.1f} GB/s"
        )
    if asked.out:
        asked.out.write_text(run.dump(), encoding="utf-8")


if __name__ == "__main__":
    main()
