"""The kernels become machine code for four architectures, and fit their shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton isn't installed on this machine")

from tests.kernels import compiling

ROOT = Path(__file__).parents[2]


def test_every_kernel_compiles_for_every_target_within_its_shared_memory() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiling", *compiling.QUICK]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(compiling.QUICK) * len(compiling.TARGETS)
    for line in lines:
        facts = json.loads(line[line.index("{") :])
        assert facts["code_bytes"] > 0, line
        assert facts["shared_bytes"] <= facts["limit_bytes"], line


def test_the_record_holds_every_case_within_its_shared_memory() -> None:
    record = json.loads(compiling.RESULT.read_text())
    assert set(record["kernels"]) == set(compiling.CASES)
    assert set(record["versions"]) == {"torch", "triton"}
    for targets in record["kernels"].values():
        assert set(targets) == set(compiling.TARGETS)
        for facts in targets.values():
            assert facts["shared_bytes"] <= facts["limit_bytes"]


def test_paging_costs_the_decode_kernel_no_shared_memory() -> None:
    kernels = json.loads(compiling.RESULT.read_text())["kernels"]
    for arch in compiling.TARGETS:
        peer = kernels["contiguous decode, for comparison"][arch]
        assert kernels["decode"][arch]["shared_bytes"] == peer["shared_bytes"]
