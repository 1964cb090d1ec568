"""Gauges of a simulation: averages over time, a bounded series, and spreads of latencies.

It owns sums and histograms whose size does not grow with the run (two numbers a finished request
excepted). It does not know requests or blocks.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from math import ceil, exp, log

from core.workload.sim_result import Series, Shares, Spread

__all__ = ["PARTS", "LogHistogram", "TimeAverages", "spread_of"]

PARTS = ("tokens", "reserved", "unused", "tail", "cached", "hole", "free")
_QUANTILES = (0.5, 0.9, 0.95, 0.99)
# Columns of a point: seconds, then sums over time of running, waiting and the parts.
_WIDTH = 3 + len(PARTS)


class TimeAverages:
    """Averages over time of running and waiting requests and of the parts of memory.

    The series has at most `2 * max_points` points: when it is full, neighbours are merged and
    from then on each point takes twice as many steps.
    """

    def __init__(self, max_points: int = 600) -> None:
        self._max = max(1, max_points)
        self._steps_a_point = 1
        self._steps_in_last = 0
        self._points: list[list[float]] = []
        self._ends: list[tuple[float, int, float]] = []  # time, generated so far, hit rate
        self._busy = [0.0] * _WIDTH
        self.peak_running = 0

    def add(
        self,
        end: float,
        seconds: float,
        running: int,
        waiting: int,
        parts: tuple[int, ...],
        generated: int,
        hit_rate: float,
        *,
        busy: bool = True,
    ) -> None:
        """A step, or an idle time, of `seconds` up to `end`."""
        row = [seconds, running * seconds, waiting * seconds, *[part * seconds for part in parts]]
        if busy:
            self._busy = [total + new for total, new in zip(self._busy, row, strict=True)]
            self.peak_running = max(self.peak_running, running)
        if self._steps_in_last == 0:
            self._points.append(row)
            self._ends.append((end, generated, hit_rate))
        else:
            last = self._points[-1]
            self._points[-1] = [total + new for total, new in zip(last, row, strict=True)]
            self._ends[-1] = end, generated, hit_rate
        self._steps_in_last = (self._steps_in_last + 1) % self._steps_a_point
        if self._steps_in_last == 0 and len(self._points) >= 2 * self._max:
            self._merge()

    def _merge(self) -> None:
        pairs = zip(self._points[::2], self._points[1::2], strict=True)
        self._points = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        self._ends = self._ends[1::2]
        self._steps_a_point *= 2

    @property
    def busy_seconds(self) -> float:
        """Seconds in steps."""
        return self._busy[0]

    @property
    def mean_running(self) -> float:
        """Requests that ran, averaged over busy time."""
        return self._busy[1] / self._busy[0] if self._busy[0] else 0.0

    @property
    def mean_waiting(self) -> float:
        """Requests that waited, averaged over busy time."""
        return self._busy[2] / self._busy[0] if self._busy[0] else 0.0

    def shares(self) -> Shares:
        """Parts of memory, averaged over busy time."""
        return Shares(*_shares(self._busy[3:]))

    def series(self) -> Series:
        """The points so far."""
        columns: list[list[float]] = [[] for _ in range(2 + len(PARTS))]
        speed: list[float] = []
        before = 0.0, 0
        for row, (end, generated, _) in zip(self._points, self._ends, strict=True):
            seconds = row[0] or 1.0
            values = [row[1] / seconds, row[2] / seconds, *_shares(row[3:])]
            for column, value in zip(columns, values, strict=True):
                column.append(round(value, 6))
            passed = end - before[0]
            speed.append(round((generated - before[1]) / passed, 3) if passed > 0 else 0.0)
            before = end, generated
        named = dict(zip(("running", "waiting", *PARTS), map(tuple, columns), strict=True))
        return Series(
            time=tuple(round(end, 6) for end, _, _ in self._ends),
            tokens_per_second=tuple(speed),
            hit_rate=tuple(round(rate, 6) for _, _, rate in self._ends),
            **named,
        )


def _shares(sums: list[float]) -> list[float]:
    total = sum(sums)
    return [part / total for part in sums] if total else [0.0] * len(sums)


class LogHistogram:
    """Counts of positive values in bins that are 0.5 % wide; mean and maximum are exact."""

    _BINS = 200.0

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self._count = 0
        self._sum = 0.0
        self._max = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """`count` times the value."""
        self._bins[int(log(value) * self._BINS // 1)] += count
        self._count += count
        self._sum += value * count
        self._max = max(self._max, value)

    def spread(self) -> Spread:
        """Quantiles at the middle of their bin."""
        if not self._count:
            return Spread()
        ordered = sorted(self._bins.items())
        found = []
        for quantile in _QUANTILES:
            rank, seen = ceil(quantile * self._count), 0
            for place, count in ordered:
                seen += count
                if seen >= rank:
                    found.append(min(exp((place + 0.5) / self._BINS), self._max))
                    break
        rounded = [round(value, 6) for value in (self._sum / self._count, *found, self._max)]
        return Spread(self._count, *rounded)


def spread_of(values: Iterable[float]) -> Spread:
    """Exact quantiles (nearest rank).

    >>> spread_of([3.0, 1.0, 2.0]).p50
    2.0
    """
    ordered = sorted(array("d", values))
    if not ordered:
        return Spread()
    found = [ordered[ceil(quantile * len(ordered)) - 1] for quantile in _QUANTILES]
    numbers = (sum(ordered) / len(ordered), *found, ordered[-1])
    return Spread(len(ordered), *[round(value, 6) for value in numbers])
