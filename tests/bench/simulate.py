"""How fast workloads go through the simulator, and how much memory that takes.

    python -m tests.bench.simulate --azure FILE --mooncake FILE [--limit N]

Each run is a process of its own: wall and processor seconds of the simulation alone (reading the
file apart), and the process's peak memory. `flat` compares that with a run over the first tenth
of the requests: memory that grew with history would show. Without files, a synthetic workload of
20,000 requests. Times are printed, never asserted; the Mooncake run with an unlimited pool checks
the one figure that is exact, its share of prefix names in memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from core.capacity.hardware import HARDWARE
from core.capacity.shapes import SHAPES, kv_memory
from core.exec.cost_model import CostModel
from core.workload.loading import load_workload
from core.workload.simulate import Simulation
from core.workload.synthetic import Recipe, make
from core.workload.systems import system_config

_ROOT = Path(__file__).parents[2]
_MOONCAKE_HITS = 105_710, 288_500


def run(file: str, system: str, pool: str, limit: int) -> dict[str, Any]:
    """One simulation in this process."""
    read_at = time.perf_counter()
    workload = load_workload(file) if file else make(Recipe(count=20_000, rate=6))
    hardware, shape = HARDWARE["a100-80gb"], SHAPES["llama-3.1-8b"]
    config = system_config(
        system,
        memory_slots=kv_memory(hardware, shape) // shape.slot_bytes(),
        block_size=workload.prefix_unit or 16,
    )
    simulation = Simulation(
        workload,
        config,
        CostModel(hardware, shape),
        system=system,
        unlimited=pool == "unlimited",
        limit=limit or None,
    )
    wall, processor = time.perf_counter(), time.process_time()
    total = simulation.run().summary
    return {
        "requests": total.requests,
        "finished": total.finished,
        "steps": total.steps,
        "generated_tokens": total.generated_tokens,
        "read_seconds": round(wall - read_at, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "processor_seconds": round(time.process_time() - processor, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "hit_rate": total.hit_rate,
        "preemptions": total.preemptions,
    }


def _child(*arguments: str | int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.simulate", "--one", *map(str, arguments)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    plain: dict[str, Any] = json.loads(done.stdout)
    return plain


def main() -> None:
    """Runs and prints a table, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--azure", default="", help="the Azure conversation trace")
    parser.add_argument("--mooncake", default="", help="the Mooncake conversation trace")
    parser.add_argument("--limit", type=int, default=0, help="only the first requests")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        file, system, pool, limit = options.one
        print(json.dumps(run(file, system, pool, int(limit))))
        return
    cases = [("azure" if options.azure else "synthetic", options.azure, "paged", "memory")]
    if options.mooncake:
        cases += [("mooncake", options.mooncake, "paged", pool) for pool in ("memory", "unlimited")]
    print(f"{'run':26}{'requests':>9}{'tokens':>11}{'wall s':>8}{'cpu s':>8}{'MiB':>6}{'flat':>12}")
    rows = []
    for name, file, system, pool in cases:
        row = _child(file, system, pool, options.limit)
        tenth = _child(file, system, pool, row["requests"] // 10)
        rows.append({"workload": name, "system": system, "pool": pool, **row})
        print(
            f"{name + ', ' + pool:26}{row['requests']:9,}{row['generated_tokens']:11,}"
            f"{row['wall_seconds']:8.1f}{row['processor_seconds']:8.1f}{row['peak_mib']:6}"
            f"{tenth['peak_mib']:5} -> {row['peak_mib']}"
        )
        if name == "mooncake" and pool == "unlimited" and not options.limit:
            hits, references = _MOONCAKE_HITS
            assert row["hit_rate"] == hits / references, row["hit_rate"]
            print(f"names in memory: {hits:,} of {references:,} = {hits / references:.2%}, exact")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
