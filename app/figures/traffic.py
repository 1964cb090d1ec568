"""Bytes that one decode step reads, sequence by sequence: as the kernel does, and otherwise.

A pure function of counts; all of them are derived from a trace and the kernel's loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.frame import Words, empty, plain, source
from app.figures.look import Look

__all__ = ["Reads", "reads"]


@dataclass(frozen=True, slots=True)
class Reads:
    """K and V of one sequence in one layer, in bytes.

    Attributes:
        shared: one load serves all query heads of a group.
        separate: each query head loads for itself.
        padded: the context is padded to the batch's longest.
    """

    label: str
    shared: int
    separate: int
    padded: int


def reads(rows: Sequence[Reads], look: Look, words: Words, *, about: str) -> go.Figure:
    """Grouped bars by sequence."""
    figure = empty(look, words("chart_lab_reads"), words("lab_sequence"), words("lab_kib"), 350)
    labels = [plain(row.label) for row in rows]
    bars = (
        ("lab_shared", [row.shared for row in rows], 0, ""),
        ("lab_separate", [row.separate for row in rows], 1, "/"),
        ("lab_padded", [row.padded for row in rows], 3, "x"),
    )
    for name, values, colour, shape in bars:
        figure.add_bar(
            x=labels, y=[value / 1024 for value in values], name=words(name),
            hovertemplate="%{y:,.1f} KiB",
            marker={"color": look.lines[colour], "pattern": {"shape": shape, "solidity": 0.25}},
        )  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(type="category")
    return source(figure, look, about, "derived")
