"""A figure's data as CSV: what is drawn, no more and no less.

Curves and bars become one row a point, with the names of both axes and the kind of number
(measured, modelled, derived, published). A map becomes a grid: a column a step, a row an address.
A name that a spreadsheet would take for a formula is marked as text: a file may call things so.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

__all__ = ["COLUMNS", "csv_text", "safe"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
COLUMNS = ("series", "x_name", "x", "y_name", "y", "kind")


def csv_text(figure: go.Figure) -> str:
    """The figure's data; a mark at the start tells spreadsheets of letters past ASCII."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    if maps:
        for row in _grid(figure, maps[0]):
            writer.writerow(map(safe, row))
    else:
        writer.writerow(COLUMNS)
        for trace in figure.data:
            writer.writerows(map(safe, row) for row in _points(figure, trace))
    text = out.getvalue()
    return text if text.isascii() else "\ufeff" + text


def safe(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _points(figure: go.Figure, trace: Any) -> Iterator[tuple[object, ...]]:
    if trace.x is None or trace.y is None:
        return
    names = [_axis_title(figure, "x", trace.xaxis), _axis_title(figure, "y", trace.yaxis)]
    kind = trace.meta or figure.layout.meta["kind"]
    kinds = [kind] * len(trace.x) if isinstance(kind, str) else kind
    for x, y, each in zip(trace.x, trace.y, kinds, strict=True):
        if x is not None:
            yield trace.name or "", names[0], x, names[1], "" if y is None else y, each


def _grid(figure: go.Figure, trace: Any) -> Iterator[list[object]]:
    corner = f"{_axis_title(figure, 'y', None)} / {_axis_title(figure, 'x', None)}"
    yield [corner, *trace.x]
    for address, row in zip(trace.y, trace.text, strict=True):
        yield [address, *row]


def _axis_title(figure: go.Figure, letter: str, name: str | None) -> str:
    """The axis' title; rows and columns of subplots may leave it to another of their axes."""
    own = figure.layout[f"{letter}axis{(name or letter)[1:]}"].title.text
    if own:
        return str(own)
    titles = (figure.layout[key].title.text for key in _axes(figure, letter))
    return next((str(text) for text in titles if text), "")


def _axes(figure: go.Figure, letter: str) -> list[str]:
    return [key for key in figure.layout.to_plotly_json() if key.startswith(f"{letter}axis")]
