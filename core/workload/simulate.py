"""Simulation: a workload through the real scheduler and memory, on a clock that is modelled.

Requests join when the clock has reached their arrival; a step moves the clock by what the cost
model says; idle time is skipped. It owns the clock, the line of requests that have not reached
the engine, and the measurements. Scheduling, allocation and prefix lookup are the engine's own.

Memory stays flat: the engine forgets finished requests, and of a long line it is given only as
many as could be admitted in one step; first come, first served makes that no difference.
"""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from core.cache.interface import PrefixMatch
from core.cache.manager import BlockManager
from core.checks import check_number
from core.config import EngineConfig
from core.engine import Engine
from core.errors import ConfigError, TraceError
from core.exec.cost_model import Assumption, CostModel, StepLoad
from core.exec.sim_runner import NoText, SimRunner
from core.request import Request, SamplingParams
from core.sched.output import SchedulerOutput
from core.trace.trace import Trace, check_layout
from core.workload.names import PrefixNames
from core.workload.requests import Workload
from core.workload.sim_gauges import LogHistogram, TimeAverages, spread_of
from core.workload.sim_memory import slots_by_state
from core.workload.sim_result import Latency, Refusal, SimulationResult, Summary

__all__ = ["MAX_TRACED_TOKENS", "Simulation", "SimulationProgress", "simulate"]

MAX_TRACED_TOKENS = 1_000_000
_TOLD_REFUSALS = 20
_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """How far a simulation is: requests that are over of all, and the modelled time."""

    done: int
    total: int
    running: int
    waiting: int
    steps: int
    simulated_seconds: float


class Simulation:
    """One workload through one system.

    Args:
        workload: what arrives.
        config: the engine's settings with a pool size (any, when `unlimited`).
        cost: says how long a step takes; its KV cache is the one of the settings.
        system: the system's name, for the result.
        unlimited: the pool grows before memory could run out, and nothing is ever evicted.
        limit: only the first requests.
        rate_scale: arrivals come this many times as fast.
        record: keep a trace, for small workloads.
        max_points: bounds the series (see `TimeAverages`).
        assumptions: what the caller took for granted, to stand with the result.
        command: a line that repeats the run, to stand with the result.

    Raises:
        ConfigError: settings that exclude each other, or a workload too large for a trace.
    """

    def __init__(
        self,
        workload: Workload,
        config: EngineConfig,
        cost: CostModel,
        *,
        system: str = "",
        unlimited: bool = False,
        limit: int | None = None,
        rate_scale: float = 1.0,
        record: bool = False,
        max_points: int = 600,
        assumptions: SequenceOf[Assumption] = (),
        command: str = "",
    ) -> None:
        self.workload = workload
        self.cost = cost = replace(cost, kv_cache_dtype=config.kv_cache_dtype)
        self._system = system
        self._given = tuple(assumptions)
        self._command = command
        self._unlimited = unlimited
        self._requests = workload.requests[:limit]
        self._rate_scale = rate_scale
        self._room = self._most_blocks(config) if unlimited else 0
        config = self._checked(config, record)
        self._names = PrefixNames(
            workload.prefix_unit if config.caching else 0, config.block_size, keeps_all=unlimited
        )
        self._runner = SimRunner(
            cost,
            max_model_len=config.max_model_len,
            block_size=1 if config.is_contiguous else config.block_size,
            observe=self._observe,
        )
        self.engine = Engine(
            config, self._runner, NoText(), model=self._about_model(config), record=record,
            measured=False,
        )  # fmt: skip
        if record:
            _check_traceable(self.engine)
        self.engine.scheduler.on_admit = self._admitted
        self._window = len(self._requests) if record else config.max_num_seqs + 1
        self._clock = 0.0
        self._arrived = self._fed = self._finished = self._refused = 0
        self._generated = self._prompt_tokens = self._peak_owned = 0
        self._refusals: list[Refusal] = []
        self._averages = TimeAverages(max_points)
        self._arrivals: dict[str, float] = {}
        self._last_token: dict[str, float] = {}
        self._ttft, self._e2e = array("d"), array("d")
        self._itl = LogHistogram()

    def _checked(self, config: EngineConfig, record: bool) -> EngineConfig:
        check_number("rate_scale", self._rate_scale, 1e-6, 1e6)
        if self._unlimited and config.is_contiguous:
            raise ConfigError("unlimited_needs_paged")
        if self._unlimited and record:
            raise ConfigError("unlimited_has_no_trace")
        tokens = sum(request.total_tokens for request in self._requests)
        if record and tokens > MAX_TRACED_TOKENS:
            raise ConfigError("too_long_to_trace", tokens=tokens, limit=MAX_TRACED_TOKENS)
        if self._unlimited:
            config = replace(config, num_blocks=2 * self._room, kv_memory=None, watermark=0.0)
        if config.prefix_caching is None and not config.is_contiguous:
            # Prompts without names share nothing: there is nothing to look for.
            config = replace(config, prefix_caching=bool(self.workload.prefix_unit))
        return config

    def _most_blocks(self, config: EngineConfig) -> int:
        """Blocks that one step can take at most, with the longest prompt held ready."""
        longest = max((request.total_tokens for request in self._requests), default=0)
        chunks = config.max_num_batched_tokens // config.block_size
        return longest // config.block_size + chunks + 2 * config.max_num_seqs + 16

    def _about_model(self, config: EngineConfig) -> dict[str, object]:
        shape = self.cost.shape
        return {
            "name": shape.title,
            "architecture": "simulated",
            "layers": shape.layers,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "vocab": shape.vocab,
            "max_model_len": config.max_model_len or shape.max_len,
            "dtype": self.cost.dtype,
            "kv_dtype": self.cost.kv_dtype,
            "device": self.cost.hardware.title,
            "block_bytes": self.cost.slot_bytes * config.block_size,
        }

    # -------------------------------------------------------------------- run

    def run(
        self,
        progress: Callable[[SimulationProgress], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> SimulationResult:
        """Runs to the end, or until `cancel` is set: then the result is as far as it came.

        Args:
            progress: is called a few times a second.
            cancel: is looked at before every step.
        """
        started = time.perf_counter()
        reported = 0.0
        while not (cancel is not None and cancel.is_set()):
            self._arrive()
            if self.engine.has_work:
                self._step()
            elif self._arrived < len(self._requests):
                self._skip_idle_time()
            else:
                return self._result(time.perf_counter() - started, cancelled=False)
            now = time.monotonic()
            if progress is not None and now - reported > _SECONDS_BETWEEN_REPORTS:
                reported = now
                progress(self._progress())
        return self._result(time.perf_counter() - started, cancelled=True)

    def trace(self) -> Trace:
        """The trace so far; the simulation must have been made with `record`."""
        return self.engine.trace()

    def _arrival(self, index: int) -> float:
        return self._requests[index].arrival / self._rate_scale

    def _arrive(self) -> None:
        """Everybody whose time has come joins the line; its head is handed to the engine."""
        total = len(self._requests)
        while self._arrived < total and self._arrival(self._arrived) <= self._clock:
            self._arrived += 1
        waiting = self.engine.scheduler.waiting
        while self._fed < self._arrived and len(waiting) < self._window:
            self._feed(self._fed)
            self._fed += 1

    def _feed(self, index: int) -> None:
        asked = self._requests[index]
        request_id = str(index + 1)
        params = SamplingParams(max_tokens=asked.output_tokens, ignore_eos=True)
        (request,) = self.engine.add_request(
            [0] * asked.prompt_tokens, params, request_id=request_id
        )
        if request.finish_reason == "rejected":
            self._refuse(index, request)
            return
        if self.engine.config.caching:
            request.sequences[0].block_hashes = self._names.hashes(request_id, asked)
        self._arrivals[request_id] = self._arrival(index)
        self._prompt_tokens += asked.prompt_tokens

    def _refuse(self, index: int, request: Request) -> None:
        self._refused += 1
        reason = self.engine.scheduler.refusal(request)
        if reason is not None and len(self._refusals) < _TOLD_REFUSALS:
            self._refusals.append(Refusal(index + 1, reason.code, dict(reason.values)))
        self.engine.forget(request.request_id)

    def _skip_idle_time(self) -> None:
        arrival = self._arrival(self._arrived)
        parts = self._parts(None)
        self._add(arrival, arrival - self._clock, parts, busy=False)
        self._clock = arrival

    def _step(self) -> None:
        if self._unlimited:
            self._grow()
        record = self.engine.step()
        for request in record.finished:
            self._over(request)

    def _grow(self) -> None:
        """New blocks before the head of the queue, so that no cached block is ever taken."""
        manager = self.engine.manager
        assert isinstance(manager, BlockManager)
        pool = manager.pool
        if pool.num_free - pool.num_cached_free < self._room:
            pool.grow(max(self._room, pool.num_usable // 8))

    def _over(self, request: Request) -> None:
        request_id = request.request_id
        self._finished += 1
        arrival = self._arrivals.pop(request_id)
        self._e2e.append(self._clock - arrival)
        self._last_token.pop(request_id, None)
        self._names.forget(request_id)
        if self.engine.recorder is None:
            self.engine.forget(request_id)
            request.finished.clear()  # its sequences hold it in turn: a cycle would linger

    # --------------------------------------------------------------- measuring

    def _admitted(self, request: Request, match: PrefixMatch) -> None:
        manager = self.engine.manager
        if self.engine.config.caching and isinstance(manager, BlockManager):
            self._names.admitted(request, match, manager)

    def _observe(self, output: SchedulerOutput, load: StepLoad, seconds: float) -> None:
        """The moment of the forward: the clock moves, and what memory holds is measured."""
        self._clock += seconds
        self._note_tokens([item.seq.seq_id for item in output.scheduled if item.samples])
        self._add(self._clock, seconds, self._parts((output, load)), busy=True)

    def _note_tokens(self, sampled: list[str]) -> None:
        """Times of first tokens and between tokens; most of a step's tokens follow the last's."""
        self._generated += len(sampled)
        for moment, count in Counter(map(self._last_token.get, sampled)).items():
            if moment is not None:
                self._itl.add(self._clock - moment, count)
                continue
            for request_id in sampled:
                if request_id not in self._last_token and request_id in self._arrivals:
                    self._ttft.append(self._clock - self._arrivals[request_id])
        self._last_token.update(dict.fromkeys(sampled, self._clock))

    def _add(self, end: float, seconds: float, parts: tuple[int, ...], *, busy: bool) -> None:
        scheduler = self.engine.scheduler
        waiting = len(scheduler.waiting) + len(scheduler.swapped) + self._arrived - self._fed
        self._averages.add(
            end, seconds, len(scheduler.running), waiting, parts, self._generated,
            self._names.hit_rate or 0.0, busy=busy,
        )  # fmt: skip

    def _parts(self, step: tuple[SchedulerOutput, StepLoad] | None) -> tuple[int, ...]:
        parts = slots_by_state(self.engine, step, keep_free=not self._unlimited)
        self._peak_owned = max(self._peak_owned, sum(parts[:4]))
        return parts

    # ----------------------------------------------------------------- results

    def _progress(self) -> SimulationProgress:
        scheduler = self.engine.scheduler
        return SimulationProgress(
            done=self._finished + self._refused,
            total=len(self._requests),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.swapped) + self._arrived - self._fed,
            steps=self.engine.num_steps,
            simulated_seconds=self._clock,
        )

    def _result(self, wall_seconds: float, *, cancelled: bool) -> SimulationResult:
        caching = self.engine.config.caching
        averages, names = self._averages, self._names
        summary = Summary(
            requests=len(self._requests),
            finished=self._finished,
            refused=self._refused,
            skipped_rows=self.workload.skipped,
            steps=self.engine.num_steps,
            simulated_seconds=round(self._clock, 6),
            busy_seconds=round(averages.busy_seconds, 6),
            wall_seconds=round(wall_seconds, 3),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            tokens_per_second=self._generated / self._clock if self._clock else 0.0,
            hit_rate=names.hit_rate if caching else None,
            token_hit_rate=names.token_hit_rate if caching else None,
            preemptions=self.engine.scheduler.num_preemptions,
            mean_running=averages.mean_running,
            mean_waiting=averages.mean_waiting,
            peak_running=averages.peak_running,
            breakdown=averages.shares(),
            slots=None if self._unlimited else self.engine.config.usable_slots,
            peak_slots=self._peak_owned,
            latency=Latency(spread_of(self._ttft), self._itl.spread(), spread_of(self._e2e)),
        )
        return SimulationResult(
            workload=self.workload.name,
            format=self.workload.format,
            source=self.workload.source,
            notes=self.workload.notes,
            system=self._system,
            config=self.engine.config.to_dict(),
            summary=summary,
            series=averages.series(),
            refusals=tuple(self._refusals),
            assumptions=(*self.cost.assumptions(), *self._given, *self._assumptions()),
            cancelled=cancelled,
            command=self._command,
        )

    def _assumptions(self) -> list[Assumption]:
        """What this simulation takes for granted beside the times."""
        found = [Assumption("lengths", {})]
        if self.workload.prefix_unit and self.engine.config.caching:
            found.append(Assumption("names", {"unit": self.workload.prefix_unit}))
        elif not self.engine.config.is_contiguous:
            found.append(Assumption("no_sharing", {}))
        if self._rate_scale != 1:
            found.append(Assumption("rate_scale", {"scale": self._rate_scale}))
        if self._unlimited:
            found.append(Assumption("unlimited", {}))
        return found


def _check_traceable(engine: Engine) -> None:
    try:
        check_layout(engine.header.layout)
    except TraceError as fault:
        raise ConfigError(fault.code, **fault.values) from fault


def simulate(
    workload: Workload,
    config: EngineConfig,
    cost: CostModel,
    *,
    system: str = "",
    unlimited: bool = False,
    limit: int | None = None,
    rate_scale: float = 1.0,
    progress: Callable[[SimulationProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> SimulationResult:
    """Sends a workload through one system; see `Simulation`."""
    simulation = Simulation(
        workload,
        config,
        cost,
        system=system,
        unlimited=unlimited,
        limit=limit,
        rate_scale=rate_scale,
    )
    return simulation.run(progress, cancel)
