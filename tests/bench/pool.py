"""Stress of the block pool against the naive one; its speed is `glassblock bench pool`.

    python -m tests.bench.pool --operations 1000000     random operations on both
    python -m tests.bench.pool                          glassblock bench pool

Times are printed, never asserted.
"""

import argparse
import random
import sys
import time

from app.cli import main as glassblock
from core.bench.naive import NaivePool
from core.cache.block_pool import BlockPool

__all__ = ["NaivePool", "compare", "stress"]

_HASHES = [bytes([value]) * 4 for value in range(24)]


def compare(naive: NaivePool, pool: BlockPool) -> None:
    """Asserts that the real pool is in the naive one's state."""
    assert [block.block_id for block in pool.free_queue] == naive.free
    assert [block.ref_count for block in pool.blocks] == naive.refs
    assert {b.block_id: b.hash for b in pool.blocks if b.hash} == naive.hashes
    assert pool.num_free == len(naive.free)
    assert pool.num_cached_free == sum(1 for i in naive.free if i in naive.hashes)
    assert pool.num_cached_keys == len(set(naive.hashes.values()))


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
            compare(run.naive, run.pool)
            run.pool.check()
    return operations


def main() -> int:
    """Prints the stress' result, or the table of times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=64)
    options, others = parser.parse_known_args()
    if not options.operations:
        return glassblock(["bench", "pool", *others])
    started = time.perf_counter()
    # Comparing the whole state costs more than the operation: every 16th is enough here.
    stress(options.operations, options.seed, options.blocks, every=16)
    seconds = time.perf_counter() - started
    print(
        f"{options.operations} operations in {seconds:.1f} s, seed {options.seed}, "
        f"{options.blocks} blocks: no broken invariant"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
