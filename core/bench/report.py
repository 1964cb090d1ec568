"""What a benchmark answers: figures with their spread, the machine, and the command.

It owns the values, their table and their JSON. It does not know what was measured, nor how.
Every figure is the median of several turns, with the lowest and the highest turn beside it.
"""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from core.machine import processor_name

__all__ = ["Report", "Row", "Spread", "in_turns", "machine", "short"]

_SPEEDS = frozenset({"s", "ms", "us", "GB/s", "a second", "a processor second"})


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several turns, and their range."""

    median: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0, turns=3)
        """
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of every way that has it; the first of a report's ways is ours.

    Attributes:
        better: whether more or less of the unit is better; "" where neither is.
        kind: "measured", or how it was derived.
    """

    name: str
    unit: str
    better: Literal["more", "less", ""]
    figures: Mapping[str, Spread]
    kind: str = "measured"

    def gain(self, ours: str, other: str) -> float | None:
        """How many times better ours is; None where one is missing or the other is 0.

        >>> one, two = Spread.of([2.0]), Spread.of([6.0])
        >>> Row("append", "us", "less", {"a": one, "b": two}).gain("a", "b")
        3.0
        """
        if not self.better or ours not in self.figures or other not in self.figures:
            return None
        mine, its = self.figures[ours].median, self.figures[other].median
        above, below = (mine, its) if self.better == "more" else (its, mine)
        return above / below if below else None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one benchmark found.

    Attributes:
        command: repeats it.
        ways: what was compared, ours first.
        notes: sentences that belong beside the figures.
    """

    bench: str
    command: str
    machine: Mapping[str, object]
    settings: Mapping[str, object]
    ways: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        """As JSON values, with the gains that the table shows."""
        plain = asdict(self)
        for row, values in zip(self.rows, plain["rows"], strict=True):
            gains = {way: row.gain(self.ways[0], way) for way in self.ways[1:]}
            values["gains"] = {way: round(gain, 3) for way, gain in gains.items() if gain}
        return plain

    def text(self) -> str:
        """As a table: medians with their range, and under a peer's how ours compares with it."""
        lines = [f"{self.bench}: {_pairs(self.machine)}", _pairs(self.settings)]
        names = max((len(f"{row.name}, {row.unit}") for row in self.rows), default=0)
        figures = [_cell(s) for row in self.rows for s in row.figures.values()]
        width = max(20, *(len(text) + 2 for text in (*self.ways, *figures)))
        lines.append(" " * names + "".join(f"{way:>{width}}" for way in self.ways))
        for row in self.rows:
            cells = (_cell(row.figures.get(way)) for way in self.ways)
            title = f"{row.name}, {row.unit}"
            lines.append(f"{title:{names}}{''.join(f'{cell:>{width}}' for cell in cells)}")
            words = "".join(f"{self._word(row, way):>{width}}" for way in self.ways[1:])
            if words.strip():
                lines.append(f"{'':{names}}{'ours:':>{width}}{words}")
        return "\n".join([*filter(None, lines), *self.notes])

    def save(self, path: Path) -> None:
        """Writes the JSON."""
        text = json.dumps(self.plain(), ensure_ascii=False, indent=1)
        path.write_text(text + "\n", encoding="utf-8")

    def _word(self, row: Row, way: str) -> str:
        gain = row.gain(self.ways[0], way)
        if gain is None:
            return ""
        words = ("faster", "slower") if row.unit in _SPEEDS else ("better", "worse")
        return f"{gain:.2f} x {words[0]}" if gain >= 1 else f"{1 / gain:.2f} x {words[1]}"


def in_turns(
    ways: Mapping[str, Callable[[], float]],
    turns: int,
    tell: Callable[[float], None] = lambda share: None,
) -> dict[str, list[float]]:
    """What each way answers in each turn.

    The ways alternate, so that a slow moment of the machine falls on all of them; every second
    turn goes backwards, so that no way always has the same one before it.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways.items())
    for turn in range(turns):
        for name, way in order if turn % 2 == 0 else reversed(order):
            found[name].append(way())
        tell((turn + 1) / turns)
    return found


def machine(*packages: str) -> dict[str, object]:
    """This machine and the versions that matter; packages that are missing are left out."""
    known: dict[str, object] = {
        "processor": processor_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        known["load at start"] = round(os.getloadavg()[0], 1)
    for package in packages:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    return known


def short(value: float) -> str:
    """A number for a reader: three digits, or all of a whole part.

    >>> short(0.01234), short(12.345), short(999.7), short(12345.6)
    ('0.0123', '12.3', '1,000', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{short(spread.median)} ({short(spread.low)}-{short(spread.high)})"
