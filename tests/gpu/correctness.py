"""Every kernel against the reference on fresh random data, outputs poisoned before.

The seed comes from the clock and is in the result, so that a failure can be repeated.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kernels import dispatch, fp8, reference
from kernels.triton_launch import interpreting
from tests.kernels.steps import Step

_SECONDS = 50  # after which a group of checks begins no further one
_BOUNDS = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def run(dry_run: bool) -> dict[str, Any]:
    """The largest error of each group of checks; raises at the first that is wrong."""
    seed = int(time.time())
    device = "cpu" if dry_run else "cuda"
    rng = random.Random(seed)
    found: dict[str, Any] = {"seed": seed, "bounds": {str(d): b for d, b in _BOUNDS.items()}}
    groups: dict[str, Callable[[random.Random, str, bool], tuple[int, float]]] = {
        "attention": _attention, "fp8": _fp8, "mass": _mass, "write": _write, "moves": _moves,
    }  # fmt: skip
    for name, check in groups.items():
        with _poisoned():
            count, error = check(rng, device, dry_run)
        found[name] = {"checks": count, "largest_error": error}
        print(f"   {name}: {count} checks, largest error {error:.2e}", flush=True)
    return found


@contextmanager
def _poisoned() -> Iterator[None]:
    """New memory holds NaN: what a kernel doesn't write shows."""
    like, new = torch.empty_like, Tensor.new_empty

    def filled(fresh: Tensor) -> Tensor:
        return fresh.fill_(float("nan")) if fresh.is_floating_point() else fresh

    patched: Any = torch
    patched.empty_like = lambda *a, **k: filled(like(*a, **k))
    holder: Any = Tensor
    holder.new_empty = lambda *a, **k: filled(new(*a, **k))
    try:
        yield
    finally:
        patched.empty_like, holder.new_empty = like, new


def _steps(rng: random.Random, device: str, dry_run: bool) -> Iterator[tuple[Step, dict[str, Any]]]:
    """Random ragged batches over the grid of shapes."""
    dtypes = [torch.float32] if dry_run else list(_BOUNDS)
    sizes = [4] if dry_run else [1, 7, 16, 64, 256]
    ratios = [(2, 3)] if dry_run else [(1, 1), (8, 4), (3, 3), (1, 8)]
    dims = [16] if dry_run else [64, 80, 128, 256]
    longest = 12 if dry_run else 1500
    grid = list(product(dtypes, sizes, ratios, dims))
    rng.shuffle(grid)  # a kernel is compiled for each: the time allows a sample, a new one each run
    deadline = time.monotonic() + _SECONDS
    for dtype, block_size, (kv_heads, group), head_dim in grid:
        if time.monotonic() > deadline:
            return
        seq_lens = [1, rng.randint(1, 20), rng.randint(1, longest), rng.randint(1, longest)]
        q_lens = [rng.choice([1, 1, rng.randint(1, length)]) for length in seq_lens]
        step = Step(
            q_lens, seq_lens, block_size=block_size, num_kv_heads=kv_heads, group=group,
            head_dim=head_dim, dtype=dtype, seed=rng.randrange(1 << 30), device=device,
        )  # fmt: skip
        options = {
            "window": rng.choice([None, None, rng.randint(1, longest)]),
            "softcap": rng.choice([None, None, 5.0]),
        }
        yield step, options


def _attention(rng: random.Random, device: str, dry_run: bool) -> tuple[int, float]:
    worst, count = 0.0, 0
    for step, options in _steps(rng, device, dry_run):
        wanted, found = step.attend("reference", **options), step.attend("triton", **options)
        worst = max(worst, _compare(found, wanted, _BOUNDS[step.query.dtype]))
        count += 1
    return count, worst


def _fp8(rng: random.Random, device: str, dry_run: bool) -> tuple[int, float]:
    worst, count = 0.0, 0
    for step, options in _steps(rng, device, dry_run):
        step.to_fp8(per_head=rng.random() < 0.5)
        wanted, found = step.attend("reference", **options), step.attend("triton", **options)
        worst = max(worst, _compare(found, wanted, _BOUNDS[step.query.dtype]))
        count += 1
    return count, worst


def _mass(rng: random.Random, device: str, dry_run: bool) -> tuple[int, float]:
    worst, count = 0.0, 0
    for step, options in _steps(rng, device, dry_run):
        wanted, found = step.mass("reference", **options), step.mass("triton", **options)
        worst = max(worst, _compare(found, wanted, 1e-2))
        count += 1
    return count, worst


def _write(rng: random.Random, device: str, dry_run: bool) -> tuple[int, float]:
    """To the bit, in plain and in fp8 caches, with padding tokens."""
    count = 0
    for dtype, head_dim in product(_BOUNDS, [16] if dry_run else [64, 80, 128, 256]):
        tokens, heads = (5, 2) if dry_run else (300, 8)
        slots = torch.randperm(tokens * 2)[:tokens]
        slots[1] = -1
        value = (torch.randn(tokens, heads, head_dim) * 10 ** rng.uniform(-3, 3)).to(device, dtype)
        for kind in (dtype, fp8.FP8):
            scales = fp8.make_scales(value, value) if kind == fp8.FP8 else None
            shape = (tokens, 2, heads, head_dim)
            caches = [torch.zeros(shape, device=device).to(kind) for _ in range(4)]
            _store(value, caches[:2], slots.to(device), scales, "triton")
            _store(value, caches[2:], slots.to(device), scales, "reference")
            for found, wanted in zip(caches[:2], caches[2:], strict=True):
                if not torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)):
                    raise AssertionError(f"write_kv into {kind}, head_dim {head_dim}")
            count += 1
    return count, 0.0


def _store(
    value: Tensor,
    caches: list[Tensor],
    slots: Tensor,
    scales: fp8.KVScales | None,
    backend: dispatch.RealBackend,
) -> None:
    if backend == "reference":
        reference.write_kv(value, value, *caches, slots, scales)
    else:
        from kernels import triton_write

        triton_write.write_kv(value, value, *caches, slots, scales)


def _moves(rng: random.Random, device: str, dry_run: bool) -> tuple[int, float]:
    """Copies in one storage, and swaps to pinned host memory and back, to the bit."""
    shape = (4, 9, 4, 2, 16) if dry_run else (64, 200, 16, 8, 128)
    storage = torch.randn(shape, device=device).to(torch.bfloat16)
    wanted = storage.clone()
    pairs = [(rng.randrange(shape[1]), rng.randrange(shape[1])) for _ in range(6)]
    reference.copy_blocks(wanted, pairs)
    dispatch.copy_blocks(storage, pairs, backend="triton")
    if not torch.equal(storage, wanted):
        raise AssertionError(f"copy_blocks {pairs}")
    host = torch.zeros((shape[0], 5, *shape[2:]), dtype=torch.bfloat16)
    host = host if interpreting() else host.pin_memory()
    dispatch.move_blocks(storage, host, [(7, 0), (2, 3)], backend="triton")
    storage[:, 7] = storage[:, 2] = float("nan")
    dispatch.move_blocks(host, storage, [(0, 7), (3, 2)], backend="triton")
    if not torch.equal(storage, wanted):
        raise AssertionError("blocks came back changed from the host")
    return 2, 0.0


def _compare(found: Tensor, wanted: Tensor, bound: float) -> float:
    torch.testing.assert_close(found, wanted, atol=bound, rtol=bound)
    return float((found.float() - wanted.float()).abs().max())
