"""The charts of a trace, each with its export: what Explore and Compare show below their players.

It owns their order and the line that says what a run's numbers are. Importing it loads Plotly's
Python side only; the script is loaded by a browser that gets a chart.
"""

from collections.abc import Sequence

import streamlit as st

from app.export import chart
from app.figures import charts, memory_map, systems, tail
from app.figures.frame import Kind, Words, source
from app.sim_view import words_of
from app.state import Say
from app.theme import LOOKS, theme_name
from core.trace.metrics import Breakdown, series
from core.trace.trace import Trace

__all__ = ["show_memories", "show_trace"]


def show_trace(trace: Trace, say: Say, cursor: int | None = None, key: str = "run") -> None:
    """Memory by part, requests, throughput, the address space, and the tails of a run.

    Args:
        trace: of the run.
        say: words in the visitor's language.
        cursor: step where the player stands.
        key: of these charts on their page.
    """
    steps, look, words = series(trace), LOOKS[theme_name()], words_of(say)
    if not steps:
        return
    about, kind = _source(trace, words)
    wide, (left, right) = st.container(), st.columns(2, gap="small")
    for place, name, draw in (
        (wide, "memory", charts.memory),
        (left, "requests", charts.requests),
        (right, "rates", charts.rates),
    ):
        with place:
            figure = source(draw(steps, look, words, cursor), look, about, kind)
            chart(figure, f"{key}_{name}", say)
    _map(trace, about, kind, say, f"{key}_map")
    layout = trace.header.layout
    if layout.allocator == "paged" and layout.block_size > 1:
        is_measured = trace.header.measured
        figure = tail.tail_waste(layout, trace.events, look, words, measured=is_measured)
        chart(figure, f"{key}_tail", say)


def show_memories(runs: Sequence[tuple[str, Trace]], say: Say, key: str = "memories") -> None:
    """Several memories under one workload: one bar each, then each one's address space.

    Args:
        runs: name and trace, in the order in which they are shown.
        say: words in the visitor's language.
        key: of these charts on their page.
    """
    look, words = LOOKS[theme_name()], words_of(say)
    means = {name: _mean([step.slots for step in series(trace)]) for name, trace in runs}
    abouts = [_source(trace, words) for _, trace in runs]
    about = " | ".join(dict.fromkeys(text for text, _ in abouts))
    figure = systems.bars(
        means, look, words, about=f"{words('over_steps')}; {about}", kind=abouts[0][1],
        kinds=[kind for _, kind in abouts],
    )  # fmt: skip
    chart(figure, f"{key}_bars", say)
    for number, ((name, trace), (text, kind)) in enumerate(zip(runs, abouts, strict=True)):
        _map(trace, f"{name}; {text}", kind, say, f"{key}_map_{number}")


def _map(trace: Trace, about: str, kind: Kind, say: Say, key: str) -> None:
    figure = memory_map.address_map(
        trace.header.layout, trace.events, trace.num_steps, LOOKS[theme_name()], words_of(say),
        about=about, kind=kind,
    )  # fmt: skip
    chart(figure, key, say)


def _source(trace: Trace, words: Words) -> tuple[str, Kind]:
    header = trace.header
    text = charts.provenance(header.model, header.measured, words)
    return text, "measured" if header.measured else "modelled"


def _mean(parts: Sequence[Breakdown]) -> dict[str, float]:
    """Shares of all slots by part, averaged over the steps."""
    total = sum(part.total for part in parts) or 1
    names = Breakdown.__slots__
    return {name: sum(getattr(part, name) for part in parts) / total for name in names}
