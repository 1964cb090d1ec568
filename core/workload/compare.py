"""Runs of one workload in several memories, side by side: systems, figures, equal tokens, gain.

It owns the named systems and what is said of their runs; everything is read from traces, so a
figure and the run behind it cannot disagree. It does not know models: the caller plays.

Invariant: all systems of a comparison have equally many usable slots.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from core.config import EngineConfig
from core.errors import ConfigError
from core.trace import events as ev
from core.trace.metrics import Breakdown, series
from core.trace.trace import Trace

__all__ = [
    "GAIN",
    "SYSTEMS",
    "Bar",
    "Difference",
    "Equality",
    "Figures",
    "Line",
    "Measured",
    "configure",
    "equal_tokens",
    "figures",
    "gain_report",
    "lines",
    "measure",
    "resized",
    "waterfall",
]

_STATIC = {"allocator": "contiguous", "prefix_caching": None, "reserve": "max"}
_PAGED = {"allocator": "paged", "batching": "continuous"}
# Settings that make a system of a scenario's own: its memory, and how requests share the steps.
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "static": _STATIC | {"placement": "first_fit", "batching": "static"},
    "continuous": _STATIC | {"placement": "first_fit", "batching": "continuous"},
    "paged": _PAGED | {"prefix_caching": False},
    "shared": _PAGED | {"prefix_caching": True},
    "pow2": _STATIC | {"reserve": "pow2", "placement": "first_fit", "batching": "continuous"},
    "exact": _STATIC | {"reserve": "exact", "placement": "best_fit", "batching": "continuous"},
    "buddy": _STATIC | {"reserve": "pow2", "placement": "buddy", "batching": "continuous"},
}
# The steps from the oldest way to the newest, each of which adds one idea to the one before.
GAIN = ("static", "continuous", "paged", "shared")


def configure(base: EngineConfig, system: str) -> EngineConfig:
    """The settings of a named system, with everything else as in `base`.

    Raises:
        ConfigError: there is no such system.
    """
    if system not in SYSTEMS:
        raise ConfigError("no_system", name=system, names=", ".join(SYSTEMS))
    return replace(base, **SYSTEMS[system])


def resized(base: EngineConfig, block_size: int, slots: int | None = None) -> EngineConfig:
    """Other blocks, equally many slots; or `slots` of them, rounded down to whole blocks.

    Raises:
        ConfigError: a size out of range, or a memory of less than one block.
    """
    changed = replace(base, block_size=block_size)
    wanted = base.usable_slots if slots is None else slots
    spare = base.total_blocks - base.usable_blocks
    if wanted < block_size:
        raise ConfigError("memory_small", slots=wanted, block_size=block_size)
    return replace(changed, num_blocks=max(2, wanted // block_size + spare))


# ------------------------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run did, from a step on; rates count generated tokens and the time of the steps.

    Attributes:
        shares: mean share of the usable slots over the steps, by part of `Breakdown`.
        deferred: how often a waiting request was told why it waits, by the reason's code.
        measured: False when a cost model made the times.
    """

    steps: int
    tokens: int
    seconds: float
    finished: int
    rejected: int
    preemptions: int
    mean_running: float
    peak_running: int
    mean_waiting: float
    hit_rate: float | None
    shares: Mapping[str, float]
    deferred: Mapping[str, int]
    measured: bool

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def waste(self) -> float:
        """Mean share of the memory that no token will ever fill while it is so."""
        return sum(self.shares.get(part, 0.0) for part in ("unused", "tail", "hole"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the derived ones included."""
        return asdict(self) | {
            "tokens_per_second": round(self.tokens_per_second, 2),
            "waste": round(self.waste, 4),
        }


def figures(trace: Trace, since: int = 0) -> Figures:
    """The figures of the steps after `since`."""
    every = series(trace)
    steps = [item for item in every if item.step > since]
    count = max(1, len(steps))
    queried = hit = 0
    before = [item for item in every if item.step <= since]
    kinds: Counter[str] = Counter()
    deferred: Counter[str] = Counter()
    for event in trace.events:
        if event.step > since or (event.step == since == 0):
            kinds[type(event).__name__] += 1
            if isinstance(event, ev.RequestDeferred):
                deferred[event.reason.code] += 1
            elif isinstance(event, ev.RequestAdmitted):
                queried, hit = queried + event.queried_tokens, hit + event.hit_tokens
    return Figures(
        steps=len(steps),
        tokens=sum(item.sampled_tokens for item in steps),
        seconds=round(sum(item.seconds for item in steps), 6),
        finished=kinds["RequestFinished"],
        rejected=kinds["RequestRejected"],
        preemptions=(steps[-1].preemptions if steps else 0)
        - (before[-1].preemptions if before else 0),
        mean_running=round(sum(item.running for item in steps) / count, 4),
        peak_running=max((item.running for item in steps), default=0),
        mean_waiting=round(sum(item.waiting for item in steps) / count, 4),
        hit_rate=hit / queried if queried else None,
        shares=_shares([item.slots for item in steps]),
        deferred=dict(deferred),
        measured=trace.header.measured,
    )


def _shares(moments: Sequence[Breakdown]) -> dict[str, float]:
    total = sum(item.total for item in moments) or 1
    names = asdict(moments[0]) if moments else {}
    return {name: round(sum(getattr(item, name) for item in moments) / total, 6) for name in names}


# ---------------------------------------------------------------------------- equal tokens


@dataclass(slots=True)
class Line:
    """One sequence's tokens; `is_over` when it was not cut off by the end of the run."""

    label: str
    num_prompt_tokens: int
    token_ids: list[int]
    texts: list[str]
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which two runs differ; -1 where one of them has none.

    Attributes:
        seq_id: as in the first run.
        position: in the sequence, prompt included.
    """

    label: str
    seq_id: str
    position: int
    left: int
    right: int
    left_text: str
    right_text: str


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether two runs chose the same tokens, sequence by sequence, position by position.

    Attributes:
        sequences: compared: in both runs, beams that lost left out.
        tokens: generated tokens compared, those before a first difference in `equal`.
        differences: the first of each sequence that has one, the earliest position first.
        missing: labels of sequences that only one run has.
    """

    sequences: int
    tokens: int
    equal: int
    differences: tuple[Difference, ...]
    missing: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The earliest difference, None when there is none."""
        return self.differences[0] if self.differences else None

    @property
    def holds(self) -> bool:
        """Whether nothing differs and nothing is missing."""
        return self.first is None and not self.missing


def lines(trace: Trace) -> dict[str, Line]:
    """All sequences of a run by id, beams that lost left out."""
    found: dict[str, Line] = {}
    for event in trace.events:
        match event:
            case ev.RequestArrived():
                found[event.request_id] = Line(
                    event.label, len(event.prompt_token_ids), list(event.prompt_token_ids),
                    list(event.texts),
                )  # fmt: skip
            case ev.SequenceForked() if event.parent_id in found:
                parent = found[event.parent_id]
                found[event.child_id] = Line(
                    event.label, parent.num_prompt_tokens, parent.token_ids.copy(),
                    parent.texts.copy(),
                )  # fmt: skip
            case ev.TokenSampled() if event.seq_id in found:
                found[event.seq_id].token_ids.append(event.token_id)
                found[event.seq_id].texts.append(event.text)
            case ev.SequenceFinished() if event.seq_id in found:
                found[event.seq_id].is_over = event.finish_reason in ("stop", "length")
            case ev.SequenceDropped():
                found.pop(event.seq_id, None)
            case _:
                pass
    return found


def equal_tokens(left: Trace, right: Trace) -> Equality:
    """Compares two runs token for token; a sequence is known by its label.

    What one run had not yet generated when it was stopped is not compared.
    """
    ours = {line.label: (seq_id, line) for seq_id, line in lines(left).items()}
    theirs = {line.label: line for line in lines(right).values()}
    differences: list[Difference] = []
    tokens = equal = 0
    both = [label for label in ours if label in theirs]
    for label in both:
        seq_id, line = ours[label]
        same, of, difference = _compare(seq_id, line, theirs[label])
        tokens, equal = tokens + of, equal + same
        if difference is not None:
            differences.append(difference)
    differences.sort(key=lambda item: item.position)
    missing = tuple(label for label in (*ours, *theirs) if label not in both)
    return Equality(len(both), tokens, equal, tuple(differences), missing)


def _compare(seq_id: str, left: Line, right: Line) -> tuple[int, int, Difference | None]:
    """Equal tokens, compared tokens and the first difference of one sequence."""
    begin = max(left.num_prompt_tokens, right.num_prompt_tokens)
    end = max(len(left.token_ids), len(right.token_ids))
    if not (left.is_over and right.is_over):
        end = min(len(left.token_ids), len(right.token_ids))
    for position in range(end):
        a, b = _at(left, position), _at(right, position)
        if a[0] != b[0]:
            place = Difference(left.label, seq_id, position, a[0], b[0], a[1], b[1])
            return max(0, position - begin), max(0, end - begin), place
    return max(0, end - begin), max(0, end - begin), None


def _at(line: Line, position: int) -> tuple[int, str]:
    if position >= len(line.token_ids):
        return -1, ""
    return line.token_ids[position], line.texts[position]


# ------------------------------------------------------------------------------------ gain


@dataclass(frozen=True, slots=True)
class Measured:
    """One system's repeats: rates in the order of the repeats, and the run of the median rate."""

    system: str
    rates: tuple[float, ...]
    trace: Trace

    @property
    def rate(self) -> float:
        """The median: generated tokens a second."""
        return median(self.rates)


def measure(
    systems: Sequence[str],
    play: Callable[[str], Trace | None],
    repeat: int = 1,
    tell: Callable[[int, str], None] | None = None,
) -> list[Measured]:
    """Plays every system `repeat` times, interleaved: a machine's moods meet all alike.

    Args:
        systems: names, for `play`.
        play: runs one system to its end; None where it was stopped, which ends the measuring.
        repeat: rounds; each begins with another system.
        tell: called before each run with the round, from 1, and the system.

    Returns:
        The systems that were played to the end at least once, with as many rates.
    """
    runs: dict[str, list[tuple[float, Trace]]] = {name: [] for name in systems}
    for turn, name in _rounds(systems, repeat):
        if tell is not None:
            tell(turn, name)
        trace = play(name)
        if trace is None:
            break
        runs[name].append((figures(trace).tokens_per_second, trace))
    return [
        Measured(name, tuple(rate for rate, _ in found), _typical(found))
        for name, found in runs.items()
        if found
    ]


def _rounds(systems: Sequence[str], repeat: int) -> Iterator[tuple[int, str]]:
    for turn in range(repeat):
        first = turn % len(systems)
        for name in (*systems[first:], *systems[:first]):
            yield turn + 1, name


def _typical(runs: Sequence[tuple[float, Trace]]) -> Trace:
    ordered = sorted(runs, key=lambda run: run[0])
    return ordered[(len(ordered) - 1) // 2][1]


@dataclass(frozen=True, slots=True)
class Bar:
    """One step of the gain: from `start` tokens a second by `delta`.

    Attributes:
        share: of the whole gain; None where there is none.
        factor: against the system before; 1 for the first.
    """

    system: str
    start: float
    delta: float
    share: float | None = field(default=None)
    factor: float = 1.0

    @property
    def end(self) -> float:
        """What the system reaches."""
        return self.start + self.delta


def waterfall(rates: Sequence[tuple[str, float]]) -> list[Bar]:
    """The gain of each system over the one before; the first stands on the ground.

    >>> [(bar.delta, bar.share) for bar in waterfall([("a", 50), ("b", 75), ("c", 150)])]
    [(50, None), (25, 0.25), (75, 0.75)]
    """
    if not rates:
        return []
    whole = rates[-1][1] - rates[0][1]
    bars = [Bar(rates[0][0], 0.0, rates[0][1])]
    for (_, before), (name, after) in pairwise(rates):
        share = (after - before) / whole if whole > 0 else None
        bars.append(Bar(name, before, after - before, share, after / before if before else 1.0))
    return bars


def gain_report(
    measured: Sequence[Measured], scenario: str, model: Mapping[str, Any]
) -> dict[str, Any]:
    """Plain values: the rates, the waterfall over them, and what they were measured on.

    Args:
        measured: the oldest way first.
        scenario: what was played.
        model: as in a trace's header: name, dtype, device, processor.
    """
    bars = waterfall([(item.system, item.rate) for item in measured])
    repeat = min((len(item.rates) for item in measured), default=0)
    return {
        "scenario": scenario,
        "command": f"glassblock compare {scenario} --waterfall --repeat {repeat} --json",
        "measured": all(item.trace.header.measured for item in measured),
        "model": dict(model),
        "repeat": repeat,
        "systems": [
            {
                "system": item.system,
                "rates": [round(rate, 2) for rate in item.rates],
                "tokens_per_second": round(item.rate, 2),
                "config": dict(item.trace.header.config),
                "figures": figures(item.trace).to_dict(),
            }
            for item in measured
        ],
        "bars": [{**asdict(bar), "end": bar.end} for bar in bars],
        "factor": round(bars[-1].end / bars[0].end, 4) if bars and bars[0].end else None,
    }
