"""The binary log carries every event exactly, grows by whole events, and refuses damage."""

import dataclasses
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import TraceError
from core.trace import events as ev
from core.trace.delta_log import DeltaLogWriter, decode, encode
from tests.player.runs import RUNS, header_of

_INTS = st.integers(-(2**60), 2**60)
_TEXTS = st.text(max_size=12)
_FLOATS = st.floats(allow_nan=False)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": _INTS,
    "float": _FLOATS,
    "bool": st.booleans(),
    "str": _TEXTS,
    "phase": st.sampled_from(ev.PHASES),
    "reason": st.builds(
        ev.Reason, _TEXTS, st.dictionaries(_TEXTS, st.one_of(_INTS, _TEXTS), max_size=3)
    ),
    "ints": st.lists(_INTS, max_size=5).map(tuple),
    "strs": st.lists(_TEXTS, max_size=5).map(tuple),
    "floats_by_name": st.dictionaries(_TEXTS, _FLOATS, max_size=3),
    "ints_by_name": st.dictionaries(_TEXTS, _INTS, max_size=3),
}
any_event = st.one_of(
    [
        st.builds(cls, **{name: _KINDS[kind] for name, kind in ev.field_kinds(cls).items()})
        for cls in ev.EVENT_TYPES.values()
    ]
)


@given(st.lists(any_event, max_size=8), st.dictionaries(_TEXTS, st.integers(), max_size=3))
@settings(deadline=None, max_examples=150)
def test_any_events_come_back_exactly(events: list[ev.Event], header: dict[str, int]) -> None:
    assert decode(encode(header, events)) == (header, events)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_the_engine_comes_back_exactly_and_small(name: str) -> None:
    trace = RUNS[name]()
    events, header = list(trace.events), header_of(trace)
    log = encode(header, events)
    assert decode(log) == (header, events)
    body = len(log) - len(encode(header, []))
    assert body < 20 * len(events)


def test_each_state_of_a_growing_log_is_a_valid_prefix_of_the_next() -> None:
    events = list(RUNS["paper_swap"]().events)[:120]
    writer = DeltaLogWriter({"schema": 1})
    before = writer.getvalue()
    for count, event in enumerate(events, start=1):
        writer.append(event)
        now = writer.getvalue()
        assert now.startswith(before)
        assert len(writer) == len(now)
        assert decode(now) == ({"schema": 1}, events[:count])
        before = now


def test_bytes_of_something_else_are_refused() -> None:
    with pytest.raises(TraceError) as fault:
        decode(b"PK\x03\x04 something else")
    assert fault.value.code == "delta_log_magic"


def test_an_unknown_version_is_refused() -> None:
    log = bytearray(encode({}, []))
    log[4] = 9
    with pytest.raises(TraceError) as fault:
        decode(bytes(log))
    assert fault.value.code == "delta_log_version"


def test_a_schema_of_other_events_is_refused() -> None:
    log = encode({}, []).replace(b"BlockAllocated", b"BlockAllotted_")
    with pytest.raises(TraceError) as fault:
        decode(log)
    assert fault.value.code == "delta_log_version"


def test_a_log_cut_within_an_event_is_refused() -> None:
    event = ev.TokenSampled(1, 0, "sample", "a:b", ev.Reason("x"), "A", 7, "word", -0.5)
    log = encode({}, [event])
    assert decode(log)[1] == [event]
    for cut in range(1, 9):  # the float at the end
        with pytest.raises(TraceError) as fault:
            decode(log[:-cut])
        assert fault.value.code == "delta_log_damaged"


def test_a_cut_header_is_refused() -> None:
    log = encode({}, [])
    with pytest.raises(TraceError):
        decode(log[:30])
    with pytest.raises(TraceError):
        decode(log[:5] + struct.pack("<I", 4) + b"{no}")


def test_every_field_of_every_event_has_a_kind_the_log_can_carry() -> None:
    for cls in ev.EVENT_TYPES.values():
        assert set(ev.field_kinds(cls)) == {field.name for field in dataclasses.fields(cls)}
        assert set(ev.field_kinds(cls).values()) <= set(_KINDS)
