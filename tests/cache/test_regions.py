"""Where regions go: the placements by example, and against a naive bitmap under random use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.cache.buddy import BuddySpace, power_of_two
from core.cache.regions import FreeListSpace, RegionSpace, make_space
from core.config import Placement

PLACEMENTS: tuple[Placement, ...] = ("first_fit", "best_fit", "buddy")


def _holes_of_4_and_2() -> dict[bool, FreeListSpace]:
    """Slots 0-3 free, 4-5 taken, 6-7 free, 8-9 taken."""
    spaces = {}
    for best in (False, True):
        space = spaces[best] = FreeListSpace(10, best=best)
        starts = [space.take(size)[0] for size in (4, 2, 2, 2)]  # type: ignore[index]
        space.give_back(starts[0])
        space.give_back(starts[2])
    return spaces


def test_first_fit_takes_the_lowest_and_best_fit_the_shortest_piece() -> None:
    spaces = _holes_of_4_and_2()
    assert spaces[False].take(2) == (0, 2)
    assert spaces[True].take(2) == (6, 2)


def test_enough_free_in_pieces_is_not_enough_in_one() -> None:
    space = _holes_of_4_and_2()[False]
    assert space.num_free == 6
    assert space.take(5) is None
    assert space.pieces() == [(0, 4), (6, 2)], "a refusal changes nothing"


def test_freed_neighbours_become_one_piece_on_both_sides() -> None:
    space = FreeListSpace(9)
    for _ in range(3):
        space.take(3)
    space.give_back(0)
    space.give_back(6)
    assert space.pieces() == [(0, 3), (6, 3)]
    space.give_back(3)
    assert space.pieces() == [(0, 9)]


def test_the_papers_memory_is_a_row_of_powers_of_two_with_room_for_seven_of_2048() -> None:
    space = BuddySpace(15_729)
    assert [size for _, size in space.pieces()] == [8192, 4096, 2048, 1024, 256, 64, 32, 16, 1]
    taken = [space.take(2048) for _ in range(7)]
    assert all(taken)
    assert space.take(2048) is None
    assert space.num_free / 15_729 == pytest.approx(0.0886, abs=5e-5)


def test_buddies_merge_only_with_their_buddy() -> None:
    space = BuddySpace(8)
    a, b, c, d = (space.take(2) for _ in range(4))
    assert (a, b, c, d) == ((0, 2), (2, 2), (4, 2), (6, 2))
    space.give_back(2)
    space.give_back(4)
    assert space.pieces() == [(2, 2), (4, 2)], "neighbours, but not buddies"
    space.give_back(0)
    assert space.pieces() == [(0, 4), (4, 2)]


@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 80),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=40),
)
def test_every_slot_is_taken_once_or_free(
    placement: Placement, size: int, moves: list[tuple[bool, int]]
) -> None:
    space = make_space(placement, size)
    owner: list[int | None] = [None] * size
    held: list[tuple[int, int]] = []
    for takes, number in moves:
        if takes:
            piece = _take(space, number, placement)
            if piece is not None:
                for slot in range(piece[0], sum(piece)):
                    assert owner[slot] is None
                    owner[slot] = piece[0]
                held.append(piece)
        elif held:
            start, length = held.pop(number % len(held))
            space.give_back(start)
            owner[start : start + length] = [None] * length
        space.check()
        assert space.num_free == owner.count(None)
        free = {slot for start, length in space.pieces() for slot in range(start, start + length)}
        assert free == {slot for slot, who in enumerate(owner) if who is None}
    for start, _ in held:
        space.give_back(start)
    assert space.num_free == size
    assert space.largest == space.longest_ever


def _take(space: RegionSpace, length: int, placement: Placement) -> tuple[int, int] | None:
    """Takes a region; refused exactly when no piece is long enough."""
    before, wanted = space.pieces(), power_of_two(length) if placement == "buddy" else length
    piece = space.take(length)
    if piece is None:
        assert all(size < wanted for _, size in before)
        assert space.pieces() == before
    else:
        assert piece[1] == wanted
    return piece
