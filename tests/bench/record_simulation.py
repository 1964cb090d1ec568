"""Makes the result that the Simulate page opens with: 400 ShareGPT-like requests, four memories.

python -m tests.bench.record_simulation --out assets/results/simulate_sharegpt.json
"""

import argparse
from dataclasses import replace
from pathlib import Path

from app.sim_command import simulate_command
from app.sim_runs import Limits, Part, Plan, start
from core.capacity.hardware import find_hardware
from core.capacity.shapes import find_shape
from core.config import EngineConfig
from core.exec.cost_model import CostModel
from core.workload import synthetic
from core.workload.systems import system_config

_SLOTS = 15_729  # 12 GiB of 819,200 bytes: the paper's memory for OPT-13B
_SYSTEMS = ("paged", "orca-max", "orca-pow2", "orca-oracle")
_SHARES = (1 / 4, 1 / 2, 1, 2)


def main() -> None:
    """Simulates and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    workload = synthetic.make(replace(synthetic.PRESETS["sharegpt"], count=400), "ShareGPT-like")
    cost = CostModel(find_hardware("a100-40gb"), find_shape("opt-13b"))
    parts = [Part(name, _config(name, _SLOTS), command=_command(name)) for name in _SYSTEMS]
    parts += [
        Part(system, _config(system, round(_SLOTS * share)), is_pool=True)
        for system in _SYSTEMS
        for share in _SHARES
    ]
    job = start(Plan(workload, cost, tuple(parts)), Limits(seconds=3600, unseen=3600))
    job.wait()
    found = job.result()
    assert job.state == "done" and found is not None, job.fault
    command = f"python -m tests.bench.record_simulation --out {out}"
    text = replace(found, workload="ShareGPT-like, 2/s", command=command).to_json()
    out.write_text(text + "\n", encoding="utf-8")
    for result in found.results:
        summary = result.summary
        print(f"{result.system:12} {summary.mean_running:6.2f} {summary.breakdown}")
    print(f"{out}: {len(text):,} bytes, {job.progress.seconds:.1f} s")


def _config(system: str, slots: int) -> EngineConfig:
    return system_config(system, num_slots=slots, max_model_len=2048)


def _command(system: str) -> str:
    """What makes one of these runs by itself."""
    return simulate_command(
        {
            "workload": "synthetic", "preset": "sharegpt", "requests": 400,
            "hardware": "a100-40gb", "model_shape": "opt-13b", "num_slots": _SLOTS,
            "max_model_len": 2048, "system": system,
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
