"""How long decode attention takes here, and how far that is from what the machine can do.

It owns the measurement: three sweeps (block size, sequences in the batch, context), one over heads
that share K and V, and the machine's two limits beside them: copying memory and multiplying
matrices. Everything takes turns, so that a slow moment of the machine falls on all of it. It knows
no engine; its values are `core.exec.decode_points`.
"""

import time
from collections.abc import Callable, Sequence

import torch

from core.exec.attention_sweep import Shape, prepared
from core.exec.build import num_threads, use_threads
from core.exec.decode_points import CASES, HEAD_DIM, HEADS, MODEL, Case, SpeedPoint, SpeedRun, Time
from core.machine import processor_name
from kernels.dispatch import choose_backend

__all__ = ["measure"]

_COPIED = 64 << 20  # bytes, past the processor's caches
_SIDE = 1024


def measure(
    tell: Callable[[float], None] = lambda share: None,
    *,
    cases: Sequence[Case] = CASES,
    repeats: int = 21,
    dtype: torch.dtype = torch.float32,
    copied: int = _COPIED,
    side: int = _SIDE,
    threads: int | None = None,
) -> SpeedRun:
    """Measures on this machine's processor.

    Args:
        tell: called with the share done, between 0 and 1.
        cases: what to measure; those of one sweep take turns.
        repeats: turns of each case.
        dtype: of K, V, the queries and the matrices.
        copied: bytes of the copy.
        side: of the matrices.
        threads: of this thread's torch from now on; None leaves them as they are.
    """
    if threads is not None:
        use_threads(threads)
    item = dtype.itemsize
    sweeps = list(dict.fromkeys(case.sweep for case in cases))
    turns: dict[str, list[float]] = {"copy": [], "matmul": []}
    points = []
    for number, sweep in enumerate(sweeps):
        mine = [case for case in cases if case.sweep == sweep]
        runs: dict[str, Callable[[], object]] = {**_limits(copied, side, dtype)}
        runs.update({str(place): _run(case, dtype) for place, case in enumerate(mine)})

        def told(share: float, before: int = number) -> None:
            tell((before + share) / len(sweeps))

        seconds = _in_turns(runs, repeats, told)
        for name in turns:
            turns[name].extend(seconds.pop(name))
        points += [
            SpeedPoint(case, Time.of(times), HEADS, HEAD_DIM, item)
            for case, times in zip(mine, seconds.values(), strict=True)
        ]
    return SpeedRun(
        tuple(points), Time.of(turns["copy"]), copied, Time.of(turns["matmul"]), side,
        str(dtype).removeprefix("torch."), processor_name(), num_threads(),
        str(torch.__version__), repeats, backend=choose_backend("auto", "cpu", dtype),
    )  # fmt: skip


def _in_turns(
    runs: dict[str, Callable[[], object]], repeats: int, tell: Callable[[float], None]
) -> dict[str, list[float]]:
    """Seconds of every turn; a first turn that isn't kept pays for memory and code."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
        tell((turn + 1) / repeats)
    return seconds


def _limits(copied: int, side: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """What the machine can do: copy memory, multiply matrices."""
    source, target = torch.ones(copied, dtype=torch.uint8), torch.zeros(copied, dtype=torch.uint8)
    left, right = (torch.randn(side, side).to(dtype) for _ in range(2))
    return {"copy": lambda: target.copy_(source), "matmul": lambda: left @ right}


def _run(case: Case, dtype: torch.dtype) -> Callable[[], object]:
    shape = Shape(MODEL, HEADS, case.num_kv_heads, HEAD_DIM)
    return prepared(case.block_size, case.num_seqs, case.context, shape, dtype)
