"""Simulations in a worker thread: a plan, its progress, and what it has come to so far.

It owns the thread, the caps, and the wish to stop. A stopped run keeps what it has: finished
systems, and the one under way as far as it came. It does not know Streamlit, nor any widget.

Invariants: at most `Limits.jobs` jobs are alive in this process; a job that nobody looks at any
more stops by itself.
"""

import logging
import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import Literal

from app.sim_sets import PoolRun, ResultSet
from core.config import EngineConfig
from core.errors import GlassblockError, LimitError
from core.exec.cost_model import Assumption, CostModel
from core.workload.requests import Workload
from core.workload.sim_result import SimulationResult
from core.workload.simulate import Simulation, SimulationProgress

__all__ = ["Job", "Limits", "Part", "Plan", "Progress", "start"]

_log = logging.getLogger("glassblock")
_BREATH = 0.004  # seconds that a report leaves to the pages of the same process
_POINTS = 150
State = Literal["running", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps: jobs of this process; requests, tokens and seconds of one; seconds without a look."""

    jobs: int = 2
    requests: int = 20_000
    tokens: int = 20_000_000
    seconds: float = 300.0
    unseen: float = 180.0


@dataclass(frozen=True, slots=True)
class Part:
    """One run of a plan; of a run of the sweep only a point is kept. `command` repeats it."""

    system: str
    config: EngineConfig
    is_pool: bool = False
    command: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate; `assumptions` are the planner's own, beside the cost model's."""

    workload: Workload
    cost: CostModel
    parts: tuple[Part, ...]
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: the part under way (from 0), of how many, and its own progress."""

    part: int
    parts: int
    system: str
    inner: SimulationProgress | None
    seconds: float

    @property
    def share(self) -> float:
        """Of all parts, taken as equally long."""
        inner = self.inner.done / max(1, self.inner.total) if self.inner else 0.0
        return min(1.0, (self.part + inner) / max(1, self.parts))


class Job:
    """One plan at work; `key` is no other job's, not even of one that is gone."""

    def __init__(self, plan: Plan, limits: Limits) -> None:
        self.key = secrets.token_hex(6)
        self.plan = plan
        self.fault: GlassblockError | None = None
        self.state: State = "running"
        self._limits = limits
        self._cancel = threading.Event()
        self._results: list[SimulationResult] = []
        self._pools: list[PoolRun] = []
        self._started = self._seen = time.monotonic()
        self._progress = Progress(0, len(plan.parts), plan.parts[0].system, None, 0.0)
        self._thread = threading.Thread(target=self._work, name="glassblock-sim", daemon=True)

    def start(self) -> None:
        """Sets to work."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the run under way to end after its step."""
        self._cancel.set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end."""
        self._thread.join(timeout)

    @property
    def is_running(self) -> bool:
        """Whether it works."""
        return self.state == "running"

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._progress

    def look(self) -> None:
        """Somebody still wants it."""
        self._seen = time.monotonic()

    def result(self) -> ResultSet | None:
        """What it has come to so far; None before the first system is over."""
        results = tuple(self._results)
        if not results:
            return None
        workload = self.plan.workload
        # A recipe's line stands in the results; the set is called what the visitor chose.
        is_recipe = workload.format == "synthetic"
        title = workload.name if is_recipe or not workload.source else workload.source
        return ResultSet(title, results, tuple(self._pools))

    def _work(self) -> None:
        state: State = "failed"
        try:
            for number, part in enumerate(self.plan.parts):
                self._tell(number, part, None)
                self._run(number, part)
                if self._cancel.is_set():
                    break
            state = "stopped" if self._cancel.is_set() else "done"
        except GlassblockError as fault:
            self.fault = fault
        except Exception as fault:
            _log.exception("a simulation failed")
            detail = (str(fault) or type(fault).__name__).partition("\n")[0][:200]
            self.fault = GlassblockError("sim_failed", detail=detail)
        finally:
            self.state = state
            _forget(self)

    def _run(self, number: int, part: Part) -> None:
        simulation = Simulation(
            self.plan.workload, part.config, self.plan.cost, system=part.system,
            max_points=_POINTS, command=part.command,
        )  # fmt: skip
        result = simulation.run(lambda inner: self._tell(number, part, inner), self._cancel)
        summary = result.summary
        if not part.is_pool:
            if summary.steps or not result.cancelled:
                told = (*result.assumptions, *self.plan.assumptions)
                self._results.append(replace(result, assumptions=told))
        elif not result.cancelled and summary.slots is not None:
            point = summary.mean_running, summary.finished, summary.refused
            self._pools.append(PoolRun(part.system, summary.slots, *point))

    def _tell(self, number: int, part: Part, inner: SimulationProgress | None) -> None:
        now = time.monotonic()
        seconds = now - self._started
        self._progress = Progress(number, len(self.plan.parts), part.system, inner, seconds)
        if seconds > self._limits.seconds and not self._cancel.is_set():
            self.fault = LimitError("sim_seconds", limit=round(self._limits.seconds))
            self._cancel.set()
        if now - self._seen > self._limits.unseen:
            self._cancel.set()
        time.sleep(_BREATH)


_lock = threading.Lock()
_alive: set[Job] = set()


def start(plan: Plan, limits: Limits | None = None) -> Job:
    """Starts a job.

    Raises:
        LimitError: too much is asked, or too many jobs are at work.
    """
    caps = limits or Limits()
    count = len(plan.workload)
    if count > caps.requests:
        raise LimitError("sim_requests", count=count, limit=caps.requests)
    tokens = sum(request.total_tokens for request in plan.workload.requests)
    if tokens > caps.tokens:
        raise LimitError("sim_tokens", count=tokens, limit=caps.tokens)
    with _lock:
        if len(_alive) >= caps.jobs:
            raise LimitError("sim_busy", limit=caps.jobs)
        job = Job(plan, caps)
        _alive.add(job)
    job.start()
    return job


def _forget(job: Job) -> None:
    with _lock:
        _alive.discard(job)
