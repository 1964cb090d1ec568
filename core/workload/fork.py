"""Forking the past: what a run would have become, had something been different after a step.

A fork takes a trace and a step. Requests that are alive after that step are carried over with all
tokens that they have; their K and V are computed again in the new memory, which the fork's own
trace shows, and `ForkDiff.recomputed` counts. Requests still to come arrive as they did. The
fork's steps count on from the step, so both futures stand on one clock.

It owns the plan and the diff of the two futures; it does not know models. What a trace does not
say (sampling settings, what ends an answer) comes from the caller; without it answers are greedy.

Invariants: a carried request keeps its id and its label; no request arrives before the fork.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from core.config import EngineConfig
from core.engine import Engine
from core.errors import WorkloadError
from core.request import SamplingParams
from core.trace import events as ev
from core.trace.snapshot import Snapshot
from core.trace.trace import Trace
from core.workload.compare import Equality, Figures, equal_tokens, figures, resized
from core.workload.scenario import Arrival

__all__ = [
    "Changes",
    "Entry",
    "Fate",
    "ForkDiff",
    "ForkPlan",
    "RequestDiff",
    "diff",
    "params_by_id",
    "plan_fork",
    "to_come",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is different in the other future.

    Attributes:
        engine: settings of EngineConfig; a new `block_size` alone keeps the number of slots.
        add: requests that come on top.
        drop: ids of requests that are taken away, alive or still to come.
        move: ids of requests still to come, and the step before which they come instead.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    add: tuple[Arrival, ...] = ()
    drop: frozenset[str] = frozenset()
    move: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A request of the past, which joins the fork under its own name.

    Attributes:
        prompt: its tokens, what it had generated included; or the text of one that is added.
        carried: how many of the tokens it had generated.
        stored: how many of them were in memory; their K and V are computed again.
        alive: it was in line or running at the fork.
        restarts: it begins again from its prompt, because it had several sequences.
    """

    request_id: str
    label: str
    prompt: tuple[int, ...] | str
    params: SamplingParams
    at_step: int
    priority: int = 0
    carried: int = 0
    stored: int = 0
    alive: bool = False
    restarts: bool = False

    def join(self, engine: Engine) -> None:
        """Puts the request in the engine's line."""
        engine.add_request(
            self.prompt, self.params, request_id=self.request_id, label=self.label,
            priority=self.priority,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """What to run: `first_step` is the step after which the futures part."""

    config: EngineConfig
    first_step: int
    arrivals: tuple[Entry, ...]

    @property
    def carried(self) -> tuple[Entry, ...]:
        """Requests that were alive at the fork."""
        return tuple(item for item in self.arrivals if item.alive)

    @property
    def restarted(self) -> tuple[str, ...]:
        """Labels of the requests that begin again from their prompt."""
        return tuple(item.label for item in self.arrivals if item.restarts)


@dataclass(slots=True)
class _Group:
    """One request as its user meant it; in "v1" its samples are requests of their own."""

    request_id: str
    label: str
    arrival: ev.RequestArrived
    members: list[str] = field(default_factory=list)


def plan_fork(
    trace: Trace,
    step: int,
    changes: Changes,
    params: Mapping[str, SamplingParams] | None = None,
) -> ForkPlan:
    """The other future of a run, from the end of `step` on.

    Args:
        trace: the run.
        step: 0 is before the first step.
        changes: what is different.
        params: by id, the settings of the requests as far as they are known.

    Raises:
        TraceError: there is no such step.
        ConfigError: settings that can't work.
        WorkloadError: a request that is not there, or a step that is over.
    """
    config = _changed(EngineConfig.from_dict(dict(trace.header.config)), changes.engine)
    snapshot = trace.snapshot(step)
    groups = _groups(trace)
    _check(changes, step, snapshot, groups)
    kept = [group for group in groups.values() if group.request_id not in changes.drop]
    later = [
        _arriving(group, changes, params or {})
        for group in kept
        if group.request_id not in snapshot.requests
    ]
    alive = [
        entry
        for group in _by_queue(kept, snapshot)
        if (entry := _carried(group, snapshot, step, params or {})) is not None
    ]
    added = _added(changes.add, step, {*groups, *(group.request_id for group in kept)})
    arrivals = sorted([*alive, *later, *added], key=lambda item: item.at_step)
    if not arrivals:
        raise WorkloadError("fork_empty", step=step)
    return ForkPlan(config, step, tuple(arrivals))


def to_come(trace: Trace, step: int) -> dict[str, tuple[str, int]]:
    """Requests that arrive after `step`: by id their label and the step that they come before."""
    known = trace.snapshot(step).requests
    return {
        group.request_id: (group.label, group.arrival.step + 1)
        for group in _groups(trace).values()
        if group.request_id not in known
    }


def params_by_id(
    trace: Trace,
    arrivals: Sequence[Arrival],
    named: Mapping[str, SamplingParams] | None = None,
) -> dict[str, SamplingParams]:
    """The settings of a trace's requests by id, when it is a run of these arrivals.

    Refused requests count in the order of arrival too; a trace cut short has fewer requests.

    Args:
        trace: the run.
        arrivals: what it played, in any order.
        named: settings that are known by id already; those requests are none of the arrivals.
    """
    known = dict(named or {})
    ordered = [item.params for item in sorted(arrivals, key=lambda item: item.at_step)]
    ids: dict[str, str] = {}
    for event in trace.events:
        if isinstance(event, ev.RequestArrived | ev.RequestRejected):
            ids.setdefault(_stem(event.label), event.request_id)
    others = [request_id for request_id in ids.values() if request_id not in known]
    return known | dict(zip(others, ordered, strict=False))


def _changed(config: EngineConfig, engine: Mapping[str, Any]) -> EngineConfig:
    changes = dict(engine)
    if "block_size" in changes and "num_blocks" not in changes:
        config = resized(config, changes.pop("block_size"))
    if changes.get("allocator") == "contiguous":
        changes.setdefault("prefix_caching", None)
    return replace(config, **changes)


def _groups(trace: Trace) -> dict[str, _Group]:
    """The requests of a run by label, samples of one prompt together."""
    groups: dict[str, _Group] = {}
    for event in trace.events:
        if isinstance(event, ev.RequestArrived):
            label = _stem(event.label)
            group = groups.setdefault(label, _Group(event.request_id, label, event))
            group.members.append(event.request_id)
    return groups


def _check(changes: Changes, step: int, snapshot: Snapshot, groups: Mapping[str, _Group]) -> None:
    known = {group.request_id for group in groups.values()}
    names = ", ".join(sorted(known))
    for request_id in (*changes.drop, *changes.move):
        if request_id not in known:
            raise WorkloadError("fork_request", name=request_id, names=names)
    for request_id, at in changes.move.items():
        if request_id in snapshot.requests:
            raise WorkloadError("fork_arrived", name=request_id, step=step)
        if at <= step:
            raise WorkloadError("fork_past", name=request_id, at=at, step=step)
    for arrival in changes.add:
        if not arrival.prompt.strip():
            raise WorkloadError("fork_prompt")


def _by_queue(groups: Iterable[_Group], snapshot: Snapshot) -> list[_Group]:
    """Groups with a living request, those that run first: they go on first."""
    order = [*snapshot.running, *snapshot.swapped, *snapshot.waiting]
    place = {request_id: index for index, request_id in enumerate(order)}
    living = [group for group in groups if any(m in place for m in group.members)]
    return sorted(living, key=lambda g: min(place[m] for m in g.members if m in place))


def _arriving(group: _Group, changes: Changes, params: Mapping[str, SamplingParams]) -> Entry:
    arrival = group.arrival
    at_step = changes.move.get(group.request_id, arrival.step + 1)
    return Entry(
        group.request_id, group.label, arrival.prompt_token_ids,
        _params(group, params), at_step, arrival.priority,
    )  # fmt: skip


def _carried(
    group: _Group, snapshot: Snapshot, step: int, params: Mapping[str, SamplingParams]
) -> Entry | None:
    arrival, settings = group.arrival, _params(group, params)
    entry = Entry(
        group.request_id, group.label, arrival.prompt_token_ids, settings, step + 1,
        arrival.priority, alive=True,
    )  # fmt: skip
    if len(group.members) > 1 or arrival.num_sequences > 1:
        return replace(entry, restarts=True)
    sequence = snapshot.sequences[group.request_id]
    carried = len(sequence.token_ids) - sequence.num_prompt_tokens
    left = settings.max_tokens - carried
    if left < 1:
        return None
    return replace(
        entry, prompt=tuple(sequence.token_ids), params=replace(settings, max_tokens=left),
        carried=carried, stored=sequence.stored,
    )  # fmt: skip


def _added(arrivals: Sequence[Arrival], step: int, taken: set[str]) -> list[Entry]:
    """The added requests, named +1, +2, ...: a letter could be that of one still to come."""
    names = (name for number in count(1) if (name := f"+{number}") not in taken)
    return [
        Entry(name, name, item.prompt, item.params, max(item.at_step, step + 1), item.priority)
        for item, name in zip(arrivals, names, strict=False)
    ]


def _params(group: _Group, params: Mapping[str, SamplingParams]) -> SamplingParams:
    """The request's own settings, else greedy ones with the trace's limit and samples."""
    known = params.get(group.request_id)
    if known is not None:
        return known
    arrival = group.arrival
    many = max(len(group.members), arrival.num_sequences)
    return SamplingParams(max_tokens=max(1, arrival.max_tokens), n=min(64, many))


# ------------------------------------------------------------------------------------ diff


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one request: steps, None where it never came to that."""

    arrived: int | None = None
    admitted: int | None = None
    finished: int | None = None
    finish_reason: str = ""
    preemptions: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestDiff:
    """One request in both futures; None where it is not there.

    Attributes:
        carried: it was alive at the fork.
        same_tokens: None where there is nothing to compare.
    """

    label: str
    before: Fate | None
    after: Fate | None
    carried: bool
    same_tokens: bool | None


@dataclass(frozen=True, slots=True)
class ForkDiff:
    """Both futures from the fork on.

    Attributes:
        recomputed: tokens whose K and V the fork computed again because it is a fork.
    """

    first_step: int
    requests: tuple[RequestDiff, ...]
    before: Figures
    after: Figures
    recomputed: int
    equality: Equality


def diff(before: Trace, after: Trace, plan: ForkPlan) -> ForkDiff:
    """What changed; requests that were over at the fork are left out."""
    since = plan.first_step
    ours, theirs = _fates(before, since), _fates(after, since)
    carried = {entry.label for entry in plan.carried}
    equality = equal_tokens(before, after)
    differing = {_stem(item.label) for item in equality.differences}
    rows = []
    for label in dict.fromkeys((*ours, *theirs)):
        then, now = ours.get(label), theirs.get(label)
        if then is not None and then.finished is not None and then.finished <= since:
            continue
        same = label not in differing if then and now and then.tokens and now.tokens else None
        rows.append(RequestDiff(label, then, now, label in carried, same))
    return ForkDiff(
        since, tuple(rows), figures(before, since), figures(after, since),
        _recomputed(after, plan), replace(equality, missing=()),
    )  # fmt: skip


def _fates(trace: Trace, since: int) -> dict[str, Fate]:
    """By label, what became of each request; preemptions and tokens count after `since`."""
    labels: dict[str, str] = {}
    fates: dict[str, Fate] = {}
    for event in trace.events:
        if isinstance(event, ev.RequestArrived | ev.RequestRejected):
            label = labels[event.request_id] = _stem(event.label)
            fates.setdefault(label, Fate(arrived=event.step + 1))
        elif isinstance(event, ev.SequenceForked):
            labels[event.child_id] = _stem(event.label)
        label = labels.get(_owner(event), "")
        if label:
            fates[label] = _next_fate(fates[label], event, event.step > since)
    return fates


def _next_fate(fate: Fate, event: ev.Event, counts: bool) -> Fate:
    match event:
        case ev.RequestRejected():
            return replace(fate, finished=event.step + 1, finish_reason="rejected")
        case ev.RequestAdmitted() if fate.admitted is None:
            return replace(fate, admitted=event.step)
        case ev.RequestFinished():
            return replace(fate, finished=event.step, finish_reason=event.finish_reason)
        case ev.RequestPreempted() if counts:
            return replace(fate, preemptions=fate.preemptions + 1)
        case ev.TokenSampled() if counts:
            return replace(fate, tokens=fate.tokens + 1)
        case _:
            return fate


def _owner(event: ev.Event) -> str:
    return str(getattr(event, "request_id", "") or getattr(event, "seq_id", ""))


def _stem(label: str) -> str:
    return label.partition("·")[0]


def _recomputed(after: Trace, plan: ForkPlan) -> int:
    """Tokens that were in memory at the fork and were computed again, until a preemption."""
    stored = {entry.request_id: entry.stored for entry in plan.carried}
    total = 0
    for event in after.events:
        if isinstance(event, ev.RequestScheduled) and event.seq_id in stored:
            total += max(0, min(event.start + event.tokens, stored[event.seq_id]) - event.start)
        elif isinstance(event, ev.RequestPreempted):
            stored.pop(event.request_id, None)
    return total
