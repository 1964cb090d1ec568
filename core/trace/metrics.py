"""Numbers of a trace: usage, waste, hit rate, throughput; all derived from events.

Where memory goes, in slots of the usable blocks, always in this order:
- tokens: slots that hold a token's K and V (a shared slot counts once);
- reserved: slots that a prompt already in memory will still write;
- tail: slots of owned blocks that nothing will write unless the sequence grows;
- cached: free blocks that can still be found by prefix;
- free: the rest.
Paging has no reservation for the longest possible answer and no holes between regions: of the
four kinds of waste in the source document these two are 0 here by construction, the tail is
`tail`, and the split between KV cache and everything else is `StepEnded.memory`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from core.trace import events as ev
from core.trace.snapshot import Layout, Snapshot
from core.trace.trace import Trace

__all__ = ["Breakdown", "HitRate", "StepMetrics", "breakdown", "hit_rate", "series", "step_series"]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Slots by state; the five add up to the usable slots."""

    tokens: int
    reserved: int
    tail: int
    cached: int
    free: int

    @property
    def total(self) -> int:
        """All usable slots."""
        return self.tokens + self.reserved + self.tail + self.cached + self.free

    @property
    def usage(self) -> float:
        """Share of the slots in owned blocks: what vLLM reports as KV cache usage."""
        return (self.tokens + self.reserved + self.tail) / self.total if self.total else 0.0

    @property
    def efficiency(self) -> float:
        """Share of the owned slots that hold a token: the paper's "token states" of paging."""
        owned = self.tokens + self.reserved + self.tail
        return self.tokens / owned if owned else 1.0


@dataclass(frozen=True, slots=True)
class HitRate:
    """Prefix-cache hit rate by token in three readings, each None before the first lookup.

    Users mistake one for another: `all_time` counts every lookup; `recent` is what vLLM logs (the
    last 1000 requests, returns after a preemption left out); `returning` are those returns alone.
    """

    all_time: float | None
    recent: float | None
    returning: float | None


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step's numbers."""

    step: int
    slots: Breakdown
    running: int
    waiting: int
    swapped: int
    prefill_tokens: int
    decode_tokens: int
    sampled_tokens: int
    seconds: float
    preemptions: int
    copies: int
    evictions: int
    hit_rate: float | None

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens a second in this step."""
        return self.sampled_tokens / self.seconds if self.seconds else 0.0


def breakdown(snapshot: Snapshot) -> Breakdown:
    """Where the memory goes at this moment."""
    block_size = snapshot.layout.block_size
    written = snapshot.written_slots
    reserved = sum(
        _reserved(sequence.stored, len(sequence.token_ids), len(sequence.table) * block_size)
        for sequence in snapshot.sequences.values()
        if sequence.table
    )
    owned = snapshot.num_owned * block_size
    cached = snapshot.num_cached_free * block_size
    return Breakdown(
        tokens=written,
        reserved=reserved,
        tail=owned - written - reserved,
        cached=cached,
        free=snapshot.num_usable * block_size - owned - cached,
    )


def _reserved(stored: int, known: int, capacity: int) -> int:
    """Slots held for tokens that are known already, the newest sampled one not counted."""
    return max(0, min(known - 1, capacity) - stored)


def hit_rate(snapshot: Snapshot) -> HitRate:
    """The three readings at this moment."""
    counters = snapshot.counters
    recent_queried = sum(queried for queried, _ in counters.recent)
    recent_hit = sum(hit for _, hit in counters.recent)
    return HitRate(
        _share(counters.hit, counters.queried),
        _share(recent_hit, recent_queried),
        _share(counters.returning_hit, counters.returning_queried),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def series(trace: Trace) -> list[StepMetrics]:
    """The numbers after every step."""
    return list(step_series(trace.header.layout, trace.events))


def step_series(layout: Layout, events: Iterable[ev.Event]) -> Iterator[StepMetrics]:
    """The numbers after every step, as the events come."""
    snapshot = Snapshot(layout)
    tokens = {"prefill": 0, "decode": 0}
    sampled_before = 0
    for event in events:
        snapshot.apply(event)
        if isinstance(event, ev.RequestScheduled):
            tokens[event.kind] += event.tokens
        elif isinstance(event, ev.StepEnded):
            yield _step_metrics(snapshot, event, tokens, sampled_before)
            tokens = {"prefill": 0, "decode": 0}
            sampled_before = snapshot.counters.sampled


def _step_metrics(
    snapshot: Snapshot, event: ev.StepEnded, tokens: dict[str, int], sampled_before: int
) -> StepMetrics:
    counters = snapshot.counters
    return StepMetrics(
        step=event.step,
        slots=breakdown(snapshot),
        running=event.running,
        waiting=event.waiting,
        swapped=event.swapped,
        prefill_tokens=tokens["prefill"],
        decode_tokens=tokens["decode"],
        sampled_tokens=counters.sampled - sampled_before,
        seconds=sum(event.timings.values()),
        preemptions=counters.preemptions,
        copies=counters.copies,
        evictions=counters.evictions,
        hit_rate=_share(counters.hit, counters.queried),
    )
