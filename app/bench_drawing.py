"""A benchmark's rows as drawings: a bar for each way with its range, ours first and filled.

It owns the way from `core.bench.report` to SVG, words and CSV: the page shows each row's drawing,
and the saved sheet is made of the same ones. Bars start at 0 and every row has its own scale. It
knows no Streamlit, and no file: a report may be anybody's, so every text is cut and escaped.

Names in a report are English; `spoken` says those of our own benchmarks in the reader's language.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from app.figures.look import Look
from app.figures.table import safe
from core.bench.report import Report, Row, Spread, short
from core.text import catalogue, fill

__all__ = [
    "CSV_HEAD",
    "Drawing",
    "compared",
    "csv_text",
    "direction",
    "draw",
    "groups",
    "range_text",
    "sheet",
    "spoken",
]

Say = Callable[..., str]
CSV_HEAD = ("bench", "row", "unit", "better", "kind", "way", "median", "low", "high", "turns",
            "ours_times_better")  # fmt: skip
_WIDTH = 360  # of one drawing, in its own units: about those of a phone's screen
_TRACK = 248  # of the longest bar; what is right of it says how ours compares
_LINE = 40  # from one way to the next
_TOP = 44  # title and unit
_EDGE, _GAP = 24, 28  # of the sheet
_PALE = ' fill-opacity="0.65"'
_NUMBER = re.compile(r"(?<![a-z\d.,])\d+(?:[.,]\d+)*")  # none that ends a word, as float32


@dataclass(frozen=True, slots=True)
class Drawing:
    """One row: SVG elements within a box of `_WIDTH` x `height`, and the same in words."""

    body: str
    height: int
    words: str

    def svg(self, look: Look) -> str:
        """As a picture of its own, on no ground."""
        return _svg(_WIDTH, self.height, self.body, look)


def spoken(text: str, lang: str) -> str:
    """A report's word in the reader's language; what nobody translated stays as it is.

    Parts before a colon are looked up apart, and numbers fall into `{a}`, `{b}`, … of the sentence.

    >>> spoken("pool: prefix hit and release", "en"), spoken("another thing", "zh")
    ('pool: prefix hit and release', 'another thing')
    """
    head, colon, tail = text.partition(": ")
    if colon:
        return f"{spoken(head, lang)}: {spoken(tail, lang)}"
    numbers = _NUMBER.findall(text.lower())
    key = re.sub(r"[^a-z0-9]+", "_", _NUMBER.sub(" n ", text.lower())).strip("_")
    found = catalogue(lang).get(f"app.benchword.{key}")
    return fill(found, dict(zip("abcdef", numbers, strict=False))) if found else text


def groups(report: Report) -> list[tuple[str, list[Row]]]:
    """Rows by what stands before the colon in their names, in the report's order."""
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        head, colon, _ = row.name.partition(": ")
        found.setdefault(head if colon else "", []).append(row)
    return list(found.items())


def direction(row: Row, say: Say) -> str:
    """Which way is better."""
    return say(f"lab.bench_{row.better or 'neither'}")


def compared(row: Row, ours: str, way: str, say: Say) -> str:
    """How ours compares with a way, "" for ours itself and where nothing can be compared."""
    gain = row.gain(ours, way) if way != ours else None
    if not gain:
        return ""
    if 0.995 <= gain < 1.005:
        return say("lab.bench_same")
    name = "better" if gain > 1 else "worse"
    return say(f"lab.bench_is_{name}", times=short(gain if gain > 1 else 1 / gain))


def range_text(spread: Spread) -> str:
    """The median, and the range where there is one."""
    if spread.low == spread.high:
        return short(spread.median)
    return f"{short(spread.median)} ({short(spread.low)}–{short(spread.high)})"


def draw(report: Report, row: Row, look: Look, say: Say, lang: str) -> Drawing:
    """One row's drawing."""
    ours, most = report.ways[0], max(s.high for s in row.figures.values()) or 1.0
    name = spoken(row.name.partition(": ")[2] or row.name, lang)
    unit = spoken(row.unit, lang)
    counts = sorted({spread.turns for spread in row.figures.values()})
    turns = counts[0] if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    under = say("lab.bench_under", unit=unit, better=direction(row, say),
                kind=spoken(row.kind, lang), turns=turns).strip(" ·")  # fmt: skip
    parts = [
        _text(0, 15, _cut(name, 46), look.text, size=13.5, bold=True),
        _text(0, 32, _cut(under, 62), look.muted, size=11),
    ]
    said = [f"{name}, {under}."]
    for place, (way, spread) in enumerate(row.figures.items()):
        words = compared(row, ours, way, say)
        parts += _bar(_TOP + place * _LINE, spread, most, _cut(spoken(way, lang), 26),
                      words, look, is_ours=way == ours)  # fmt: skip
        said.append(f"{spoken(way, lang)}: {range_text(spread)} {unit}. {words}".strip())
    return Drawing("".join(parts), _TOP + _LINE * len(row.figures), " ".join(said))


def _bar(
    top: int, spread: Spread, most: float, name: str, words: str, look: Look, *, is_ours: bool
) -> list[str]:
    """A way's name and figures over its bar, its range under it, the comparison right of it."""
    low, median, high = (_TRACK * v / most for v in (spread.low, spread.median, spread.high))
    colour = look.accent if is_ours else look.muted
    parts = [
        _text(0, top + 13, name, look.text, size=12, bold=is_ours),
        _text(_WIDTH, top + 13, range_text(spread), look.text, size=12, right=True, bold=is_ours),
        f'<rect x="0" y="{top + 18}" width="{_TRACK}" height="8" fill="{look.part("free")}"/>',
        f'<rect x="0" y="{top + 18}" width="{median:.1f}" height="8" fill="{colour}"'
        f"{'' if is_ours else _PALE}/>",
    ]
    if spread.high > spread.low:
        parts.append(
            f'<path d="M{low:.1f} {top + 27}v5M{high:.1f} {top + 27}v5M{low:.1f} {top + 29.5}'
            f'H{high:.1f}" fill="none" stroke="{look.text}" stroke-width="1.2"/>'
        )
    if words:
        parts.append(_text(_WIDTH, top + 27, words, look.muted, size=11, right=True))
    return parts


# -------------------------------------------------------------------------------------- sheet


def sheet(report: Report, title: str, about: Sequence[str], look: Look, say: Say, lang: str) -> str:
    """The whole report as one picture: what it is, on what, and every row's drawing.

    Args:
        report: what is drawn.
        title: at the top.
        about: lines under it; long ones are broken.
        look: colours.
        say: words in the reader's language.
        lang: of the report's own words.
    """
    columns = min(3, len(report.rows))
    width = 2 * _EDGE + columns * _WIDTH + (columns - 1) * _GAP
    told = escape(_clean(" ".join(about)))
    parts = [f"<title>{escape(_clean(title))}</title><desc>{told}</desc>",
             f'<rect width="100%" height="100%" fill="{look.ground}"/>',
             _text(_EDGE, _EDGE + 16, title, look.text, size=18, bold=True)]  # fmt: skip
    y = _EDGE + 38
    most = (width - 2 * _EDGE) // 6
    for line in (line for long in about for line in _broken(long, most)):
        parts.append(_text(_EDGE, y, line, look.muted, size=11.5))
        y += 17
    for name, rows in groups(report):
        y += 14
        if name:
            parts.append(_text(_EDGE, y + 14, _cut(spoken(name, lang), 60), look.accent, bold=True))
            y += 28
        for start in range(0, len(rows), columns):
            drawings = [draw(report, r, look, say, lang) for r in rows[start : start + columns]]
            for place, drawing in enumerate(drawings):
                x = _EDGE + place * (_WIDTH + _GAP)
                parts.append(f'<g transform="translate({x} {y})">{drawing.body}</g>')
            y += max(drawing.height for drawing in drawings) + 18
    return _svg(width, y + _EDGE, "".join(parts), look)


def csv_text(report: Report) -> str:
    """Every figure of the report; a mark at the start tells spreadsheets of letters past ASCII."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for row in report.rows:
        for way, s in row.figures.items():
            gain = row.gain(report.ways[0], way) if way != report.ways[0] else None
            cells = (report.bench, row.name, row.unit, row.better, row.kind, way,
                     s.median, s.low, s.high, s.turns, gain if gain else "")  # fmt: skip
            writer.writerow(map(safe, cells))
    text = out.getvalue()
    return text if text.isascii() else "\ufeff" + text


def _svg(width: int, height: int, body: str, look: Look) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{escape(look.font, _QUOTES)}">{body}</svg>'
    )


def _text(
    x: float, y: float, text: str, colour: str, *,
    size: float = 13, bold: bool = False, right: bool = False,
) -> str:  # fmt: skip
    more = ' font-weight="650"' if bold else ""
    more += ' text-anchor="end"' if right else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}"{more}>'
        f"{escape(_clean(text))}</text>"
    )


_QUOTES = {'"': "&quot;"}


def _clean(text: str) -> str:
    """Without what XML cannot hold; an odd letter would make the whole picture unreadable."""
    return "".join(c if c.isprintable() else " " for c in text)


def _wide(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _cut(text: str, most: int) -> str:
    """The text in at most so many columns.

    >>> _cut("a long name", 7), _cut("short", 7)
    ('a long…', 'short')
    """
    if sum(map(_wide, text)) <= most:
        return text
    kept, room = "", most - 1
    for letter in text:
        room -= _wide(letter)
        if room < 0:
            break
        kept += letter
    return kept + "…"


def _broken(text: str, most: int) -> list[str]:
    """The text in lines of at most so many columns; broken at a space where there is one.

    >>> _broken("one two three", 7)
    ['one two', 'three']
    """
    lines, line = [], ""
    for piece in re.findall(r"\s*[\u2e80-\uffff]|\s*[^\s\u2e80-\uffff]+", text):
        if line and sum(map(_wide, line + piece)) > most:
            lines.append(line)
            piece, line = piece.lstrip(), ""
        line = _cut(line + piece, most)
    return [*lines, line] if line.strip() else lines
