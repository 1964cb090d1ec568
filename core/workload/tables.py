"""Plain text tables for the terminal: columns as wide as their widest cell.

It knows strings and numbers, not what they mean.
"""

import unicodedata
from collections.abc import Sequence

__all__ = ["render_table"]


def render_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; the first column is aligned left, the others right, None is a dash.

    >>> print(render_table(["name", "n"], [["a", 1.5], ["long", None]]))
    name    n
    a     1.5
    long    –
    """
    lines = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell + pad if place == 0 else pad + cell
            for place, (cell, pad) in enumerate(_padded(line, widths))
        ).rstrip()
        for line in lines
    )


def _padded(line: list[str], widths: list[int]) -> list[tuple[str, str]]:
    return [(cell, " " * (width - _width(cell))) for cell, width in zip(line, widths, strict=True)]


def _cell(value: object) -> str:
    return "–" if value is None else str(value)


def _width(text: str) -> int:
    """Columns of a terminal; a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
