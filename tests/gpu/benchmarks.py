"""How close decode attention comes to the memory's speed, and what paging costs.

In one run: a device copy (the most that this memory gives), our kernel over shuffled blocks, the
same kernel over blocks in order, a kernel of the same kind over contiguous memory, and torch's own
attention over contiguous memory. Results are compared before anything is timed. Each figure is the
median of many calls, with the 10th and 90th percentile; the cache is flushed before each call.
Calls are replayed from a CUDA graph: what is measured is the GPU's work, not Python's.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from core.exec.cuda_graphs import capture_on_gpu
from kernels import dispatch, triton_paged, tuning
from kernels.triton_launch import architecture, interpreting
from tests.gpu.contiguous import contiguous_decode


@dataclass(frozen=True, slots=True)
class Case:
    """One decode step's attention in one layer."""

    num_seqs: int
    context: int
    block_size: int = 16
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16

    @property
    def read_bytes(self) -> int:
        """K and V of all contexts, the queries and the result."""
        kv = 2 * self.num_seqs * self.context * self.num_kv_heads * self.head_dim
        return (kv + 2 * self.num_seqs * self.num_heads * self.head_dim) * self.dtype.itemsize


_SECONDS = 180  # after which no further case begins
CASES = [
    *(Case(seqs, 4096) for seqs in (1, 4, 16, 64, 256)),
    *(Case(64, context) for context in (256, 1024, 16384)),
    Case(1, 131072),
    Case(8, 32768),
    *(Case(64, 4096, block_size=size) for size in (1, 8, 32, 64, 256)),
    Case(64, 4096, num_heads=9, num_kv_heads=3, head_dim=64),
    Case(64, 4096, num_heads=32, num_kv_heads=32),
]
_TINY = [Case(2, 40, 4, 4, 2, 16, torch.float32)]


def run(dry_run: bool) -> dict[str, Any]:
    """The copy's bandwidth and every case's times and bandwidths."""
    device = "cpu" if dry_run else "cuda"
    copied = _copy_bandwidth(device, 1 << 20 if dry_run else 2 << 30)
    print(f"   device copy: {copied['gb_per_s']['median']:.0f} GB/s", flush=True)
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + _SECONDS
    for case in _TINY if dry_run else CASES:
        if time.monotonic() > deadline:
            print(f"   {case}: left out, the time is up", flush=True)
            continue
        try:
            row = _case(case, device, copied["gb_per_s"]["median"])
        except torch.OutOfMemoryError:
            print(f"   {case}: left out, this GPU has too little memory", flush=True)
            continue
        rows.append(row)
        shares = ", ".join(f"{k} {v['share_of_copy']:.2f}" for k, v in row["kernels"].items())
        print(f"   {row['shape']}: {shares}", flush=True)
    return {"copy": copied, "decode": rows}


def timed(run: Callable[[], object], device: str, flush: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of a call: median, 10th and 90th percentile."""
    for _ in range(3 if device == "cuda" else 0):
        run()
    times = []
    for _ in range(repeats):
        flush.zero_()  # so that no call finds its data in the cache
        if device == "cuda":
            make = cast(Any, torch.cuda.Event)
            begin, end = make(enable_timing=True), make(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        else:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    times.sort()
    return {
        "median": statistics.median(times),
        "p10": times[len(times) // 10],
        "p90": times[(9 * len(times)) // 10],
    }


def _copy_bandwidth(device: str, size: int) -> dict[str, Any]:
    """A copy reads and writes: both count."""
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    seconds = timed(lambda: target.copy_(source), device, _flush(device), _repeats(device))
    rate = {k: 2 * size / v / 1e9 for k, v in seconds.items()}
    return {"bytes": size, "seconds": seconds, "gb_per_s": rate}


def _case(case: Case, device: str, copy_rate: float) -> dict[str, Any]:
    runs, splits = _runs(case, device)
    wanted = runs["torch sdpa, contiguous"]()
    bound = 1e-4 if case.dtype == torch.float32 else 2e-2
    for name, call in runs.items():
        torch.testing.assert_close(call(), wanted, atol=bound, rtol=bound, msg=name)
    kernels = {}
    flush = _flush(device)
    for name, call in runs.items():
        replayed = capture_on_gpu()(call) if device == "cuda" else call
        seconds = timed(replayed, device, flush, _repeats(device))
        rate = case.read_bytes / seconds["median"] / 1e9
        kernels[name] = {
            "seconds": seconds,
            "gb_per_s": rate,
            "share_of_copy": rate / copy_rate,
        }
    shape = {
        "num_seqs": case.num_seqs, "context": case.context, "block_size": case.block_size,
        "num_heads": case.num_heads, "num_kv_heads": case.num_kv_heads,
        "head_dim": case.head_dim, "dtype": str(case.dtype).removeprefix("torch."),
    }  # fmt: skip
    return {"shape": shape, "splits": splits, "bytes": case.read_bytes, "kernels": kernels}


def _runs(case: Case, device: str) -> tuple[dict[str, Callable[[], Tensor]], int]:
    """The kernels on the same numbers, and the shares of a context."""
    torch.manual_seed(time.time_ns() % (1 << 31))
    each = -(-case.context // case.block_size)
    blocks = each * case.num_seqs
    size = (blocks, case.block_size, case.num_kv_heads, case.head_dim)
    keys, values = (torch.randn(size, device=device).to(case.dtype) for _ in range(2))
    query = torch.randn(case.num_seqs, case.num_heads, case.head_dim, device=device).to(case.dtype)
    scale = case.head_dim**-0.5
    ordered = torch.arange(blocks).view(case.num_seqs, each)
    shuffle = torch.randperm(blocks)
    places = shuffle.to(device)
    mixed = [torch.empty_like(item).index_copy_(0, places, item) for item in (keys, values)]
    plain = [_contiguous(item, case) for item in (keys, values)]
    in_order, shuffled = _plan(case, ordered, device), _plan(case, shuffle[ordered], device)
    step = shuffled.step
    assert step is not None
    splits = triton_paged.num_splits(query, keys, step)
    dtype = str(case.dtype).removeprefix("torch.")
    settings = tuning.settings_for(
        "decode", dtype, case.head_dim, case.block_size, architecture(query.device)
    )

    def sdpa() -> Tensor:
        k, v = (item.transpose(1, 2) for item in plain)  # [B, KV heads, context, head_dim]
        out = F.scaled_dot_product_attention(query[:, :, None], k, v, scale=scale, enable_gqa=True)
        return out[:, :, 0]

    return {
        "paged": lambda: dispatch.paged_attention(query, *mixed, shuffled, scale),
        "paged, blocks in order": lambda: dispatch.paged_attention(
            query, keys, values, in_order, scale
        ),
        "contiguous kernel": lambda: contiguous_decode(query, *plain, settings, splits, scale),
        "torch sdpa, contiguous": sdpa,
    }, splits


def _contiguous(cache: Tensor, case: Case) -> Tensor:
    """`[num_seqs, context, num_kv_heads, head_dim]` of the cache with its blocks in order."""
    rows = cache.view(case.num_seqs, -1, *cache.shape[2:])
    return rows[:, : case.context].contiguous()


def _plan(case: Case, tables: Tensor, device: str) -> dispatch.KernelPlan:
    last = case.context - 1
    slots = tables[:, last // case.block_size] * case.block_size + last % case.block_size
    return dispatch.prepare(
        slots, tables, [case.context] * case.num_seqs, [1] * case.num_seqs,
        num_blocks=tables.numel(), block_size=case.block_size, backend="triton", device=device,
    )  # fmt: skip


def _flush(device: str) -> Tensor:
    return torch.zeros(1 if device == "cpu" else 64 << 20, dtype=torch.int32, device=device)


def _repeats(device: str) -> int:
    return 1 if interpreting() or device == "cpu" else 30
