"""Charts of traces on a page: every memory, each with its export."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.figures import memory_map
from core.config import EngineConfig
from core.engine import Engine
from core.request import SamplingParams
from core.trace.metrics import series
from core.trace.trace import Trace
from tests.builders import FakeCodec, FakeRunner

KINDS: list[dict[str, Any]] = [
    {"allocator": "contiguous", "reserve": reserve, "placement": placement, "batching": batching}
    for reserve in ("max", "pow2", "exact")
    for placement in ("first_fit", "buddy")
    for batching in ("continuous", "static")
]


def traced(**settings: Any) -> Trace:
    config = EngineConfig(
        **{"block_size": 4, "num_blocks": 33, "max_model_len": 48, "max_num_seqs": 4, **settings}
    )
    engine = Engine(config, FakeRunner(), FakeCodec(), model={"name": "Fake"})
    for number in range(6):
        params = SamplingParams(max_tokens=5 + 3 * number, ignore_eos=True)
        engine.add_request(list(range(2, 8 + number)), params)
    while engine.has_work:
        engine.step()
    return engine.trace()


@pytest.mark.parametrize("settings", [{}, *KINDS], ids=lambda s: "-".join(s.values()) or "paged")
def test_the_map_of_every_memory_counts_what_the_metrics_count(settings: dict[str, Any]) -> None:
    trace = traced(**settings)
    layout = trace.header.layout
    slots = layout.num_blocks * layout.block_size
    sampled, _ = memory_map.columns(layout, trace.events, range(slots), 1)
    steps = series(trace)
    assert len(sampled) == len(steps) > 5
    for (_, cells), step in zip(sampled, steps, strict=True):
        states = [cell.state for cell in cells]
        parts = step.slots
        assert states.count("written") == parts.tokens
        assert states.count("held") + states.count("spare") == (
            parts.tail + parts.reserved + parts.unused
        )
        assert states.count("lost") <= parts.hole
        assert states.count("cached") == parts.cached


def page(run_trace: Any) -> AppTest:
    """A page of `run_trace`'s charts, drawn in a script of its own."""

    def script(function):  # type: ignore[no-untyped-def]  # its text runs without our imports
        function()

    shown = AppTest.from_function(script, args=(run_trace,), default_timeout=30).run()
    assert not shown.exception
    return shown


def test_a_trace_gets_its_charts_and_each_can_be_saved() -> None:
    from app import state
    from app.trace_charts import show_trace

    trace = traced()
    shown = page(lambda: show_trace(trace, state.say("en"), 3))
    assert len(shown.get("plotly_chart")) == len(shown.get("bidi_component")) == 5
    static = traced(**KINDS[0])
    shown = page(lambda: show_trace(static, state.say("zh")))
    assert len(shown.get("plotly_chart")) == 4  # no tails where there are no blocks


def test_memories_stand_side_by_side_and_their_shares_add_up() -> None:
    from app import state
    from app.trace_charts import show_memories

    runs = [("paged", traced()), ("static <b>", traced(**KINDS[1]))]
    shown = page(lambda: show_memories(runs, state.say("en")))
    specs = [json.loads(item.proto.spec) for item in shown.get("plotly_chart")]
    assert len(specs) == 3
    for place in range(2):
        assert sum(bar["x"][place] for bar in specs[0]["data"]) == pytest.approx(1)
    assert "<b>" not in specs[2]["layout"]["title"]["subtitle"]["text"].replace("<br>", "")
