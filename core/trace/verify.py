"""verify: re-derives a run's state from its events alone and looks for broken promises.

The promises: reference counts equal table memberships, whenever one is told; free, owned and null
blocks partition the pool, and the head of the free block queue is what is handed out; nobody
writes to a shared block, unless it was sealed with just these tokens beforehand; no slot is
written twice without a release; what is written or sealed is what the sequence says; a hash names
one content; a sequence is computed from where it stands, and ends as long as it became; the totals
equal each StepEnded. In contiguous memory: regions don't overlap and outlast their sequences, who
write their own slots in order, once; a fork copies what its parent stores; who is told that memory
is in pieces is told the truth. It knows nothing of the engine.

Nothing here walks over sequences: the cost of an event does not grow with history.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from core.cache.hashing import hash_block
from core.errors import TraceError
from core.trace import events as ev
from core.trace.metrics import free_pieces
from core.trace.snapshot import Snapshot
from core.trace.trace import Trace

__all__ = ["Report", "Violation", "verify"]

_MAX_VIOLATIONS = 100


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that the event `index` broke."""

    index: int
    step: int
    promise: str
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at and what was found (the first 100 faults)."""

    events: int
    steps: int
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not self.violations


def verify(trace: Trace) -> Report:
    """Audits a whole trace."""
    audit = _Audit(trace)
    violations: list[Violation] = []
    index = step = 0
    for event in trace.events:
        index, step = event.index, event.step
        for promise, detail in audit.take(event):
            violations.append(Violation(index, step, promise, detail))
        if len(violations) >= _MAX_VIOLATIONS or audit.lost:
            break
    return Report(len(trace.events), step, tuple(violations[:_MAX_VIOLATIONS]))


class _Audit:
    """The fold, with a question before and after every event."""

    def __init__(self, trace: Trace) -> None:
        self._snapshot = Snapshot(trace.header.layout)
        self._contents: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._sealed: dict[int, tuple[int, ...]] = {}  # tokens that a block was sealed with
        self._held: Counter[int] = Counter()  # tables that hold a block
        self._places: dict[int, int] = {}  # a held block's place in its tables
        self._stored = 0  # tokens written in this step
        self._failed = False  # the step's forward
        self.lost = False  # the fold can't go on

    def take(self, event: ev.Event) -> Iterator[tuple[str, str]]:
        """Faults of one event."""
        if event.index != self._snapshot.index + 1:
            yield "numbers", f"event {event.index} follows event {self._snapshot.index}"
        if event.step < self._snapshot.step:
            yield "numbers", f"step {event.step} follows step {self._snapshot.step}"
        ask = _QUESTIONS.get(type(event))
        if ask is not None:
            yield from ask(self, event)
        if isinstance(event, ev.StepFailed):
            self._failed = True
        try:
            self._snapshot.apply(event)
        except TraceError as error:
            self.lost = True
            yield "possible", error.sentence()
            return
        if isinstance(event, ev.StepEnded):
            yield from self._totals(event)
            yield from self._partition()
            self._stored, self._failed = 0, False
        elif isinstance(event, ev.RequestFinished):
            yield from self._partition()

    def _moved(
        self, event: ev.BlockAllocated | ev.BlockShared | ev.BlockReleased
    ) -> Iterator[tuple[str, str]]:
        """Keeps the memberships; a count that the event tells must equal them afterwards."""
        sequence = self._snapshot.sequences.get(event.seq_id)
        if sequence is None:
            return  # the fold says so
        block, held = event.block_id, self._held
        if isinstance(event, ev.BlockReleased):
            held[block] -= block in sequence.table  # not after a copy, which took its place
        else:
            if 0 <= event.logical_index < len(sequence.table):
                held[sequence.table[event.logical_index]] -= 1
            held[block] += 1
            self._places[block] = event.logical_index
        if isinstance(event, ev.BlockAllocated):
            if block != self._snapshot.next_free:
                yield "head", f"block {block} is taken, {self._snapshot.next_free} is the head"
        elif event.ref_count != held[block]:
            yield "counts", f"block {block}: {event.ref_count} told, {held[block]} tables hold it"

    def _reserved(self, event: ev.RegionReserved) -> Iterator[tuple[str, str]]:
        end = event.start + event.size
        for region in self._snapshot.regions.values():  # as many as requests run
            if event.start < region.start + region.size and region.start < end:
                yield "overlap", f"slots {event.start}..{end} are part of the region {region}"

    def _region_released(self, event: ev.RegionReleased) -> Iterator[tuple[str, str]]:
        region = self._snapshot.regions.get(event.start)
        told = (event.request_id, event.size)
        if region is not None and (region.request_id, region.size) != told:
            yield "owner", f"{told} is released, the region is {region}"
        sequence = self._snapshot.sequences.get(region.seq_id) if region is not None else None
        if sequence is not None and not sequence.finish_reason:
            yield "owner", f"{region} is released, {sequence.seq_id} is not over"

    def _region_copied(self, event: ev.RegionCopied) -> Iterator[tuple[str, str]]:
        snapshot = self._snapshot
        region = snapshot.regions.get(event.source)
        parent = snapshot.sequences.get(region.seq_id) if region is not None else None
        child = snapshot.sequences.get(event.seq_id)
        if parent is None or child is None or parent.request_id != child.request_id:
            yield "owner", f"no sequence of the request of {event.seq_id} is at {event.source}"
        elif parent.stored < event.tokens:
            yield "content", f"{event.tokens} tokens copied of {parent.stored} at {event.source}"
        elif parent.token_ids[: event.tokens] != child.token_ids[: event.tokens]:
            yield "content", f"{event.seq_id} gets other tokens than its own from {event.source}"

    def _deferred(self, event: ev.RequestDeferred) -> Iterator[tuple[str, str]]:
        if not self._snapshot.layout.is_contiguous or event.reason.code not in _NO_PLACE:
            return
        largest = max((size for _, size in free_pieces(self._snapshot)), default=0)
        if (event.free, event.largest) != (self._snapshot.num_free, largest):
            told = f"{event.free} free slots told, {event.largest} in a piece"
            yield "pieces", f"{told}; there are {self._snapshot.num_free}, {largest}"
        elif event.reason.code == "fragmented" and event.need > event.free:
            yield "pieces", f"{event.free} slots would not do in one piece: {event.need} are needed"

    def _scheduled(self, event: ev.RequestScheduled) -> Iterator[tuple[str, str]]:
        sequence = self._snapshot.sequences.get(event.seq_id)
        if sequence is not None and event.start != sequence.stored:
            yield "order", f"{event.seq_id} goes on at {event.start} of {sequence.stored} stored"

    def _ended(self, event: ev.SequenceFinished) -> Iterator[tuple[str, str]]:
        sequence = self._snapshot.sequences.get(event.seq_id)
        if sequence is None:
            return  # the fold says so
        generated = len(sequence.token_ids) - sequence.num_prompt_tokens
        if event.num_tokens != generated:
            yield "totals", f"{event.seq_id} ends with {event.num_tokens} of {generated} tokens"

    def _written(self, event: ev.SlotsWritten) -> Iterator[tuple[str, str]]:
        self._stored += len(event.token_ids)
        snapshot = self._snapshot
        sequence = snapshot.sequences.get(event.seq_id)
        if sequence is not None:
            told = sequence.token_ids[sequence.stored : sequence.stored + len(event.token_ids)]
            if tuple(told) != event.token_ids:
                yield "content", f"{event.seq_id} stores other tokens than its own"
        if snapshot.layout.is_contiguous:
            return  # the fold holds a sequence to its region
        if sequence is None or not 0 <= event.block_id < snapshot.layout.num_blocks:
            return  # the fold says so
        refs = snapshot.ref_counts[event.block_id]
        end = event.offset + len(event.token_ids)
        sealed = self._sealed.get(event.block_id, ()) if snapshot.hashes[event.block_id] else ()
        if refs == 0:
            yield "owner", f"block {event.block_id} is free, {event.seq_id} writes to it"
        if refs > 1 and sealed[event.offset : end] != event.token_ids:
            yield "shared", f"{event.seq_id} writes to block {event.block_id}, held {refs} times"
        if event.offset < len(snapshot.slots[event.block_id]):
            yield "twice", f"slot {event.offset} of block {event.block_id} is written already"
        if event.block_id not in sequence.table:
            yield "owner", f"block {event.block_id} is not in the table of {event.seq_id}"

    def _copied(self, event: ev.BlockCopied) -> Iterator[tuple[str, str]]:
        snapshot = self._snapshot
        if 0 <= event.source < len(snapshot.slots):
            held = len(snapshot.slots[event.source])
            if event.tokens > held:
                yield "content", f"{event.tokens} tokens copied of {held} in block {event.source}"

    def _seal(self, event: ev.BlockSealed) -> Iterator[tuple[str, str]]:
        self._sealed[event.block_id] = event.token_ids
        sequence, block_size = self._snapshot.sequences.get(event.seq_id), len(event.token_ids)
        place = self._places.get(event.block_id, 0)
        if sequence is not None:
            told = sequence.token_ids[place * block_size : (place + 1) * block_size]
            if event.block_id not in sequence.table[place : place + 1]:
                yield "owner", f"block {event.block_id} is not in the table of {event.seq_id}"
            if tuple(told) != event.token_ids or block_size != self._snapshot.layout.block_size:
                yield "content", f"block {event.block_id} is sealed with other tokens than its own"
        content = (event.parent_hash, event.token_ids)
        if self._contents.setdefault(event.hash, content) != content:
            yield "hash", f"hash {event.hash[:8]} names two contents"
        if event.parent_hash:  # a first block may be salted: its hash can't be derived from tokens
            try:
                derived = hash_block(bytes.fromhex(event.parent_hash), event.token_ids).hex()
            except ValueError:
                derived = ""
            if derived != event.hash:
                yield "hash", f"block {event.block_id} has a hash that its tokens do not give"

    def _totals(self, event: ev.StepEnded) -> Iterator[tuple[str, str]]:
        snapshot = self._snapshot
        derived = {
            "free_blocks": snapshot.num_free,
            "owned_blocks": snapshot.num_owned,
            "cached_free_blocks": snapshot.num_cached_free,
            "written_slots": snapshot.written_slots,
            "running": len(snapshot.running),
            "waiting": len(snapshot.waiting),
            "swapped": len(snapshot.swapped),
        }
        if not self._failed:  # else they were never written
            derived["scheduled_tokens"] = self._stored
        for name, value in derived.items():
            if getattr(event, name) != value:
                yield "totals", f"{name} is {getattr(event, name)}, the events give {value}"

    def _partition(self) -> Iterator[tuple[str, str]]:
        snapshot = self._snapshot
        if snapshot.layout.is_contiguous:
            return  # every overlap was found when it came up
        for block, refs in enumerate(snapshot.ref_counts):
            if refs != self._held[block]:
                held = self._held[block]
                yield "counts", f"block {block} has ref_count {refs}, {held} tables hold it"
        free = snapshot.free_queue
        owned = [block for block, refs in enumerate(snapshot.ref_counts) if refs]
        null = [0] if snapshot.layout.null_block else []
        if sorted([*free, *owned, *null]) != list(range(snapshot.layout.num_blocks)):
            yield "partition", "free, owned and null blocks do not make up the pool"


_NO_PLACE = ("no_room_region", "fragmented")
_QUESTIONS: dict[type[ev.Event], Callable[[_Audit, Any], Iterator[tuple[str, str]]]] = {
    ev.RequestDeferred: _Audit._deferred,
    ev.RequestScheduled: _Audit._scheduled,
    ev.BlockAllocated: _Audit._moved,
    ev.BlockShared: _Audit._moved,
    ev.BlockReleased: _Audit._moved,
    ev.BlockCopied: _Audit._copied,
    ev.BlockSealed: _Audit._seal,
    ev.RegionReserved: _Audit._reserved,
    ev.RegionCopied: _Audit._region_copied,
    ev.RegionReleased: _Audit._region_released,
    ev.SlotsWritten: _Audit._written,
    ev.SequenceFinished: _Audit._ended,
}
