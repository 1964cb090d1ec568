"""What the Simulate page keeps: sets of simulated runs of one workload, as files and for figures.

It owns the file format of a set, the sets that come with glassblock, and the way from a result to
what figures draw. It does not know Streamlit, nor how a run is made. Every time in a set is
modelled; a set that was opened from a file is checked before anything is drawn from it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from app.figures.look import PARTS
from app.figures.sweeps import PoolPoint
from app.figures.systems import DELAYS, SystemRun
from core.errors import LimitError, WorkloadError
from core.workload.sim_result import Series, SimulationResult, Spread

__all__ = ["PoolRun", "ResultSet", "open_set", "pool_curves", "shipped", "system_run"]

_FOLDER = Path(__file__).parents[1] / "assets" / "results"
_KIND, _SCHEMA = "glassblock-simulations", 1
_MAX_FILE = 8 << 20
_MAX_RESULTS, _MAX_POINTS, _MAX_POOLS = 12, 5000, 200
_QUANTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class PoolRun:
    """One run of a sweep over pool sizes: of it only this is kept."""

    system: str
    slots: int
    mean_running: float
    finished: int
    refused: int


@dataclass(frozen=True, slots=True)
class ResultSet:
    """One workload through several systems.

    Attributes:
        workload: what was asked for, in words of a recipe or a file's name.
        results: one a system.
        pools: of a sweep over pool sizes, if there was one.
        command: how the set was made, where it was made by a command.
    """

    workload: str
    results: tuple[SimulationResult, ...]
    pools: tuple[PoolRun, ...] = ()
    command: str = ""

    def to_json(self) -> str:
        """The set as JSON that `open_set` reads."""
        plain = {
            "kind": _KIND,
            "schema": _SCHEMA,
            "workload": self.workload,
            "command": self.command,
            "results": [result.to_dict() for result in self.results],
            "pools": [asdict(pool) for pool in self.pools],
        }
        return json.dumps(plain, ensure_ascii=False)


def open_set(name: str, data: bytes) -> ResultSet:
    """The set in a file: one of ours, or a single result of `glassblock simulate --out`.

    Raises:
        LimitError: the file is too large.
        WorkloadError: it holds something else; the message bears `name`.
    """
    if len(data) > _MAX_FILE:
        raise LimitError("sim_file_large", name=name, limit=_MAX_FILE >> 20)
    try:
        plain = json.loads(data)
        if plain.get("kind") != _KIND:
            result = SimulationResult.from_json(data.decode("utf-8"), name)
            return _checked(ResultSet(result.workload, (result,)))
        if plain["schema"] != _SCHEMA:
            raise ValueError(plain["schema"])
        return _checked(_set(plain, name))
    except WorkloadError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise WorkloadError("not_a_simulation", path=name) from error


@cache
def shipped() -> tuple[ResultSet, ...]:
    """The sets that come with glassblock, by file name; shared by all visitors."""
    paths = sorted(_FOLDER.glob("simulate_*.json"))
    return tuple(open_set(path.name, path.read_bytes()) for path in paths)


def system_run(result: SimulationResult, name: str) -> SystemRun:
    """A result as figures take it, called `name`."""
    series, latency = result.series, result.summary.latency
    return SystemRun(
        name=name,
        times=series.time,
        parts={part: getattr(series, part) for part in PARTS},
        running=series.running,
        waiting=series.waiting,
        rates=series.tokens_per_second,
        mean={part: getattr(result.summary.breakdown, part) for part in PARTS},
        delays={delay: _quantiles(getattr(latency, delay)) for delay in DELAYS},
    )


def pool_curves(pools: Sequence[PoolRun]) -> dict[str, list[PoolPoint]]:
    """A sweep's points by system; a pool in which nobody could run has no point."""
    curves: dict[str, list[PoolPoint]] = {}
    for pool in pools:
        if pool.finished:
            curves.setdefault(pool.system, []).append(PoolPoint(pool.slots, pool.mean_running))
    return curves


def _quantiles(spread: Spread) -> dict[str, float]:
    return {name: getattr(spread, name) for name in _QUANTILES} if spread.count else {}


def _set(plain: dict[str, Any], name: str) -> ResultSet:
    results = [SimulationResult.from_json(json.dumps(r), name) for r in plain["results"]]
    pools = tuple(
        PoolRun(
            str(p["system"]), int(p["slots"]), float(p["mean_running"]),
            int(p["finished"]), int(p["refused"]),
        )
        for p in plain["pools"]
    )  # fmt: skip
    return ResultSet(str(plain["workload"]), tuple(results), pools, str(plain["command"]))


def _checked(found: ResultSet) -> ResultSet:
    """The set with its numbers made numbers.

    Raises:
        ValueError: too many of them, or something that is no number.
    """
    if not 1 <= len(found.results) <= _MAX_RESULTS or len(found.pools) > _MAX_POOLS:
        raise ValueError(f"{len(found.results)} results, {len(found.pools)} pools")
    for pool in found.pools:
        _number(pool.mean_running)
    return replace(found, results=tuple(map(_checked_result, found.results)))


def _checked_result(result: SimulationResult) -> SimulationResult:
    columns = {f.name: tuple(map(_number, getattr(result.series, f.name))) for f in fields(Series)}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or max(lengths) > _MAX_POINTS:
        raise ValueError(f"series of {sorted(lengths)} points")
    summary = result.summary
    for values in (asdict(summary), asdict(summary.breakdown), *map(asdict, _spreads(result))):
        for name, value in values.items():
            may_lack = name in ("hit_rate", "token_hit_rate", "slots") and value is None
            if name not in ("breakdown", "latency") and not may_lack:
                _number(value)
    return replace(result, series=Series(**columns), cancelled=bool(result.cancelled))


def _spreads(result: SimulationResult) -> list[Spread]:
    return [getattr(result.summary.latency, delay) for delay in DELAYS]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
