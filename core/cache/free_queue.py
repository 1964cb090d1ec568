"""FreeBlockQueue: the free blocks in the order in which they will be handed out.

An intrusive doubly linked list: the links live in the blocks themselves, so that taking a block
out of the middle (a prefix hit revives it) is O(1) and nothing is allocated. Two sentinel blocks
stand before the head and behind the tail, so that no move has a special case.

It does not know hashes or reference counts. Invariant: `num_free` equals the number of blocks
that a walk from the head visits; `check()` recounts.
"""

from collections.abc import Iterator, Sequence

from core.cache.block import Block
from core.errors import InvariantError

__all__ = ["FreeBlockQueue"]


class FreeBlockQueue:
    """Free blocks, head first."""

    __slots__ = ("_head", "_tail", "num_free")

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next, self._tail.previous = self._tail, self._head
        self.num_free = 0
        self.append_all(blocks)

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not self._tail:
            assert block is not None
            yield block
            block = block.next

    def __len__(self) -> int:
        return self.num_free

    @property
    def tail_id(self) -> int:
        """Id of the last block, -1 when the queue is empty."""
        assert self._tail.previous is not None
        return self._tail.previous.block_id

    def pop_first(self, count: int) -> list[Block]:
        """Takes the first `count` blocks, head first; the caller has checked that they exist.

        Raises:
            InvariantError: fewer are free.
        """
        if count > self.num_free:
            raise InvariantError(f"{count} blocks wanted, {self.num_free} free")
        head = self._head
        taken = []
        block = head.next
        for _ in range(count):
            taken.append(block)
            following = block.next  # type: ignore[union-attr]
            block.next = block.previous = None  # type: ignore[union-attr]
            block = following
        head.next = block
        block.previous = head  # type: ignore[union-attr]
        self.num_free -= count
        return taken  # type: ignore[return-value]

    def remove(self, block: Block) -> None:
        """Takes one block out from wherever it stands.

        Raises:
            InvariantError: it is not in the queue.
        """
        previous, following = block.previous, block.next
        if previous is None or following is None:
            raise InvariantError(f"{block} is not in the free block queue")
        previous.next, following.previous = following, previous
        block.previous = block.next = None
        self.num_free -= 1

    def append_all(self, blocks: Sequence[Block]) -> None:
        """Puts the blocks behind the tail, in the given order."""
        tail = self._tail
        last = tail.previous
        for block in blocks:
            block.previous = last
            last.next = block  # type: ignore[union-attr]
            last = block
        last.next, tail.previous = tail, last  # type: ignore[union-attr]
        self.num_free += len(blocks)

    def prepend_all(self, blocks: Sequence[Block]) -> None:
        """Puts the blocks before the head, in the given order."""
        last = self._head
        first = last.next
        for block in blocks:
            block.previous = last
            last.next = block
            last = block
        last.next, first.previous = first, last  # type: ignore[union-attr]
        self.num_free += len(blocks)

    def check(self) -> None:
        """Walks both ways and recounts.

        Raises:
            InvariantError: a link or the count is wrong.
        """
        count, block = 0, self._head
        while block is not self._tail:
            following = block.next
            if following is None or following.previous is not block:
                raise InvariantError(f"broken link behind {block}")
            block, count = following, count + 1
        if count - 1 != self.num_free:
            raise InvariantError(f"{count - 1} blocks linked, num_free = {self.num_free}")
