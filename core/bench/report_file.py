"""Reads what `glassblock bench` wrote: a file's bytes to a `Report`, or one fault that says where.

It owns the checks; the file may be anybody's. Every number is finite, no number is below 0, the
median lies within its range, and a row speaks only of the report's ways. Ratios in the file are
left aside: `Row.gain` computes them. It does not know where the bytes come from.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from core.bench.report import Report, Row, Spread
from core.errors import BenchError

__all__ = ["MOST_BYTES", "read_report"]

MOST_BYTES = 1 << 20
_MOST_ROWS, _MOST_WAYS, _MOST_PAIRS, _MOST_NOTES = 200, 12, 60, 40
_MOST_TEXT = 2000
_BETTER: Mapping[str, Literal["more", "less", ""]] = {"more": "more", "less": "less", "": ""}


class _Wrong(ValueError):
    """Something is not what a report has there; its text names the place."""


def read_report(data: bytes, name: str) -> Report:
    """The report in a file.

    Args:
        data: the file's bytes.
        name: of the file, for the fault.

    Raises:
        BenchError: it is too large, no JSON, or no report.
    """
    if len(data) > MOST_BYTES:
        raise BenchError("bench_file_large", name=name, limit=MOST_BYTES >> 20)
    try:
        plain = json.loads(data.decode("utf-8-sig"))
        json.dumps(plain, ensure_ascii=False).encode()  # half a letter can be escaped, not shown
    except (ValueError, RecursionError) as fault:
        raise BenchError("bench_file_json", name=name) from fault
    try:
        return _report(plain)
    except _Wrong as fault:
        raise BenchError("bench_file_report", name=name, where=str(fault)) from fault


def _report(plain: Any) -> Report:
    values = _map(plain, "{}")
    ways = tuple(_text(w, f"ways[{n}]") for n, w in _items(values, "ways", _MOST_WAYS))
    if not ways or len(set(ways)) < len(ways):
        raise _Wrong("ways")
    rows = tuple(_row(row, f"rows[{n}]", ways) for n, row in _items(values, "rows", _MOST_ROWS))
    if not rows:
        raise _Wrong("rows")
    notes = _items(values, "notes", _MOST_NOTES) if "notes" in values else []
    return Report(
        _text(values.get("bench"), "bench"), _text(values.get("command"), "command", empty=True),
        _pairs(values.get("machine"), "machine"), _pairs(values.get("settings"), "settings"),
        ways, rows, tuple(_text(note, f"notes[{n}]") for n, note in notes),
    )  # fmt: skip


def _row(plain: Any, where: str, ways: tuple[str, ...]) -> Row:
    values = _map(plain, where)
    figures = _map(values.get("figures"), f"{where}.figures")
    if not figures or not set(figures) <= set(ways):
        raise _Wrong(f"{where}.figures")
    better = values.get("better")
    if not isinstance(better, str) or better not in _BETTER:
        raise _Wrong(f"{where}.better")
    return Row(
        _text(values.get("name"), f"{where}.name"),
        _text(values.get("unit"), f"{where}.unit", empty=True),
        _BETTER[better],
        {way: _spread(figures[way], f"{where}.figures[{way}]") for way in ways if way in figures},
        _text(values.get("kind", "measured"), f"{where}.kind"),
    )


def _spread(plain: Any, where: str) -> Spread:
    values = _map(plain, where)
    low, median, high = (_number(values.get(k), f"{where}.{k}") for k in ("low", "median", "high"))
    turns = values.get("turns")
    if type(turns) is not int or turns < 1:
        raise _Wrong(f"{where}.turns")
    if not low <= median <= high:
        raise _Wrong(f"{where}.median")
    return Spread(median, low, high, turns)


def _number(value: Any, where: str) -> float:
    """A finite number that is not below 0; past what a float holds it is no number."""
    if type(value) not in (int, float) or not 0 <= value <= 1e300 or not math.isfinite(value):
        raise _Wrong(where)
    return float(value)


def _text(value: Any, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not (value.strip() or empty):
        raise _Wrong(where)
    return value


def _map(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(where)
    return value


def _items(values: Mapping[str, Any], key: str, most: int) -> list[tuple[int, Any]]:
    found = values.get(key)
    if not isinstance(found, list) or len(found) > most:
        raise _Wrong(key)
    return list(enumerate(found))


def _pairs(plain: Any, where: str) -> Mapping[str, object]:
    """Names with plain values, or with lists of them."""
    values = _map(plain, where)
    if len(values) > _MOST_PAIRS:
        raise _Wrong(where)
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, str | int | float) for item in items):
            raise _Wrong(f"{where}.{name}")
        if len(str(value)) > _MOST_TEXT:
            raise _Wrong(f"{where}.{name}")
    return values
