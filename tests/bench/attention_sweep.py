"""Attention time by block size, on this machine.

python -m tests.bench.attention_sweep                  a table
python -m tests.bench.attention_sweep --out FILE       the record that the paper page shows
"""

import argparse
from pathlib import Path

from core.exec.attention_sweep import measure


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seqs", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sweep = measure(num_seqs=asked.seqs, context=asked.context, repeats=asked.repeats)
    print(f"{sweep.shape.name}, {sweep.num_seqs} x {sweep.context} tokens, {sweep.dtype},")
    print(f"{sweep.processor}, {sweep.threads} threads, fastest of {sweep.repeats}")
    for size, seconds in sweep.seconds:
        print(f"{size:4} {1000 * seconds:8.3f} ms")
    if asked.out:
        asked.out.write_text(sweep.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
