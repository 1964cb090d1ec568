"""Comparisons in the background: several systems on one workload, a fork, a proof, the gain.

It owns the threads that do them and what the page may read meanwhile: lanes (a run with its log),
progress, results. It knows neither Streamlit nor torch: a `Backend` makes the engines.

Invariants: a lane's log always ends with a whole event; what ended holds no engine.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from app.live import Limits, check_memory
from app.models import Backend
from app.shown import Shown, log_header
from core.config import EngineConfig
from core.engine import Engine
from core.errors import GlassblockError, LimitError, WorkloadError
from core.request import SamplingParams
from core.trace import events as ev
from core.trace.delta_log import DeltaLogWriter, encode
from core.trace.trace import Trace, load_trace
from core.workload.compare import GAIN, Figures, configure, figures, gain_report, measure
from core.workload.fork import Changes, Entry, ForkPlan, params_by_id, plan_fork
from core.workload.scenario import Arrival, Joining, Scenario, find_scenario, play

__all__ = [
    "SCENARIO",
    "Comparison",
    "Gain",
    "Job",
    "Lane",
    "LanePlan",
    "Proving",
    "check_lanes",
    "fork_plan_of",
    "lane_figures",
    "lane_of",
    "opening_step",
    "recorded_gain",
    "recorded_lanes",
    "recorded_systems",
]

_log = logging.getLogger("glassblock")
_ASSETS = Path(__file__).parents[1] / "assets"
_TRACES = _ASSETS / "traces" / "compare"
_MOST_BEFORE = 6  # comparisons that a chain of forks keeps behind it
_GAIN = _ASSETS / "results" / "waterfall.json"
SCENARIO = "static_and_paged"  # what the recorded comparison plays
State = Literal["waiting", "running", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One run of a comparison.

    Attributes:
        name: of the system: a preset's, "custom", "run" or "fork".
        params: the requests' settings by id, as far as they are known.
        first_step: the step from which it counts on.
        origin: of a fork, what the run is called that it goes back to, by language.
    """

    name: str
    key: str
    config: EngineConfig
    trace: Trace
    log: bytes
    params: Mapping[str, SamplingParams] = field(default_factory=dict)
    first_step: int = 0
    state: State = "done"
    fault: GlassblockError | None = None
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What one lane is to play."""

    name: str
    config: EngineConfig
    arrivals: Sequence[Joining]
    title: Mapping[str, str]
    first_step: int = 0
    origin: Mapping[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------------------- recorded


def recorded_systems() -> list[str]:
    """Systems of which the comparison's recorded run is there, the oldest way first."""
    return [name for name in GAIN if (_TRACES / f"{name}.jsonl.gz").is_file()]


def recorded_lanes(names: Sequence[str]) -> tuple[Lane, ...]:
    """The recorded runs of these systems; shared by all visitors.

    Raises:
        TraceError: a file is damaged.
    """
    return tuple(_recorded(name) for name in names)


@cache
def _recorded(name: str) -> Lane:
    trace = load_trace(_TRACES / f"{name}.jsonl.gz")
    log = encode(log_header(trace.header), trace.events)
    params = params_by_id(trace, find_scenario(SCENARIO).arrivals)
    config = EngineConfig.from_dict(dict(trace.header.config))
    return Lane(name, f"recorded-{name}", config, trace, log, params)


@cache
def recorded_gain() -> Mapping[str, Any] | None:
    """The measured gain that comes with glassblock; None where it is missing."""
    if not _GAIN.is_file():
        return None
    report: dict[str, Any] = json.loads(_GAIN.read_text(encoding="utf-8"))
    return report


def opening_step(lanes: Sequence[Lane]) -> int:
    """A step at which the lanes differ tellingly: somebody waits in one who runs in another."""
    first = lanes[0].first_step if lanes else 0
    if any(lane.first_step for lane in lanes):
        # When a fork begins its memory is still empty: a step later its requests are in.
        return max(lane.first_step for lane in lanes) + 1
    ins = [_admitted(lane) for lane in lanes]
    early = [
        other[request]
        for other in ins[1:]
        for request in other
        if request in ins[0] and other[request] < ins[0][request]
    ]
    if early:
        return min(early)
    for event in lanes[0].trace.events if lanes else ():
        if isinstance(event, ev.RequestDeferred):
            return event.step
    return first


def _admitted(lane: Lane) -> dict[str, int]:
    """The step at which each request was first admitted."""
    steps: dict[str, int] = {}
    for event in lane.trace.events:
        if isinstance(event, ev.RequestAdmitted):
            steps.setdefault(event.request_id, event.step)
    return steps


def lane_of(shown: Shown, arrivals: Sequence[Arrival] = ()) -> Lane:
    """A run that the Explore page shows; `arrivals` are what it played, if that is known."""
    trace = shown.trace
    config = EngineConfig.from_dict(dict(trace.header.config))
    return Lane("run", shown.key, config, trace, shown.log, params_by_id(trace, arrivals))


_figures: dict[tuple[str, int, int], Figures] = {}
_MOST_FIGURES = 64


def lane_figures(lane: Lane, since: int = 0) -> Figures:
    """The lane's figures, kept: a page is painted more often than a run changes."""
    key = lane.key, len(lane.trace.events), since
    if key not in _figures:
        if len(_figures) >= _MOST_FIGURES:
            _figures.pop(next(iter(_figures)), None)
        _figures[key] = figures(lane.trace, since)
    return _figures[key]


# ------------------------------------------------------------------------------- work


class Job:
    """A thread with a wish to stop, a fault, and the time it took.

    `what` is a word of the log.
    """

    def __init__(self, what: str) -> None:
        self.key = f"{what}-{secrets.token_hex(6)}"
        self.fault: GlassblockError | None = None
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._started = time.monotonic()
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._guarded, name=self.key, daemon=True)

    def start(self) -> None:
        """Sets it to work."""
        self._started = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Asks it to end after the step that it is at."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return not self._ended.is_set()

    @property
    def was_stopped(self) -> bool:
        """Whether somebody asked it to end."""
        return self._stop.is_set()

    @property
    def seconds(self) -> float:
        """How long it has worked."""
        return time.monotonic() - self._started if self.is_running else self._seconds

    def work(self) -> None:
        """What is to be done; a subclass's."""
        raise NotImplementedError

    def _guarded(self) -> None:
        try:
            self.work()
        except GlassblockError as fault:
            self.fault = fault
        except Exception as fault:
            self.fault = _unforeseen(fault)
        finally:
            self._seconds = time.monotonic() - self._started
            self._ended.set()


def _unforeseen(fault: Exception) -> GlassblockError:
    """A fault that nobody thought of, as one sentence; the whole of it goes to the log."""
    _log.error("background work failed", exc_info=fault)
    line = f"{type(fault).__name__}: {fault}".partition("\n")[0][:200]
    return GlassblockError("run_failed", detail=line)


class _Track:
    """A lane that still grows; its own lock, since pages read while the thread writes."""

    def __init__(self, plan: LanePlan, key: str) -> None:
        self.plan, self.key = plan, key
        self.state: State = "waiting"
        self.fault: GlassblockError | None = None
        self.steps = self.tokens = 0
        self._lock = threading.Lock()
        self._trace: Trace | None = None
        self._writer: DeltaLogWriter | None = None
        self._log = b""
        self._seen = 0

    def open(self, trace: Trace) -> None:
        with self._lock:
            self._trace, self._writer = trace, DeltaLogWriter(log_header(trace.header))
        self.state = "running"

    def take(self, engine: Engine) -> None:
        """Brings the engine's new events to the log."""
        summary = engine.summary()
        with self._lock:
            assert self._trace is not None and self._writer is not None
            events = list(self._trace.events.since(self._seen))
            self._writer.extend(events)
            self._seen += len(events)
        self.steps, self.tokens = summary.steps, summary.generated_tokens

    def lane(self) -> Lane | None:
        with self._lock:
            if self._trace is None or self._writer is None:
                return None
            if len(self._writer) != len(self._log):
                self._log = self._writer.getvalue()
            trace, log = self._trace, self._log
        plan = self.plan
        params = _settings(trace, plan.arrivals)
        config = EngineConfig.from_dict(dict(trace.header.config))
        return Lane(
            plan.name, self.key, config, trace, log, params, plan.first_step, self.state,
            self.fault, plan.origin,
        )  # fmt: skip


class Comparison(Job):
    """Several lanes at work, one after the other, or step by step in turn.

    Args:
        plans: one a lane.
        backend: makes the engines.
        limits: caps of each lane.
        in_turn: a step of each at a time, so that all grow together.
        beside: lanes that are there already; they stand first.
        fork: the plan, when the last lane is a fork of the first.
        before: the comparison from which the visitor came.
    """

    def __init__(
        self,
        plans: Sequence[LanePlan],
        backend: Backend,
        limits: Limits,
        *,
        in_turn: bool = False,
        beside: Sequence[Lane] = (),
        fork: ForkPlan | None = None,
        before: "Comparison | None" = None,
    ) -> None:
        super().__init__("compare")
        self.fork, self.before = fork, _shortened(before)
        self._backend, self._limits, self._in_turn = backend, limits, in_turn
        self._beside = tuple(beside)
        self._tracks = [_Track(plan, f"{self.key}-{n}") for n, plan in enumerate(plans)]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """What can be shown by now."""
        grown = (track.lane() for track in self._tracks)
        return (*self._beside, *(lane for lane in grown if lane is not None))

    @property
    def title(self) -> Mapping[str, str]:
        """What is compared, by language; of a fork what it is a fork of, and what it changed."""
        return self._tracks[-1].plan.title

    @property
    def progress(self) -> list[tuple[str, State, int, int]]:
        """Of every lane at work its name, state, steps and tokens."""
        return [(t.plan.name, t.state, t.steps, t.tokens) for t in self._tracks]

    @property
    def lane_fault(self) -> GlassblockError | None:
        """The first fault of a lane, shown or not."""
        return next((track.fault for track in self._tracks if track.fault), None)

    def work(self) -> None:
        """Plays the lanes."""
        if self._in_turn:
            running = [(track, self._play(track)) for track in self._tracks]
            while running and not self.was_stopped:
                running = [(track, steps) for track, steps in running if next(steps, False)]
        else:
            for track in self._tracks:
                for _ in self._play(track):
                    if self.was_stopped:
                        break
                if self.was_stopped:
                    break
        for track in self._tracks:
            if track.state in ("waiting", "running"):
                track.state = "stopped"

    def _play(self, track: _Track) -> "_Steps":
        return _Steps(track, self._backend, self._limits)


def _shortened(before: Comparison | None) -> Comparison | None:
    """The way back, cut where it is long: every comparison on it holds its traces."""
    last = before
    for _ in range(_MOST_BEFORE - 1):
        if last is None:
            break
        last = last.before
    if last is not None:
        last.before = None
    return before


class _Steps:
    """The steps of one lane, whose faults stay its own: True after each step."""

    def __init__(self, track: _Track, backend: Backend, limits: Limits) -> None:
        self._track, self._backend, self._limits = track, backend, limits
        self._steps = self._run()

    def __iter__(self) -> "_Steps":
        return self

    def __next__(self) -> bool:
        try:
            return next(self._steps)
        except StopIteration:
            raise
        except GlassblockError as fault:
            self._track.fault = fault
        except Exception as fault:
            self._track.fault = _unforeseen(fault)
        self._track.state = "failed"
        raise StopIteration

    def _run(self) -> Iterator[bool]:
        track, plan = self._track, self._track.plan
        engine = self._backend.build(plan.config, plan.title, plan.first_step)
        track.open(engine.trace())
        for _ in play(engine, plan.arrivals):
            track.take(engine)
            if (fault := _over(track, self._limits)) is not None:
                raise fault
            yield True
        track.take(engine)
        track.state = "done"


def _over(track: _Track, limits: Limits) -> LimitError | None:
    if track.steps >= limits.steps:
        return LimitError("run_steps", limit=limits.steps)
    if track.tokens >= limits.tokens:
        return LimitError("run_tokens", limit=limits.tokens)
    return None


def _settings(trace: Trace, arrivals: Sequence[Joining]) -> dict[str, SamplingParams]:
    """The requests' settings by id; a fork's entries bear their ids, a scenario's their order."""
    named = {item.request_id: item.params for item in arrivals if isinstance(item, Entry)}
    others = [item for item in arrivals if isinstance(item, Arrival)]
    return params_by_id(trace, others, named)


def check_lanes(
    scenario: Scenario, configs: Sequence[EngineConfig], backend: Backend, limits: Limits
) -> None:
    """Refuses a comparison that is too much.

    Raises:
        LimitError: too many prompts, or memories that are too large together.
    """
    if len(scenario.arrivals) > limits.prompts:
        raise LimitError("prompts_many", count=len(scenario.arrivals), limit=limits.prompts)
    check_memory(configs, backend, limits)


def fork_plan_of(lane: Lane, step: int, changes: Changes, limits: Limits) -> ForkPlan:
    """The plan of a fork, within the caps.

    Raises:
        LimitError: a prompt that is too long.
        GlassblockError: as `plan_fork`.
    """
    for arrival in changes.add:
        if len(arrival.prompt) > limits.characters:
            length = len(arrival.prompt)
            raise LimitError("prompt_long", length=length, limit=limits.characters)
    return plan_fork(lane.trace, step, changes, lane.params)


# ------------------------------------------------------------------------ proof and gain


class Proving(Job):
    """Plays lanes again with an eye on their logits.

    Attributes:
        proofs: of every lane but the first against the first, as far as they are known.
        run, step: where it is.
    """

    def __init__(self, lanes: Sequence[Lane], backend: Backend) -> None:
        super().__init__("prove")
        self.lanes = tuple(lanes)
        self.proofs: list[Any] = []
        self.run = self.step = 0
        self._backend = backend

    def work(self) -> None:
        """Proves."""
        from core.exec.prove import Subject, prove

        subjects = [Subject(self._builder(lane), _again(lane)) for lane in self.lanes]
        self.proofs = prove(subjects, keep_going=self._goes_on)

    def _builder(self, lane: Lane) -> Callable[[Any], Engine]:
        return lambda tap: self._backend.build_watched(lane.config, lane.first_step, tap)

    def _goes_on(self, run: int, step: int) -> bool:
        self.run, self.step = run, step
        return not self.was_stopped


def _again(lane: Lane) -> Sequence[Joining]:
    """The lane's own requests, from its trace."""
    return plan_fork(lane.trace, 0, Changes(), lane.params).arrivals


class Gain(Job):
    """Measures where the gain comes from: the same workload through the four systems.

    Attributes:
        report: `gain_report`, once it is there; when stopped, of the rounds that were whole.
        lanes: the runs behind the bars.
        turn, system: where it is.
    """

    def __init__(self, scenario: Scenario, repeat: int, backend: Backend, limits: Limits) -> None:
        super().__init__("gain")
        self.report: Mapping[str, Any] | None = None
        self.lanes: tuple[Lane, ...] = ()
        self.turn, self.system = 1, GAIN[0]
        self._scenario, self._repeat = scenario, repeat
        self._backend, self._limits = backend, limits

    @property
    def rounds(self) -> int:
        """How many there will be."""
        return self._repeat

    def work(self) -> None:
        """Measures."""
        measured = measure(GAIN, self._play, self._repeat, self._tell)
        if len(measured) < len(GAIN):
            raise WorkloadError("gain_stopped")
        self.report = gain_report(measured, self._scenario.name, self._backend.facts)
        self.lanes = tuple(
            Lane(
                item.system, f"{self.key}-{item.system}",
                EngineConfig.from_dict(dict(item.trace.header.config)), item.trace,
                encode(log_header(item.trace.header), item.trace.events),
                params_by_id(item.trace, self._scenario.arrivals),
            )
            for item in measured
        )  # fmt: skip

    def _tell(self, turn: int, system: str) -> None:
        self.turn, self.system = turn, system

    def _play(self, system: str) -> Trace | None:
        config = configure(self._scenario.config, system)
        engine = self._backend.build(config, self._scenario.title)
        for record in play(engine, self._scenario.arrivals):
            if self.was_stopped:
                return None
            if record.step >= self._limits.steps:
                raise LimitError("run_steps", limit=self._limits.steps)
        return engine.trace()
