"""SimulationResult: what a simulated run came to, as plain values that fit in a file.

It owns the shapes of the summary and the series, and their JSON. It does not know how they were
gained. Every second in it is modelled, except `wall_seconds`; every slot is counted.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from core.errors import WorkloadError
from core.exec.cost_model import Assumption
from core.text import sentence

__all__ = ["Latency", "Refusal", "Series", "Shares", "SimulationResult", "Spread", "Summary"]

_SCHEMA = 1
_KIND = "glassblock-simulation"


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many events; all 0 when there was none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of requests: to the first token, between two tokens, to the end (all from arrival).

    `itl` is within 0.5 %, because its quantiles come from a histogram.
    """

    ttft: Spread = Spread()
    itl: Spread = Spread()
    e2e: Spread = Spread()


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of memory by state, averaged over time; see `core.trace.metrics`. They sum to 1."""

    tokens: float = 0.0
    reserved: float = 0.0
    unused: float = 0.0
    tail: float = 0.0
    cached: float = 0.0
    hole: float = 0.0
    free: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that can never run: its number in the workload (from 1), and why."""

    number: int
    code: str
    values: Mapping[str, Any]

    def text(self, lang: str = "en") -> str:
        """The reason as a sentence."""
        return sentence(f"error.{self.code}", lang, **self.values)


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals and averages.

    Attributes:
        refused: requests that could never run.
        skipped_rows: rows of the workload's file that could not be read.
        simulated_seconds: modelled time from the first arrival to the last token.
        busy_seconds: the part of it in which a step ran; averages are over it.
        wall_seconds: how long the simulation took here, measured.
        tokens_per_second: generated tokens over simulated seconds.
        hit_rate: share of the workload's prefix names that were in memory when their request was
            admitted; None without names or without prefix caching.
        token_hit_rate: share of prompt tokens found, as vLLM counts; None without prefix caching.
        mean_running, mean_waiting: requests, averaged over busy time.
        breakdown: shares of all slots (of an unlimited pool: of those ever needed at that time),
            averaged over busy time while the forward runs.
        slots: slots that requests can own, None when unlimited.
        peak_slots: most slots that were owned at once.
    """

    requests: int
    finished: int
    refused: int
    skipped_rows: int
    steps: int
    simulated_seconds: float
    busy_seconds: float
    wall_seconds: float
    prompt_tokens: int
    generated_tokens: int
    tokens_per_second: float
    hit_rate: float | None
    token_hit_rate: float | None
    preemptions: int
    mean_running: float
    mean_waiting: float
    peak_running: int
    breakdown: Shares
    slots: int | None
    peak_slots: int
    latency: Latency


@dataclass(frozen=True, slots=True)
class Series:
    """The run over time in a bounded number of points; each is an average over its interval.

    Attributes:
        time: where each interval ends, in simulated seconds.
        tokens_per_second: generated in the interval.
        hit_rate: all references so far, 0 before the first.
        others: requests, and shares of the slots.
    """

    time: tuple[float, ...] = ()
    running: tuple[float, ...] = ()
    waiting: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    reserved: tuple[float, ...] = ()
    unused: tuple[float, ...] = ()
    tail: tuple[float, ...] = ()
    cached: tuple[float, ...] = ()
    hole: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    tokens_per_second: tuple[float, ...] = ()
    hit_rate: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One simulated run.

    Attributes:
        notes: what a reader of the workload's numbers must know (see `Workload`).
        system: a name of `core.workload.systems`, or "" for a configuration of one's own.
        config: the engine's settings.
        cancelled: whether it was stopped before its end; everything is as far as it came.
        refusals: the first ones; `summary.refused` counts all.
        assumptions: what the modelled times rest on.
        command: a line that repeats it, "" where nobody knows one.
    """

    workload: str
    format: str
    source: str
    notes: tuple[tuple[str, int], ...]
    system: str
    config: Mapping[str, Any]
    summary: Summary
    series: Series
    refusals: tuple[Refusal, ...]
    assumptions: tuple[Assumption, ...]
    cancelled: bool = False
    command: str = ""

    def assumption_texts(self, lang: str = "en") -> list[str]:
        """The assumptions as sentences."""
        return [sentence(f"simulate.assumption.{a.code}", lang, **a.values)
                for a in self.assumptions]  # fmt: skip

    def note_texts(self, lang: str = "en") -> list[str]:
        """The workload's notes as sentences."""
        return [sentence(f"workload.note.{code}", lang, count=count) for code, count in self.notes]

    def to_dict(self, *, series: bool = True) -> dict[str, Any]:
        """Plain values; `summary` holds the assumptions, so that it never stands without them."""
        plain = asdict(self)
        assumptions = plain.pop("assumptions")
        for item, text in zip(assumptions, self.assumption_texts(), strict=True):
            item["text"] = text
        for item, refusal in zip(plain["refusals"], self.refusals, strict=True):
            item["text"] = refusal.text()
        plain["summary"]["assumptions"] = assumptions
        plain["summary"]["measured"] = False
        if not series:
            del plain["series"]
        return {"kind": _KIND, "schema": _SCHEMA, **plain}

    def to_json(self, *, series: bool = True) -> str:
        """The result as JSON; `from_json` reads it back when the series is in it."""
        return json.dumps(self.to_dict(series=series), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, path: object = "") -> "SimulationResult":
        """What `to_json` wrote.

        Raises:
            WorkloadError: the text is no result, or one of another version.
        """
        try:
            plain = json.loads(text)
            if plain.get("kind") != _KIND or plain.get("schema") != _SCHEMA:
                raise WorkloadError("not_a_simulation", path=path)
            return _result(plain)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, WorkloadError):
                raise
            raise WorkloadError("not_a_simulation", path=path) from error


def _result(plain: dict[str, Any]) -> SimulationResult:
    summary = dict(plain["summary"])
    assumptions = tuple(Assumption(a["code"], a["values"]) for a in summary.pop("assumptions"))
    del summary["measured"]
    latency = {name: Spread(**values) for name, values in summary.pop("latency").items()}
    breakdown = Shares(**summary.pop("breakdown"))
    return SimulationResult(
        workload=plain["workload"],
        format=plain["format"],
        source=plain["source"],
        notes=tuple((code, count) for code, count in plain["notes"]),
        system=plain["system"],
        config=plain["config"],
        summary=Summary(**summary, breakdown=breakdown, latency=Latency(**latency)),
        series=Series(**{f.name: tuple(plain["series"][f.name]) for f in fields(Series)}),
        refusals=tuple(Refusal(r["number"], r["code"], r["values"]) for r in plain["refusals"]),
        assumptions=assumptions,
        cancelled=plain["cancelled"],
        command=str(plain.get("command", "")),
    )
