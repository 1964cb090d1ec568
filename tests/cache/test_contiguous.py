"""Contiguous memory by example: what is reserved, what is wasted, who has to wait and why."""

from typing import Any

import pytest

from core.engine import Engine
from core.errors import ConfigError
from core.request import SamplingParams
from core.trace import events as ev
from core.trace.explain import explain
from core.trace.metrics import breakdown, final_lengths, series
from tests.builders import FakeCodec, FakeRunner, make_config, make_engine


def _engine(**changes: Any) -> Engine:
    settings = {"allocator": "contiguous", "block_size": 1, "num_blocks": 65, "max_model_len": 16}
    return make_engine(FakeRunner(), **{**settings, **changes})


def _add(engine: Engine, prompt: int, answer: int, **params: Any) -> None:
    engine.add_request([2] * prompt, SamplingParams(max_tokens=answer, ignore_eos=True, **params))


def _lengths(engine: Engine) -> list[int]:
    return [length for _, _, length, _ in engine.state().regions.values()]


@pytest.mark.parametrize(
    ("reserve", "length"), [("max", 16), ("pow2", 3 + 8), ("exact", 3 + 5 - 1)]
)
def test_a_region_is_as_long_as_the_policy_says(reserve: str, length: int) -> None:
    engine = _engine(reserve=reserve)
    _add(engine, 3, 5)
    engine.step()
    assert _lengths(engine) == [length]


@pytest.mark.parametrize(
    ("placement", "length"), [("first_fit", 41), ("best_fit", 41), ("buddy", 32)]
)
def test_without_a_limit_the_memory_is_the_longest_context(placement: str, length: int) -> None:
    """A model's own limit may be far longer than the memory: every request would be refused."""
    engine = _engine(placement=placement, num_blocks=42, max_model_len=None)
    assert engine.runner.max_model_len > 41
    _add(engine, 3, 5)
    engine.step()
    assert _lengths(engine) == [length]


def test_pow2_never_reserves_past_the_longest_context() -> None:
    engine = _engine(reserve="pow2")
    _add(engine, 10, 5)
    engine.step()
    assert _lengths(engine) == [16]


def test_the_parts_of_a_reserved_region_add_up_and_know_the_end() -> None:
    engine = _engine(num_blocks=41)
    _add(engine, 3, 5)
    engine.step()
    now = engine.trace().snapshot(1)
    engine.step()
    while engine.has_work:
        engine.step()
    parts = breakdown(now, final_lengths(engine.trace()))
    assert (parts.tokens, parts.reserved, parts.unused) == (3, 4, 9)
    assert (parts.hole, parts.free) == (0, 24)
    after = series(engine.trace())[-1].slots
    assert (after.tokens, after.free, after.hole) == (0, 40, 0)


def test_what_an_early_end_leaves_is_unused_from_the_start() -> None:
    """The answer may have 9 tokens but ends after 2: hindsight tells reserved from unused."""
    engine = _engine(reserve="exact")
    _add(engine, 3, 9)
    engine.step()
    blind = breakdown(engine.trace().snapshot(1))
    assert (blind.tokens, blind.reserved, blind.unused) == (3, 8, 0)
    seen = breakdown(engine.trace().snapshot(1), {"A": 4})
    assert (seen.tokens, seen.reserved, seen.unused) == (3, 1, 7)


def test_a_buddy_piece_loses_its_rounding_as_a_hole() -> None:
    engine = _engine(reserve="exact", placement="buddy")
    _add(engine, 3, 3)  # 5 slots in a piece of 8
    engine.step()
    parts = breakdown(engine.trace().snapshot(1))
    assert (parts.tokens, parts.reserved, parts.unused, parts.hole) == (3, 2, 0, 3)


def test_enough_memory_in_pieces_is_called_external_fragmentation() -> None:
    engine = _engine(reserve="exact", num_blocks=31, max_model_len=32)
    for answer in (1, 9, 1):
        _add(engine, 8, answer)  # regions of 8, 16 and, too much for 30 slots, 8
    engine.step()  # A ends at once and leaves 8 slots beside the 6 that were free; C takes them
    _add(engine, 8, 4)  # 11 in one piece
    _add(engine, 2, 1)
    engine.step()
    engine.step()  # C has ended too
    told = [e for e in engine.events if isinstance(e, ev.RequestDeferred)]
    assert [(e.request_id, e.reason.code, e.need, e.free, e.largest) for e in told] == [
        ("C", "no_room_region", 8, 6, 6),
        ("D", "no_room_region", 11, 6, 6),
        ("D", "fragmented", 11, 14, 8),
    ]
    sentence = explain(told[-1], engine.trace().snapshot().labels(), "en")
    assert "external fragmentation" in sentence
    parts = breakdown(engine.trace().snapshot())
    assert parts.hole == 14, "for D every free piece is too small"


def test_a_wait_is_told_once_until_its_reason_changes() -> None:
    engine = _engine(max_num_seqs=1)
    _add(engine, 3, 6)
    _add(engine, 3, 2)
    for _ in range(5):
        engine.step()
    told = [e for e in engine.events if isinstance(e, ev.RequestDeferred)]
    assert [(e.request_id, e.reason.code) for e in told] == [("B", "seqs")]


def test_samples_in_regions_copy_the_whole_prompt() -> None:
    engine = _engine(semantics="paper")
    _add(engine, 5, 3, n=3)
    engine.step()
    assert len(_lengths(engine)) == 3
    record = engine.step()
    assert len(record.output.copies) == 2 * 5
    copied = [e for e in engine.events if isinstance(e, ev.RegionCopied)]
    assert [e.tokens for e in copied] == [5, 5]


def test_a_request_that_no_empty_memory_could_hold_is_refused_at_arrival() -> None:
    engine = _engine(num_blocks=13)
    _add(engine, 3, 2)
    assert not engine.has_work
    assert "reserve 16 slots" in engine.outputs()[0].error


def test_buddies_refuse_what_only_a_merged_row_could_hold() -> None:
    engine = _engine(num_blocks=13, max_model_len=9, placement="buddy")  # 12 slots: 8 + 4
    _add(engine, 3, 2)
    assert not engine.has_work


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
def test_a_static_batch_keeps_its_memory_until_its_longest_member_ends(allocator: str) -> None:
    engine = _engine(allocator=allocator, batching="static", prefix_caching=None)
    _add(engine, 3, 2)
    _add(engine, 3, 6)
    engine.step()
    _add(engine, 3, 2)
    owned = []
    for _ in range(5):
        engine.step()
        owned.append(engine.manager.occupancy.owned)
    assert engine.outputs()[0].outputs[0].finish_reason == "length"
    assert owned[0] <= owned[3], "A has ended, and holds what it held"
    assert owned[4] == 0, "with B the whole batch is over"
    told = [e for e in engine.events if isinstance(e, ev.RequestDeferred)]
    assert [(e.request_id, e.reason.code) for e in told] == [("C", "batch")]
    admitted = {e.request_id: e.step for e in engine.events if isinstance(e, ev.RequestAdmitted)}
    engine.step()
    admitted = {e.request_id: e.step for e in engine.events if isinstance(e, ev.RequestAdmitted)}
    assert admitted == {"A": 1, "B": 1, "C": 7}


def test_contiguous_memory_has_no_prefix_cache_and_no_swap() -> None:
    with pytest.raises(ConfigError, match="allocator=paged"):
        make_config(allocator="contiguous", prefix_caching=True)
    with pytest.raises(ConfigError, match="allocator=paged"):
        make_config(allocator="contiguous", preemption="swap", semantics="paper")


def test_both_memories_have_equally_many_slots() -> None:
    for semantics in ("v1", "paper"):
        paged = make_config(semantics=semantics)
        region = make_config(semantics=semantics, allocator="contiguous")
        assert paged.usable_slots == region.usable_slots
        layout = Engine(region, FakeRunner(), FakeCodec()).header.layout
        assert layout.num_blocks * layout.block_size == paged.usable_slots
