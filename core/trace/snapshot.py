"""Snapshot: the engine's whole state, folded from events alone.

It owns the meaning of each event (see the docstrings in `core.trace.events`); it never looks at
the engine. The player's JavaScript fold is its twin, and `Engine.state()` must equal
`Snapshot.state()` after every step.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import TraceError
from core.trace import events as ev

__all__ = [
    "Counters",
    "EngineState",
    "Layout",
    "RegionView",
    "RequestView",
    "SequenceView",
    "Snapshot",
    "fold",
]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a fold must know of the configuration.

    In contiguous memory a block is one slot, and `num_blocks` are all usable slots.
    """

    num_blocks: int
    block_size: int
    null_block: bool
    policy: str
    num_host_blocks: int = 0
    allocator: str = "paged"
    reserve: str = "max"
    placement: str = "first_fit"
    max_model_len: int = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether every sequence has one region of slots, and no blocks."""
        return self.allocator == "contiguous"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Layout":
        """The layout of a trace header's configuration.

        Raises:
            TraceError: a value is missing.
        """
        try:
            num_blocks, block_size = int(config["num_blocks"]), int(config["block_size"])
            null_block = config["semantics"] == "v1"
            allocator = str(config.get("allocator", "paged"))  # older traces are paged
            if allocator == "contiguous":
                num_blocks, block_size = (num_blocks - null_block) * block_size, 1
                null_block = False
            return cls(
                num_blocks=num_blocks,
                block_size=block_size,
                null_block=null_block,
                policy=str(config["policy"]),
                num_host_blocks=int(config["num_host_blocks"]),
                allocator=allocator,
                reserve=str(config.get("reserve", "max")),
                placement=str(config.get("placement", "first_fit")),
                max_model_len=int(config.get("max_model_len") or 0),
            )
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise TraceError("header_config", detail=str(error)) from error


@dataclass(frozen=True, slots=True)
class EngineState:
    """Plain values for comparing a fold with the engine; equal means equal in every part."""

    block_tables: Mapping[str, tuple[int, ...]]
    host_tables: Mapping[str, tuple[int, ...]]
    ref_counts: Mapping[int, int]
    free_queue: tuple[int, ...]
    cached: Mapping[int, str]
    computed: Mapping[str, int]
    tokens: Mapping[str, tuple[int, ...]]
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    swapped: tuple[str, ...]
    preemptions: Mapping[str, int]
    regions: Mapping[int, tuple[str, str, int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class RegionView:
    """A run of slots; without a `seq_id` a spare of the request."""

    request_id: str
    seq_id: str
    start: int
    length: int
    size: int


@dataclass(slots=True)
class SequenceView:
    """One live or finished sequence; `stored` tokens have K and V in its table's blocks."""

    seq_id: str
    request_id: str
    label: str
    num_prompt_tokens: int
    token_ids: list[int]
    texts: list[str]
    stored: int = 0
    table: list[int] = field(default_factory=list)
    host_table: list[int] = field(default_factory=list)
    finish_reason: str = ""


@dataclass(slots=True)
class RequestView:
    """One request; `seq_ids` are its live sequences."""

    request_id: str
    label: str
    status: str
    priority: int
    arrival: float
    max_tokens: int
    seq_ids: list[str]
    num_preemptions: int = 0
    finish_reason: str = ""


@dataclass(slots=True)
class Counters:
    """Totals since the first event; the hit rate in three readings (tokens hit, tokens asked)."""

    sampled: int = 0
    copies: int = 0
    evictions: int = 0
    preemptions: int = 0
    queried: int = 0
    hit: int = 0
    returning_queried: int = 0
    returning_hit: int = 0
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=1000))


class Snapshot:
    """The state after the events applied so far.

    Attributes:
        regions: of contiguous memory, by where they begin; what a region holds are the stored
            tokens of its sequence.
        deferred: why the first in line waits, None when nobody was told to.
        ref_counts, hashes, slots: by block id; `slots[b]` are the token ids written in block b.
            A list of slots is replaced, never changed: all empty blocks share one.
        step, index, phase: of the last event.
    """

    def __init__(self, layout: Layout) -> None:
        size = 0 if layout.is_contiguous else layout.num_blocks
        self.layout = layout
        self.regions: dict[int, RegionView] = {}
        self.region_of: dict[str, RegionView] = {}
        self.deferred: ev.RequestDeferred | None = None
        self.step = 0
        self.index = -1
        self.phase = "check"
        self.ref_counts = [0] * size
        self.hashes: list[str] = [""] * size
        self.slots: list[list[int]] = [[]] * size
        self.host_slots: dict[int, list[int]] = {}
        self.sequences: dict[str, SequenceView] = {}
        self.requests: dict[str, RequestView] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.swapped: list[str] = []
        self.counters = Counters()
        self._planned: dict[str, int] = {}  # tokens of this step by sequence
        self.last_step: ev.StepEnded | None = None
        self._queue = _IdQueue(range(int(layout.null_block), size), size)

    def apply(self, event: ev.Event) -> None:
        """Applies the next event.

        Raises:
            TraceError: the event can't follow this state (an unknown id, a block out of range).
        """
        if event.step != self.step:
            self._planned = {}
        try:
            self._check_places(event)
            _HANDLERS[type(event)](self, event)
        except (KeyError, IndexError, ValueError) as error:
            raise TraceError(
                "event_impossible", index=event.index, type=type(event).__name__, detail=repr(error)
            ) from error
        self.step, self.index, self.phase = event.step, event.index, event.phase

    @property
    def scheduled_tokens(self) -> int:
        """Tokens that this step computes; what it took back from a victim doesn't count."""
        return sum(self._planned.values())

    @property
    def free_queue(self) -> list[int]:
        """Free blocks, head first."""
        return list(self._queue)

    @property
    def next_free(self) -> int:
        """The free block that is handed out next, -1 when there is none."""
        return next(iter(self._queue), -1)

    @property
    def num_free(self) -> int:
        """Free blocks, cached ones included; free slots in contiguous memory."""
        if self.layout.is_contiguous:
            return self.layout.num_blocks - sum(region.size for region in self.regions.values())
        return len(self._queue)

    @property
    def num_usable(self) -> int:
        """Blocks that requests can own."""
        return self.layout.num_blocks - self.layout.null_block

    @property
    def num_owned(self) -> int:
        """Blocks with an owner."""
        return self.num_usable - self.num_free

    @property
    def num_cached_free(self) -> int:
        """Free blocks that can still be found by prefix."""
        return sum(1 for block in self._queue if self.hashes[block])

    @property
    def written_slots(self) -> int:
        """Slots of owned blocks that hold a token; a shared block counts once."""
        if self.layout.is_contiguous:
            return sum(self.sequences[seq_id].stored for seq_id in self.region_of)
        return sum(
            len(slots) for slots, refs in zip(self.slots, self.ref_counts, strict=True) if refs
        )

    def owners(self) -> dict[int, list[str]]:
        """For each owned block the sequences whose tables hold it."""
        owners: dict[int, list[str]] = {}
        for sequence in self.sequences.values():
            for block in sequence.table:
                owners.setdefault(block, []).append(sequence.seq_id)
        return owners

    def labels(self) -> dict[str, str]:
        """Display names of requests and sequences by id."""
        names = {request.request_id: request.label for request in self.requests.values()}
        names.update((seq.seq_id, seq.label) for seq in self.sequences.values())
        return names

    def state(self) -> EngineState:
        """Plain values, comparable with `Engine.state()`."""
        live = {
            seq_id: self.sequences[seq_id]
            for queue in (self.waiting, self.running, self.swapped)
            for request_id in queue
            for seq_id in self.requests[request_id].seq_ids
        }
        queued = [*self.waiting, *self.running, *self.swapped]
        return EngineState(
            block_tables={k: tuple(s.table) for k, s in self.sequences.items() if s.table},
            host_tables={k: tuple(s.host_table) for k, s in self.sequences.items() if s.host_table},
            ref_counts={block: refs for block, refs in enumerate(self.ref_counts) if refs},
            free_queue=tuple(self._queue),
            cached={block: value for block, value in enumerate(self.hashes) if value},
            computed={k: s.stored for k, s in live.items()},
            tokens={k: tuple(s.token_ids) for k, s in live.items()},
            waiting=tuple(self.waiting),
            running=tuple(self.running),
            swapped=tuple(self.swapped),
            preemptions={k: self.requests[k].num_preemptions for k in queued},
            regions={
                r.start: (r.request_id, r.seq_id, r.length, r.size) for r in self.regions.values()
            },
        )

    def _check_places(self, event: ev.Event) -> None:
        """Refuses the other memory's events, ids outside the pool, and places below 0.

        Python would read those from the other end.
        """
        if type(event) in (_OF_BLOCKS if self.layout.is_contiguous else _OF_REGIONS):
            raise ValueError(f"memory is {self.layout.allocator}")
        num_blocks = self.layout.num_blocks
        for name in _BLOCK_FIELDS.get(type(event), ()):
            if not 0 <= getattr(event, name) < num_blocks:
                raise IndexError(f"{name}={getattr(event, name)}")
        for name in _COUNT_FIELDS.get(type(event), ()):
            if getattr(event, name) < 0:
                raise IndexError(f"{name}={getattr(event, name)}")
        if isinstance(event, (ev.BlocksSwappedOut, ev.BlocksSwappedIn)):
            for block, host in zip(event.blocks, event.hosts, strict=True):
                if not (0 <= block < num_blocks and 0 <= host < self.layout.num_host_blocks):
                    raise IndexError(f"block {block}, host block {host}")

    # One method an event type, in the order of `core.trace.events`.

    def _arrived(self, event: ev.RequestArrived) -> None:
        if event.request_id in self.requests:
            raise ValueError(f"request {event.request_id} arrived twice")
        self.requests[event.request_id] = RequestView(
            event.request_id, event.label, "waiting", event.priority, event.arrival,
            event.max_tokens, [event.request_id],
        )  # fmt: skip
        self.sequences[event.request_id] = SequenceView(
            event.request_id, event.request_id, event.label, len(event.prompt_token_ids),
            list(event.prompt_token_ids), list(event.texts),
        )  # fmt: skip
        self._enqueue(event.request_id, first=False)

    def _rejected(self, event: ev.RequestRejected) -> None:
        self.requests[event.request_id] = RequestView(
            event.request_id, event.label, "finished", 0, 0.0, 0, [], finish_reason="rejected"
        )

    def _deferred(self, event: ev.RequestDeferred) -> None:
        if event.request_id not in self.waiting:
            raise ValueError(f"{event.request_id} does not wait")
        self.deferred = event

    def _waits_no_more(self, request_id: str) -> None:
        if self.deferred is not None and self.deferred.request_id == request_id:
            self.deferred = None

    def _nothing(self, event: ev.Event) -> None:
        pass

    def _admitted(self, event: ev.RequestAdmitted) -> None:
        request = self.requests[event.request_id]
        (self.swapped if request.status == "swapped" else self.waiting).remove(event.request_id)
        request.status = "running"
        self.running.append(event.request_id)
        self._waits_no_more(event.request_id)
        for seq_id in request.seq_ids:
            if not self.sequences[seq_id].stored:
                self.sequences[seq_id].stored = event.computed_tokens
        self._count_hits(event)

    def _count_hits(self, event: ev.RequestAdmitted) -> None:
        counters = self.counters
        counters.queried += event.queried_tokens
        counters.hit += event.hit_tokens
        if event.returning:
            counters.returning_queried += event.queried_tokens
            counters.returning_hit += event.hit_tokens
        elif event.queried_tokens:
            counters.recent.append((event.queried_tokens, event.hit_tokens))

    def _scheduled(self, event: ev.RequestScheduled) -> None:
        self.sequences[event.seq_id]  # must exist
        if event.kind not in ("prefill", "decode"):
            raise ValueError(f"kind={event.kind}")
        self._planned[event.seq_id] = self._planned.get(event.seq_id, 0) + event.tokens

    def _take_back(self, request_id: str) -> None:
        """The step computes nothing of a request that it preempts or gives up."""
        for seq_id in list(self._planned):
            if self.sequences[seq_id].request_id == request_id:
                del self._planned[seq_id]

    def _allocated(self, event: ev.BlockAllocated) -> None:
        self._queue.remove(event.block_id)
        self.ref_counts[event.block_id] = 1
        self.slots[event.block_id] = []
        self._place(event.seq_id, event.logical_index, event.block_id)

    def _evicted(self, event: ev.BlockEvicted) -> None:
        self.hashes[event.block_id] = ""
        self.counters.evictions += 1
        if not self.ref_counts[event.block_id]:
            self.slots[event.block_id] = []

    def _shared(self, event: ev.BlockShared) -> None:
        if not self.ref_counts[event.block_id]:
            self._queue.remove(event.block_id)
        self.ref_counts[event.block_id] = event.ref_count
        self._place(event.seq_id, event.logical_index, event.block_id)

    def _forked(self, event: ev.SequenceForked) -> None:
        parent = self.sequences[event.parent_id]
        self.sequences[event.child_id] = SequenceView(
            event.child_id, event.request_id, event.label, parent.num_prompt_tokens,
            parent.token_ids.copy(), parent.texts.copy(), parent.stored,
        )  # fmt: skip
        self.requests[event.request_id].seq_ids.append(event.child_id)

    def _copied(self, event: ev.BlockCopied) -> None:
        self.slots[event.destination] = self.slots[event.source][: event.tokens]
        self.counters.copies += 1

    def _reserved(self, event: ev.RegionReserved) -> None:
        end = event.start + event.size
        in_pool = 0 <= event.start < end <= self.layout.num_blocks
        if not in_pool or not 0 < event.length <= event.size:
            raise ValueError(f"slots {event.start}..{end}, {event.length} of them of use")
        self.sequences[self.requests[event.request_id].request_id]  # both must exist
        region = RegionView(event.request_id, event.seq_id, event.start, event.length, event.size)
        if event.start in self.regions or event.seq_id in self.region_of:
            raise ValueError(f"region {event.start} of {event.seq_id} is reserved twice")
        self.regions[event.start] = region
        if event.seq_id:
            self._check_owner(event.seq_id, region)
            self.region_of[event.seq_id] = region

    def _check_owner(self, seq_id: str, region: RegionView) -> None:
        if self.sequences[seq_id].request_id != region.request_id:
            raise ValueError(f"{seq_id} is none of the sequences of {region.request_id}")

    def _region_copied(self, event: ev.RegionCopied) -> None:
        region = self.regions[event.destination]
        if region.seq_id or self.sequences[event.seq_id].stored != event.tokens:
            raise ValueError(f"region {event.destination} is no spare for {event.tokens} tokens")
        self._check_owner(event.seq_id, region)
        if event.tokens > region.length or event.seq_id in self.region_of:
            raise ValueError(f"{event.seq_id} needs no region, or not that at {region.start}")
        region.seq_id = event.seq_id
        self.region_of[event.seq_id] = region
        self.counters.copies += 1

    def _region_released(self, event: ev.RegionReleased) -> None:
        region = self.regions.pop(event.start)
        self.region_of.pop(region.seq_id, None)

    def _region_written(self, event: ev.SlotsWritten) -> None:
        sequence, region = self.sequences[event.seq_id], self.region_of[event.seq_id]
        end = event.offset + len(event.token_ids)
        if (event.block_id, event.offset) != (region.start, sequence.stored) or end > region.length:
            raise ValueError(f"slots {event.offset}..{end} of the region at {event.block_id}")
        sequence.stored = end

    def _written(self, event: ev.SlotsWritten) -> None:
        if self.layout.is_contiguous:
            self._region_written(event)
            return
        slots = self.slots[event.block_id]
        end = event.offset + len(event.token_ids)
        if not 0 <= event.offset <= len(slots) or end > self.layout.block_size:
            raise ValueError(f"slots {event.offset}..{end} of block {event.block_id}")
        self.slots[event.block_id] = [*slots[: event.offset], *event.token_ids, *slots[end:]]
        self.sequences[event.seq_id].stored += len(event.token_ids)

    def _sealed(self, event: ev.BlockSealed) -> None:
        self.hashes[event.block_id] = event.hash

    def _sampled(self, event: ev.TokenSampled) -> None:
        sequence = self.sequences[event.seq_id]
        sequence.token_ids.append(event.token_id)
        sequence.texts.append(event.text)
        self.counters.sampled += 1

    def _sequence_finished(self, event: ev.SequenceFinished) -> None:
        self.sequences[event.seq_id].finish_reason = event.finish_reason
        self._retire(event.seq_id)

    def _dropped(self, event: ev.SequenceDropped) -> None:
        self.sequences[event.seq_id].finish_reason = "dropped"
        self._retire(event.seq_id)
        region = self.region_of.pop(event.seq_id, None)
        if region is not None:
            region.seq_id = ""

    def _retire(self, seq_id: str) -> None:
        sequence = self.sequences[seq_id]
        self.requests[sequence.request_id].seq_ids.remove(seq_id)
        gone, sequence.host_table = sequence.host_table, []
        if gone:
            held = {host for other in self.sequences.values() for host in other.host_table}
            for host in set(gone) - held:
                self.host_slots.pop(host, None)

    def _released(self, event: ev.BlockReleased) -> None:
        table = self.sequences[event.seq_id].table
        if table and table[-1] == event.block_id:
            table.pop()
        elif event.block_id in table:  # not after a copy-on-write, which replaced the entry
            table.remove(event.block_id)
        self.ref_counts[event.block_id] = event.ref_count
        if event.ref_count == 0:
            self._queue.insert_after(event.after, event.block_id)
            if not self.hashes[event.block_id]:
                self.slots[event.block_id] = []

    def _preempted(self, event: ev.RequestPreempted) -> None:
        request = self.requests[event.request_id]
        if event.mode not in ("recompute", "swap"):
            raise ValueError(f"mode={event.mode}")
        request.num_preemptions += 1
        self.counters.preemptions += 1
        self._take_back(event.request_id)
        self.running.remove(event.request_id)
        if event.mode == "swap":
            request.status = "swapped"
            self.swapped.append(event.request_id)
            return
        request.status = "preempted"
        for seq_id in request.seq_ids:
            self.sequences[seq_id].stored = 0
        self._enqueue(event.request_id, first=True)

    def _swapped_out(self, event: ev.BlocksSwappedOut) -> None:
        host_of = dict(zip(event.blocks, event.hosts, strict=True))
        for block, host in host_of.items():
            self.host_slots[host] = self.slots[block]
        for seq_id in self.requests[event.request_id].seq_ids:
            sequence = self.sequences[seq_id]
            sequence.host_table = [host_of[block] for block in sequence.table]

    def _swapped_in(self, event: ev.BlocksSwappedIn) -> None:
        for host, block in zip(event.hosts, event.blocks, strict=True):
            self.slots[block] = self.host_slots.pop(host)
        for seq_id in self.requests[event.request_id].seq_ids:
            self.sequences[seq_id].host_table = []

    def _finished(self, event: ev.RequestFinished) -> None:
        request = self.requests[event.request_id]
        for queue in (self.waiting, self.running, self.swapped):
            if event.request_id in queue:
                queue.remove(event.request_id)
        self._waits_no_more(event.request_id)
        if event.reason.code == "no_swap_space":  # in the middle of a step, which goes on without
            self._take_back(event.request_id)
        request.status, request.finish_reason = "finished", event.finish_reason
        request.seq_ids = []

    def _cache_reset(self, event: ev.PrefixCacheReset) -> None:
        self.hashes = [""] * self.layout.num_blocks
        for block in self._queue:
            self.slots[block] = []

    def _step_ended(self, event: ev.StepEnded) -> None:
        self.last_step = event

    def _place(self, seq_id: str, logical_index: int, block_id: int) -> None:
        table = self.sequences[seq_id].table
        if logical_index == len(table):
            table.append(block_id)
        else:
            table[logical_index] = block_id

    def _enqueue(self, request_id: str, *, first: bool) -> None:
        if self.layout.policy == "fcfs":
            self.waiting.insert(0 if first else len(self.waiting), request_id)
            return
        request = self.requests[request_id]
        rank = (request.priority, request.arrival)
        ranks = [(self.requests[r].priority, self.requests[r].arrival) for r in self.waiting]
        self.waiting.insert(sum(other <= rank for other in ranks), request_id)


class _IdQueue:
    """Block ids in order: a doubly linked list in two arrays, so that every move is O(1).

    Written again rather than shared with the engine's own free queue: a fault in one must show as
    a difference between the two.
    """

    def __init__(self, ids: Iterable[int], size: int) -> None:
        self._ends = size  # the sentinel: before the head and behind the tail
        self._next = array("i", [-1]) * (size + 1)
        self._previous = array("i", [-1]) * (size + 1)
        self._next[size] = self._previous[size] = size
        self._length = 0
        for block in ids:
            self.insert_after(self._previous[self._ends], block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._ends]
        while block != self._ends:
            yield block
            block = self._next[block]

    def insert_after(self, previous: int, block: int) -> None:
        """Puts `block` behind `previous`; -1 is the head."""
        previous = self._ends if previous == -1 else previous
        if previous < 0:
            raise ValueError(f"no block {previous}")
        if self._next[block] != -1 or self._next[previous] == -1:
            raise ValueError(f"block {block} behind {previous}")
        following = self._next[previous]
        self._next[previous], self._previous[following] = block, block
        self._next[block], self._previous[block] = following, previous
        self._length += 1

    def remove(self, block: int) -> None:
        """Takes `block` out."""
        if self._next[block] == -1:
            raise ValueError(f"block {block} is not free")
        following, previous = self._next[block], self._previous[block]
        self._next[previous], self._previous[following] = following, previous
        self._next[block] = self._previous[block] = -1
        self._length -= 1


def fold(layout: Layout, events: Iterable[ev.Event]) -> Snapshot:
    """The state after all `events`."""
    snapshot = Snapshot(layout)
    for event in events:
        snapshot.apply(event)
    return snapshot


_HANDLERS: dict[type[ev.Event], Callable[[Snapshot, Any], None]] = {
    ev.RequestArrived: Snapshot._arrived,
    ev.RequestRejected: Snapshot._rejected,
    ev.RequestDeferred: Snapshot._deferred,
    ev.PrefixHit: Snapshot._nothing,
    ev.RequestAdmitted: Snapshot._admitted,
    ev.RequestScheduled: Snapshot._scheduled,
    ev.BlockAllocated: Snapshot._allocated,
    ev.BlockEvicted: Snapshot._evicted,
    ev.BlockShared: Snapshot._shared,
    ev.SequenceForked: Snapshot._forked,
    ev.BlockCopied: Snapshot._copied,
    ev.RegionReserved: Snapshot._reserved,
    ev.RegionCopied: Snapshot._region_copied,
    ev.RegionReleased: Snapshot._region_released,
    ev.SlotsWritten: Snapshot._written,
    ev.BlockSealed: Snapshot._sealed,
    ev.TokenSampled: Snapshot._sampled,
    ev.SequenceFinished: Snapshot._sequence_finished,
    ev.SequenceDropped: Snapshot._dropped,
    ev.BlockReleased: Snapshot._released,
    ev.RequestPreempted: Snapshot._preempted,
    ev.BlocksSwappedOut: Snapshot._swapped_out,
    ev.BlocksSwappedIn: Snapshot._swapped_in,
    ev.RequestFinished: Snapshot._finished,
    ev.PrefixCacheReset: Snapshot._cache_reset,
    ev.StepFailed: Snapshot._nothing,
    ev.StepEnded: Snapshot._step_ended,
}

# Events that only one of the two memories knows.
_OF_REGIONS = {ev.RegionReserved, ev.RegionCopied, ev.RegionReleased}
_OF_BLOCKS = {
    ev.BlockAllocated, ev.BlockEvicted, ev.BlockShared, ev.BlockCopied, ev.BlockSealed,
    ev.BlockReleased, ev.BlocksSwappedOut, ev.BlocksSwappedIn, ev.RequestPreempted,
    ev.PrefixHit, ev.PrefixCacheReset,
}  # fmt: skip

_BLOCK_FIELDS: dict[type[ev.Event], tuple[str, ...]] = {
    ev.BlockAllocated: ("block_id",),
    ev.BlockEvicted: ("block_id",),
    ev.BlockShared: ("block_id",),
    ev.BlockCopied: ("source", "destination"),
    ev.SlotsWritten: ("block_id",),
    ev.BlockSealed: ("block_id",),
    ev.BlockReleased: ("block_id",),
}

_COUNT_FIELDS: dict[type[ev.Event], tuple[str, ...]] = {
    ev.RequestAdmitted: ("computed_tokens", "queried_tokens", "hit_tokens"),
    ev.RequestScheduled: ("tokens",),
    ev.BlockAllocated: ("logical_index",),
    ev.BlockShared: ("logical_index",),
    ev.BlockCopied: ("tokens",),
}
