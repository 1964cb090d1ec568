"""PrefixNames: block hashes from a workload's prefix names, and how often a name was in memory.

A name stands for a prompt's whole prefix up to there, as a block hash does, so a full block is
named by the last run of tokens that ends in it and no token is ever hashed. Blocks without a name
(answers, prompts that share nothing) get a hash that no other block has.

It owns the counts of references and hits; it does not know tokens, queues or time.
"""

from collections.abc import Callable

from core.cache.block import Block
from core.cache.interface import PrefixMatch
from core.cache.manager import BlockManager
from core.request import Request, SeqId
from core.workload.requests import WorkloadRequest

__all__ = ["PrefixNames"]


class PrefixNames:
    """Names of one workload in blocks of one size.

    Args:
        unit: tokens that a name stands for; 0 when the workload names nothing.
        block_size: need not divide the unit: a block is named by the run in which it ends.
        keeps_all: whether memory is never reused, so that partly filled blocks stay as well.

    Attributes:
        references, resident: names of admitted prompts, and those of them that were in memory.
        queried_tokens, hit_tokens: prompt tokens looked up and found, as vLLM counts them: only
            full blocks are found, and a preempted request's return is not counted.
    """

    def __init__(self, unit: int, block_size: int, *, keeps_all: bool = False) -> None:
        self._unit = unit
        self._block_size = block_size
        self._keeps_all = keeps_all
        self._requests: dict[str, WorkloadRequest] = {}
        # For each name of a partly filled block: who wrote it last, and its hash once it is full.
        self._tails: dict[int, tuple[SeqId, bytes]] = {}
        self.references = self.resident = 0
        self.queried_tokens = self.hit_tokens = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of the references that were in memory; None before the first."""
        return self.resident / self.references if self.references else None

    @property
    def token_hit_rate(self) -> float | None:
        """Share of the looked-up tokens that were found; None before the first."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None

    def hashes(self, request_id: str, request: WorkloadRequest) -> list[bytes]:
        """Hashes of all full blocks that the request will ever have; it is remembered."""
        self._requests[request_id] = request
        named = self._num_named(request)
        own = b"u" + request_id.encode() + b"."
        total = request.total_tokens // self._block_size
        return [self._named(request, index) for index in range(named)] + [
            own + index.to_bytes(4, "big") for index in range(named, total)
        ]

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._requests.pop(request_id, None)

    def admitted(self, request: Request, match: PrefixMatch, manager: BlockManager) -> None:
        """Counts what the request finds, before it takes any memory."""
        if request.num_preemptions or request.request_id not in self._requests:
            return
        self.queried_tokens += len(request.prompt_token_ids)
        self.hit_tokens += match.tokens
        asked = self._requests[request.request_id]
        hashes = request.sequences[0].block_hashes
        find = manager.pool.find
        self.references += len(asked.prefix)
        for place, name in enumerate(asked.prefix):
            index = self._block_of(place, asked.prompt_tokens)
            if (index + 1) * self._block_size <= asked.prompt_tokens:
                self.resident += find(hashes[index]) is not None
            else:
                self.resident += self._has_tail(name, manager.holds, find)
                last = hashes[index] if index < len(hashes) else b""
                self._tails[name] = request.sequences[0].seq_id, last

    def _block_of(self, place: int, prompt_tokens: int) -> int:
        """The last full block that ends in a name's run, else the one in which the run begins."""
        start = place * self._unit
        full = min(start + self._unit, prompt_tokens) // self._block_size
        return full - 1 if full * self._block_size > start else start // self._block_size

    def _has_tail(
        self,
        name: int,
        holds: Callable[[SeqId], bool],
        find: Callable[[bytes], Block | None],
    ) -> bool:
        """Whether a partly filled block's tokens are in memory.

        They are while a request holds the block, and afterwards if the answer filled it up, as
        long as it can be found. Memory that is never reused keeps them in any case.
        """
        if name not in self._tails:
            return False
        seq_id, block_hash = self._tails[name]
        return self._keeps_all or holds(seq_id) or find(block_hash) is not None

    def _num_named(self, request: WorkloadRequest) -> int:
        """Full blocks of prompt tokens that a name covers."""
        covered = min(len(request.prefix) * self._unit, request.prompt_tokens)
        return covered // self._block_size

    def _named(self, request: WorkloadRequest, index: int) -> bytes:
        """The name of the run in which the block ends, and which of its blocks this is."""
        end = (index + 1) * self._block_size
        place = (end - 1) // self._unit
        part = end - place * self._unit
        return b"n%d.%d" % (request.prefix[place], part)
