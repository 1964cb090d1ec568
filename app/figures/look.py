"""Look: the colours, hatches and fonts that a figure is drawn with, as values.

It imports no Plotly. The parts of memory have one order, one colour and one hatch in every figure.
"""

from dataclasses import dataclass

__all__ = ["HATCHES", "PARTS", "Look"]

# The paper's order: what holds a token, what will, what never will, and what nobody owns.
PARTS = ("tokens", "reserved", "unused", "tail", "cached", "hole", "free")
# Waste is hatched, so that it reads without colour; the same letters serve bars and areas.
HATCHES = {"unused": "\\", "tail": "/", "hole": "x"}


@dataclass(frozen=True, slots=True)
class Look:
    """One theme's colours.

    Attributes:
        parts: fills, in the order of `PARTS`.
        lines: colours of curves and owners, first to last.
    """

    ground: str
    text: str
    muted: str
    grid: str
    accent: str
    parts: tuple[str, str, str, str, str, str, str]
    lines: tuple[str, ...]
    font: str

    def part(self, name: str) -> str:
        """The fill of one part of memory."""
        return self.parts[PARTS.index(name)]
