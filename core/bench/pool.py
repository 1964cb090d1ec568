"""How long the block pool, the manager and the scheduler take for one operation, beside peers.

It owns the operations of ours and of the naive list; `core.bench.vllm_peer` owns vLLM's. Each way
does the same work on the same data in the same process, and the ways take turns. Nothing is
recorded: vLLM keeps no trace either.
"""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

from core.bench.naive import NaivePool
from core.bench.report import Report, Row, Spread, in_turns, machine
from core.bench.vllm_peer import VllmPeer, find_vllm
from core.cache.block_pool import BlockPool
from core.cache.interface import NO_MATCH
from core.cache.manager import BlockManager
from core.config import EngineConfig
from core.request import Request, SamplingParams, Sequence
from core.sched.output import Sampled, StepResult
from core.sched.scheduler import Scheduler
from core.sched.update import StepUpdate

__all__ = ["BLOCKS", "OPERATIONS", "bench_pool"]

BLOCKS = 10_000
_RUNNING = 64
_HASH = b"a block's content"

# Does an operation so many times; seconds of all of them.
Operation = Callable[[int], float]

# name: how often it is done in a turn
OPERATIONS = {
    "pool: allocate and release 1 block": 5_000,
    "pool: allocate and release 8 blocks": 2_000,
    "pool: prefix hit and release": 5_000,
    "pool: fork 8 blocks and release": 2_000,
    "manager: admit 100 tokens cold, free": 500,
    "manager: admit with 96 cached, free": 500,
    "manager: append a token": 4_000,
    "scheduler: schedule 64 decodes": 40,
    "scheduler: schedule and update 64": 40,
}


def bench_pool(
    *,
    turns: int = 15,
    share: float = 1.0,
    command: str = "",
    notes: SequenceOf[str] = (),
    tell: Callable[[float], None] = lambda done: None,
) -> Report:
    """Measures every operation.

    Args:
        turns: of each way and operation.
        share: of the usual number of operations in a turn.
        command: repeats it.
        notes: sentences that belong beside the figures.
        tell: called with the share done.
    """
    peer, reason = find_vllm(BLOCKS)
    ways: dict[str, Mapping[str, Operation]] = {"glassblock": _OURS}
    if peer is not None:
        ways[f"vLLM {peer.version}"] = _vllm(peer)
    ways["naive list"] = _NAIVE
    rows = []
    for number, (name, usual) in enumerate(OPERATIONS.items()):
        count = max(3, round(usual * share))
        mine = {way: _once(table[name], count) for way, table in ways.items() if name in table}

        def told(done: float, before: int = number) -> None:
            tell((before + done) / len(OPERATIONS))

        found = in_turns(mine, turns, told)
        figures = {way: Spread.of(values) for way, values in found.items()}
        rows.append(Row(name, "us", "less", figures))
    told_by = [f"vLLM's own manager was not measured: {reason}."] if peer is None else [
        "vLLM hashes a prompt when its request is made, which is not timed; ours is hashed by the "
        "lookup, which is. It has no fork: one more holder of the same blocks stands for one.",
    ]  # fmt: skip
    settings = {"blocks": BLOCKS, "block size": 16, "turns": turns, "share": share}
    return Report(
        "pool", command, machine("vllm"), settings, tuple(ways), tuple(rows), (*told_by, *notes)
    )


def _once(operation: Operation, count: int) -> Callable[[], float]:
    """Microseconds of one operation."""
    return lambda: operation(count) / count * 1e6


# ----------------------------------------------------------------------- ours


def _take(blocks: int) -> Operation:
    def run(count: int) -> float:
        pool = BlockPool(BLOCKS, null_block=True)
        started = time.perf_counter()
        for _ in range(count):
            taken, _ = pool.take(blocks)
            pool.release(taken)
        return time.perf_counter() - started

    return run


def _hit(count: int) -> float:
    pool = BlockPool(BLOCKS, null_block=True)
    taken, _ = pool.take(1)
    pool.seal(taken[0], _HASH)
    pool.release(taken)
    started = time.perf_counter()
    for _ in range(count):
        found = pool.find(_HASH)
        assert found is not None
        pool.touch((found,))
        pool.release((found,))
    return time.perf_counter() - started


def _fork(count: int) -> float:
    pool = BlockPool(BLOCKS, null_block=True)
    taken, _ = pool.take(8)
    started = time.perf_counter()
    for _ in range(count):
        pool.touch(taken)
        pool.release(taken)
    return time.perf_counter() - started


def _manager() -> BlockManager:
    return BlockManager(EngineConfig(num_blocks=BLOCKS, max_num_batched_tokens=8192))


def _sequence(name: str, tokens: list[int]) -> Sequence:
    return Request.make(name, tokens, SamplingParams(max_tokens=100_000)).sequences[0]


def _admit(manager: BlockManager, seq: Sequence) -> None:
    match = manager.find_prefix(seq)
    manager.allocate_slots(seq, 100 - match.tokens, match or NO_MATCH)
    manager.release(seq)


def _admit_cold(count: int) -> float:
    manager = _manager()
    seqs = [_sequence(str(n), list(range(100 * n, 100 * n + 100))) for n in range(count)]
    started = time.perf_counter()
    for seq in seqs:
        _admit(manager, seq)
    return time.perf_counter() - started


def _admit_hit(count: int) -> float:
    manager = _manager()
    seqs = [_sequence(str(n), [*range(96), n, n, n, n]) for n in range(count + 1)]
    _admit(manager, seqs[0])
    started = time.perf_counter()
    for seq in seqs[1:]:
        _admit(manager, seq)
    return time.perf_counter() - started


def _append(count: int) -> float:
    manager = _manager()
    seq = _sequence("a", list(range(100)))
    manager.allocate_slots(seq, 100)
    seq.num_computed_tokens = 100
    started = time.perf_counter()
    for token in range(count):
        seq.token_ids.append(token)
        manager.allocate_slots(seq, 1)
        seq.num_computed_tokens += 1
        manager.seal_written(seq)
    return time.perf_counter() - started


def _steps(*, update: bool) -> Operation:
    def run(count: int) -> float:
        config = EngineConfig(num_blocks=BLOCKS, max_num_seqs=_RUNNING, max_num_batched_tokens=8192)
        scheduler = Scheduler(config, BlockManager(config))
        after = StepUpdate(scheduler, None, _NoText(), ())
        for number in range(_RUNNING):
            params = SamplingParams(max_tokens=100_000)
            scheduler.add(Request.make(str(number), [number] * 100, params))
        total, answer = 0.0, (Sampled(7, 0.0),)
        for step in range(count + 2):  # the first two are prefills
            started = time.perf_counter()
            output = scheduler.schedule()
            middle = time.perf_counter()
            after.apply(output, StepResult({i.seq.seq_id: answer for i in output.scheduled}))
            ended = time.perf_counter() if update else middle
            total += ended - started if step > 1 else 0.0
        return total

    return run


class _NoText:
    """A token without text."""

    def push(self, seq: Sequence, token_id: int) -> str:
        return ""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        pass

    def drop(self, seq: Sequence) -> str:
        return ""


_OURS: dict[str, Operation] = dict(
    zip(
        OPERATIONS,
        (
            _take(1), _take(8), _hit, _fork, _admit_cold, _admit_hit, _append,
            _steps(update=False), _steps(update=True),
        ),
        strict=True,
    )
)  # fmt: skip


# ---------------------------------------------------------------------- peers


def _naive_take(blocks: int) -> Operation:
    def run(count: int) -> float:
        pool = NaivePool(BLOCKS, null_block=True)
        started = time.perf_counter()
        for _ in range(count):
            ids, _ = pool.take(blocks)
            pool.release(ids)
        return time.perf_counter() - started

    return run


def _naive_hit(count: int) -> float:
    pool = NaivePool(BLOCKS, null_block=True)
    ids, _ = pool.take(1)
    pool.seal(ids[0], _HASH)
    pool.release(ids)
    started = time.perf_counter()
    for _ in range(count):
        found = pool.find(_HASH)
        assert found is not None
        pool.touch([found])
        pool.release([found])
    return time.perf_counter() - started


def _naive_fork(count: int) -> float:
    pool = NaivePool(BLOCKS, null_block=True)
    ids, _ = pool.take(8)
    started = time.perf_counter()
    for _ in range(count):
        pool.touch(ids)
        pool.release(ids)
    return time.perf_counter() - started


# A list knows no tokens: it has the pool's operations only.
_NAIVE: dict[str, Operation] = dict(
    zip(OPERATIONS, (_naive_take(1), _naive_take(8), _naive_hit, _naive_fork), strict=False)
)


def _vllm(peer: VllmPeer) -> dict[str, Operation]:
    return dict(
        zip(
            OPERATIONS,
            (
                lambda count: peer.take(1, count), lambda count: peer.take(8, count),
                peer.hit, peer.fork, peer.admit_cold, peer.admit_hit, peer.append,
                lambda count: peer.steps(count, _RUNNING, update=False),
                lambda count: peer.steps(count, _RUNNING, update=True),
            ),
            strict=True,
        )
    )  # fmt: skip
