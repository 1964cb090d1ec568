"""Finds the fastest settings of the attention kernels for a shape, by trying them all.

It runs only when someone calls `tune`, for half a minute or so, and writes what it found to a table
that later starts can read (`kernels.tuning.use_table`). Every candidate's result is compared with
the default's before its time counts. It measures on random data, blocks in random order.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels import dispatch, triton_paged, tuning
from kernels.triton_launch import architecture, interpreting
from kernels.tuning import Settings

__all__ = ["TuneShape", "measure", "tune"]

_Run = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class TuneShape:
    """What to tune for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    num_seqs: int = 16
    context: int = 2048
    new_tokens: int = 256
    dtype: torch.dtype = torch.bfloat16


def tune(
    path: Path,
    shape: TuneShape,
    *,
    device: torch.device | str = "cuda",
    candidates: dict[tuning.Kernel, list[Settings]] | None = None,
) -> dict[str, tuple[Settings, float]]:
    """The fastest settings of both kernels and their seconds; written to the table at `path`.

    Args:
        path: of the table, made or added to.
        shape: what to tune for.
        device: where.
        candidates: what to try; None is what usually matters.
    """
    best: dict[str, tuple[Settings, float]] = {}
    arch = architecture(torch.device(device))
    dtype = str(shape.dtype).removeprefix("torch.")
    for kernel in ("decode", "prefill"):
        key = tuning.key_of(kernel, dtype, shape.head_dim, shape.block_size, arch)
        run = _prepared(shape, 1 if kernel == "decode" else shape.new_tokens, device)
        tried = candidates[kernel] if candidates else list(_candidates(kernel))
        best[key] = _fastest(key, run, tried)
    tuning.write_table(path, {key: settings for key, (settings, _) in best.items()})
    return best


def measure(run: _Run, repeats: int = 20) -> float:
    """Median seconds of a call: GPU time where there is one, else the clock's."""
    run()
    if interpreting():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    times = []
    for _ in range(repeats):
        begin, end = _event(), _event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1000)
    return statistics.median(times)


def _event() -> Any:
    make: Any = torch.cuda.Event  # torch leaves it untyped
    return make(enable_timing=True)


def _fastest(key: str, run: _Run, candidates: list[Settings]) -> tuple[Settings, float]:
    """Tries each; one that the GPU has no room for, or that computes otherwise, is left out."""
    from triton.runtime.errors import OutOfResources

    tuning.use_settings(key, None)
    wanted = run().float()
    found: list[tuple[float, int]] = []
    for index, settings in enumerate(candidates):
        tuning.use_settings(key, settings)
        try:
            if torch.allclose(run().float(), wanted, atol=3e-2, rtol=3e-2):
                found.append((measure(run), index))
        except OutOfResources:
            continue
    if not found:
        raise ValueError(f"none of {len(candidates)} settings can run {key}")
    seconds, index = min(found)
    tuning.use_settings(key, candidates[index])
    return candidates[index], seconds


def _candidates(kernel: tuning.Kernel) -> Iterator[Settings]:
    for tile in (32, 64, 128):
        for warps in (4, 8):
            for stages in (2, 3, 4):
                if kernel == "prefill":
                    for rows in (64, 128):
                        yield Settings(tile, warps, stages, rows=rows)
                else:
                    for waves in (2, 4, 8):
                        yield Settings(tile, warps, stages, waves=waves)


def _prepared(shape: TuneShape, new_tokens: int, device: torch.device | str) -> _Run:
    each = -(-shape.context // shape.block_size)
    num_blocks = each * shape.num_seqs
    tables = torch.randperm(num_blocks).view(shape.num_seqs, each)
    first = shape.context - new_tokens
    positions = torch.arange(first, shape.context)
    slots = tables[:, positions // shape.block_size] * shape.block_size
    slots = slots + positions % shape.block_size  # [num_seqs, new_tokens]
    plan = dispatch.prepare(
        slots.flatten(), tables, [shape.context] * shape.num_seqs,
        [new_tokens] * shape.num_seqs, num_blocks=num_blocks, block_size=shape.block_size,
        backend="triton", device=device,
    )  # fmt: skip
    size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
    keys, values = (torch.randn(size, dtype=shape.dtype, device=device) for _ in range(2))
    query = torch.randn(
        slots.numel(), shape.num_heads, shape.head_dim, dtype=shape.dtype, device=device
    )
    step = plan.step
    assert step is not None  # the Triton backend makes one
    scale = shape.head_dim**-0.5
    return lambda: triton_paged.paged_attention(query, keys, values, step, scale)
