"""BlockPool: all blocks, which of them are free, and which can be found by hash.

It owns the reference counts, the free block queue and the hash map; it does not know sequences or
tables. Semantics of vLLM 0.33.0: a freed block with a hash goes to the tail of the queue (least
recently used first), one without goes to the head; a hash is lost only when its block is handed
out again (eviction). Duplicates of a hash are kept side by side, the first inserted is found.

Invariants, re-derived by `check()`: a block is in the free queue exactly when its ref_count is 0;
a block is in the hash map exactly when it has a hash; the null block is never in either.
"""

from collections.abc import Iterable, Sequence

from core.cache.block import Block
from core.cache.free_queue import FreeBlockQueue
from core.errors import InvariantError

__all__ = ["BlockPool"]


class BlockPool:
    """The physical blocks of one device.

    Args:
        num_blocks: how many blocks there are, the null block included.
        null_block: whether block 0 is reserved, as in vLLM v1.

    Attributes:
        num_cached_free: free blocks that can still be found by hash.
    """

    __slots__ = ("_cached", "blocks", "free_queue", "num_cached_free", "num_usable")

    def __init__(self, num_blocks: int, *, null_block: bool) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.free_queue = FreeBlockQueue(self.blocks[int(null_block) :])
        self.num_usable = self.free_queue.num_free
        self.num_cached_free = 0
        # The common case, one block a hash, needs no second dictionary.
        self._cached: dict[bytes, Block | dict[int, Block]] = {}

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached ones included."""
        return self.free_queue.num_free

    @property
    def num_cached_keys(self) -> int:
        """Different hashes that can be found."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that have an owner."""
        return 1.0 - self.free_queue.num_free / self.num_usable

    def take(self, count: int) -> tuple[list[Block], list[tuple[Block, bytes]]]:
        """Hands out the first `count` free blocks, each with ref_count 1.

        Returns:
            The blocks, and those of them that lost a hash by it, with that hash.

        Raises:
            InvariantError: fewer are free.
        """
        taken = self.free_queue.pop_first(count)
        evicted: list[tuple[Block, bytes]] = []
        for block in taken:
            if block.hash is not None:
                evicted.append((block, block.hash))
                self.forget(block)
            block.ref_count = 1
        return taken, evicted

    def grow(self, count: int) -> None:
        """Adds `count` new blocks before the head of the free block queue."""
        first = len(self.blocks)
        new = [Block(block_id) for block_id in range(first, first + count)]
        self.blocks.extend(new)
        self.free_queue.prepend_all(new)
        self.num_usable += count

    def touch(self, blocks: Iterable[Block]) -> None:
        """One more table holds each of the blocks; a free one leaves the queue."""
        for block in blocks:
            if block.ref_count == 0:
                self.free_queue.remove(block)
                self.num_cached_free -= block.hash is not None
            block.ref_count += 1

    def release(self, blocks: Sequence[Block]) -> tuple[list[Block], list[Block]]:
        """One table fewer holds each of the blocks, given in the order of their freeing.

        Returns:
            The blocks that are free now: those put before the head (no hash) and those put
            behind the tail (findable), each in queue order.
        """
        to_head: list[Block] = []
        to_tail: list[Block] = []
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                (to_head if block.hash is None else to_tail).append(block)
            elif block.ref_count < 0:
                raise InvariantError(f"{block} released more often than it was held")
        if to_head:
            self.free_queue.prepend_all(to_head)
        if to_tail:
            self.free_queue.append_all(to_tail)
            self.num_cached_free += len(to_tail)
        return to_head, to_tail

    def find(self, block_hash: bytes) -> Block | None:
        """The first block that was sealed with this hash, None when there is none."""
        found = self._cached.get(block_hash)
        if found is None or isinstance(found, Block):
            return found
        return next(iter(found.values()))

    def seal(self, block: Block, block_hash: bytes) -> None:
        """Makes a full block findable.

        Raises:
            InvariantError: it has a hash already.
        """
        if block.hash is not None:
            raise InvariantError(f"{block} sealed twice")
        block.hash = block_hash
        known = self._cached.get(block_hash)
        if known is None:
            self._cached[block_hash] = block
        elif isinstance(known, Block):
            self._cached[block_hash] = {known.block_id: known, block.block_id: block}
        else:
            known[block.block_id] = block

    def forget(self, block: Block) -> None:
        """The block can no longer be found.

        Raises:
            InvariantError: it has no hash.
        """
        if block.hash is None:
            raise InvariantError(f"{block} has no hash to forget")
        known = self._cached[block.hash]
        if isinstance(known, Block):
            del self._cached[block.hash]
        else:
            del known[block.block_id]
            if not known:
                del self._cached[block.hash]
        block.hash = None
        self.num_cached_free -= block.ref_count == 0

    def reset_cache(self) -> int | None:
        """Drops all hashes; returns how many blocks had one, or None when blocks are in use."""
        if self.num_free != self.num_usable:
            return None
        cached = [block for block in self.blocks if block.hash is not None]
        for block in cached:
            self.forget(block)
        return len(cached)

    def check(self) -> None:
        """Re-derives everything that is kept twice.

        Raises:
            InvariantError: with the state, when something differs.
        """
        self.free_queue.check()
        free = {id(block) for block in self.free_queue}
        for block in self.blocks[len(self.blocks) - self.num_usable :]:
            if (id(block) in free) != (block.ref_count == 0):
                raise InvariantError(f"{block} and the free block queue differ\n{self.dump()}")
        for block in self.blocks[: len(self.blocks) - self.num_usable]:
            if id(block) in free or block.ref_count or block.hash:
                raise InvariantError(f"null {block} is in use\n{self.dump()}")
        self._check_hash_map()

    def _check_hash_map(self) -> None:
        findable: dict[int, bytes] = {}
        for block_hash, known in self._cached.items():
            for block in [known] if isinstance(known, Block) else known.values():
                findable[block.block_id] = block_hash
        sealed = {block.block_id: block.hash for block in self.blocks if block.hash is not None}
        if findable != sealed:
            raise InvariantError(f"hash map and blocks differ\n{self.dump()}")
        if self.num_cached_free != sum(1 for block in self.free_queue if block.hash):
            raise InvariantError(f"num_cached_free = {self.num_cached_free}\n{self.dump()}")

    def dump(self) -> str:
        """The state in two lines, for an error message."""
        held = [repr(block) for block in self.blocks if block.ref_count or block.hash]
        return f"blocks {held}\nfree {[block.block_id for block in self.free_queue]}"
