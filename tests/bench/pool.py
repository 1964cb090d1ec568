"""Stress and speed of the block pool, the manager and the scheduler.

    python -m tests.bench.pool --operations 1000000     random operations against a naive model
    python -m tests.bench.pool                          microseconds an operation, nothing recorded

Times are the best of several rounds; they are printed, never asserted.
"""

import argparse
import random
import time
from collections.abc import Callable

from core.cache.block_pool import BlockPool
from core.cache.manager import NO_MATCH, BlockManager
from core.config import EngineConfig
from core.request import Request, SamplingParams
from core.sched.output import Sampled, StepResult
from core.sched.scheduler import Scheduler
from core.sched.update import StepUpdate
from core.vllm_sequence import _NoText

_HASHES = [bytes([value]) * 4 for value in range(24)]


class NaivePool:
    """The block pool as plain lists: slow, and too simple to be wrong."""

    def __init__(self, num_blocks: int, *, null_block: bool) -> None:
        self.free = list(range(int(null_block), num_blocks))
        self.refs = [0] * num_blocks
        self.hashes: dict[int, bytes] = {}  # in the order of sealing

    def take(self, count: int) -> tuple[list[int], list[tuple[int, bytes]]]:
        """The first blocks of the line, and which of them lost a hash."""
        ids, self.free = self.free[:count], self.free[count:]
        evicted = [(i, self.hashes.pop(i)) for i in ids if i in self.hashes]
        for block_id in ids:
            self.refs[block_id] = 1
        return ids, evicted

    def touch(self, ids: list[int]) -> None:
        """One more holder each."""
        for block_id in ids:
            if block_id in self.free:
                self.free.remove(block_id)
            self.refs[block_id] += 1

    def release(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """One holder fewer each; who went to the head and who to the tail."""
        for block_id in ids:
            self.refs[block_id] -= 1
        gone = [block_id for block_id in ids if not self.refs[block_id]]
        head = [block_id for block_id in gone if block_id not in self.hashes]
        tail = [block_id for block_id in gone if block_id in self.hashes]
        self.free = [*head, *self.free, *tail]
        return head, tail

    def seal(self, block_id: int, value: bytes) -> None:
        """The block can be found."""
        self.hashes[block_id] = value

    def forget(self, block_id: int) -> None:
        """The block can't be found any more."""
        del self.hashes[block_id]

    def find(self, value: bytes) -> int | None:
        """The block that was sealed first."""
        return next((block_id for block_id, known in self.hashes.items() if known == value), None)

    def reset(self) -> int | None:
        """No hashes, unless somebody holds a block."""
        if any(self.refs):
            return None
        count = len(self.hashes)
        self.hashes.clear()
        return count

    def compare(self, pool: BlockPool) -> None:
        """Asserts that the real pool is in this state."""
        assert [block.block_id for block in pool.free_queue] == self.free
        assert [block.ref_count for block in pool.blocks] == self.refs
        assert {b.block_id: b.hash for b in pool.blocks if b.hash} == self.hashes
        assert pool.num_free == len(self.free)
        assert pool.num_cached_free == sum(1 for i in self.free if i in self.hashes)
        assert pool.num_cached_keys == len(set(self.hashes.values()))


class _Stress:
    def __init__(self, seed: int, num_blocks: int) -> None:
        self.rng = random.Random(seed)
        self.pool = BlockPool(num_blocks, null_block=True)
        self.naive = NaivePool(num_blocks, null_block=True)
        self.tables: list[list[int]] = []

    def operate(self) -> None:
        """One random operation on both."""
        draw = self.rng.random()
        if draw < 0.30:
            self._take()
        elif draw < 0.60 and self.tables:
            ids = self.tables.pop(self.rng.randrange(len(self.tables)))[::-1]
            head, tail = self.pool.release([self.pool.blocks[i] for i in ids])
            assert ([b.block_id for b in head], [b.block_id for b in tail]) == (
                self.naive.release(ids)
            )
        elif draw < 0.75:
            self._share()
        elif draw < 0.97:
            self._seal()
        elif draw < 0.99 and self.naive.hashes:
            block_id = self.rng.choice(list(self.naive.hashes))
            self.pool.forget(self.pool.blocks[block_id])
            self.naive.forget(block_id)
        else:
            assert self.pool.reset_cache() == self.naive.reset()

    def _take(self) -> None:
        count = min(self.rng.randrange(1, 5), len(self.naive.free))
        blocks, evicted = self.pool.take(count)
        ids = [block.block_id for block in blocks]
        assert (ids, [(b.block_id, h) for b, h in evicted]) == self.naive.take(count)
        if ids:
            self.tables.append(ids)

    def _share(self) -> None:
        value = self.rng.choice(_HASHES)
        found = self.pool.find(value)
        assert (found.block_id if found else None) == self.naive.find(value)
        if found is not None:
            self.pool.touch([found])
            self.naive.touch([found.block_id])
            self.tables.append([found.block_id])

    def _seal(self) -> None:
        held = [i for table in self.tables for i in table if i not in self.naive.hashes]
        if held:
            block_id, value = self.rng.choice(held), self.rng.choice(_HASHES)
            self.pool.seal(self.pool.blocks[block_id], value)
            self.naive.seal(block_id, value)


def stress(operations: int, seed: int, num_blocks: int = 64, every: int = 1) -> int:
    """Runs random operations on the pool and the naive model; both must stay equal.

    Args:
        every: compare and `check()` after every so many operations.
    """
    run = _Stress(seed, num_blocks)
    for number in range(1, operations + 1):
        run.operate()
        if number % every == 0:
            run.naive.compare(run.pool)
            run.pool.check()
    return operations


# ------------------------------------------------------------------- speed


def _best(action: Callable[[int], object], count: int, rounds: int = 7) -> float:
    """Microseconds one call takes, the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        action(count)
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


def _manager() -> BlockManager:
    return BlockManager(EngineConfig(num_blocks=10_000, max_num_batched_tokens=8192))


def _get_and_free(count: int) -> None:
    pool = BlockPool(10_000, null_block=True)
    take, release = pool.take, pool.release
    for _ in range(count):
        blocks, _ = take(1)
        release(blocks)


def _admit(manager: BlockManager, request: Request) -> None:
    seq = request.sequences[0]
    match = manager.find_prefix(seq)
    manager.allocate_slots(seq, 100 - match.tokens, match or NO_MATCH)
    manager.release(seq)


def _admit_cold(count: int) -> float:
    manager = _manager()
    fresh = iter(range(10_000_000))
    requests = [
        Request.make(str(n), [next(fresh) for _ in range(100)], SamplingParams())
        for n in range(count)
    ]
    started = time.perf_counter()
    for request in requests:
        _admit(manager, request)
    return (time.perf_counter() - started) / count * 1e6


def _admit_hit(count: int) -> float:
    manager = _manager()
    requests = [
        Request.make(str(n), [*range(96), n, n, n, n], SamplingParams()) for n in range(count)
    ]
    _admit(manager, requests[0])
    started = time.perf_counter()
    for request in requests[1:]:
        _admit(manager, request)
    return (time.perf_counter() - started) / (count - 1) * 1e6


def _decode(count: int) -> float:
    manager = BlockManager(EngineConfig(num_blocks=10_000))
    request = Request.make("a", list(range(100)), SamplingParams())
    seq = request.sequences[0]
    manager.allocate_slots(seq, 100)
    seq.num_computed_tokens = 100
    started = time.perf_counter()
    for token in range(count):
        seq.token_ids.append(token)
        manager.allocate_slots(seq, 1)
        seq.num_computed_tokens += 1
    return (time.perf_counter() - started) / count * 1e6


def _scheduler_steps(count: int) -> tuple[float, float]:
    """Microseconds of `schedule` alone, and with the update behind it, 64 running."""
    config = EngineConfig(num_blocks=10_000, max_num_seqs=64, max_num_batched_tokens=8192)
    scheduler = Scheduler(config, BlockManager(config))
    update = StepUpdate(scheduler, None, _NoText(), ())
    for number in range(64):
        params = SamplingParams(max_tokens=4 * count)
        scheduler.add(Request.make(str(number), [number] * 100, params))
    alone = both = 0.0
    for step in range(count + 2):
        started = time.perf_counter()
        output = scheduler.schedule()
        middle = time.perf_counter()
        answer = (Sampled(7, 0.0),)
        update.apply(output, StepResult({i.seq.seq_id: answer for i in output.scheduled}))
        if step > 1:
            alone += middle - started
            both += time.perf_counter() - started
    assert len(scheduler.running) == 64
    return alone / count * 1e6, both / count * 1e6


def main() -> None:
    """Prints the stress' result, or the table of times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=64)
    options = parser.parse_args()
    if options.operations:
        started = time.perf_counter()
        # Comparing the whole state costs more than the operation: every 16th is enough here.
        stress(options.operations, options.seed, options.blocks, every=16)
        seconds = time.perf_counter() - started
        print(
            f"{options.operations} operations in {seconds:.1f} s, seed {options.seed}, "
            f"{options.blocks} blocks: no broken invariant"
        )
        return
    schedule = [_scheduler_steps(100) for _ in range(5)]
    rows = [
        ("pool: get and free one block", _best(_get_and_free, 50_000)),
        ("manager: admit 100 tokens cold, free", min(_admit_cold(2_000) for _ in range(5))),
        ("manager: the same with a 96-token hit", min(_admit_hit(2_000) for _ in range(5))),
        ("manager: one decode token", min(_decode(20_000) for _ in range(5))),
        ("scheduler: schedule with 64 running", min(alone for alone, _ in schedule)),
        ("scheduler: schedule and update with 64", min(both for _, both in schedule)),
    ]
    for name, microseconds in rows:
        print(f"{name:42} {microseconds:9.2f} us")


if __name__ == "__main__":
    main()
