"""Figure 2 of the PagedAttention paper: where memory goes in four systems.

Each system runs twice through the real scheduler and memory, without a model:
- full: all requests wait from the start. The shares are averages over modelled time while a
  request waits, once a tenth of them has ended (before that all are young);
- at the paper's rate: Poisson arrivals, 2 a second. The mean number of running requests, over the
  arrivals' time without its first tenth.

Shares are of all slots. *tokens*: written; *reserved*: will be written by their owner; *unused*:
held by an owner that will never write them; *other*: the rest, which is free in pieces that
nobody fits into, or lost to the rounding of a buddy piece (our `hole`, the paper's "external &
others"); of paged memory, what admission keeps free and what is less than the next one needs.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from core.cache.contiguous import RegionManager
from core.engine import Engine
from core.errors import WorkloadError
from core.exec.cost_model import StepLoad
from core.exec.sim_runner import Observer
from core.sched.output import SchedulerOutput
from core.text import sentence
from core.workload.paper_runs import (
    CONTEXT,
    SLOTS,
    Note,
    Progress,
    backlog,
    drive,
    paper_config,
    paper_cost,
    sim_engine,
)
from core.workload.requests import Workload
from core.workload.synthetic import retime
from core.workload.tables import render_table

__all__ = ["SYSTEMS", "Figure2", "Figure2Row", "Meter", "Shares", "figure2"]

_RATE = 2.0
_CLOSE = 5.0  # percentage points within which a share counts as reproduced
_YOUNG = 0.1


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of the memory in percent; they add up to 100. None: not published."""

    tokens: float
    reserved: float | None
    unused: float | None
    other: float | None


# system: published shares, and published running requests at 2 a second
_PUBLISHED = {
    "orca-max": (Shares(20.4, 13.3, 57.3, 8.9), 7.00),
    "orca-pow2": (Shares(26.8, 17.9, 13.6, 41.6), 9.81),
    "orca-oracle": (Shares(38.2, 25.2, 0.0, 36.6), 13.62),
    "paged": (Shares(96.3, None, None, None), 30.42),
}
SYSTEMS = tuple(_PUBLISHED)


@dataclass(frozen=True, slots=True)
class Figure2Row:
    """One system: our shares when full, and how many requests run, full and at 2 a second."""

    system: str
    shares: Shares
    published: Shares
    running_full: float
    running: float
    published_running: float
    preemptions: int

    @property
    def largest_difference(self) -> float:
        """Percentage points between our shares and the published ones, at most."""
        pairs = zip(asdict(self.shares).values(), asdict(self.published).values(), strict=True)
        return float(max(abs(ours - theirs) for ours, theirs in pairs if theirs is not None))


@dataclass(frozen=True, slots=True)
class Figure2:
    """The four systems, and what the figures rest on."""

    rows: tuple[Figure2Row, ...]
    workload: str
    requests: int
    seed: int
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rows = [
            asdict(row) | {"largest_difference": round(row.largest_difference, 2)}
            for row in self.rows
        ]
        return {
            "paper": "figure2",
            "origin": "modelled",
            "slots": SLOTS,
            "workload": self.workload,
            "requests": self.requests,
            "seed": self.seed,
            "rows": rows,
            "notes": [note.to_json() for note in self.notes],
        }

    def to_text(self, lang: str = "en") -> str:
        """A table for the terminal, ours / published, and the notes."""
        header = sentence("paper.figure2.header", lang).split("|")
        rows = [
            (
                sentence(f"paper.system.{row.system}", lang),
                *(_beside(row.shares, row.published, part) for part in _PARTS),
                f"{row.running_full:.2f}",
                f"{row.running:.2f} / {row.published_running:.2f}",
            )
            for row in self.rows
        ]
        notes = [note.sentence(lang) for note in self.notes]
        return "\n".join([render_table(header, rows), self.workload, *notes])


_PARTS = ("tokens", "reserved", "unused", "other")


def _beside(ours: Shares, published: Shares, part: str) -> str:
    theirs = getattr(published, part)
    return f"{getattr(ours, part):.2f} / {'–' if theirs is None else f'{theirs:.1f}'}"


def figure2(
    progress: Progress | None = None, seed: int = 0, requests: int = 2000, spread: float = 1.0
) -> Figure2:
    """Runs the four systems.

    Args:
        progress: is told the share that is done; may raise to stop.
        seed: of lengths and arrivals.
        requests: how many, in each run. The longest few weigh much: of 200, shares are still 5
            points off by chance; of 2000, about one.
        spread: standard deviation of the lengths, in means.

    Raises:
        WorkloadError: so few requests that none ever waits.
    """
    full = backlog("sharegpt", requests, seed, spread)
    paced = retime(full, _RATE, "poisson", seed)
    rows = []
    for number, system in enumerate(SYSTEMS):
        row = _row(system, full, paced, _part_of(progress, number / len(SYSTEMS)))
        rows.append(row)
    if progress is not None:
        progress(1.0)
    return Figure2(tuple(rows), paced.source, requests, seed, _notes(rows))


def _part_of(progress: Progress | None, start: float) -> Progress:
    def tell(done: float) -> None:
        if progress is not None:
            progress(start + done / len(SYSTEMS))

    return tell


def _row(system: str, full: Workload, paced: Workload, progress: Progress) -> Figure2Row:
    busy = Meter(system, lambda meter: meter.waits and meter.ended >= _YOUNG * len(full))
    busy.run(full, lambda done: progress(done / 2))
    first, last = _YOUNG * paced.duration, paced.duration
    steady = Meter(system, lambda meter: first <= meter.clock <= last)
    steady.run(paced, lambda done: progress((1 + done) / 2))
    if not (busy.mean_running and steady.mean_running):
        raise WorkloadError("paper_too_few", requests=len(full))
    published, running = _PUBLISHED[system]
    return Figure2Row(
        system, busy.shares(), published, round(busy.mean_running, 3),
        round(steady.mean_running, 3), running, busy.preemptions,
    )  # fmt: skip


class Meter:
    """Averages over modelled time of what an engine holds, at the moments that count.

    Moments are forwards: memory is held and nothing has been released yet.
    """

    def __init__(self, system: str, counts: Callable[["Meter"], bool]) -> None:
        self._counts = counts
        self._sums = [0.0, 0.0, 0.0]  # slots x seconds: written, reserved, held and never written
        self._running = self._seconds = 0.0
        self.clock, self.ended, self.waits, self.preemptions = 0.0, 0, False, 0
        observe: Observer = self._observe
        self.engine, self._runner = sim_engine(paper_config(system), paper_cost(), observe)

    def run(self, workload: Workload, progress: Progress) -> None:
        """Plays the workload to its end."""
        for step, clock in enumerate(drive(self.engine, self._runner, workload)):
            self.clock = clock
            if not step % 100:
                progress(self.ended / len(workload))
        self.preemptions = self.engine.scheduler.num_preemptions

    @property
    def mean_running(self) -> float:
        """Running requests."""
        return self._running / self._seconds if self._seconds else 0.0

    def shares(self) -> Shares:
        """Parts of all slots, in percent."""
        parts = [100 * value / (self._seconds * SLOTS) for value in self._sums]
        return Shares(*(round(part, 3) for part in (*parts, 100 - sum(parts))))

    def _observe(self, output: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        scheduler = self.engine.scheduler
        self.waits = bool(scheduler.waiting)
        if self._counts(self):
            for place, slots in enumerate(_held(self.engine, load)):
                self._sums[place] += slots * seconds
            self._running += len(scheduler.running) * seconds
            self._seconds += seconds
        self.ended += sum(
            item.samples and item.seq.num_output_tokens + 1 >= item.seq.request.params.max_tokens
            for item in output.scheduled
        )


def _held(engine: Engine, load: StepLoad) -> tuple[int, int, int]:
    """Slots written, reserved for later, and held for nothing, with this forward's tokens."""
    holders = list(engine.scheduler.holders())
    written = sum(seq.num_computed_tokens for seq in holders) + load.tokens
    if not isinstance(engine.manager, RegionManager):
        owned = engine.manager.occupancy.owned * engine.config.block_size
        return written, 0, owned - written
    # The last sampled token never gets a slot.
    final = sum(seq.num_prompt_tokens + seq.request.params.max_tokens - 1 for seq in holders)
    length = sum(region.length for region in engine.manager.regions.values())
    return written, final - written, length - final


def _notes(rows: list[Figure2Row]) -> tuple[Note, ...]:
    notes = [Note("lengths", {"limit": CONTEXT}), Note("full", {})]
    for row in rows:
        if row.largest_difference > _CLOSE:
            values = {"system": row.system, "points": round(row.largest_difference, 1)}
            notes.append(Note("apart", values))
    pow2 = next(row for row in rows if row.system == "orca-pow2")
    other = pow2.published.other or 0.0
    gap = round(other - (pow2.shares.other or 0.0), 1)
    notes.append(Note("pow2", {"points": gap}))
    paged = next(row for row in rows if row.system == "paged")
    per_token = paged.published_running / (_RATE * 337.99)
    values = {
        "ours": round(paged.running, 1),
        "published": paged.published_running,
        "implied_ms": round(1000 * per_token),
        "modelled_ms": round(1000 * paged.running / (_RATE * 337.99)),
    }
    return (*notes, Note("paged_running", values))
