"""Literal examples of the manager, block ids and all: the eviction order is pinned here."""

import math

import pytest

from core.cache.hashing import hash_block
from core.cache.manager import BlockManager
from core.config import EngineConfig
from core.request import SamplingParams, SeqId, Sequence
from tests.builders import make_engine, make_request


def make_manager(**changes: object) -> BlockManager:
    settings = {"block_size": 4, "num_blocks": 10, "num_host_blocks": 8, **changes}
    return BlockManager(EngineConfig(**settings))  # type: ignore[arg-type]


def admit(manager: BlockManager, name: str, tokens: range | list[int]) -> Sequence:
    """Looks up, allocates and stores a whole prompt; it must fit."""
    seq = make_request(name, tokens).sequences[0]
    match = manager.find_prefix(seq)
    count = len(seq.token_ids) - match.tokens
    assert manager.allocate_slots(seq, count, match) is not None
    seq.num_computed_tokens = len(seq.token_ids)
    manager.seal_written(seq)
    return seq


def append(manager: BlockManager, seq: Sequence, token: int = 50) -> tuple[int, int] | None:
    """Appends and stores one token; the copy that it took."""
    seq.token_ids.append(token)
    allocation = manager.allocate_slots(seq, 1)
    assert allocation is not None
    seq.num_computed_tokens += 1
    manager.seal_written(seq)
    return allocation.copy


def free_ids(manager: BlockManager) -> list[int]:
    return [block.block_id for block in manager.pool.free_queue]


def family(manager: BlockManager, length: int, forks: int) -> list[Sequence]:
    first = admit(manager, "A", range(length))
    children = [first.fork(SeqId(f"A.{k}"), k) for k in range(1, forks + 1)]
    for child in children:
        manager.fork(first, child)
    return [first, *children]


def test_of_three_appenders_two_copy_and_the_third_writes_in_place() -> None:
    manager = make_manager(semantics="paper", watermark=0.0)
    family_of_three = family(manager, 6, 2)
    assert [manager.block_ids(seq) for seq in family_of_three] == [(0, 1)] * 3
    assert [append(manager, seq) for seq in family_of_three] == [(1, 2), (1, 3), None]
    assert [manager.block_ids(seq) for seq in family_of_three] == [(0, 2), (0, 3), (0, 1)]
    assert [manager.pool.blocks[i].ref_count for i in range(4)] == [3, 1, 1, 1]
    manager.check(family_of_three)


def test_a_full_last_block_takes_a_new_block_and_no_copy() -> None:
    manager = make_manager(semantics="paper")
    first, second = family(manager, 8, 1)
    assert append(manager, first) is None
    assert append(manager, second) is None
    assert [manager.block_ids(seq) for seq in (first, second)] == [(0, 1, 2), (0, 1, 3)]


@pytest.mark.parametrize("block_size", [1, 3, 4])
@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("appended", [1, 2, 5])
def test_extra_blocks_follow_the_formula(block_size: int, length: int, appended: int) -> None:
    manager = make_manager(semantics="paper", block_size=block_size, num_blocks=40)
    _, child = family(manager, length, 1)
    free = manager.pool.num_free
    copies = [append(manager, child) for _ in range(appended)]
    extra = math.ceil((length + appended) / block_size) - length // block_size
    assert free - manager.pool.num_free == extra
    assert [copy is not None for copy in copies] == [length % block_size > 0] + [False] * (
        appended - 1
    )


def test_hashes_are_those_of_vllm() -> None:
    first = hash_block(None, (1, 2, 3, 4))
    assert first.hex().startswith("52a7f141c609")
    assert hash_block(first, (5, 6, 7, 8)).hex().startswith("bee96bce54f5")
    salted = hash_block(None, [1, 2, 3, 4], (("cache_salt", "t1"),))
    assert salted.hex().startswith("9e51baaf1328")


def test_a_salt_enters_the_first_block_only_and_the_chain_carries_it_on() -> None:
    manager = make_manager()
    plain = admit(manager, "A", range(9))
    salted = make_request("B", range(9), cache_salt="t1").sequences[0]
    assert manager.find_prefix(salted).tokens == 0
    assert salted.block_hashes[1] == hash_block(salted.block_hashes[0], range(4, 8))
    assert salted.block_hashes[1] != plain.block_hashes[1]


@pytest.mark.parametrize(("length", "hit"), [(8, 4), (9, 8), (7, 4), (4, 0), (5, 4)])
def test_the_last_token_is_always_computed_so_an_aligned_prompt_redoes_a_block(
    length: int, hit: int
) -> None:
    manager = make_manager()
    admit(manager, "A", range(9))
    assert manager.find_prefix(make_request("B", range(length)).sequences[0]).tokens == hit


def test_finishing_sends_cached_blocks_to_the_tail_and_the_partial_one_to_the_head() -> None:
    manager = make_manager()
    seq = admit(manager, "A", range(10))
    assert manager.block_ids(seq) == (1, 2, 3)
    assert manager.release(seq) == 3
    assert free_ids(manager) == [3, 4, 5, 6, 7, 8, 9, 2, 1]


def test_without_caching_the_queue_is_last_in_first_out() -> None:
    manager = make_manager(prefix_caching=False)
    first, second = admit(manager, "A", range(10)), admit(manager, "B", range(5))
    manager.release(first)
    assert free_ids(manager) == [3, 2, 1, 6, 7, 8, 9]
    manager.release(second)
    assert free_ids(manager) == [5, 4, 3, 2, 1, 6, 7, 8, 9]


def test_a_refused_allocation_leaves_no_trace() -> None:
    manager = make_manager(num_blocks=6)
    old = admit(manager, "A", range(8))
    manager.release(old)
    holder = admit(manager, "B", range(40, 48))
    before = (free_ids(manager), {b.block_id: b.hash for b in manager.pool.blocks if b.hash})
    wide = make_request("C", range(20)).sequences[0]
    match = manager.find_prefix(wide)
    assert match.tokens == 8
    assert manager.allocate_slots(wide, 12, match) is None
    after = (free_ids(manager), {b.block_id: b.hash for b in manager.pool.blocks if b.hash})
    assert after == before
    assert wide.seq_id not in manager.tables
    manager.check([holder])


def test_hit_blocks_that_are_free_count_as_needed() -> None:
    manager = make_manager(num_blocks=6)
    manager.release(admit(manager, "A", range(8)))
    again = make_request("B", range(20)).sequences[0]  # 2 hits that are free and 3 new: 5 of 5
    match = manager.find_prefix(again)
    assert manager.allocate_slots(again, 12, match, keep_free=1) is None
    allocation = manager.allocate_slots(again, 12, match)
    assert allocation is not None
    assert manager.block_ids(again) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(("semantics", "tables"), [
    ("paper", [(0, 1, 2), (0, 1, 5)]),
    ("v1", [(1, 2, 3), (1, 2, 4)]),
])  # fmt: skip
def test_two_equal_prompts_of_one_step_end_up_sharing(
    semantics: str, tables: list[tuple[int, ...]]
) -> None:
    engine = make_engine(
        semantics=semantics, prefix_caching=True, num_blocks=12, max_num_batched_tokens=64
    )
    first, second = (
        engine.add_request(list(range(2, 11)), SamplingParams(max_tokens=3))[0] for _ in range(2)
    )
    engine.step()
    engine.check()
    ids = [engine.manager.block_ids(r.sequences[0]) for r in (first, second)]
    assert ids == tables


def test_duplicates_in_v1_stay_side_by_side() -> None:
    manager = make_manager()
    first = admit(manager, "A", range(8))
    # An aligned prompt computes its last block again: a second block with the same hash.
    second = admit(manager, "B", range(8))
    assert [manager.block_ids(seq) for seq in (first, second)] == [(1, 2), (1, 3)]
    assert manager.pool.blocks[2].hash == manager.pool.blocks[3].hash
    assert manager.pool.num_cached_keys == 2
    assert admit(manager, "C", range(9)).num_computed_tokens == 9
    assert manager.block_ids(make_request("C").sequences[0]) == (1, 2, 4)


def test_hashes_of_blocks_that_were_never_written_are_dropped() -> None:
    manager = make_manager()
    seq = make_request("A", range(9)).sequences[0]
    assert manager.allocate_slots(seq, 9) is not None
    assert manager.pool.num_cached_keys == 2
    manager.forget_unwritten(seq)  # nothing was stored
    assert manager.pool.num_cached_keys == 0
    manager.release(seq)
    assert free_ids(manager) == [3, 2, 1, 4, 5, 6, 7, 8, 9]


def test_a_group_swaps_out_and_in_with_its_sharing() -> None:
    manager = make_manager(semantics="paper", num_host_blocks=3)
    first, second = family(manager, 6, 1)
    append(manager, first)
    assert [manager.block_ids(s) for s in (first, second)] == [(0, 2), (0, 1)]
    assert manager.can_swap_out([first, second])
    assert manager.swap_out("A", [first, second]) == [(0, 0), (2, 1), (1, 2)]
    assert free_ids(manager) == [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert manager.swap_in("A", [first, second], keep_free=0) == [(0, 1), (1, 0), (2, 2)]
    assert [manager.block_ids(s) for s in (first, second)] == [(1, 0), (1, 2)]
    assert manager.pool.blocks[1].ref_count == 2
    manager.check([first, second])


def test_ten_blocks_of_four_in_seven_moments() -> None:
    """The worked example: blocks 1 to 9 can be owned, 0 is the null block."""
    manager = make_manager()
    # 1. A brings ten tokens: two full blocks, sealed, and half of a third.
    a = admit(manager, "A", range(10))
    assert manager.block_ids(a) == (1, 2, 3)
    assert free_ids(manager) == [4, 5, 6, 7, 8, 9]
    # 2. B begins with the same eight: it shares both full blocks and takes one.
    b = admit(manager, "B", [*range(8), 60, 61])
    assert manager.block_ids(b) == (1, 2, 4)
    assert [manager.pool.blocks[i].ref_count for i in (1, 2)] == [2, 2]
    # 3. A grows by three: block 3 fills and is sealed, the third crosses the edge.
    for token in (10, 11, 12):
        append(manager, a, token)
    assert manager.block_ids(a) == (1, 2, 3, 5)
    assert free_ids(manager) == [6, 7, 8, 9]
    # 4. A ends. The shared blocks stay, the half-empty one goes first, the sealed one last.
    manager.release(a)
    assert free_ids(manager) == [5, 6, 7, 8, 9, 3]
    # 5. C begins like A: block 3 is revived from the very tail.
    c = admit(manager, "C", [*range(12), 70])
    assert manager.block_ids(c) == (1, 2, 3, 5)
    assert free_ids(manager) == [6, 7, 8, 9]
    # 6. B and C end: of each, tail first.
    manager.release(b)
    manager.release(c)
    assert free_ids(manager) == [5, 4, 6, 7, 8, 9, 3, 2, 1]
    # 7. D needs eight blocks: the two least recently freed prefixes are evicted, block 1 stays.
    d = admit(manager, "D", range(100, 132))
    assert manager.block_ids(d) == (5, 4, 6, 7, 8, 9, 3, 2)
    assert free_ids(manager) == [1]
    assert manager.find_prefix(make_request("E", range(10)).sequences[0]).tokens == 4
    manager.check([d])
