"""How fast workloads go through the simulator, and how much memory that takes.

Each run is a process of its own: wall and processor seconds of the simulation alone (reading the
file apart), and the process's peak memory. A run over the first tenth of the requests stands
beside it: memory that grew with history would show. Without files, a synthetic workload. The
Mooncake run with an unlimited pool checks the one figure that is exact, its share of prefix names
in memory. It has no peer: another simulator would simulate something else.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core.bench.report import Report, Row, Spread, machine
from core.capacity.hardware import HARDWARE
from core.capacity.shapes import SHAPES, kv_memory
from core.errors import BenchError, GlassblockError
from core.exec.cost_model import CostModel
from core.workload.loading import load_workload
from core.workload.simulate import Simulation
from core.workload.synthetic import Recipe, make
from core.workload.systems import system_config

__all__ = ["bench_simulate", "run"]

_ROOT = Path(__file__).parents[1]
_SYNTHETIC = 20_000
_MOONCAKE_HITS = 105_710, 288_500


def run(file: str, system: str, pool: str, limit: int) -> dict[str, Any]:
    """One simulation in this process."""
    read_at = time.perf_counter()
    workload = load_workload(file) if file else make(Recipe(count=limit or _SYNTHETIC, rate=6))
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
        "peak_mib": _peak_mib(),
        "hit_rate": total.hit_rate,
        "preemptions": total.preemptions,
    }


def bench_simulate(
    *,
    azure: str = "",
    mooncake: str = "",
    limit: int = 0,
    turns: int = 1,
    command: str = "",
    notes: Sequence[str] = (),
    tell: Callable[[float], None] = lambda done: None,
) -> Report:
    """Simulates every workload that is there.

    Args:
        azure: the Azure conversation trace; a synthetic workload where it is missing.
        mooncake: the Mooncake conversation trace; left out where it is missing.
        limit: only so many requests; 0 is all.
        turns: of each run.
        command: repeats it.
        notes: sentences that belong beside the figures.
        tell: called with the share done.

    Raises:
        BenchError: a simulation ended with an error, or a figure that must be exact is not.
    """
    cases = [("azure" if azure else "synthetic", azure, "memory")]
    if mooncake:
        cases += [("mooncake", mooncake, pool) for pool in ("memory", "unlimited")]
    rows: list[Row] = []
    words = ["Simulated time is modelled (llama-3.1-8b on an A100 with 80 GB); seconds and memory "
             "here are measured."]  # fmt: skip
    for number, (name, file, pool) in enumerate(cases):
        runs = [_child(file, pool, limit) for _ in range(turns)]
        tenth = _child(file, pool, max(1, runs[0]["requests"] // 10))
        if name == "mooncake" and pool == "unlimited" and not limit:
            _check_hits(runs[0]["hit_rate"])
            words.append("Mooncake, unlimited: the hit rate is exactly the trace's share of names.")
        rows += _rows(f"{name}, {pool}", runs, tenth)
        tell((number + 1) / len(cases))
    return Report(
        "simulate", command, machine("numpy"), {"system": "paged", "turns": turns},
        ("glassblock", "its first tenth"), tuple(rows), (*words, *notes),
    )  # fmt: skip


def _rows(title: str, runs: list[dict[str, Any]], tenth: dict[str, Any]) -> list[Row]:
    def row(name: str, unit: str, key: str) -> Row:
        figures = {
            "glassblock": Spread.of([float(run[key]) for run in runs]),
            "its first tenth": Spread.of([float(tenth[key])]),
        }
        return Row(f"{title}: {name}", unit, "", figures)

    return [
        row("requests", "in all", "requests"),
        row("tokens", "in all", "generated_tokens"),
        row("on the wall", "s", "wall_seconds"),
        row("processor", "s", "processor_seconds"),
        row("peak memory", "MiB", "peak_mib"),
    ]


def _check_hits(rate: float) -> None:
    hits, references = _MOONCAKE_HITS
    if rate != hits / references:
        raise BenchError("bench_hits", rate=rate, hits=hits, references=references)


def _peak_mib() -> int:
    """The most memory that the process has held; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, KiB elsewhere


def _child(file: str, pool: str, limit: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "app.bench_simulate", file, "paged", pool, str(limit)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        detail = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise BenchError("bench_simulation", file=Path(file).name or "synthetic", detail=detail)
    plain: dict[str, Any] = json.loads(done.stdout)
    return plain


if __name__ == "__main__":
    _file, _system, _pool, _limit = sys.argv[1:]
    try:
        print(json.dumps(run(_file, _system, _pool, int(_limit))))
    except GlassblockError as fault:
        sys.exit(fault.sentence())
