"""Look: the colours and fonts that a figure is drawn with, as values. It imports no Plotly."""

from dataclasses import dataclass

__all__ = ["Look"]


@dataclass(frozen=True, slots=True)
class Look:
    """One theme's colours.

    Attributes:
        parts: fill of tokens, reserved, tail, cached, free: the order of `metrics.Breakdown`.
        lines: colours of curves, first to last.
    """

    ground: str
    text: str
    muted: str
    grid: str
    accent: str
    parts: tuple[str, str, str, str, str]
    lines: tuple[str, ...]
    font: str
