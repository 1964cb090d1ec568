"""What sharing saves: bars by kind and width, ours beside what was published.

A pure function of points. A published range is no number, so it is not drawn; tables say it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.frame import Kind, Words, empty, plain, source, titled
from app.figures.look import Look

__all__ = ["Saving", "savings"]


@dataclass(frozen=True, slots=True)
class Saving:
    """One bar: `saved` percent of the blocks, in a group of bars, of a series."""

    group: str
    series: str
    saved: float
    kind: Kind


def savings(points: Sequence[Saving], look: Look, words: Words, *, about: str) -> go.Figure:
    """Grouped bars; a published series is hatched."""
    figure = empty(look, words("chart_savings"), "", words("saved_percent"))
    names = list(dict.fromkeys(point.series for point in points))
    for place, name in enumerate(names):
        mine = [point for point in points if point.series == name]
        is_published = all(point.kind == "published" for point in mine)
        colour = look.lines[place // 2 % len(look.lines)]
        pattern = {"shape": "/", "fgcolor": colour, "bgcolor": look.ground, "solidity": 0.3}
        figure.add_bar(
            x=[plain(point.group) for point in mine], y=[point.saved for point in mine],
            name=plain(name), meta=[point.kind for point in mine], hovertemplate="%{y:.2f} %",
            marker={"color": colour, "line": {"width": 1, "color": colour},
                    "pattern": pattern if is_published else None},
        )  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(title=titled(look, ""))
    return source(figure, look, about, "modelled")
