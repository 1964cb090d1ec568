"""Live runs: engines in worker threads, one visitor's apart from another's, all within caps.

It owns every session's run and opened trace, the caps, and the sweep that drops what nobody looks
at. Pages read a run's trace, log and counters; they never touch its engine. It does not know
Streamlit, nor torch: a `Backend` makes the engines.

Invariants: at most `Limits.engines` runs and other works are alive; a session has at most one run,
and one work by name; what ended holds no engine, only what it recorded.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.models import Backend
from app.shown import Shown, log_header
from core.config import EngineConfig
from core.engine import Engine
from core.errors import GlassblockError, LimitError, RequestError
from core.trace.delta_log import DeltaLogWriter
from core.trace.trace import Trace
from core.workload.scenario import Arrival, play

__all__ = [
    "Limits",
    "Plan",
    "Progress",
    "Registry",
    "Run",
    "Session",
    "Work",
    "check_memory",
    "check_plan",
]

_log = logging.getLogger("glassblock")
_PATIENCE = 10.0  # seconds that a new run waits for the one that it replaces
State = Literal["running", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps.

    `pool_bytes`, `steps`, `tokens`, `prompts` and `characters` are a run's, `engines` and
    `sessions` the process's, `idle_seconds` a session's.

    An open page looks at its run several times a second (a browser slows hidden tabs to once a
    minute): one that nobody looked at for `unseen_seconds` was closed or reloaded, and is stopped.
    Where somebody waits for an engine, `contested_seconds` are enough.
    """

    pool_bytes: int = 256 << 20
    engines: int = 2
    steps: int = 2000
    tokens: int = 4096
    prompts: int = 24
    characters: int = 8000
    sessions: int = 200
    idle_seconds: float = 900.0
    unseen_seconds: float = 150.0
    contested_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    config: EngineConfig
    arrivals: tuple[Arrival, ...]
    title: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    state: State
    steps: int
    tokens: int
    seconds: float


class Work(Protocol):
    """Anything with engines that goes on in the background."""

    @property
    def is_running(self) -> bool:
        """Whether it holds an engine."""

    def start(self) -> None:
        """Sets it to work."""

    def stop(self) -> None:
        """Asks it to end soon."""

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended."""


class Run:
    """One engine at work in its own thread."""

    def __init__(self, plan: Plan, backend: Backend, limits: Limits) -> None:
        self.key = f"run-{secrets.token_hex(6)}"
        self.fault: GlassblockError | None = None
        self.plan = plan
        self._backend, self._limits = backend, limits
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stands = threading.Event()
        self._state: State = "running"
        self._trace: Trace | None = None
        self._writer: DeltaLogWriter | None = None
        self._log = b""
        self._steps = self._tokens = 0
        self._started = time.monotonic()
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._work, name=self.key, daemon=True)

    def start(self) -> None:
        """Sets the engine to work."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the engine to end after its step."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the engine is gone."""
        self._thread.join(timeout)

    def wait_for_engine(self, timeout: float) -> None:
        """Waits until there is something to show, or the run is over already."""
        self._stands.wait(timeout)

    @property
    def is_running(self) -> bool:
        """Whether the engine is alive."""
        return self._state == "running"

    @property
    def progress(self) -> Progress:
        """How far it is."""
        alive = self._state == "running"
        seconds = time.monotonic() - self._started if alive else self._seconds
        return Progress(self._state, self._steps, self._tokens, seconds)

    @property
    def shown(self) -> Shown | None:
        """What it recorded so far; None before the engine stands."""
        with self._lock:
            if self._trace is None or self._writer is None:
                return None
            if len(self._writer) != len(self._log):
                self._log = self._writer.getvalue()
            return Shown(self.key, self._trace, self._log, "live", self.is_running)

    def _work(self) -> None:
        state: State = "failed"
        try:
            engine = self._backend.build(self.plan.config, self.plan.title)
            state = self._play(engine)
        except GlassblockError as fault:
            self.fault = fault
        except Exception as fault:
            _log.exception("a live run failed")
            self.fault = GlassblockError("run_failed", detail=_line(fault))
        finally:
            self._seconds = time.monotonic() - self._started
            self._state = state
            self._stands.set()

    def _play(self, engine: Engine) -> State:
        trace = engine.trace()
        with self._lock:
            self._trace, self._writer = trace, DeltaLogWriter(log_header(trace.header))
        self._stands.set()
        seen = 0
        for _ in play(engine, self.plan.arrivals):
            seen = self._take(engine, trace, seen)
            if self._stop.is_set():
                self._take(engine, trace, seen)
                return "stopped"
            if self._over():
                return "stopped"
        self._take(engine, trace, seen)
        return "done"

    def _take(self, engine: Engine, trace: Trace, seen: int) -> int:
        """Brings new events to the log; returns how many it holds."""
        summary = engine.summary()
        with self._lock:
            assert self._writer is not None
            self._writer.extend(trace.events.since(seen))
        self._steps, self._tokens = summary.steps, summary.generated_tokens
        return len(trace.events)

    def _over(self) -> bool:
        limits = self._limits
        if self._steps >= limits.steps:
            self.fault = LimitError("run_steps", limit=limits.steps)
        elif self._tokens >= limits.tokens:
            self.fault = LimitError("run_tokens", limit=limits.tokens)
        return self.fault is not None


@dataclass(slots=True)
class Session:
    """What one visitor has here; `work` by what it is for."""

    run: Run | None = None
    work: dict[str, Work] = field(default_factory=dict)
    opened: Shown | None = None
    warning: GlassblockError | None = None
    seen: float = field(default_factory=time.monotonic)

    def works(self) -> "list[Work]":
        """The run and everything else that goes on or has ended."""
        return [work for work in (self.run, *self.work.values()) if work is not None]


class Registry:
    """All visitors' runs and traces.

    Args:
        limits: caps.
        clock: seconds; a test's own.
    """

    def __init__(
        self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._lock = threading.RLock()
        self._sessions: dict[str, Session] = {}
        self._dropped: set[str] = set()
        self._sweeper: threading.Thread | None = None

    def session(self, token: str) -> Session:
        """The visitor's things, made on the first call; marks the visitor as seen.

        Raises:
            LimitError: too many visitors at once.
        """
        with self._lock:
            found = self._sessions.get(token)
            if found is None:
                if len(self._sessions) >= self.limits.sessions:
                    self.sweep()
                if len(self._sessions) >= self.limits.sessions:
                    raise LimitError("sessions_full", limit=self.limits.sessions)
                found = self._sessions[token] = Session()
            found.seen = self._clock()
            return found

    def was_dropped(self, token: str) -> bool:
        """Whether something of this visitor's was dropped; says so once."""
        with self._lock:
            dropped = token in self._dropped
            self._dropped.discard(token)
            return dropped

    def start(self, token: str, plan: Plan, backend: Backend) -> Run:
        """Starts the visitor's run in place of the one before.

        Raises:
            RequestError: an empty plan or prompt, or settings that exclude each other.
            LimitError: a cap was met.
        """
        check_plan(plan, backend, self.limits)
        before = self.session(token).run
        if before is not None:  # one visitor, one engine
            before.stop()
            before.wait(_PATIENCE)
        with self._lock:
            session = self.session(token)
            self._refuse_more()
            session.run = Run(plan, backend, self.limits)
            session.opened, session.warning = None, None
            session.run.start()
            return session.run

    def begin(self, token: str, name: str, work: Work) -> None:
        """Starts a work in place of the visitor's one of that name.

        Raises:
            LimitError: as many engines as may be are at work.
        """
        before = self.session(token).work.get(name)
        if before is not None:
            before.stop()
            before.wait(_PATIENCE)
        with self._lock:
            session = self.session(token)
            self._refuse_more()
            session.work[name] = work
            work.start()

    def _refuse_more(self) -> None:
        if self._num_running() >= self.limits.engines:
            for work in self._stop_unseen(self.limits.contested_seconds):
                work.wait(_PATIENCE)
        if self._num_running() >= self.limits.engines:
            raise LimitError("engines_busy", limit=self.limits.engines)

    def _num_running(self) -> int:
        return sum(work.is_running for s in self._sessions.values() for work in s.works())

    def _stop_unseen(self, seconds: float) -> list[Work]:
        """Stops the works of pages that are gone; what they recorded is kept."""
        now = self._clock()
        unseen = [
            work
            for session in self._sessions.values()
            if now - session.seen > seconds
            for work in session.works()
            if work.is_running
        ]
        for work in unseen:
            work.stop()
        return unseen

    def sweep(self) -> int:
        """Drops what idle visitors hold, and stops engines that nobody looks at.

        Returns:
            How many visitors were idle.
        """
        with self._lock:
            self._stop_unseen(self.limits.unseen_seconds)
            now = self._clock()
            idle = [
                token
                for token, session in self._sessions.items()
                if now - session.seen > self.limits.idle_seconds
            ]
            for token in idle:
                session = self._sessions.pop(token)
                for work in session.works():
                    work.stop()
                if session.works() or session.opened is not None:
                    self._dropped.add(token)
            return len(idle)

    def keep_sweeping(self, every: float = 30.0) -> None:
        """Sweeps in the background from now on; later calls do nothing."""
        with self._lock:
            if self._sweeper is None:
                self._sweeper = threading.Thread(
                    target=self._sweep_for_ever, args=(every,), name="glassblock-sweep", daemon=True
                )
                self._sweeper.start()

    def _sweep_for_ever(self, every: float) -> None:
        while True:
            time.sleep(every)
            self.sweep()


def check_plan(plan: Plan, backend: Backend, limits: Limits) -> None:
    """Refuses what can't run or is too much.

    Raises:
        RequestError: no prompt, an empty one, or beams in "v1".
        LimitError: too many prompts, a prompt too long, or a pool too large.
    """
    if not plan.arrivals:
        raise RequestError("empty_prompt")
    if len(plan.arrivals) > limits.prompts:
        raise LimitError("prompts_many", count=len(plan.arrivals), limit=limits.prompts)
    for arrival in plan.arrivals:
        length = len(arrival.prompt)
        if not arrival.prompt.strip():
            raise RequestError("empty_prompt")
        if length > limits.characters:
            raise LimitError("prompt_long", length=length, limit=limits.characters)
        if arrival.params.beam_width > 1 and plan.config.semantics == "v1":
            raise RequestError("beams_need_paper", width=arrival.params.beam_width)
    check_memory([plan.config], backend, limits)


def check_memory(configs: Sequence[EngineConfig], backend: Backend, limits: Limits) -> None:
    """Refuses pools that take too much together.

    Raises:
        LimitError: they do.
    """
    asked = 0
    for config in configs:
        host = config.num_host_blocks if config.semantics == "paper" else 0
        asked += (config.total_blocks + host) * backend.block_bytes(config)
    if asked <= limits.pool_bytes:
        return
    config = configs[0]
    host = config.num_host_blocks if config.semantics == "paper" else 0
    size = sum(backend.block_bytes(config) for config in configs)
    raise LimitError(
        "pool_large", asked=_mib(asked), limit=limits.pool_bytes >> 20,
        blocks=max(0, limits.pool_bytes // size - host),
    )  # fmt: skip


def _mib(size: int) -> int:
    return -(-size // (1 << 20))


def _line(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".partition("\n")[0][:200]
