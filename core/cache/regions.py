"""Where a region of slots can go: first fit, best fit, or a buddy allocator behind one interface.

A space knows how many slots there are and which runs of them are taken; it does not know who
takes them or why. Invariant, re-derived by `check()`: the taken regions and the free pieces
partition the slots. First and best fit keep one free list by address and merge neighbours at
once; the buddy allocator (`core.cache.buddy`) has its own rules.
"""

from bisect import bisect_left
from typing import Protocol

from core.cache.buddy import BuddySpace, Piece, check_partition
from core.config import Placement
from core.errors import InvariantError

__all__ = ["FreeListSpace", "RegionSpace", "make_space"]


class RegionSpace(Protocol):
    """An address space of slots."""

    @property
    def num_free(self) -> int:
        """Free slots."""

    @property
    def largest(self) -> int:
        """The longest region that could be taken now."""

    @property
    def longest_ever(self) -> int:
        """The longest region that could be taken if nothing were."""

    def pieces(self) -> list[Piece]:
        """Free pieces, by address."""

    def take(self, length: int) -> Piece | None:
        """Takes at least `length` slots; None when no piece is long enough (nothing changes)."""

    def give_back(self, start: int) -> None:
        """Frees the region that begins at `start`."""

    def check(self) -> None:
        """Raises InvariantError when taken and free slots do not partition the space."""


def make_space(placement: Placement, num_slots: int) -> RegionSpace:
    """An empty space of `num_slots` slots."""
    if placement == "buddy":
        return BuddySpace(num_slots)
    return FreeListSpace(num_slots, best=placement == "best_fit")


class FreeListSpace:
    """First fit (the lowest piece that is long enough) or best fit (the shortest such piece).

    >>> space = FreeListSpace(10)
    >>> space.take(4), space.take(3), space.take(4)
    ((0, 4), (4, 3), None)
    >>> space.give_back(0)
    >>> space.pieces()
    [(0, 4), (7, 3)]
    """

    def __init__(self, num_slots: int, *, best: bool = False) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._best = best
        self._free: list[Piece] = [(0, num_slots)]
        self._taken: dict[int, int] = {}

    @property
    def largest(self) -> int:
        """The longest region that could be taken now."""
        return max((size for _, size in self._free), default=0)

    @property
    def longest_ever(self) -> int:
        """The longest region that could be taken if nothing were."""
        return self.num_slots

    def pieces(self) -> list[Piece]:
        """Free pieces, by address; no two touch."""
        return self._free.copy()

    def take(self, length: int) -> Piece | None:
        """Takes the first `length` slots of the chosen piece; O(pieces)."""
        fitting = [(size, start) for start, size in self._free if size >= length]
        if not fitting:
            return None
        size, start = min(fitting) if self._best else min(fitting, key=lambda piece: piece[1])
        place = bisect_left(self._free, (start, 0))
        rest = [(start + length, size - length)] if size > length else []
        self._free[place : place + 1] = rest
        self._taken[start] = length
        self.num_free -= length
        return start, length

    def give_back(self, start: int) -> None:
        """Frees a region and merges it with the free pieces beside it."""
        size = self._taken.pop(start)
        self.num_free += size
        place = bisect_left(self._free, (start, 0))
        end = place
        if place < len(self._free) and self._free[place][0] == start + size:
            size += self._free[place][1]
            end += 1
        if place and sum(self._free[place - 1]) == start:
            place -= 1
            start, size = self._free[place][0], self._free[place][1] + size
        self._free[place:end] = [(start, size)]

    def check(self) -> None:
        """Re-derives the partition.

        Raises:
            InvariantError: taken and free pieces overlap, leave a gap, or touch unmerged.
        """
        check_partition([*self._free, *self._taken.items()], self.num_slots)
        if self.num_free != sum(size for _, size in self._free):
            raise InvariantError(f"num_free = {self.num_free}, free pieces {self._free}")
        for (start, size), (following, _) in zip(self._free, self._free[1:], strict=False):
            if start + size >= following:
                raise InvariantError(f"free pieces touch at {following}: {self._free}")
