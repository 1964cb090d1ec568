"""Tail waste against a sequence's length: what the block size promises, and what a run shows.

Pure functions of a paged trace. The curve is derived: a sequence whose length leaves a remainder
`r` in its last block wastes `block_size - r` slots, none where `r` is 0. A point is measured: one
sequence after one step, its length modulo the block size and the empty slots of its blocks.
"""

from collections import Counter
from collections.abc import Iterable

import plotly.graph_objects as go

from app.figures.frame import Words, empty, source
from app.figures.look import Look
from core.trace import events as ev
from core.trace.snapshot import Layout, Snapshot

__all__ = ["observed", "tail_waste", "theory"]


def theory(length: int, block_size: int) -> int:
    """Slots of the last block that a sequence of `length` leaves empty.

    >>> [theory(length, 4) for length in (1, 2, 3, 4, 5)]
    [3, 2, 1, 0, 3]
    """
    return -length % block_size


def observed(layout: Layout, events: Iterable[ev.Event]) -> Counter[tuple[int, int]]:
    """How often a run shows (length modulo block size, empty slots), after its steps."""
    size = layout.block_size
    snapshot = Snapshot(layout)
    seen: Counter[tuple[int, int]] = Counter()
    for event in events:
        snapshot.apply(event)
        if isinstance(event, ev.StepEnded):
            for sequence in snapshot.sequences.values():
                if sequence.table:
                    empty_slots = len(sequence.table) * size - sequence.stored
                    seen[sequence.stored % size, empty_slots] += 1
    return seen


def tail_waste(
    layout: Layout, events: Iterable[ev.Event], look: Look, words: Words, *, measured: bool
) -> go.Figure:
    """The curve, the run's points (larger where more often), and the run's mean."""
    size, seen = layout.block_size, observed(layout, events)
    across = words("tail_across", size=size)
    figure = empty(look, words("chart_tail"), across, words("tail_up"))
    rest = list(range(size))
    figure.add_scatter(
        x=rest, y=[theory(r, size) for r in rest], mode="lines", name=words("tail_theory"),
        line={"width": 2, "color": look.muted, "dash": "dash"}, meta="derived",
        hovertemplate="%{y}",
    )  # fmt: skip
    kind = "measured" if measured else "modelled"
    if seen:
        _points(figure, seen, look, words, kind)
        total = seen.total()
        mean = sum(waste * times for (_, waste), times in seen.items()) / total
        figure.add_scatter(
            x=[0, size - 1], y=[mean, mean], mode="lines", name=words("tail_mean"), meta=kind,
            line={"width": 1.5, "color": look.accent, "dash": "dot"}, hovertemplate="%{y:.2f}",
        )  # fmt: skip
    figure.update_layout(hovermode="closest")
    about = words("tail_source", n=seen.total())
    return source(figure, look, about, "measured" if measured else "modelled")


def _points(
    figure: go.Figure, seen: Counter[tuple[int, int]], look: Look, words: Words, kind: str
) -> None:
    most = max(seen.values())
    places = sorted(seen)
    figure.add_scatter(
        x=[r for r, _ in places], y=[waste for _, waste in places], mode="markers",
        name=words("tail_measured"), meta=kind,
        marker={"color": look.lines[0], "opacity": 0.75,
                "size": [6 + 12 * (seen[place] / most) ** 0.5 for place in places]},
        text=[words("tail_count", n=seen[place]) for place in places],
        hovertemplate="%{x} → %{y}: %{text}<extra></extra>",
    )  # fmt: skip
