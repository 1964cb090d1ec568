"""The short way of scheduling a decode against the long one, and forgetting what is over."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine import Engine
from core.errors import InvariantError
from core.request import SamplingParams
from core.sched.scheduler import Scheduler
from core.trace.events import Event, RequestScheduled
from tests.builders import make_engine

_PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=14), st.integers(1, 9)),
    min_size=1,
    max_size=6,
)
_MEMORIES: list[dict[str, Any]] = [
    {"semantics": "v1"},
    {"semantics": "v1", "prefix_caching": False},
    {"semantics": "paper"},
    {"semantics": "paper", "prefix_caching": True, "num_blocks": 9},
    {"allocator": "contiguous", "reserve": "exact", "placement": "best_fit"},
    {"allocator": "contiguous", "reserve": "pow2", "batching": "static"},
]


def _events(changes: dict[str, Any], prompts: list[tuple[list[int], int]]) -> list[Event]:
    engine = make_engine(**changes)
    for tokens, length in prompts:
        engine.add_request(tokens, SamplingParams(max_tokens=length, n=1 + length % 2))
    for _ in engine.run(200):
        engine.check()
    return [
        replace(event, **{"at": ""}, **({"timings": {}} if hasattr(event, "timings") else {}))
        for event in engine.events
    ]


@pytest.mark.parametrize("changes", _MEMORIES, ids=str)
@given(prompts=_PROMPTS)
@settings(max_examples=25, deadline=None)
def test_the_short_way_decides_as_the_long_one(
    changes: dict[str, Any], prompts: list[tuple[list[int], int]]
) -> None:
    short = _events(changes, prompts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_decode_in_place", lambda self, request, step: False)
        long = _events(changes, prompts)
    assert short == long


def test_the_short_way_is_taken_where_it_can_be() -> None:
    engine = make_engine(block_size=4)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True))
    list(engine.run())
    ways = [e.at.rpartition(":")[2] for e in engine.events if isinstance(e, RequestScheduled)]
    # The prompt; position 3 fills and seals a block, 4 opens one, 5 and 6 have their slots.
    short = "_decode_in_place"
    assert ways == ["_commit", "_commit", "_commit", short, short, "_commit", "_commit", short,
                    short]  # fmt: skip


def _finished(engine: Engine) -> None:
    list(engine.run())


def test_a_forgotten_request_leaves_no_answer_and_frees_its_name() -> None:
    engine = make_engine(record=False)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, n=2), request_id="X")
    with pytest.raises(InvariantError, match="X is not finished"):
        engine.forget("X")
    _finished(engine)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2), request_id="Y")
    engine.forget("X")
    engine.forget("X")  # nothing is left to forget
    assert [output.request_id for output in engine.outputs()] == ["Y"]
    engine.add_request([4], SamplingParams(max_tokens=2), request_id="X")
    _finished(engine)
    assert engine.summary().prompt_tokens == 4
