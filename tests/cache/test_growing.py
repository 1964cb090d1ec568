"""A pool that grows while it is in use: new blocks are the next to be handed out."""

from core.cache.block_pool import BlockPool


def test_new_blocks_stand_before_the_head_and_the_pool_stays_consistent() -> None:
    pool = BlockPool(5, null_block=True)
    held, _ = pool.take(2)
    pool.seal(held[0], b"first")
    pool.release([held[0]])  # cached and free, at the tail
    assert [block.block_id for block in pool.free_queue] == [3, 4, 1]
    pool.grow(3)
    pool.check()
    assert [block.block_id for block in pool.free_queue] == [5, 6, 7, 3, 4, 1]
    assert (pool.num_usable, pool.num_free, pool.num_cached_free) == (7, 6, 1)


def test_a_pool_that_grew_in_time_evicts_nothing() -> None:
    pool = BlockPool(4, null_block=True)
    kept, _ = pool.take(3)
    for number, block in enumerate(kept):
        pool.seal(block, b"%d" % number)
    pool.release(kept)
    pool.grow(2)
    taken, evicted = pool.take(2)
    assert not evicted
    assert {block.block_id for block in taken} == {4, 5}
    assert [pool.find(b"%d" % number) for number in range(3)] == kept
    pool.check()
