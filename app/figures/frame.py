"""An empty figure in the house look, and what every figure says of its source.

It owns axes, margins, the legend's place and the line under the title. It does not know what is
drawn. A text that comes from a file or a visitor goes through `plain` first: Plotly reads a subset
of HTML in its texts.

`figure.layout.meta` is `{"kind": ...}`: measured, modelled, derived or published; a curve of
another kind carries it as its own `meta`, a curve of several kinds one for each point. The CSV
(`app.figures.table`) says it in every row.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal

import plotly.graph_objects as go

from app.figures.look import HATCHES, Look

__all__ = ["Kind", "Words", "axis", "empty", "hatch", "plain", "source", "titled"]

# A key of the caller's catalogue, and values, to words in the reader's language.
Words = Callable[..., str]
Kind = Literal["measured", "modelled", "derived", "published"]

_HEIGHT = 380
_TOP, _LINE, _WIDTH = 50, 15, 62  # pixels above the plot, a line of the subtitle, its letters
_OPENING, _CLOSING = "（“《", "，。；：、）”》"
_FREE = 2  # lines of the subtitle that a figure's height provides for


def empty(look: Look, title: str, across: str, up: str, height: int = _HEIGHT) -> go.Figure:
    """A figure without curves: titles of figure and axes, the house look."""
    figure = go.Figure()
    figure.update_layout(
        template="none", height=height, hovermode="x unified", meta={"kind": "measured"},
        title={"text": title, "x": 0, "xanchor": "left", "y": 0.98, "yanchor": "top",
               "font": {"size": 13, "color": look.text}},
        font={"family": look.font, "size": 12, "color": look.text},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 18, "t": _TOP, "b": 84},
        hoverlabel={"bgcolor": look.ground, "font": {"color": look.text}},
        legend={
            "orientation": "h", "y": -0.3, "yanchor": "top", "x": 0, "traceorder": "normal",
        },
        xaxis={**axis(look), "title": titled(look, across)},
        yaxis={**axis(look), "title": titled(look, up)},
    )  # fmt: skip
    return figure


def axis(look: Look) -> dict[str, Any]:
    """An axis in the house look."""
    return {
        "gridcolor": look.grid, "linecolor": look.grid, "zeroline": False,
        "tickfont": {"color": look.muted}, "automargin": True, "rangemode": "tozero",
    }  # fmt: skip


def titled(look: Look, text: str) -> dict[str, Any]:
    """An axis' title."""
    return {"text": text, "standoff": 6, "font": {"size": 11, "color": look.muted}}


def source(figure: go.Figure, look: Look, text: str, kind: Kind) -> go.Figure:
    """The figure with a line under its title: what its numbers are, and on what."""
    lines = _wrapped(text)
    figure.update_layout(
        meta={"kind": kind},
        title={"subtitle": {"text": "<br>".join(map(plain, lines)),
                            "font": {"size": 11, "color": look.muted}}},
    )  # fmt: skip
    figure.layout.margin.t = _TOP + _LINE * len(lines)
    if figure.layout.height is not None:  # the curves keep their room however much is said
        figure.layout.height += _LINE * max(0, len(lines) - _FREE)
    return figure


def plain(text: str) -> str:
    """The text with nothing in it that Plotly would take for markup.

    >>> plain("a<b>&")
    'a&lt;b>&amp;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;")


def hatch(look: Look, name: str) -> Mapping[str, Any]:
    """How one part of memory is filled, for an area's `fillpattern` or a bar's pattern."""
    colour = look.part(name)
    if name not in HATCHES:
        return {"shape": "", "fgcolor": colour, "bgcolor": colour}
    return {
        "shape": HATCHES[name], "fgcolor": colour, "bgcolor": look.part("free"),
        "size": 8, "solidity": 0.2, "fillmode": "replace",
    }  # fmt: skip


def _wrapped(text: str) -> list[str]:
    """Lines that fit a phone: Plotly cuts off what is wider than the figure."""
    lines, width = [""], 0
    for word in _pieces(text):
        size = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in word)
        if width + size > _WIDTH and lines[-1]:
            lines.append("")
            width = 0
        lines[-1] += word
        width += size
    return [line.strip() for line in lines if line.strip()]


def _pieces(text: str) -> list[str]:
    """Words with the space behind them; a wide character may stand at a line's end by itself."""
    pieces = [""]
    for letter in text:
        if letter in _CLOSING and not pieces[-1] and len(pieces) > 1:
            pieces[-2] += letter  # never at a line's beginning
            continue
        pieces[-1] += letter
        is_wide = unicodedata.east_asian_width(letter) in "WF"
        if letter == " " or (is_wide and letter not in _OPENING):
            pieces.append("")
    return pieces
