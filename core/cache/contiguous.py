"""RegionManager: contiguous memory, the way before paging, behind the interface of the paged one.

Every sequence gets one region of slots when its request is admitted, long enough for all that it
may ever write; it decides how long (`EngineConfig.reserve`), a `RegionSpace` decides where. A
request with several samples or beams gets as many regions at once, spares for those to come; a
fork copies what its parent stored, because regions can't be shared. Nothing is found by prefix,
preempted or swapped: who is in can always go on.

The baselines are those of the PagedAttention paper (SOSP'23, section 6.1), there called Orca (Max),
(Pow2) and (Oracle), which place by buddy. Storage is the same as the paged memory's, in blocks of
one slot.

Invariants, re-derived by `check()`: regions and free pieces partition the slots; a sequence stores
no more than its region is long.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from core.cache.buddy import power_of_two
from core.cache.interface import (
    NO_MATCH,
    Allocation,
    MemoryState,
    Occupancy,
    PrefixMatch,
    Shortage,
    SlotPlan,
)
from core.cache.regions import make_space
from core.config import EngineConfig
from core.errors import InvariantError
from core.request import Request, SeqId, Sequence
from core.trace import events as ev
from core.trace.recorder import Recorder

__all__ = ["Region", "RegionManager"]

_HERE = "core/cache/contiguous.py:"
_NOTHING_NEW = Allocation(())
_RELEASED = ev.Reason("released")


@dataclass(frozen=True, slots=True)
class Region:
    """Slots start .. start + size - 1 of a request, of which the first `length` are of use."""

    request_id: str
    start: int
    length: int
    size: int


class RegionManager:
    """One region a sequence, over one address space.

    Args:
        config: its size must be known (`num_blocks`), and `max_model_len` for reserve "max".
        recorder: where events go; None records nothing.
    """

    suffix = "_region"

    def __init__(self, config: EngineConfig, recorder: Recorder | None = None) -> None:
        self.config = config
        self.space = make_space(config.placement, config.usable_slots)
        self.regions: dict[SeqId, Region] = {}
        self.spares: dict[str, list[Region]] = {}
        self._copies: list[tuple[int, int]] = []
        self._copied: list[Request] = []
        self._limit = config.max_model_len or config.usable_slots
        self._recorder = recorder

    # ---------------------------------------------------------------- reading

    def block_ids(self, seq: Sequence) -> SequenceOf[int]:
        """The slots of the sequence's region, in order."""
        region = self.regions[seq.seq_id]
        return range(region.start, region.start + region.length)

    def holds(self, seq_id: SeqId) -> bool:
        """Whether the sequence has a region."""
        return seq_id in self.regions

    def has_slot(self, seq: Sequence) -> bool:
        """Always, for who has a region."""
        return seq.seq_id in self.regions

    def reservation(self, request: Request) -> int:
        """Slots that one sequence of the request reserves.

        The last sampled token never gets a slot, so "exact" is one less than prompt and answer.
        """
        prompt, answer = len(request.prompt_token_ids), request.params.max_tokens
        if self.config.reserve == "max":
            return self._limit
        if self.config.reserve == "pow2":
            return min(self._limit, prompt + power_of_two(answer))
        return min(self._limit, prompt + answer) - 1

    def find_prefix(self, seq: Sequence) -> PrefixMatch:
        """Nothing: regions are not shared."""
        return NO_MATCH

    # ------------------------------------------------------------- allocating

    def check_slots(
        self,
        seq: Sequence,
        num_new_tokens: int,
        match: PrefixMatch = NO_MATCH,
        *,
        must_fit: int = 0,
        keep_free: int = 0,
    ) -> SlotPlan | None:
        """A plan when the sequence has its region, or the request's regions can be placed.

        The other arguments are for paged memory: a reservation holds all that is to come.
        """
        if seq.seq_id not in self.regions:
            pieces = self._place(seq.request)
            if pieces is None:
                return None
            for start, _ in pieces:
                self.space.give_back(start)
        return SlotPlan(seq, NO_MATCH, seq.num_computed_tokens, num_new_tokens, 0)

    def plan_group(self, seqs: SequenceOf[Sequence], num_new_tokens: int) -> list[SlotPlan] | None:
        """Plans for running sequences; their regions have room."""
        return [SlotPlan(seq, NO_MATCH, seq.num_computed_tokens, num_new_tokens, 0) for seq in seqs]

    def allocate(self, plan: SlotPlan) -> Allocation:
        """Reserves the request's regions, unless it has them."""
        seq = plan.seq
        if seq.seq_id not in self.regions:
            self._reserve(seq)
        return _NOTHING_NEW

    def _place(self, request: Request) -> list[tuple[int, int]] | None:
        """Takes a piece for every sequence of the request, or none."""
        length = self.reservation(request)
        taken: list[tuple[int, int]] = []
        for _ in range(self._width(request)):
            piece = self.space.take(length)
            if piece is None:
                for start, _ in taken:
                    self.space.give_back(start)
                return None
            taken.append(piece)
        return taken

    def _reserve(self, seq: Sequence) -> None:
        request = seq.request
        length = self.reservation(request)
        pieces = self._place(request)
        if pieces is None:
            raise InvariantError(f"{request.request_id} was found to fit\n{self.dump()}")
        regions = [Region(request.request_id, start, length, size) for start, size in pieces]
        self.regions[seq.seq_id] = regions[0]
        if regions[1:]:
            self.spares[request.request_id] = regions[1:]
        if self._recorder is not None:
            for region in regions:
                owner = seq.seq_id if region is regions[0] else ""
                self._report_reserved(request, owner, region)

    def _width(self, request: Request) -> int:
        return request.params.num_sequences if self.config.semantics == "paper" else 1

    # --------------------------------------------------------- why there is no room

    def shortage(self, request: Request, match: PrefixMatch, keep_free: int) -> Shortage:
        """Too little is free, or enough in pieces that are too small (external fragmentation)."""
        need, free, largest = self.reservation(request), self.space.num_free, self.space.largest
        if free < need * self._width(request):
            return Shortage(ev.Reason("no_room_region"), need, free, largest)
        pieces = len(self.space.pieces())
        return Shortage(ev.Reason("fragmented", {"pieces": pieces}), need, free, largest)

    def never_fits(self, request: Request, max_model_len: int) -> ev.Reason | None:
        """A reservation that not even empty memory can place."""
        need, width = self.reservation(request), self._width(request)
        empty = make_space(self.config.placement, self.config.usable_slots)
        if all(empty.take(need) for _ in range(width)):
            return None
        values = {"need": need, "count": width, "usable": self.config.usable_slots,
                  "longest": self.space.longest_ever}  # fmt: skip
        return ev.Reason("never_fits_region", values)

    # ---------------------------------------------------------- forking, release

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives `child` a spare region; the next forward copies first what the parent stored."""
        source = self.regions[parent.seq_id]
        request = parent.request
        target = self.regions[child.seq_id] = self.spares[request.request_id].pop()
        if not self.spares[request.request_id]:
            del self.spares[request.request_id]
        stored = parent.num_computed_tokens
        self._copies += [(source.start + i, target.start + i) for i in range(stored)]
        self._copied.append(request)
        if self._recorder is not None:
            at, reason = _HERE + "fork", ev.Reason("fork", {"parent": parent.seq_id})
            fields = (child.seq_id, source.start, target.start, stored)
            self._recorder.emit(ev.RegionCopied, at, reason, *fields)

    def take_copies(self) -> tuple[tuple[tuple[int, int], ...], tuple[Request, ...]]:
        """(source slot, destination slot) pairs since the last call, oldest first."""
        if not self._copies:
            return (), ()
        copies, requests = tuple(self._copies), tuple(dict.fromkeys(self._copied))
        self._copies, self._copied = [], []
        return copies, requests

    def drop(self, seq: Sequence) -> None:
        """Keeps a lost beam's region as a spare of its request."""
        region = self.regions.pop(seq.seq_id, None)
        if region is not None:
            self.spares.setdefault(seq.request.request_id, []).append(region)

    def release(self, seq: Sequence) -> int:
        """Frees the sequence's region; returns its slots."""
        region = self.regions.pop(seq.seq_id, None)
        if region is None:
            return 0
        self._free(region)
        return region.size

    def release_request(self, request: Request) -> None:
        """Frees the request's spare regions."""
        for region in self.spares.pop(request.request_id, []):
            self._free(region)

    def _free(self, region: Region) -> None:
        self.space.give_back(region.start)
        if self._recorder is not None:
            fields = (region.request_id, region.start, region.size)
            self._recorder.emit(ev.RegionReleased, _HERE + "release", _RELEASED, *fields)

    # ---------------------------------------------- what only paged memory does

    def seal_written(self, seq: Sequence) -> None:
        """Nothing: there are no blocks to seal."""

    def forget_unwritten(self, seq: Sequence) -> None:
        """Nothing: there are no hashes."""

    def release_host(self, seq: Sequence) -> None:
        """Nothing: nobody is ever swapped out."""

    def can_swap_out(self, seqs: SequenceOf[Sequence]) -> bool:
        """Never: who has a region needs no more."""
        return False

    def swap_out(self, request_id: str, seqs: SequenceOf[Sequence]) -> list[tuple[int, int]]:
        """Never called; see `can_swap_out`."""
        raise InvariantError("contiguous memory is never swapped")

    def swap_in(
        self, request_id: str, seqs: SequenceOf[Sequence], *, keep_free: int
    ) -> list[tuple[int, int]] | None:
        """Never called; see `can_swap_out`."""
        raise InvariantError("contiguous memory is never swapped")

    # ---------------------------------------------------------------- reporting

    def places(
        self, seq: Sequence, start: int, num_tokens: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """(where the region begins, first slot in it, first position, last position + 1)."""
        yield self.regions[seq.seq_id].start, start, start, start + num_tokens

    def why_decode(self, plan: SlotPlan) -> ev.Reason:
        """The next slot of the sequence's own region."""
        region = self.regions[plan.seq.seq_id]
        values = {"slot": region.start + plan.stored, "left": region.length - plan.stored}
        return ev.Reason("slot_reserved", values)

    def num_held(self, seqs: SequenceOf[Sequence]) -> int:
        """Slots of the sequences' regions."""
        return sum(self.regions[seq.seq_id].size for seq in seqs if seq.seq_id in self.regions)

    def written_slots(self, seqs: Iterable[Sequence]) -> int:
        """Slots that hold a token."""
        return sum(seq.num_computed_tokens for seq in seqs)

    @property
    def occupancy(self) -> Occupancy:
        """Free slots, and those of all regions."""
        free = self.space.num_free
        return Occupancy(free, self.config.usable_slots - free, 0)

    def state(self) -> MemoryState:
        """All regions, spares included, by where they begin."""
        spares = [("", region) for regions in self.spares.values() for region in regions]
        owned: list[tuple[str, Region]] = [*self.regions.items(), *spares]
        return MemoryState(
            regions={
                region.start: (region.request_id, seq_id, region.length, region.size)
                for seq_id, region in owned
            }
        )

    def _report_reserved(self, request: Request, seq_id: str, region: Region) -> None:
        assert self._recorder is not None
        values = {
            "prompt": len(request.prompt_token_ids),
            "answer": request.params.max_tokens,
            "limit": self._limit,
        }
        fields = (request.request_id, seq_id, region.start, region.length, region.size)
        code = self.config.reserve if seq_id else "spare"
        reason = ev.Reason(code, values)
        self._recorder.emit(ev.RegionReserved, _HERE + "allocate", reason, *fields)

    def dump(self) -> str:
        """Regions and free pieces in two lines."""
        spares = {request_id: len(regions) for request_id, regions in self.spares.items()}
        return f"regions {self.regions}, spares {spares}\nfree {self.space.pieces()}"

    # ---------------------------------------------------------------- checking

    def check(self, live: Iterable[Sequence] = ()) -> None:
        """Re-derives everything that is kept twice.

        Args:
            live: sequences that store tokens.

        Raises:
            InvariantError: with the state, when something differs.
        """
        self.space.check()
        spares = [region for regions in self.spares.values() for region in regions]
        pieces = [(r.start, r.size) for r in (*self.regions.values(), *spares)]
        if sum(size for _, size in pieces) != self.config.usable_slots - self.space.num_free:
            raise InvariantError(f"regions and free pieces differ\n{self.dump()}")
        for seq in live:
            region = self.regions.get(seq.seq_id)
            room = region.length if region is not None else 0
            if seq.num_computed_tokens > room:
                raise InvariantError(f"{seq.seq_id}: {seq.num_computed_tokens} tokens in {region}")
