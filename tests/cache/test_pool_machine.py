"""The pool and its queue against lists that are too simple to be wrong."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.cache.block import Block
from core.cache.block_pool import BlockPool
from core.cache.free_queue import FreeBlockQueue
from core.errors import InvariantError
from tests.bench.pool import NaivePool, compare, stress


class QueueMachine(RuleBasedStateMachine):
    """FreeBlockQueue against a list of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Block(block_id) for block_id in range(12)]
        self.queue = FreeBlockQueue(self.blocks[:8])
        self.line = list(range(8))

    def _outside(self) -> list[Block]:
        return [block for block in self.blocks if block.block_id not in self.line]

    @rule(count=st.integers(0, 5))
    def pop(self, count: int) -> None:
        if count > len(self.line):
            with pytest.raises(InvariantError):
                self.queue.pop_first(count)
            return
        taken = self.queue.pop_first(count)
        assert [block.block_id for block in taken] == self.line[:count]
        del self.line[:count]

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.line))
        self.queue.remove(self.blocks[block_id])
        self.line.remove(block_id)
        with pytest.raises(InvariantError):
            self.queue.remove(self.blocks[block_id])

    @rule(data=st.data(), head=st.booleans())
    def put_back(self, data: st.DataObject, head: bool) -> None:
        outside = self._outside()
        some = data.draw(st.permutations(outside)) if outside else []
        some = some[: data.draw(st.integers(0, len(some)))]
        ids = [block.block_id for block in some]
        if head:
            self.queue.prepend_all(some)
            self.line[:0] = ids
        else:
            self.queue.append_all(some)
            self.line.extend(ids)

    @invariant()
    def the_order_is_the_lists(self) -> None:
        self.queue.check()
        assert [block.block_id for block in self.queue] == self.line
        assert len(self.queue) == self.queue.num_free == len(self.line)
        assert self.queue.tail_id == (self.line[-1] if self.line else -1)


class PoolMachine(RuleBasedStateMachine):
    """BlockPool against NaivePool, the null block on or off."""

    null_block = True

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(10, null_block=self.null_block)
        self.naive = NaivePool(10, null_block=self.null_block)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count > len(self.naive.free):
            with pytest.raises(InvariantError):
                self.pool.take(count)
            return
        blocks, evicted = self.pool.take(count)
        ids = [block.block_id for block in blocks]
        assert (ids, [(b.block_id, h) for b, h in evicted]) == self.naive.take(count)
        assert all(block.hash is None and block.ref_count == 1 for block in blocks)
        self.tables.append(ids)

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        usable = list(range(int(self.null_block), 10))
        ids = data.draw(st.lists(st.sampled_from(usable), unique=True, max_size=4))
        self.pool.touch([self.pool.blocks[i] for i in ids])
        self.naive.touch(ids)
        self.tables.append(ids)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        ids = list(reversed(self.tables.pop(index)))
        head, tail = self.pool.release([self.pool.blocks[i] for i in ids])
        answer = [b.block_id for b in head], [b.block_id for b in tail]
        assert answer == self.naive.release(ids)

    @rule(data=st.data(), value=st.sampled_from([b"a", b"b", b"c"]))
    def seal_or_forget(self, data: st.DataObject, value: bytes) -> None:
        block_id = data.draw(st.integers(int(self.null_block), 9))
        block = self.pool.blocks[block_id]
        if block_id in self.naive.hashes:
            with pytest.raises(InvariantError):
                self.pool.seal(block, value)
            self.pool.forget(block)
            self.naive.forget(block_id)
        elif block.ref_count:
            self.pool.seal(block, value)
            self.naive.seal(block_id, value)
        else:
            with pytest.raises(InvariantError):
                self.pool.forget(block)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset_cache() == self.naive.reset()

    @invariant()
    def the_states_are_equal(self) -> None:
        self.pool.check()
        compare(self.naive, self.pool)
        for value in (b"a", b"b", b"c", b"d"):
            found = self.pool.find(value)
            assert (found.block_id if found else None) == self.naive.find(value)


class PoolWithoutNullMachine(PoolMachine):
    null_block = False


for machine in (QueueMachine, PoolMachine, PoolWithoutNullMachine):
    machine.TestCase.settings = settings(
        max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
    )

TestQueueMachine = QueueMachine.TestCase
TestPoolMachine = PoolMachine.TestCase
TestPoolWithoutNullMachine = PoolWithoutNullMachine.TestCase


@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_thousand_random_operations_leave_the_pool_as_the_lists_say(seed: int) -> None:
    assert stress(20_000, seed, num_blocks=40) == 20_000


def test_a_stress_notices_a_queue_that_loses_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeBlockQueue, "prepend_all", FreeBlockQueue.append_all)
    with pytest.raises(AssertionError):
        stress(2_000, 0, num_blocks=40)


def test_freed_cached_blocks_go_to_the_tail_and_others_to_the_head_in_order() -> None:
    pool = BlockPool(8, null_block=True)
    blocks, _ = pool.take(5)
    pool.seal(blocks[0], b"one")
    pool.seal(blocks[2], b"three")
    head, tail = pool.release([blocks[4], blocks[2], blocks[3], blocks[0], blocks[1]])
    assert [b.block_id for b in head] == [5, 4, 2]
    assert [b.block_id for b in tail] == [3, 1]
    assert [b.block_id for b in pool.free_queue] == [5, 4, 2, 6, 7, 3, 1]
    assert pool.num_cached_free == 2


def test_the_first_of_two_blocks_with_one_hash_is_found_and_then_the_other() -> None:
    pool = BlockPool(6, null_block=True)
    (first, second, third), _ = pool.take(3)
    for block in (second, first, third):
        pool.seal(block, b"same")
    assert pool.num_cached_keys == 1
    assert pool.find(b"same") is second
    pool.forget(second)
    assert pool.find(b"same") is first
    pool.forget(first)
    pool.forget(third)
    assert pool.find(b"same") is None
    assert pool.num_cached_keys == 0


def test_releasing_more_often_than_held_is_an_invariant_error() -> None:
    pool = BlockPool(4, null_block=False)
    (block,), _ = pool.take(1)
    pool.release([block])
    with pytest.raises(InvariantError, match="released more often"):
        pool.release([block])


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(9, null_block=True)
    blocks, _ = pool.take(8)
    assert [b.block_id for b in blocks] == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(InvariantError):
        pool.take(1)
    assert pool.usage == 1.0


@pytest.mark.parametrize(
    "damage",
    ["link", "count", "ref_count", "hash_map", "cached_free", "null"],
)
def test_check_finds_each_kind_of_damage(damage: str) -> None:
    pool = BlockPool(6, null_block=True)
    blocks, _ = pool.take(2)
    pool.seal(blocks[0], b"h")
    pool.release([blocks[0]])
    pool.check()
    match damage:
        case "link":
            pool.blocks[4].previous = pool.blocks[1]
        case "count":
            pool.free_queue.num_free += 1
        case "ref_count":
            pool.blocks[3].ref_count = 1
        case "hash_map":
            pool.blocks[2].hash = b"other"
        case "cached_free":
            pool.num_cached_free = 0
        case "null":
            pool.blocks[0].ref_count = 1
    with pytest.raises(InvariantError):
        pool.check()
