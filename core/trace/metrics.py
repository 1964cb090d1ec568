"""Numbers of a trace: usage, waste, hit rate, throughput; all derived from events.

Where memory goes, in slots of the usable memory, always in this order (the paper's categories,
SOSP'23, figure 2, with those that paging adds):
- tokens: slots that hold a token's K and V (a shared slot counts once);
- reserved: slots that somebody holds and will write; in paged memory those of known tokens;
- unused: slots that a region reserved and will never write (internal fragmentation);
- tail: slots of owned blocks that nothing will write unless the sequence grows;
- cached: free blocks that can still be found by prefix;
- hole: slots lost to the rounding of a buddy piece, and free pieces too small for what is needed
  next (external fragmentation): for `max_model_len` slots when everybody reserves so many, else
  for the request that was last told to wait;
- free: the rest.
Paged memory has no `unused` and no `hole` by construction, contiguous memory no `tail` and no
`cached`. The fourth kind of the source document, KV cache against everything else, is
`StepEnded.memory`.

What a region "will" write is known from the end of its sequence when the trace holds it
(`final_lengths`); until then it is all that the request may write.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from core.trace import events as ev
from core.trace.snapshot import Layout, RegionView, Snapshot
from core.trace.trace import Trace

__all__ = [
    "Breakdown",
    "HitRate",
    "StepMetrics",
    "breakdown",
    "final_lengths",
    "free_pieces",
    "hit_rate",
    "series",
    "step_series",
]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Slots by state; the seven add up to the usable slots."""

    tokens: int
    reserved: int
    unused: int
    tail: int
    cached: int
    hole: int
    free: int

    @property
    def total(self) -> int:
        """All usable slots."""
        return self._owned + self.cached + self.hole + self.free

    @property
    def usage(self) -> float:
        """Share of the slots that have an owner: what vLLM reports as KV cache usage."""
        return self._owned / self.total if self.total else 0.0

    @property
    def efficiency(self) -> float:
        """Share of the owned slots that hold a token: the paper's "token states" of paging."""
        return self.tokens / self._owned if self._owned else 1.0

    @property
    def _owned(self) -> int:
        return self.tokens + self.reserved + self.unused + self.tail


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


def breakdown(snapshot: Snapshot, finals: Mapping[str, int] | None = None) -> Breakdown:
    """Where the memory goes at this moment.

    Args:
        snapshot: the moment.
        finals: tokens that each sequence stores in the end, as far as that is known.
    """
    if snapshot.layout.is_contiguous:
        return _contiguous_breakdown(snapshot, finals or {})
    block_size = snapshot.layout.block_size
    written = snapshot.written_slots
    reserved = sum(
        _reserved(sequence.stored, len(sequence.token_ids), len(sequence.table) * block_size)
        for sequence in snapshot.sequences.values()
        if sequence.table and not _gives_back(snapshot, sequence.request_id)
    )
    owned = snapshot.num_owned * block_size
    cached = snapshot.num_cached_free * block_size
    return Breakdown(
        tokens=written,
        reserved=reserved,
        unused=0,
        tail=owned - written - reserved,
        cached=cached,
        hole=0,
        free=snapshot.num_usable * block_size - owned - cached,
    )


def _gives_back(snapshot: Snapshot, request_id: str) -> bool:
    """Whether the request was preempted and its blocks are still on their way back."""
    return snapshot.requests[request_id].status == "preempted"


def _reserved(stored: int, known: int, capacity: int) -> int:
    """Slots held for tokens that are known already, the newest sampled one not counted."""
    return max(0, min(known - 1, capacity) - stored)


def _contiguous_breakdown(snapshot: Snapshot, finals: Mapping[str, int]) -> Breakdown:
    written = reserved = unused = rounding = 0
    for region in snapshot.regions.values():
        stored, end = _extent(snapshot, region, finals)
        written += stored
        reserved += end - stored
        unused += region.length - end
        rounding += region.size - region.length
    need = _needed_next(snapshot)
    pieces = [size for _, size in free_pieces(snapshot)]
    too_small = sum(size for size in pieces if size < need)
    return Breakdown(
        tokens=written,
        reserved=reserved,
        unused=unused,
        tail=0,
        cached=0,
        hole=rounding + too_small,
        free=sum(pieces) - too_small,
    )


def _extent(snapshot: Snapshot, region: RegionView, finals: Mapping[str, int]) -> tuple[int, int]:
    """Slots of a region that are written, and those that will be in the end."""
    sequence = snapshot.sequences.get(region.seq_id)
    if sequence is None:  # a spare: whoever gets it may write as much as the request allows
        first = snapshot.sequences[region.request_id]
        return 0, min(region.length, first.num_prompt_tokens + _answer(snapshot, region) - 1)
    if sequence.finish_reason:
        return sequence.stored, sequence.stored
    may = sequence.num_prompt_tokens + _answer(snapshot, region) - 1
    return sequence.stored, min(region.length, max(finals.get(region.seq_id, may), sequence.stored))


def _answer(snapshot: Snapshot, region: RegionView) -> int:
    return snapshot.requests[region.request_id].max_tokens


def _needed_next(snapshot: Snapshot) -> int:
    if snapshot.layout.reserve == "max":
        return snapshot.layout.max_model_len
    return snapshot.deferred.need if snapshot.deferred is not None else 0


def free_pieces(snapshot: Snapshot) -> list[tuple[int, int]]:
    """Free (start, size) pieces of contiguous memory as its allocator sees them, by address.

    Between two regions lies one piece, or with buddies the fewest aligned powers of two.
    """
    layout = snapshot.layout
    ends = [*sorted((r.start, r.size) for r in snapshot.regions.values()), (layout.num_blocks, 0)]
    pieces: list[tuple[int, int]] = []
    reached = 0
    for start, size in ends:
        while reached < start:
            piece = start - reached
            if layout.placement == "buddy":
                fits = 1 << (piece.bit_length() - 1)
                piece = min(fits, reached & -reached) if reached else fits
            pieces.append((reached, piece))
            reached += piece
        reached = start + size
    return pieces


def final_lengths(trace: Trace) -> dict[str, int]:
    """Tokens that each finished sequence stored in the end; the last sampled one never is."""
    prompts: dict[str, int] = {}
    finals: dict[str, int] = {}
    for event in trace.events:
        if isinstance(event, ev.RequestArrived):
            prompts[event.request_id] = len(event.prompt_token_ids)
        elif isinstance(event, ev.SequenceForked):
            prompts[event.child_id] = prompts[event.request_id]
        elif isinstance(event, ev.SequenceFinished):
            finals[event.seq_id] = prompts[event.seq_id] + max(0, event.num_tokens - 1)
    return finals


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
    return list(step_series(trace.header.layout, trace.events, final_lengths(trace)))


def step_series(
    layout: Layout, events: Iterable[ev.Event], finals: Mapping[str, int] | None = None
) -> Iterator[StepMetrics]:
    """The numbers after every step, as the events come; `finals` as in `breakdown`."""
    snapshot = Snapshot(layout)
    planned: list[tuple[str, str, int]] = []
    sampled_before = 0
    for event in events:
        snapshot.apply(event)
        if isinstance(event, ev.RequestScheduled):
            request_id = snapshot.sequences[event.seq_id].request_id
            planned.append((request_id, event.kind, event.tokens))
        elif _takes_back(event):  # and be it in the step that scheduled it
            planned = [item for item in planned if item[0] != event.request_id]
        elif isinstance(event, ev.StepEnded):
            tokens = {"prefill": 0, "decode": 0}
            for _, kind, count in planned:
                tokens[kind] += count
            yield _step_metrics(snapshot, event, tokens, sampled_before, finals)
            planned = []
            sampled_before = snapshot.counters.sampled


def _takes_back(event: ev.Event) -> TypeGuard[ev.RequestPreempted | ev.RequestFinished]:
    """Whether the step at hand computes nothing of the event's request."""
    if isinstance(event, ev.RequestFinished):
        return event.reason.code == "no_swap_space"
    return isinstance(event, ev.RequestPreempted)


def _step_metrics(
    snapshot: Snapshot,
    event: ev.StepEnded,
    tokens: dict[str, int],
    sampled_before: int,
    finals: Mapping[str, int] | None,
) -> StepMetrics:
    counters = snapshot.counters
    return StepMetrics(
        step=event.step,
        slots=breakdown(snapshot, finals),
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
