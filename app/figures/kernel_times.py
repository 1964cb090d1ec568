"""Times of attention kernels: against one size, and beside one another as shares of a copy.

Pure functions of points that somebody measured. A line that is computed (reading at the speed of a
copy) says so in its own kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.frame import Words, axis, empty, plain, source, titled
from app.figures.look import Look

__all__ = ["Timing", "copy_shares", "times"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds at one size; `at_copy` is how long a copy would take to read as many bytes."""

    size: int
    fastest: float
    median: float
    at_copy: float


def times(
    points: Sequence[Timing], look: Look, words: Words, *, title: str, across: str, about: str
) -> go.Figure:
    """The fastest turn, the median, and the limit that copying sets, against a size.

    Args:
        points: in any order.
        look: colours.
        words: of the caller's catalogue.
        title: key of the figure's title.
        across: key of the size's name.
        about: what was measured, on what.
    """
    figure = empty(look, words(title), words(across), words("milliseconds"), 350)
    ordered = sorted(points, key=lambda point: point.size)
    sizes = [point.size for point in ordered]
    curves = (
        ("lab_fastest", [p.fastest for p in ordered], "solid", "circle", 0, "measured"),
        ("lab_median", [p.median for p in ordered], "dot", "circle-open", 0, "measured"),
        ("lab_at_copy", [p.at_copy for p in ordered], "dash", "diamond-open", 5, "derived"),
    )
    for name, seconds, dash, mark, colour, kind in curves:
        figure.add_scatter(
            x=sizes, y=[1000 * value for value in seconds], name=words(name), meta=kind,
            mode="lines+markers", hovertemplate="%{y:.3f} ms",
            line={"width": 2, "color": look.lines[colour], "dash": dash},
            marker={"size": 7, "symbol": mark},
        )  # fmt: skip
    figure.update_xaxes(
        type="log", tickvals=sizes, ticktext=[f"{size:,}" for size in sizes], rangemode="normal"
    )
    # Logarithmic, so that a slow median leaves the fastest turns readable.
    # Labels at 1, 2 and 5: a curve often lies within one power of ten.
    figure.update_yaxes(type="log", rangemode="normal", dtick="D2")
    return source(figure, look, about, "measured")


def copy_shares(
    rows: Sequence[tuple[str, Mapping[str, float]]], look: Look, words: Words, *, about: str
) -> go.Figure:
    """Bandwidth as a share of a copy's: a group of bars for each shape, one bar a kernel.

    Args:
        rows: the shape's name, and shares by the kernel's name.
        look: colours.
        words: of the caller's catalogue.
        about: the device and what was compared.
    """
    height = 190 + 62 * len(rows)
    figure = empty(look, words("chart_lab_shares"), words("lab_share_of_copy"), "", height)
    names = list(dict.fromkeys(name for _, shares in rows for name in shares))
    for place, name in enumerate(names):
        known = [(row, shares[name]) for row, shares in rows if name in shares]
        figure.add_bar(
            y=[plain(row) for row, _ in known], x=[share for _, share in known],
            orientation="h", name=plain(name), hovertemplate="%{x:.1%}",
            marker={"color": look.lines[place % len(look.lines)],
                    "pattern": {"shape": ("", "/", ".", "x")[place % 4], "solidity": 0.25}},
        )  # fmt: skip
    figure.add_vline(x=1, line={"dash": "dash", "width": 1, "color": look.muted})
    figure.update_layout(
        barmode="group", hovermode="y unified", legend={"y": 0, "yref": "container",
                                                        "yanchor": "bottom"},
        yaxis={**axis(look), "autorange": "reversed", "title": titled(look, "")},
    )  # fmt: skip
    figure.update_xaxes(tickformat=".0%")
    return source(figure, look, about, "measured")
