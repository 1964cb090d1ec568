"""The Triton decode kernel in Triton's interpreter against the plain reference, small shapes.

It shows that the kernel is right where there is no GPU. It says nothing of speed: the interpreter
is a Python program that walks through the kernel. Triton asks for the interpreter when a kernel is
defined, so the check runs in a process of its own: `run` starts it, `python -m` of this module is
it. It prints one JSON object.
"""

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from core.errors import GlassblockError

__all__ = ["Check", "check", "run"]

_ROOT = Path(__file__).parents[2]
_TICK, _PATIENCE = 0.2, 180.0
_LENGTHS = (1, 15, 40, 33)
# block size, query heads, KV heads, head_dim: whole groups, a head_dim that is no power of two.
_CASES = ((1, 4, 2, 16), (4, 9, 3, 64), (16, 4, 4, 80), (16, 8, 1, 64), (256, 6, 2, 32))
_TOLERANCE = 2e-5


@dataclass(frozen=True, slots=True)
class Check:
    """One shape's check: the largest difference of any number from the reference's."""

    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    lengths: tuple[int, ...]
    difference: float
    tolerance: float
    seconds: float

    @property
    def is_right(self) -> bool:
        """Within the tolerance; not a number is wrong."""
        return self.difference <= self.tolerance


def run(tell: Callable[[float], None] = lambda share: None) -> tuple[Check, ...]:
    """Checks in a fresh process.

    Args:
        tell: called again and again; what it raises ends the process.

    Raises:
        GlassblockError: Triton isn't installed, or the process failed.
    """
    if importlib.util.find_spec("triton") is None:
        raise GlassblockError("interpreter_missing")
    places = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(places)}
    process = subprocess.Popen(
        [sys.executable, "-m", "core.exec.interpreter_check"], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    begun = time.monotonic()
    try:
        while True:
            try:
                out, faults = process.communicate(timeout=_TICK)
                break
            except subprocess.TimeoutExpired:
                passed = time.monotonic() - begun
                if passed > _PATIENCE:
                    raise GlassblockError("interpreter_failed", detail="timeout") from None
                tell(min(0.95, passed / (passed + 5)))  # nobody knows how long it takes
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        detail = (faults.strip().splitlines() or ["?"])[-1][:200]
        raise GlassblockError("interpreter_failed", detail=detail)
    return tuple(Check(**{**c, "lengths": tuple(c["lengths"])}) for c in json.loads(out))


def check() -> list[Check]:
    """The checks themselves, in this process; TRITON_INTERPRET=1 must have been set before."""
    return [_one(*case) for case in _CASES]


def _one(block_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> Check:
    import torch

    from kernels import dispatch

    counts = [-(-length // block_size) for length in _LENGTHS]
    ids = random.Random(0).sample(range(sum(counts)), sum(counts))
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int64)  # [num_seqs, max_blocks]
    for row, count in zip(tables, counts, strict=True):
        row[:count] = torch.tensor([ids.pop() for _ in range(count)])
    last = torch.tensor(_LENGTHS) - 1
    slots = tables[torch.arange(len(counts)), last // block_size] * block_size + last % block_size
    generator = torch.Generator().manual_seed(0)
    cache = (sum(counts), block_size, num_kv_heads, head_dim)
    key, value = (torch.randn(cache, generator=generator) for _ in range(2))
    query = torch.randn(len(counts), num_heads, head_dim, generator=generator)
    outputs, seconds = [], 0.0
    for backend in ("reference", "triton"):
        plan = dispatch.prepare(
            slots, tables, _LENGTHS, [1] * len(counts), num_blocks=sum(counts),
            block_size=block_size, backend=backend,
        )  # fmt: skip
        start = time.perf_counter()
        outputs.append(dispatch.paged_attention(query, key, value, plan, head_dim**-0.5))
        seconds = time.perf_counter() - start
    difference = float((outputs[0] - outputs[1]).abs().max())
    return Check(
        block_size, num_heads, num_kv_heads, head_dim, _LENGTHS, difference, _TOLERANCE, seconds
    )


if __name__ == "__main__":
    print(json.dumps([asdict(one) for one in check()]))
