"""What a setting costs: the block size, and the size of the pool.

Pure functions of points that somebody measured or modelled; a point that nobody has is not drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.frame import Kind, Words, axis, empty, plain, source, titled
from app.figures.look import Look

__all__ = ["BlockPoint", "PoolPoint", "block_sweep", "pool_sweep"]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKS = ("circle", "square", "diamond", "cross", "triangle-up", "star")
_ROW = 170


@dataclass(frozen=True, slots=True)
class BlockPoint:
    """One block size: share of owned slots wasted at the tails, and table entries a request."""

    block_size: int
    waste: float
    entries: float


@dataclass(frozen=True, slots=True)
class PoolPoint:
    """One pool: its slots, and the requests that ran at once, averaged over time."""

    slots: int
    running: float


def block_sweep(
    curves: Mapping[str, Sequence[BlockPoint]],
    attention: Mapping[str, Sequence[tuple[int, float]]],
    look: Look,
    words: Words,
    *,
    about: str,
    kind: Kind,
) -> go.Figure:
    """Waste, table entries and attention time against the block size, one above the other.

    Args:
        curves: modelled points, by the workload's name.
        attention: (block size, seconds) as measured, by what it was measured on.
        look: colours.
        words: of the caller's catalogue.
        about: what the modelled numbers are, and on what.
        kind: of `curves`; attention times are always measured.
    """
    rows = 2 + bool(attention)
    frame = empty(look, words("chart_blocks"), "", "", 120 + _ROW * rows)
    figure = make_subplots(rows, 1, shared_xaxes=True, vertical_spacing=0.07)
    figure.update_layout(frame.layout)
    for place, (name, points) in enumerate(curves.items()):
        sizes = [point.block_size for point in points]
        style = _style(look, place)
        figure.add_scatter(
            x=sizes, y=[point.waste for point in points], name=plain(name), legendgroup=name,
            hovertemplate="%{y:.2%}", row=1, col=1, **style,
        )  # fmt: skip
        figure.add_scatter(
            x=sizes, y=[point.entries for point in points], name=plain(name), legendgroup=name,
            showlegend=False, hovertemplate="%{y:,.1f}", row=2, col=1, **style,
        )  # fmt: skip
    for place, (name, times) in enumerate(attention.items(), start=len(curves)):
        figure.add_scatter(
            x=[size for size, _ in times], y=[1000 * seconds for _, seconds in times],
            name=plain(name), meta="measured", hovertemplate="%{y:.3f} ms",
            row=3, col=1, **_style(look, place),
        )  # fmt: skip
    _axes(figure, rows, look, words)
    return source(figure, look, about, kind)


def pool_sweep(
    curves: Mapping[str, Sequence[PoolPoint]],
    look: Look,
    words: Words,
    *,
    about: str,
    kind: Kind,
) -> go.Figure:
    """Requests running against the pool's size, by system."""
    figure = empty(look, words("chart_pool"), words("pool_slots"), words("mean_running"))
    for place, (name, points) in enumerate(curves.items()):
        ordered = sorted(points, key=lambda point: point.slots)
        figure.add_scatter(
            x=[point.slots for point in ordered], y=[point.running for point in ordered],
            name=plain(name), hovertemplate="%{y:.2f}", **_style(look, place),
        )  # fmt: skip
    figure.update_xaxes(tickformat=",")
    return source(figure, look, about, kind)


def _axes(figure: go.Figure, rows: int, look: Look, words: Words) -> None:
    units: tuple[tuple[str, dict[str, Any]], ...] = (
        (words("blocks_waste"), {"tickformat": ".0%"}),
        (words("blocks_entries"), {"type": "log", "dtick": 1}),
        (f"{words('blocks_attention')} ({words('milliseconds')})", {}),
    )
    sizes = sorted({x for trace in figure.data for x in trace.x})
    for row, (title, extra) in enumerate(units[:rows], start=1):
        figure.update_yaxes(**{**axis(look), **extra}, title=titled(look, title), row=row, col=1)
        figure.update_xaxes(
            **{**axis(look), "rangemode": "normal"}, type="log", tickvals=sizes,
            ticktext=[str(size) for size in sizes], row=row, col=1,
            title=titled(look, words("block_size") if row == rows else ""),
        )  # fmt: skip
    figure.update_layout(legend={"y": 0, "yref": "container", "yanchor": "bottom"})


def _style(look: Look, place: int) -> dict[str, object]:
    colour = look.lines[place % len(look.lines)]
    return {
        "mode": "lines+markers",
        "line": {"width": 2, "color": colour, "dash": _DASHES[place % len(_DASHES)]},
        "marker": {"size": 7, "symbol": _MARKS[place % len(_MARKS)]},
    }
