"""Engine: the one place that wires the parts together; a step is schedule, run, update.

It owns ids, labels and the text streams. A step is atomic: when the forward fails, no block is
lost, the requests of that step are reported as failed, and the engine goes on. It loads no torch;
`core.exec.build` makes an engine for a real model.
"""

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from core.cache.contiguous import RegionManager
from core.cache.interface import CacheManager
from core.cache.manager import BlockManager
from core.config import EngineConfig
from core.errors import InvariantError, RequestError
from core.exec.protocol import RunnerProtocol
from core.request import FinishReason, Request, SamplingParams, SeqId, Sequence, Status
from core.sched.output import SchedulerOutput
from core.sched.scheduler import Scheduler
from core.sched.static_batching import StaticScheduler
from core.sched.update import StepUpdate
from core.text import sentence
from core.trace import events as ev
from core.trace.recorder import EventStore, Recorder
from core.trace.snapshot import EngineState
from core.trace.trace import Header, Trace

__all__ = ["Codec", "Completion", "Engine", "RequestOutput", "StepRecord", "Summary", "Text"]

_HERE = "core/engine.py:"


class Text(Protocol):
    """A text that grows by one token at a time."""

    def push(self, token_id: int) -> str:
        """The text that the token completes."""

    def flush(self) -> str:
        """The text that was held back."""

    def copy(self) -> "Text":
        """A stream that goes on independently."""


class Codec(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt."""

    def pieces(self, token_ids: SequenceOf[int]) -> tuple[str, ...]:
        """For each token the text that it completes."""

    def stream(self) -> Text:
        """A new, empty text."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did.

    Attributes:
        seconds: wall time of the whole step.
        finished: requests that ended in it, failed ones included.
        error: why the forward failed, "" when it did not.
    """

    step: int
    output: SchedulerOutput
    seconds: float
    finished: tuple[Request, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a request."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    cumulative_logprob: float
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All answers to a request: n samples in order, or beams, best first."""

    request_id: str
    prompt: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a run; `seconds` is the time spent in steps."""

    steps: int
    prompt_tokens: int
    generated_tokens: int
    seconds: float
    preemptions: int
    queried_tokens: int
    hit_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second."""
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up tokens that the prefix cache held."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


@dataclass(slots=True)
class _Group:
    """One call of `add_request`: one request, or in "v1" one for each sample."""

    request_id: str
    prompt: str
    requests: list[Request] = field(default_factory=list)


def _longest(config: EngineConfig, runner: RunnerProtocol) -> int:
    """The longest context where nobody set one: what everybody reserves must fit the memory."""
    if not config.is_contiguous or config.reserve != "max":
        return runner.max_model_len
    slots = config.usable_slots
    return 1 << slots.bit_length() - 1 if config.placement == "buddy" else slots


class Engine:
    """A KV-cache engine over one runner.

    Args:
        config: its size must be known; see `EngineConfig.sized`.
        runner: computes and samples.
        codec: encodes prompts and decodes tokens.
        model: what the trace's header says of the model.
        record: keep a trace; without one nothing can be shown or verified.
        measured: False when the runner's times are simulated.
        title: what the run shows, by language.
        first_step: steps that count as taken already, when a run goes on from another's.

    Attributes:
        num_steps: steps taken so far.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: RunnerProtocol,
        codec: Codec,
        *,
        model: Mapping[str, Any] | None = None,
        record: bool = True,
        measured: bool = True,
        title: Mapping[str, str] | None = None,
        first_step: int = 0,
    ) -> None:
        limit = min(runner.max_model_len, config.max_model_len or _longest(config, runner))
        self.config = config = replace(config, max_model_len=limit)
        self.runner = runner
        self.codec = codec
        self.recorder = Recorder() if record else None
        self.header = Header(config.to_dict(), model or {}, measured, title or {})
        self.manager: CacheManager = _MEMORIES[config.allocator](config, self.recorder)
        self.scheduler: Scheduler = _SCHEDULERS[config.batching](
            config, self.manager, self.recorder, max_model_len=limit
        )
        self._streams = _Streams(codec)
        if self.recorder is not None:
            self.recorder.step = first_step
        self._update = StepUpdate(
            self.scheduler, self.recorder, self._streams, runner.eos_token_ids
        )
        self._groups: dict[str, _Group] = {}
        self._stems: set[str] = set()  # ids of groups, without what may look like a sample's number
        self.num_steps = self.scheduler.num_steps = self._first_step = first_step
        self._num_requests = 0
        self._num_labels = 0
        self._seconds = 0.0

    # ---------------------------------------------------------------- requests

    def add_request(
        self,
        prompt: str | SequenceOf[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        label: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        chat: bool = False,
    ) -> tuple[Request, ...]:
        """Puts a request in line; its `label`, when none is given, is the next free letter.

        A request that can never run is refused at once: it comes back finished, with
        `finish_reason` "rejected" and a sentence in `error`.

        Returns:
            One request; in "v1" semantics one for each of the n samples, as vLLM does.

        Raises:
            RequestError: an empty prompt, an unknown token, an id that is taken, or beams in "v1".
        """
        params = params or SamplingParams()
        if params.beam_width > 1 and self.config.semantics == "v1":
            raise RequestError("beams_need_paper", width=params.beam_width)
        text = prompt if isinstance(prompt, str) else ""
        token_ids = self._encode(prompt, chat=chat)
        group_id, letter = self._name(request_id)
        label = label or letter
        group = self._groups[group_id] = _Group(group_id, text)
        self._stems.add(_stem(group_id))
        self._num_requests += 1
        many = params.n if self.config.semantics == "v1" else 1
        for index in range(many):
            suffix = f".{index}" if index else ""
            group.requests.append(
                Request.make(
                    group_id + suffix,
                    token_ids,
                    replace(params, n=1) if many > 1 else params,
                    arrival=float(self._num_requests),
                    priority=priority,
                    cache_salt=cache_salt,
                    prompt=text,
                    parent_id=group_id if many > 1 else None,
                    label=f"{label}·{index + 1}" if params.num_sequences > 1 else label,
                    sample_index=index,
                )
            )
        self._enqueue(group.requests)
        return tuple(group.requests)

    def _name(self, request_id: str | None) -> tuple[str, str]:
        """The id of a new group (the next free letter when none is given) and its label."""
        if request_id and self._is_taken(request_id):
            raise RequestError("request_id_taken", request_id=request_id)
        label = _letters(self._num_labels)
        while not request_id and self._is_taken(label):
            self._num_labels += 1
            label = _letters(self._num_labels)
        self._num_labels += 1
        return request_id or label, label

    def _is_taken(self, request_id: str) -> bool:
        """Whether a group has the id, or its samples (X.1, X.2, ...) could meet one of ours."""
        groups = self._groups
        return request_id in groups or _stem(request_id) in groups or request_id in self._stems

    def _encode(self, prompt: str | SequenceOf[int], *, chat: bool) -> list[int]:
        if isinstance(prompt, str) and not _is_unicode(prompt):
            raise RequestError("prompt_encoding")
        token_ids = (
            self.codec.encode(prompt, chat=chat) if isinstance(prompt, str) else list(prompt)
        )
        if not token_ids:
            raise RequestError("empty_prompt")
        vocab = self.runner.vocab_size
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < vocab:
                raise RequestError("unknown_token", token_id=token_id, vocab=vocab)
        return token_ids

    def _enqueue(self, requests: list[Request]) -> None:
        texts = self.codec.pieces(requests[0].prompt_token_ids) if self.recorder else ()
        for request in requests:
            refusal = self.scheduler.refusal(request)
            if refusal is None:
                self.scheduler.add(request, texts)
            else:
                self._reject(request, refusal)

    def _reject(self, request: Request, reason: ev.Reason) -> None:
        request.transition_to(Status.FINISHED)
        request.finish_reason = "rejected"
        request.error = sentence(f"error.{reason.code}", "en", **reason.values)
        request.sequences.clear()
        if self.recorder is not None:
            self.recorder.phase = "check"
            fields = (request.request_id, request.label)
            self.recorder.emit(ev.RequestRejected, _HERE + "_reject", reason, *fields)

    def abort(self, request_id: str) -> bool:
        """Ends a request (with all its samples) in any state; False when it is not in line."""
        group = self._groups.get(request_id)
        alive = [r for r in group.requests if r.status is not Status.FINISHED] if group else []
        for request in alive:
            self._end(request, "abort", ev.Reason("abort"))
        return bool(alive)

    def forget(self, request_id: str) -> None:
        """Drops a finished request and all its samples from `outputs` and `summary`.

        So that the memory of a long run does not grow with its history.

        Raises:
            InvariantError: it is not finished.
        """
        group = self._groups.get(request_id)
        if group is None:
            return
        if any(request.status is not Status.FINISHED for request in group.requests):
            raise InvariantError(f"{request_id} is not finished and can't be forgotten")
        del self._groups[request_id]
        self._stems.discard(_stem(request_id))

    def _end(self, request: Request, finish_reason: FinishReason, reason: ev.Reason) -> None:
        self.scheduler.finish(request, finish_reason, reason)
        self._update.abandon(request)

    # ------------------------------------------------------------------- steps

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return len(self.scheduler) > 0

    def step(self) -> StepRecord:
        """Schedules, runs and updates once.

        Raises:
            InvariantError: requests wait, and none can ever run.
            KeyboardInterrupt: as it came, after the step's requests were ended.
        """
        started = time.perf_counter()
        self.num_steps += 1
        if self.recorder is not None:
            self.recorder.step = self.num_steps
        output = self.scheduler.schedule()
        for request in output.failed:
            self._update.abandon(request)
        self._refuse_to_stall(output)
        scheduled_at = time.perf_counter()
        error, timings, memory = "", {}, {}
        try:
            result = self.runner.execute(output)
        except BaseException as fault:
            error = f"{type(fault).__name__}: {fault}".strip().splitlines()[0][:300]
            finished = self._fail(output, error)
            if not isinstance(fault, Exception):
                self._end_step(output, started, {}, {})
                raise
        else:
            timings, memory = dict(result.timings), dict(result.memory)
            finished = self._update.apply(output, result)
        if self.header.measured:  # real seconds do not mix with modelled ones
            timings["schedule"] = scheduled_at - started
        seconds = self._end_step(output, started, timings, memory)
        return StepRecord(self.num_steps, output, seconds, (*finished, *output.failed), error)

    def run(self, max_steps: int | None = None) -> Iterator[StepRecord]:
        """Steps until every request is finished, or for `max_steps`."""
        taken = 0
        while self.has_work and (max_steps is None or taken < max_steps):
            yield self.step()
            taken += 1

    def _refuse_to_stall(self, output: SchedulerOutput) -> None:
        moved = output.scheduled or output.preempted or output.failed
        if not moved and self.has_work:
            raise InvariantError(f"nobody can run\n{self.manager.dump()}")

    def _fail(self, output: SchedulerOutput, error: str) -> list[Request]:
        """Ends the requests of a failed step; blocks sealed for it lose their hashes.

        So end those swapped out in it: nobody knows whether their blocks were moved in time.
        """
        moved = [request for request in output.preempted if request.status is Status.SWAPPED]
        moved += [request for request in output.copied if request.status is Status.RUNNING]
        requests = list(dict.fromkeys([*(i.seq.request for i in output.scheduled), *moved]))
        if self.recorder is not None:
            self.recorder.phase = "write"
            ids = tuple(request.request_id for request in requests)
            reason = ev.Reason("forward_failed", {"count": len(ids)})
            self.recorder.emit(ev.StepFailed, _HERE + "_fail", reason, error, ids)
        for request in requests:
            for seq in request.sequences:
                self.manager.forget_unwritten(seq)
        for request in requests:
            request.error = error
            self._end(request, "error", ev.Reason("step_failed"))
        return requests

    def _end_step(
        self,
        output: SchedulerOutput,
        started: float,
        timings: dict[str, float],
        memory: dict[str, int],
    ) -> float:
        if self.recorder is not None:
            self._report_step(output, timings, memory)
        seconds = time.perf_counter() - started
        self._seconds += seconds
        return seconds

    def _report_step(
        self, output: SchedulerOutput, timings: dict[str, float], memory: dict[str, int]
    ) -> None:
        assert self.recorder is not None
        manager, scheduler = self.manager, self.scheduler
        memory_use, written = manager.occupancy, manager.written_slots(scheduler.holders())
        self.recorder.phase = "free"
        self.recorder.emit(
            ev.StepEnded, _HERE + "step", ev.Reason("step" + manager.suffix), output.num_tokens,
            memory_use.free, memory_use.owned, memory_use.cached_free, written,
            len(scheduler.running), len(scheduler.waiting), len(scheduler.swapped),
            {name: round(value, 6) for name, value in timings.items()}, memory,
        )  # fmt: skip

    # ----------------------------------------------------------------- reading

    def trace(self) -> Trace:
        """The run so far; it grows with the engine.

        Raises:
            InvariantError: the engine was made without a record.
        """
        if self.recorder is None:
            raise InvariantError("this engine keeps no trace (record=False)")
        return Trace(self.header, self.recorder.events)

    def outputs(self) -> list[RequestOutput]:
        """The answers so far, in the order of the requests."""
        return [_output(group) for group in self._groups.values()]

    def summary(self) -> Summary:
        """Totals so far."""
        requests = [request for group in self._groups.values() for request in group.requests]
        ran = [request for request in requests if request.finish_reason != "rejected"]
        lines = [seq for request in ran for seq in (*request.sequences, *request.finished)]
        return Summary(
            steps=self.num_steps - self._first_step,
            prompt_tokens=sum(len(request.prompt_token_ids) for request in ran),
            generated_tokens=sum(seq.num_output_tokens for seq in lines),
            seconds=self._seconds,
            preemptions=self.scheduler.num_preemptions,
            queried_tokens=self.scheduler.queried_tokens,
            hit_tokens=self.scheduler.hit_tokens,
        )

    def state(self) -> EngineState:
        """The engine's own state in plain values; a fold of the trace must equal it."""
        scheduler, memory = self.scheduler, self.manager.state()
        live = {seq.seq_id: seq for r in scheduler.requests() for seq in r.sequences}
        return EngineState(
            block_tables=memory.block_tables,
            host_tables=memory.host_tables,
            ref_counts=memory.ref_counts,
            free_queue=memory.free_queue,
            cached=memory.cached,
            regions=memory.regions,
            computed={seq_id: seq.num_computed_tokens for seq_id, seq in live.items()},
            tokens={seq_id: tuple(seq.token_ids) for seq_id, seq in live.items()},
            waiting=tuple(request.request_id for request in scheduler.waiting),
            running=tuple(request.request_id for request in scheduler.running),
            swapped=tuple(request.request_id for request in scheduler.swapped),
            preemptions={r.request_id: r.num_preemptions for r in scheduler.requests()},
        )

    def check(self) -> None:
        """Re-derives everything that is kept twice.

        Raises:
            InvariantError: with the state, when something differs.
        """
        self.manager.check(seq for r in self.scheduler.requests() for seq in r.sequences)

    @property
    def events(self) -> EventStore:
        """The recorded events."""
        return self.trace().events


_MEMORIES: dict[str, type[BlockManager] | type[RegionManager]] = {
    "paged": BlockManager,
    "contiguous": RegionManager,
}
_SCHEDULERS = {"continuous": Scheduler, "static": StaticScheduler}


def _is_unicode(text: str) -> bool:
    """Whether a text holds whole characters only, and no bytes that the shell passed on."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _output(group: _Group) -> RequestOutput:
    completions = [
        _completion(seq)
        for request in group.requests
        for seq in (*request.finished, *request.sequences)
    ]
    errors = [request.error for request in group.requests if request.error]
    return RequestOutput(
        group.request_id,
        group.prompt,
        group.requests[0].prompt_token_ids,
        tuple(completions),
        errors[0] if errors else "",
    )


def _completion(seq: Sequence) -> Completion:
    return Completion(
        tuple(seq.output_token_ids),
        seq.text,
        seq.finish_reason or "",
        seq.cumulative_logprob,
        tuple(seq.logprobs),
        tuple(seq.top_logprobs),
    )


def _stem(request_id: str) -> str:
    """The id without the number that a sample's id ends in.

    >>> _stem("X.1"), _stem("run.2.14"), _stem("v1.x"), _stem("B")
    ('X', 'run.2', 'v1.x', 'B')
    """
    stem, _, number = request_id.rpartition(".")
    return stem if stem and number.isdigit() else request_id


def _letters(number: int) -> str:
    """A, B, ..., Z, AA, AB, ...: display names in order of arrival.

    >>> _letters(0), _letters(25), _letters(26)
    ('A', 'Z', 'AA')
    """
    name = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


class _Streams:
    """The text of every live sequence."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._streams: dict[SeqId, Text] = {}

    def push(self, seq: Sequence, token_id: int) -> str:
        stream = self._streams.get(seq.seq_id)
        if stream is None:
            stream = self._streams[seq.seq_id] = self._codec.stream()
        return stream.push(token_id)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        stream = self._streams.get(parent.seq_id)
        if stream is not None:
            self._streams[child.seq_id] = stream.copy()

    def drop(self, seq: Sequence) -> str:
        stream = self._streams.pop(seq.seq_id, None)
        return stream.flush() if stream is not None else ""
