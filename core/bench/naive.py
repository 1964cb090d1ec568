"""The block pool as plain lists: slow, and too simple to be wrong.

The peer of `core.cache.block_pool` in tests and benchmarks. Taking from the head of the line and
finding a hash look through whole lists.
"""

__all__ = ["NaivePool"]


class NaivePool:
    """Free blocks in line, counts and hashes, each in one list or dictionary."""

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
