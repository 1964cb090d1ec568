"""What the scheduler and the engine ask of a memory, paged or contiguous.

It owns the values that cross this border; the two memories are `core.cache.manager.BlockManager`
and `core.cache.contiguous.RegionManager`, which are not derived from each other. A method that
one memory has no use for does nothing there, so that nobody above asks which memory it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Protocol

from core.cache.block import Block
from core.config import EngineConfig
from core.request import Request, SeqId, Sequence
from core.trace.events import Reason

__all__ = [
    "NO_MATCH",
    "Allocation",
    "CacheManager",
    "MemoryState",
    "Occupancy",
    "PrefixMatch",
    "Shortage",
    "SlotPlan",
]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading full blocks that hold a sequence's first `tokens` tokens already."""

    blocks: tuple[Block, ...]
    tokens: int


NO_MATCH = PrefixMatch((), 0)


@dataclass(slots=True)
class SlotPlan:
    """What one sequence needs for its next tokens, found to fit.

    Attributes:
        stored: tokens that are stored already or matched.
        grow: new blocks, copies not counted.
    """

    seq: Sequence
    match: PrefixMatch
    stored: int
    num_new_tokens: int
    grow: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Blocks that a table grew by, and the copy to be made before the forward, if any."""

    block_ids: tuple[int, ...]
    copy: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Units of memory (blocks, or slots of contiguous memory) by state.

    Attributes:
        cached_free: those of the free ones that can still be found by prefix.
    """

    free: int
    owned: int
    cached_free: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a waiting request has no room; `largest` is the largest free piece."""

    reason: Reason
    need: int
    free: int
    largest: int


@dataclass(frozen=True, slots=True)
class MemoryState:
    """A memory's whole state in plain values; see `core.trace.snapshot.EngineState`."""

    block_tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    host_tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ref_counts: Mapping[int, int] = field(default_factory=dict)
    free_queue: tuple[int, ...] = ()
    cached: Mapping[int, str] = field(default_factory=dict)
    regions: Mapping[int, tuple[str, str, int, int]] = field(default_factory=dict)


class CacheManager(Protocol):
    """Where sequences keep K and V; no room is a return value, and a refusal leaves no trace."""

    config: EngineConfig
    suffix: str
    """Distinguishes the codes of reasons whose sentence depends on the memory."""

    def block_ids(self, seq: Sequence) -> SequenceOf[int]:
        """The storage blocks of a sequence, in the order of its tokens."""

    def has_slot(self, seq: Sequence) -> bool:
        """Whether a running sequence's next token needs nothing but its slot."""

    def find_prefix(self, seq: Sequence) -> PrefixMatch:
        """Leading blocks that hold the sequence's tokens already; touches nothing."""

    def check_slots(
        self,
        seq: Sequence,
        num_new_tokens: int,
        match: PrefixMatch = NO_MATCH,
        *,
        must_fit: int = 0,
        keep_free: int = 0,
    ) -> SlotPlan | None:
        """What the next tokens need, None when there is no room; touches nothing."""

    def plan_group(self, seqs: SequenceOf[Sequence], num_new_tokens: int) -> list[SlotPlan] | None:
        """Plans for all sequences of one running request, None when they don't fit together."""

    def allocate(self, plan: SlotPlan) -> Allocation:
        """Carries out a plan."""

    def shortage(self, request: Request, match: PrefixMatch, keep_free: int) -> Shortage:
        """Why the waiting request has no room."""

    def never_fits(self, request: Request, max_model_len: int) -> Reason | None:
        """Why the memory can never hold the request, None when it can."""

    def seal_written(self, seq: Sequence) -> None:
        """The last forward may have filled blocks."""

    def forget_unwritten(self, seq: Sequence) -> None:
        """What was promised for this step will not be written."""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` goes on from what `parent` has stored."""

    def drop(self, seq: Sequence) -> None:
        """A beam lost; what it held may serve the request's other beams."""

    def release(self, seq: Sequence) -> int:
        """Gives up all that the sequence holds; returns how many blocks that was."""

    def release_request(self, request: Request) -> None:
        """Gives up what a request holds beside its sequences."""

    def release_host(self, seq: Sequence) -> None:
        """Gives up a swapped sequence's host blocks."""

    def take_copies(self) -> tuple[tuple[tuple[int, int], ...], tuple[Request, ...]]:
        """Copies that forks need before the next forward, and whose they are; told once."""

    def can_swap_out(self, seqs: SequenceOf[Sequence]) -> bool:
        """Whether the swap space has room for the sequences."""

    def swap_out(self, request_id: str, seqs: SequenceOf[Sequence]) -> list[tuple[int, int]]:
        """Moves a request to host memory: (device block, host block) pairs."""

    def swap_in(
        self, request_id: str, seqs: SequenceOf[Sequence], *, keep_free: int
    ) -> list[tuple[int, int]] | None:
        """Brings a request back: (host block, device block) pairs, None without room."""

    def places(
        self, seq: Sequence, start: int, num_tokens: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Where positions start .. start + num_tokens - 1 are, cut at the edges of blocks.

        Yields:
            (block or the region's start, first slot in it, first position, last position + 1).
        """

    def why_decode(self, plan: SlotPlan) -> Reason:
        """Where a sequence's next token will go, before anything is allocated."""

    def num_held(self, seqs: SequenceOf[Sequence]) -> int:
        """Different blocks that the sequences hold."""

    def written_slots(self, seqs: Iterable[Sequence]) -> int:
        """Slots that hold a token of one of these sequences, which are all that own memory."""

    @property
    def occupancy(self) -> Occupancy:
        """How much is free, owned, and findable."""

    def state(self) -> MemoryState:
        """The whole state in plain values."""

    def holds(self, seq_id: SeqId) -> bool:
        """Whether the sequence holds any memory."""

    def dump(self) -> str:
        """The state in a few lines, for an error message."""

    def check(self, live: Iterable[Sequence] = ()) -> None:
        """Re-derives everything that is kept twice.

        Raises:
            InvariantError: with the state, when something differs.
        """
