"""The GPU script: whole on a GPU, and without one the same code, tiny and interpreted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton isn't installed on this machine")

ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_dry_run_goes_through_every_part(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    done = run("--dry-run", "--output", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    assert result["machine"]["dry_run"] is True
    assert result["correctness"]["attention"]["checks"] > 0
    assert set(result["kernels"]["decode"][0]["kernels"]) == {
        "paged", "paged, blocks in order", "contiguous kernel", "torch sdpa, contiguous",
    }  # fmt: skip
    assert result["engine"]["tokens"]["backends"] == ["reference", "torch", "triton"]
    for way in ("eager", "cuda graphs", "fp8"):
        assert result["engine"][way]["generated_tokens"] == 12


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_script_says_so() -> None:
    done = run()
    assert done.returncode == 2
    assert "found no CUDA or ROCm device; --dry-run" in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_the_gpu_passes_every_part(tmp_path: Path) -> None:
    done = run("--output", str(tmp_path / "result.json"))
    assert done.returncode == 0, done.stdout + done.stderr
