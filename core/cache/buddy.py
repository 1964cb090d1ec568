"""BuddySpace: regions in pieces of a power of two, split in halves and merged with their buddy.

The allocator of the paper's Orca baselines (SOSP'23, section 6.1), after Knowlton (1965). A space
whose size is no power of two is a row of such pieces, the largest first, which never merge with
each other. A region takes a whole piece: what it doesn't ask for is lost to rounding.

Invariants: a piece of size s begins at a multiple of s; two free buddies never stand side by
side; `check()` re-derives the partition.
"""

from core.errors import InvariantError

__all__ = ["BuddySpace", "Piece", "check_partition", "power_of_two"]

Piece = tuple[int, int]
"""(start, size) of a run of slots."""


def power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller.

    >>> [power_of_two(number) for number in (1, 2, 3, 25, 32, 33)]
    [1, 2, 4, 32, 32, 64]
    """
    return 1 << (number - 1).bit_length()


class BuddySpace:
    """An address space handed out in powers of two.

    >>> space = BuddySpace(12)
    >>> space.take(3), space.pieces()
    ((8, 4), [(0, 8)])
    >>> space.take(2), space.pieces()
    ((0, 2), [(2, 2), (4, 4)])
    >>> space.give_back(0)
    >>> space.pieces()
    [(0, 8)]
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._free: dict[int, set[int]] = {}  # size: starts
        self._taken: dict[int, int] = {}
        self._roots: list[Piece] = []
        start = 0
        for bit in range(num_slots.bit_length() - 1, -1, -1):
            if num_slots >> bit & 1:
                self._roots.append((start, 1 << bit))
                self._free.setdefault(1 << bit, set()).add(start)
                start += 1 << bit

    @property
    def largest(self) -> int:
        """The longest region that could be taken now."""
        return max((size for size, starts in self._free.items() if starts), default=0)

    @property
    def longest_ever(self) -> int:
        """The longest region that could be taken if nothing were."""
        return self._roots[0][1] if self._roots else 0

    def pieces(self) -> list[Piece]:
        """Free pieces, by address."""
        return sorted((start, size) for size, starts in self._free.items() for start in starts)

    def take(self, length: int) -> Piece | None:
        """Takes the smallest piece that is long enough, halved as often as it can be.

        Of several equally small ones the lowest is taken.
        """
        wanted = power_of_two(length)
        sizes = [size for size, starts in self._free.items() if starts and size >= wanted]
        if not sizes:
            return None
        size = min(sizes)
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > wanted:
            size //= 2
            self._free.setdefault(size, set()).add(start + size)
        self._taken[start] = size
        self.num_free -= size
        return start, size

    def give_back(self, start: int) -> None:
        """Frees a piece and merges it with its buddy as long as that is free too."""
        size = self._taken.pop(start)
        self.num_free += size
        while (start, size) not in self._roots:
            buddy = start ^ size
            if buddy not in self._free.get(size, ()):
                break
            self._free[size].remove(buddy)
            start, size = min(start, buddy), size * 2
        self._free.setdefault(size, set()).add(start)

    def check(self) -> None:
        """Re-derives the partition.

        Raises:
            InvariantError: pieces overlap, leave a gap, are not aligned, or are unmerged buddies.
        """
        pieces = self.pieces()
        check_partition([*pieces, *self._taken.items()], self.num_slots)
        if self.num_free != sum(size for _, size in pieces):
            raise InvariantError(f"num_free = {self.num_free}, free pieces {pieces}")
        for start, size in [*pieces, *self._taken.items()]:
            if size & (size - 1) or start % size:
                raise InvariantError(f"piece {start}+{size} is no aligned power of two")
        for size, starts in self._free.items():
            for start in starts:
                if (start, size) not in self._roots and start ^ size in starts:
                    raise InvariantError(f"free buddies {start} and {start ^ size} stand unmerged")


def check_partition(pieces: list[Piece], num_slots: int) -> None:
    """Checks that the pieces cover the slots, each once.

    Raises:
        InvariantError: there is a gap or an overlap.
    """
    reached = 0
    for start, size in sorted(pieces):
        if start != reached or size <= 0:
            raise InvariantError(f"slots {reached}..{start} are in no piece or in two")
        reached = start + size
    if reached != num_slots:
        raise InvariantError(f"pieces end at {reached} of {num_slots} slots")
