"""The roofline: how fast arithmetic can be at so many operations a byte, and where attention is.

A pure function of limits and points. A roof is the lower of two limits: bytes a second times
operations a byte, and operations a second. Each carries its kind: measured here, or published.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.frame import Kind, Words, empty, plain, source
from app.figures.look import Look

__all__ = ["Point", "Roof", "roofline"]

_LEFT, _RIGHT = 0.25, 1024.0  # operations a byte
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKS = ("circle", "square", "diamond", "cross", "triangle-up")


@dataclass(frozen=True, slots=True)
class Roof:
    """A machine's two limits: bytes a second and operations a second."""

    name: str
    bandwidth: float
    rate: float
    kind: Kind

    @property
    def ridge(self) -> float:
        """Operations a byte at which arithmetic, not memory, becomes the limit.

        >>> Roof("", 100.0, 1000.0, "measured").ridge
        10.0
        """
        return self.rate / self.bandwidth

    def at(self, intensity: float) -> float:
        """Operations a second at so many operations a byte."""
        return min(self.rate, self.bandwidth * intensity)


@dataclass(frozen=True, slots=True)
class Point:
    """Measured operations a second at a derived number of operations a byte."""

    name: str
    intensity: float
    rate: float


def roofline(
    roofs: Sequence[Roof], points: Sequence[Point], look: Look, words: Words, *, about: str
) -> go.Figure:
    """Both axes are logarithmic; points are measured, roofs say themselves what they are."""
    figure = empty(look, words("chart_lab_roof"), words("lab_intensity"), words("lab_rate"), 440)
    for place, roof in enumerate(roofs):
        across = sorted({_LEFT, min(max(roof.ridge, _LEFT), _RIGHT), _RIGHT})
        figure.add_scatter(
            x=across, y=[roof.at(x) / 1e9 for x in across], mode="lines", name=plain(roof.name),
            meta=roof.kind, hovertemplate="%{y:,.0f}",
            line={"width": 2, "color": look.lines[place % len(look.lines)],
                  "dash": _DASHES[place % len(_DASHES)]},
        )  # fmt: skip
    for place, point in enumerate(points):
        figure.add_scatter(
            x=[point.intensity], y=[point.rate / 1e9], mode="markers", name=plain(point.name),
            meta="measured", hovertemplate="%{y:,.2f}",
            marker={"size": 11, "symbol": _MARKS[place % len(_MARKS)], "color": look.text},
        )  # fmt: skip
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(type="log", rangemode="normal", dtick=1)
    figure.update_yaxes(type="log", rangemode="normal", dtick=1)
    return source(figure, look, about, "measured")
