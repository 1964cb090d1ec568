"""Decode attention over blocks: right first, then how much of the machine's bandwidth it reaches.

Before anything is timed, the CPU kernels must equal the reference on fresh random data, with every
slot that no token was written to and every output poisoned. Then one layer's decode, in compiled
loops that read blocks where they lie and in torch's operators that gather them, takes turns with
fused attention over the same contexts lying contiguously, and with a plain copy of memory. Bytes
are derived from the shapes (K and V of every context, read once); times are measured. On a GPU the
Triton kernels have their own command, `python -m tests.gpu` in the source tree.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from core.bench.report import Report, Row, Spread, in_turns, machine
from core.errors import BenchError
from core.exec.build import num_threads
from kernels import dispatch

__all__ = ["CASES", "DecodeCase", "bench_kernels", "check_kernels"]

_COPIED = 64 << 20
_SECONDS = 0.01  # of one turn, at least
# What the backends may differ: both round, and in another order.
_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """One layer's decode attention; SmolLM2-135M's heads by default."""

    num_seqs: int
    context: int
    block_size: int = 16
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.num_seqs} x {self.context:,} tokens, blocks of {self.block_size}"

    def bytes_read(self, item: int) -> int:
        """K and V of all contexts, each read once."""
        return 2 * self.num_seqs * self.context * self.num_kv_heads * self.head_dim * item


CASES = (
    DecodeCase(1, 4096),
    DecodeCase(16, 128),
    DecodeCase(8, 1024),
    DecodeCase(8, 1024, block_size=1),
    DecodeCase(8, 1024, block_size=128),
    DecodeCase(32, 1024),
)


def bench_kernels(
    *,
    cases: Sequence[DecodeCase] = CASES,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    turns: int = 15,
    copied: int = _COPIED,
    command: str = "",
    notes: Sequence[str] = (),
    tell: Callable[[float], None] = lambda done: None,
) -> Report:
    """Checks, then measures every case in every dtype.

    Args:
        cases: what to measure.
        dtypes: of K, V and the queries.
        turns: of each way and case.
        copied: bytes of the plain copy.
        command: repeats it.
        notes: sentences that belong beside the figures.
        tell: called with the share done.

    Raises:
        BenchError: the kernels differ from the reference.
    """
    for dtype in dtypes:
        check_kernels(dtype)
    backends = _backends(dtypes)
    source = torch.ones(copied, dtype=torch.uint8)
    target = torch.zeros_like(source)
    rows = []
    for number, (case, dtype) in enumerate((c, d) for c in cases for d in dtypes):
        size = case.bytes_read(dtype.itemsize)
        ways = {name: _rate(run, size) for name, run in _runs(case, dtype, backends).items()}
        ways["copy of memory"] = _rate(lambda: target.copy_(source), 2 * copied)

        def told(share: float, before: int = number) -> None:
            tell((before + share) / (len(cases) * len(dtypes)))

        figures = {way: Spread.of(rates) for way, rates in in_turns(ways, turns, told).items()}
        rows.append(Row(f"{case.name}, {_name(dtype)}", "GB/s", "more", figures))
    return Report(
        "kernels", command, machine("torch", "numba"),
        {"device": "cpu", "threads": num_threads(), "turns": turns},
        (*map(_way, backends), "torch, contiguous", "copy of memory"), tuple(rows),
        (
            f"Before: equal to the reference on random data, {', '.join(map(_name, dtypes))}, "
            "unwritten slots poisoned.",
            "Bytes are derived: K and V read once; a copy reads and writes. Times are measured.",
            *notes,
        ),
    )  # fmt: skip


def check_kernels(dtype: torch.dtype, seed: int | None = None) -> None:
    """Compares a ragged step of prefills and decodes with the reference.

    Args:
        dtype: of K, V and the queries.
        seed: None takes fresh data.

    Raises:
        BenchError: a number differs, or comes from a slot that nobody wrote.
    """
    rng = random.Random(seed)
    for block_size, window in ((1, None), (7, 20), (16, None), (32, None)):
        lengths = [rng.randint(1, 150) for _ in range(6)]
        news = [rng.choice((1, length, rng.randint(1, length))) for length in lengths]
        data = rng.randrange(1 << 30)
        wanted, *found = (
            _attend(backend, lengths, news, block_size, window, dtype, data).float()
            for backend in ("reference", *_backends([dtype]))
        )
        for output in found:
            error = (output - wanted).norm() / wanted.norm()
            if not bool(error <= _BOUNDS[dtype]):  # also when it is not a number
                raise BenchError("bench_kernel", dtype=_name(dtype), error=f"{float(error):.2g}")


def _backends(dtypes: Sequence[torch.dtype]) -> tuple[dispatch.RealBackend, ...]:
    """The CPU's, the engine's choice first."""
    return ("numba", "torch") if all(map(dispatch.has_compiled, dtypes)) else ("torch",)


def _way(backend: dispatch.RealBackend) -> str:
    return "glassblock, compiled" if backend == "numba" else "glassblock, torch"


def _attend(
    backend: dispatch.Backend,
    lengths: list[int],
    news: list[int],
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> Tensor:
    """One step's attention; slots that no token is written to hold no number."""
    noise = torch.Generator().manual_seed(seed)
    tables, num_blocks = _tables(lengths, block_size, seed)
    caches = [
        torch.full((num_blocks, block_size, 3, 64), float("nan"), dtype=dtype) for _ in range(2)
    ]
    for row, length in zip(tables.tolist(), lengths, strict=True):
        slots = [row[i // block_size] * block_size + i % block_size for i in range(length)]
        for cache in caches:
            cache.flatten(0, 1)[slots] = torch.randn(length, 3, 64, generator=noise).to(dtype)
    slot_mapping = torch.tensor([
        row[i // block_size] * block_size + i % block_size
        for row, length, new in zip(tables.tolist(), lengths, news, strict=True)
        for i in range(length - new, length)
    ])  # fmt: skip
    plan = dispatch.prepare(
        slot_mapping, tables, lengths, news,
        num_blocks=num_blocks, block_size=block_size, backend=backend,
    )  # fmt: skip
    query = torch.randn(sum(news), 9, 64, generator=noise).to(dtype)
    return dispatch.paged_attention(query, caches[0], caches[1], plan, 0.125, window)


def _tables(lengths: list[int], block_size: int, seed: int) -> tuple[Tensor, int]:
    """Shuffled blocks for every sequence, padded with its own first one; and how many there are."""
    counts = [-(-length // block_size) for length in lengths]
    ids = list(range(sum(counts) + 3))
    random.Random(seed).shuffle(ids)
    rows = []
    for count in counts:
        mine, ids = ids[:count], ids[count:]
        rows.append(mine + [mine[0]] * (max(counts) - count))
    return torch.tensor(rows), sum(counts) + 3


def _runs(
    case: DecodeCase, dtype: torch.dtype, backends: Sequence[dispatch.RealBackend]
) -> dict[str, Callable[[], object]]:
    """One layer's decode over blocks, and over contiguous contexts; index work is done before."""
    lengths = [case.context] * case.num_seqs
    tables, num_blocks = _tables(lengths, case.block_size, 0)
    shape = num_blocks, case.block_size, case.num_kv_heads, case.head_dim
    keys, values = (torch.randn(shape).to(dtype) for _ in range(2))
    last = case.context - 1
    slots = tables[:, last // case.block_size] * case.block_size + last % case.block_size
    query = torch.randn(case.num_seqs, case.num_heads, case.head_dim).to(dtype)
    scale = case.head_dim**-0.5

    def paged(backend: dispatch.RealBackend) -> Callable[[], object]:
        plan = dispatch.prepare(
            slots, tables, lengths, [1] * case.num_seqs,
            num_blocks=num_blocks, block_size=case.block_size, backend=backend,
        )  # fmt: skip
        return lambda: dispatch.paged_attention(query, keys, values, plan, scale)

    per_kv = case.num_heads // case.num_kv_heads
    grouped = query.view(case.num_seqs, case.num_kv_heads, per_kv, case.head_dim)
    dense = [
        torch.randn(case.num_seqs, case.num_kv_heads, case.context, case.head_dim).to(dtype)
        for _ in range(2)
    ]
    return {_way(backend): paged(backend) for backend in backends} | {
        "torch, contiguous": lambda: F.scaled_dot_product_attention(
            grouped, dense[0], dense[1], scale=scale
        )
    }


def _rate(run: Callable[[], object], size: int) -> Callable[[], float]:
    """Gigabytes a second of one turn, which is as many calls as fill a short time."""

    def turn() -> float:
        calls, start = 0, time.perf_counter()
        with torch.inference_mode():
            while calls < 1 or time.perf_counter() - start < _SECONDS:
                run()
                calls += 1
        return size * calls / (time.perf_counter() - start) / 1e9

    run()  # pays for memory and code that later ones find
    return turn


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
