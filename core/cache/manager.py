"""BlockManager: the block tables of all sequences, and every way in which they change.

It owns the tables and decides which blocks a sequence gets, shares, copies and gives back; the
pool below it counts. It does not know tensors, the token budget or who is preempted: no room is a
return value (None), never an exception, and a refused allocation leaves no trace.

Two semantics (EngineConfig.semantics):
- "v1" (vLLM 0.33.0): full blocks are sealed when they are allocated, before the forward; one
  sequence a request; no copy-on-write.
- "paper" (SOSP'23, vLLM 0.6.2): sequences fork and copy a shared, partly filled block before they
  write to it; with prefix caching on, blocks are sealed once written, and a block whose content
  exists already is merged; preempted groups swap to host blocks.

Invariants, re-derived by `check()`: a block's ref_count is the number of tables that hold it;
a table has room for exactly the tokens that are stored or about to be; host tables and free host
blocks partition the swap space.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import chain

from core.cache.block import Block
from core.cache.block_pool import BlockPool
from core.cache.hashing import extend_hashes
from core.cache.interface import (
    NO_MATCH,
    Allocation,
    MemoryState,
    Occupancy,
    PrefixMatch,
    Shortage,
    SlotPlan,
)
from core.config import EngineConfig
from core.errors import InvariantError
from core.request import Request, SeqId, Sequence
from core.trace import events as ev
from core.trace.recorder import Recorder

__all__ = ["BlockManager"]

_HERE = "core/cache/manager.py:"
_NO_ROOM = ev.Reason("no_room")
_RESET = ev.Reason("reset")
_FREED_CACHED = ev.Reason("freed_cached")
_FREED_EMPTY = ev.Reason("freed_empty")
_STILL_SHARED = ev.Reason("still_shared")


_NOTHING_NEW = Allocation(())


class BlockManager:
    """Block tables over one pool.

    Args:
        config: its size must be known (`num_blocks`).
        recorder: where events go; None records nothing.
    """

    suffix = ""

    def __init__(self, config: EngineConfig, recorder: Recorder | None = None) -> None:
        self.config = config
        self.pool = BlockPool(config.total_blocks, null_block=config.semantics == "v1")
        self.tables: dict[SeqId, list[Block]] = {}
        self.host_tables: dict[SeqId, list[int]] = {}
        self.free_host_blocks = list(range(config.num_host_blocks - 1, -1, -1))
        self._block_size = config.block_size
        self._seals_early = config.semantics == "v1" and config.caching
        self._num_sealed: dict[SeqId, int] = {}
        self._ids: dict[SeqId, tuple[int, ...]] = {}  # of tables that have not changed since
        self._recorder = recorder

    # ---------------------------------------------------------------- reading

    def block_ids(self, seq: Sequence) -> tuple[int, ...]:
        """The physical ids of a sequence's table."""
        table = self.tables.get(seq.seq_id, ())
        ids = self._ids.get(seq.seq_id, ())
        # Tables grow at their end; whoever changes one otherwise drops the ids that were kept.
        if len(ids) != len(table):
            ids = self._ids[seq.seq_id] = tuple([block.block_id for block in table])
        return ids

    def has_slot(self, seq: Sequence) -> bool:
        """Whether the next token needs no more than its slot: no block, no copy, no seal."""
        stored = seq.num_computed_tokens
        offset = stored % self._block_size
        if not offset or (self._seals_early and offset == self._block_size - 1):
            return False
        table = self.tables.get(seq.seq_id)
        return table is not None and table[stored // self._block_size].ref_count == 1

    def holds(self, seq_id: SeqId) -> bool:
        """Whether the sequence has a block."""
        return bool(self.tables.get(seq_id))

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self._block_size)

    def find_prefix(self, seq: Sequence) -> PrefixMatch:
        """The longest leading run of cached full blocks; touches nothing.

        The last token is never part of it: its logits are needed, so it must be computed.
        """
        if not self.config.caching:
            return NO_MATCH
        limit = (len(seq.token_ids) - 1) // self._block_size
        hashes = extend_hashes(seq, self._block_size)
        find = self.pool.find
        found: list[Block] = []
        for index in range(limit):
            block = find(hashes[index])
            if block is None:
                break
            found.append(block)
        return PrefixMatch(tuple(found), len(found) * self._block_size) if found else NO_MATCH

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
        """What the next tokens of `seq` need; touches nothing.

        Args:
            seq: who needs them.
            num_new_tokens: tokens to be computed behind those stored (or matched).
            match: leading blocks to share, found by `find_prefix`.
            must_fit: tokens for which there must be room by now, though they are not allocated.
            keep_free: blocks that must stay free (the watermark).

        Returns:
            None when there is no room.
        """
        table = self.tables.get(seq.seq_id)
        stored = seq.num_computed_tokens + match.tokens
        end = stored + num_new_tokens
        held = (len(table) if table else 0) + len(match.blocks)
        grow = max(0, -(-end // self._block_size) - held)
        need = grow
        if must_fit > end:
            need = max(need, -(-must_fit // self._block_size) - held)
        for block in match.blocks:
            need += block.ref_count == 0
        if table and self._shared_target(table, stored):
            need += 1
        if need + keep_free > self.pool.free_queue.num_free:
            return None
        return SlotPlan(seq, match, stored, num_new_tokens, grow)

    def allocate(self, plan: SlotPlan) -> Allocation:
        """Carries out a plan: shares the matched blocks, copies on write, takes new ones."""
        seq, stored = plan.seq, plan.stored
        table = self.tables.get(seq.seq_id)
        if table is None:
            table = self.tables[seq.seq_id] = []
        if plan.match.blocks:
            self._share(seq, table, plan.match.blocks, "prefix")
            self._num_sealed[seq.seq_id] = len(plan.match.blocks)
        # Asked again: an earlier writer of the same step may have left this sequence alone.
        copy = self.copy_on_write(seq, stored) if self._shared_target(table, stored) else None
        new_ids = self._grow(seq, table, plan) if plan.grow else ()
        if self._seals_early:
            end = min(stored + plan.num_new_tokens, len(seq.token_ids))
            self._seal(seq, table, end // self._block_size)
        return Allocation(new_ids, copy) if new_ids or copy else _NOTHING_NEW

    def allocate_slots(
        self,
        seq: Sequence,
        num_new_tokens: int,
        match: PrefixMatch = NO_MATCH,
        *,
        must_fit: int = 0,
        keep_free: int = 0,
    ) -> Allocation | None:
        """`check_slots` and `allocate` in one; None when there is no room (nothing has changed)."""
        plan = self.check_slots(seq, num_new_tokens, match, must_fit=must_fit, keep_free=keep_free)
        return None if plan is None else self.allocate(plan)

    def growth(self, seqs: SequenceOf[Sequence]) -> int:
        """Blocks that the sequences of one request need to append one token each, exactly.

        Of k writers to one shared block all copy, except the last when nobody else holds it.
        """
        writers: Counter[int] = Counter()
        grow = 0
        for seq in seqs:
            table = self.tables[seq.seq_id]
            stored = seq.num_computed_tokens
            if stored // self._block_size >= len(table):
                grow += 1
            elif block := self._shared_target(table, stored):
                writers[block.block_id] += 1
        blocks = self.pool.blocks
        return grow + sum(min(n, blocks[b].ref_count - 1) for b, n in writers.items())

    def plan_group(self, seqs: SequenceOf[Sequence], num_new_tokens: int) -> list[SlotPlan] | None:
        """Plans for all sequences of one request, None when they don't fit together."""
        if len(seqs) > 1 and self.growth(seqs) > self.pool.num_free:
            return None
        plans = []
        for seq in seqs:
            plan = self.check_slots(seq, num_new_tokens)
            if plan is None:
                return None
            plans.append(plan)
        return plans

    # ------------------------------------------------------ why there is no room

    def shortage(self, request: Request, match: PrefixMatch, keep_free: int) -> Shortage:
        """Too few blocks are free, or too few beyond the watermark."""
        known = len(request.sequences[0].token_ids)
        revived = sum(block.ref_count == 0 for block in match.blocks)
        need = self.blocks_for(known) - len(match.blocks) + revived
        free = self.pool.num_free
        reason = ev.Reason("watermark", {"keep": keep_free}) if need <= free else _NO_ROOM
        return Shortage(reason, need, free, free)

    def never_fits(self, request: Request, max_model_len: int) -> ev.Reason | None:
        """More blocks at full length than can ever be owned."""
        need, room = self._blocks_at_most(request, max_model_len), self.config.usable_blocks
        if self.config.semantics == "paper":
            room -= self.config.watermark_blocks
        if need <= room:
            return None
        values = {"need": need, "usable": room, "tokens": len(request.prompt_token_ids)}
        return ev.Reason("never_fits", values)

    def _blocks_at_most(self, request: Request, max_model_len: int) -> int:
        """Blocks that the request holds when it has grown to its full length.

        All n sequences share the prompt's full blocks and part after them; the last sampled token
        of each never gets a slot.
        """
        prompt = len(request.prompt_token_ids)
        end = min(prompt + request.params.max_tokens, max_model_len) - 1
        shared = prompt // self._block_size
        own = self.blocks_for(end) - shared
        many = self.config.semantics == "paper"
        return shared + own * (request.params.num_sequences if many else 1)

    def _shared_target(self, table: list[Block], stored: int) -> Block | None:
        """The block that the next token goes to, when another table holds it too."""
        if stored % self._block_size == 0:
            return None
        block = table[stored // self._block_size]
        return block if block.ref_count > 1 else None

    def _grow(self, seq: Sequence, table: list[Block], plan: SlotPlan) -> tuple[int, ...]:
        first = len(table)
        blocks, evicted = self.pool.take(plan.grow)
        table.extend(blocks)
        if self._recorder is not None:
            if plan.num_new_tokens == 1:
                reason = ev.Reason("edge", {"position": plan.stored})
            else:
                values = {"new_tokens": plan.num_new_tokens, "count": plan.grow}
                reason = ev.Reason("room", values)
            self._report_taken(seq, blocks, evicted, first, reason, _HERE + "allocate")
        return tuple([block.block_id for block in blocks])

    def copy_on_write(self, seq: Sequence, stored: int) -> tuple[int, int]:
        """Gives `seq` its own copy of the shared block that it is about to write to.

        Returns:
            (source, destination): the copy must be made before the forward.
        """
        logical = stored // self._block_size
        table = self.tables[seq.seq_id]
        source = table[logical]
        (destination,), evicted = self.pool.take(1)
        table[logical] = destination
        self._ids.pop(seq.seq_id, None)
        self.pool.release([source])
        if self._recorder is not None:
            at = _HERE + "copy_on_write"
            tokens = stored % self._block_size
            reason = ev.Reason(
                "copy_on_write",
                {"source": source.block_id, "sharers": source.ref_count + 1, "tokens": tokens},
            )
            self._report_taken(seq, [destination], evicted, logical, reason, at)
            ids = (seq.seq_id, source.block_id, destination.block_id)
            self._recorder.emit(ev.BlockCopied, at, reason, *ids, tokens)
            released = (source.block_id, seq.seq_id, logical, source.ref_count, -1)
            self._recorder.emit(
                ev.BlockReleased, at, ev.Reason("copied_away", {"copy": destination.block_id}),
                *released,
            )  # fmt: skip
        return source.block_id, destination.block_id

    def _share(self, seq: Sequence, table: list[Block], blocks: SequenceOf[Block], by: str) -> None:
        first = len(table)
        was_free = [block.ref_count == 0 for block in blocks]
        self.pool.touch(blocks)
        table.extend(blocks)
        if self._recorder is None:
            return
        at = _HERE + {"prefix": "allocate", "fork": "fork", "swap": "swap_in"}[by]
        if by == "prefix":
            ids = tuple(block.block_id for block in blocks)
            tokens = len(ids) * self._block_size
            total = ev.Reason("prefix", {"count": len(ids), "of": len(seq.token_ids)})
            self._recorder.emit(ev.PrefixHit, at, total, seq.seq_id, ids, tokens)
        for offset, block in enumerate(blocks):
            reason = ev.Reason(f"{by}_revived" if was_free[offset] else by)
            fields = (block.block_id, seq.seq_id, first + offset, block.ref_count, by)
            self._recorder.emit(ev.BlockShared, at, reason, *fields)

    # ---------------------------------------------------------------- sealing

    def _seal(self, seq: Sequence, table: list[Block], num_full: int) -> None:
        """Makes the sequence's first `num_full` blocks findable, each once."""
        done = self._num_sealed.get(seq.seq_id, 0)
        if num_full <= done:
            return
        hashes = extend_hashes(seq, self._block_size)
        for index in range(done, num_full):
            block = table[index]
            if block.hash is None:
                self.pool.seal(block, hashes[index])
                if self._recorder is not None:
                    self._report_sealed(seq, block, index, "_seal")
        self._num_sealed[seq.seq_id] = num_full

    def seal_written(self, seq: Sequence) -> None:
        """Seals the blocks that the last forward filled ("paper" with prefix caching).

        A block whose content another block has already is merged into that one: the table takes
        the other block, and ours goes back to the pool.
        """
        if self.config.semantics != "paper" or not self.config.caching:
            return
        table = self.tables[seq.seq_id]
        done = self._num_sealed.get(seq.seq_id, 0)
        num_full = seq.num_computed_tokens // self._block_size
        hashes = extend_hashes(seq, self._block_size)
        for index in range(done, num_full):
            twin = self.pool.find(hashes[index])
            if twin is None:
                self.pool.seal(table[index], hashes[index])
                if self._recorder is not None:
                    self._report_sealed(seq, table[index], index, "seal_written")
            elif twin is not table[index]:
                self._merge(seq, table, index, twin)
        if num_full > done:
            self._num_sealed[seq.seq_id] = num_full

    def _merge(self, seq: Sequence, table: list[Block], index: int, twin: Block) -> None:
        mine = table[index]
        self.pool.touch([twin])
        table[index] = twin
        self._ids.pop(seq.seq_id, None)
        if self._recorder is not None:
            reason = ev.Reason("merge", {"mine": mine.block_id})
            fields = (twin.block_id, seq.seq_id, index, twin.ref_count, "merge")
            self._recorder.emit(ev.BlockShared, _HERE + "_merge", reason, *fields)
        self._release_blocks(seq, [mine], [index], _HERE + "_merge")

    # -------------------------------------------------------- forking, release

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives `child` the parent's table; every block has one owner more, none is allocated."""
        table = self.tables[child.seq_id] = []
        self._share(child, table, self.tables[parent.seq_id], "fork")
        if parent.seq_id in self._num_sealed:
            self._num_sealed[child.seq_id] = self._num_sealed[parent.seq_id]

    def take_copies(self) -> tuple[tuple[tuple[int, int], ...], tuple[Request, ...]]:
        """Nothing: a fork copies on write, and the plan that writes tells the copy."""
        return (), ()

    def drop(self, seq: Sequence) -> None:
        """Releases a lost beam's table."""
        self.release(seq)

    def release_request(self, request: Request) -> None:
        """Nothing: only sequences hold blocks."""

    def release(self, seq: Sequence) -> int:
        """Gives up the whole table, tail first, so that prefixes stay findable longest.

        Returns:
            How many blocks the table held.
        """
        self._num_sealed.pop(seq.seq_id, None)
        self._ids.pop(seq.seq_id, None)
        table = self.tables.pop(seq.seq_id, None)
        if not table:
            return 0
        table.reverse()
        self._release_blocks(seq, table, range(len(table) - 1, -1, -1), _HERE + "release")
        return len(table)

    def _release_blocks(
        self, seq: Sequence, blocks: SequenceOf[Block], logical: Iterable[int], at: str
    ) -> None:
        recorder = self._recorder
        tail = self.pool.free_queue.tail_id if recorder is not None else -1
        to_head, to_tail = self.pool.release(blocks)
        if recorder is None:
            return
        index_of = dict(zip((block.block_id for block in blocks), logical, strict=True))
        after = -1
        for block in to_head:
            fields = (block.block_id, seq.seq_id, index_of.pop(block.block_id), 0, after)
            recorder.emit(ev.BlockReleased, at, _FREED_EMPTY, *fields)
            after = block.block_id
        if tail == -1:  # the queue was empty: what went to its head is its tail as well
            tail = after
        to_tail_ids = {block.block_id for block in to_tail}
        for block in blocks:
            if block.block_id not in index_of:
                continue
            fields = (block.block_id, seq.seq_id, index_of[block.block_id], block.ref_count, tail)
            if block.block_id in to_tail_ids:
                recorder.emit(ev.BlockReleased, at, _FREED_CACHED, *fields)
                tail = block.block_id
            else:
                recorder.emit(ev.BlockReleased, at, _STILL_SHARED, *fields[:4], -1)

    def release_host(self, seq: Sequence) -> None:
        """Gives up a swapped sequence's host blocks that no other sequence's host table holds."""
        table = self.host_tables.pop(seq.seq_id, [])
        held = set(chain.from_iterable(self.host_tables.values()))
        self.free_host_blocks.extend(block for block in reversed(table) if block not in held)

    def forget_unwritten(self, seq: Sequence) -> None:
        """Drops the hashes of blocks that were sealed for tokens which were never written."""
        table = self.tables.get(seq.seq_id, [])
        for block in table[seq.num_computed_tokens // self._block_size :]:
            if block.hash is None:
                continue
            lost = block.hash.hex()
            self.pool.forget(block)
            if self._recorder is not None:
                at = _HERE + "forget_unwritten"
                reason = ev.Reason("never_written")
                self._recorder.emit(ev.BlockEvicted, at, reason, block.block_id, lost)

    def reset_cache(self) -> bool:
        """Drops all hashes; False (and nothing changes) while any block has an owner."""
        count = self.pool.reset_cache()
        if count is not None and self._recorder is not None:
            self._recorder.emit(ev.PrefixCacheReset, _HERE + "reset_cache", _RESET, count)
        return count is not None

    # --------------------------------------------------------------- swapping

    def can_swap_out(self, seqs: SequenceOf[Sequence]) -> bool:
        """Whether the swap space has room for all blocks of the sequences."""
        unique = {block.block_id for seq in seqs for block in self.tables[seq.seq_id]}
        return len(unique) <= len(self.free_host_blocks)

    def swap_out(self, request_id: str, seqs: SequenceOf[Sequence]) -> list[tuple[int, int]]:
        """Moves a request's blocks to host memory, a shared one once; see `can_swap_out`.

        Returns:
            (device block, host block) pairs.
        """
        tables = [self.tables[seq.seq_id] for seq in seqs]
        unique = list(dict.fromkeys(block.block_id for table in tables for block in table))
        host_of = {block_id: self.free_host_blocks.pop() for block_id in unique}
        for seq, table in zip(seqs, tables, strict=True):
            self.host_tables[seq.seq_id] = [host_of[block.block_id] for block in table]
        if self._recorder is not None:
            fields = (request_id, tuple(unique), tuple(host_of.values()))
            at, reason = _HERE + "swap_out", ev.Reason("swap_out", {"count": len(unique)})
            self._recorder.emit(ev.BlocksSwappedOut, at, reason, *fields)
        for seq in seqs:
            self.release(seq)
        return list(host_of.items())

    def swap_in(
        self, request_id: str, seqs: SequenceOf[Sequence], *, keep_free: int
    ) -> list[tuple[int, int]] | None:
        """Brings a request's blocks back, when there is room for them and one more token each.

        Args:
            request_id: the request, for the record.
            seqs: its live sequences, all swapped out.
            keep_free: blocks that must stay free (the watermark).

        Returns:
            (host block, device block) pairs, or None when the pool has no room.
        """
        hosts = list(dict.fromkeys(h for seq in seqs for h in self.host_tables[seq.seq_id]))
        if len(hosts) + self._host_growth(seqs) + keep_free > self.pool.num_free:
            return None
        blocks, evicted = self.pool.take(len(hosts))
        block_of = dict(zip(hosts, blocks, strict=True))
        lost = dict(evicted)
        placed: set[int] = set()
        for seq in seqs:
            self._rebuild(seq, block_of, lost, placed)
        if self._recorder is not None:
            fields = (request_id, tuple(hosts), tuple(block.block_id for block in blocks))
            at, reason = _HERE + "swap_in", ev.Reason("swap_in", {"count": len(hosts)})
            self._recorder.emit(ev.BlocksSwappedIn, at, reason, *fields)
        self.free_host_blocks.extend(reversed(hosts))
        return [(host, block.block_id) for host, block in block_of.items()]

    def _host_growth(self, seqs: SequenceOf[Sequence]) -> int:
        """Blocks that one more token each will need; the counterpart of `growth`."""
        writers: Counter[int] = Counter()
        grow = 0
        for seq in seqs:
            table = self.host_tables[seq.seq_id]
            logical, offset = divmod(seq.num_computed_tokens, self._block_size)
            if logical >= len(table):
                grow += 1
            elif offset:
                writers[table[logical]] += 1
        return grow + sum(count - 1 for count in writers.values())

    def _rebuild(
        self,
        seq: Sequence,
        block_of: dict[int, Block],
        lost: dict[Block, bytes],
        placed: set[int],
    ) -> None:
        """Puts the device twins of a host table into a new table; the first holder owns them."""
        table = self.tables[seq.seq_id] = []
        for host in self.host_tables.pop(seq.seq_id):
            block = block_of[host]
            if host in placed:
                self._share(seq, table, [block], "swap")
                continue
            placed.add(host)
            table.append(block)
            if self._recorder is not None:
                gone = [(block, lost[block])] if block in lost else []
                at, reason = _HERE + "swap_in", ev.Reason("swap_in", {"host": host})
                self._report_taken(seq, [block], gone, len(table) - 1, reason, at)

    # --------------------------------------------------------------- reporting

    def places(
        self, seq: Sequence, start: int, num_tokens: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """(block, first slot in it, first position, last position + 1), block by block."""
        table, end = self.tables[seq.seq_id], start + num_tokens
        while start < end:
            logical, offset = divmod(start, self._block_size)
            stop = min(end, (logical + 1) * self._block_size)
            yield table[logical].block_id, offset, start, stop
            start = stop

    def why_decode(self, plan: SlotPlan) -> ev.Reason:
        """The next token needs a new block, a copy, or just the next slot."""
        if plan.grow:
            return ev.Reason("last_block_full", {"block_size": self._block_size})
        block = self.tables[plan.seq.seq_id][plan.stored // self._block_size]
        free = self._block_size - plan.stored % self._block_size
        if block.ref_count > 1:
            return ev.Reason("slot_shared", {"block": block.block_id, "sharers": block.ref_count})
        return ev.Reason("slot_free", {"block": block.block_id, "free": free})

    def num_held(self, seqs: SequenceOf[Sequence]) -> int:
        """Different blocks that the sequences hold."""
        return len({block.block_id for seq in seqs for block in self.tables[seq.seq_id]})

    def written_slots(self, seqs: Iterable[Sequence]) -> int:
        """Slots that hold a token; a shared block counts once."""
        owners = list(seqs)
        written = sum(seq.num_computed_tokens for seq in owners)
        if sum(map(len, self.tables.values())) == self.pool.num_usable - self.pool.num_free:
            return written  # nothing is shared
        seen: set[int] = set()
        for seq in owners:
            for index, block in enumerate(self.tables.get(seq.seq_id, ())):
                if block.block_id in seen:
                    filled = seq.num_computed_tokens - index * self._block_size
                    written -= max(0, min(self._block_size, filled))
                elif block.ref_count > 1:
                    seen.add(block.block_id)
        return written

    @property
    def occupancy(self) -> Occupancy:
        """Blocks by state."""
        pool = self.pool
        return Occupancy(pool.num_free, pool.num_usable - pool.num_free, pool.num_cached_free)

    def state(self) -> MemoryState:
        """Tables, counts, the queue in order, and hashes."""
        blocks = self.pool.blocks
        return MemoryState(
            block_tables={
                seq_id: tuple(block.block_id for block in table)
                for seq_id, table in self.tables.items()
                if table
            },
            host_tables={k: tuple(table) for k, table in self.host_tables.items() if table},
            ref_counts={block.block_id: block.ref_count for block in blocks if block.ref_count},
            free_queue=tuple(block.block_id for block in self.pool.free_queue),
            cached={block.block_id: block.hash.hex() for block in blocks if block.hash},
        )

    def dump(self) -> str:
        """The pool's state in two lines."""
        return self.pool.dump()

    def _report_taken(
        self,
        seq: Sequence,
        blocks: SequenceOf[Block],
        evicted: SequenceOf[tuple[Block, bytes]],
        first: int,
        reason: ev.Reason,
        at: str,
    ) -> None:
        assert self._recorder is not None
        emit = self._recorder.emit
        lost = {block.block_id: value for block, value in evicted}
        for offset, block in enumerate(blocks):
            if block.block_id in lost:
                value = lost[block.block_id].hex()
                evictor = ev.Reason("reallocated", {"taker": seq.seq_id})
                emit(ev.BlockEvicted, at, evictor, block.block_id, value)
            emit(ev.BlockAllocated, at, reason, block.block_id, seq.seq_id, first + offset)

    def _report_sealed(self, seq: Sequence, block: Block, index: int, function: str) -> None:
        assert self._recorder is not None
        parent = seq.block_hashes[index - 1].hex() if index else ""
        start = index * self._block_size
        tokens = tuple(seq.token_ids[start : start + self._block_size])
        own = seq.block_hashes[index].hex()
        fields = (block.block_id, seq.seq_id, own, parent, tokens)
        self._recorder.emit(ev.BlockSealed, _HERE + function, _SEALED, *fields)

    # ---------------------------------------------------------------- checking

    def check(self, live: Iterable[Sequence] = ()) -> None:
        """Re-derives everything that is kept twice.

        Args:
            live: sequences whose tables must cover their stored tokens.

        Raises:
            InvariantError: with the state, when something differs.
        """
        self.pool.check()
        held = Counter(block.block_id for table in self.tables.values() for block in table)
        counts = {block.block_id: block.ref_count for block in self.pool.blocks if block.ref_count}
        if held != counts:
            raise InvariantError(f"tables hold {held}, ref counts {counts}\n{self.pool.dump()}")
        hosts = [*self.free_host_blocks, *{h for table in self.host_tables.values() for h in table}]
        if sorted(hosts) != list(range(self.config.num_host_blocks)):
            raise InvariantError(f"host blocks {sorted(hosts)} do not partition the swap space")
        for seq_id, ids in self._ids.items():
            blocks = self.tables.get(seq_id, [])
            if ids != tuple(block.block_id for block in blocks[: len(ids)]):
                raise InvariantError(f"{seq_id}: kept ids {ids}, table {blocks}")
        for seq in live:
            table = self.tables.get(seq.seq_id) or self.host_tables.get(seq.seq_id, [])
            if len(table) < self.blocks_for(seq.num_computed_tokens):
                raise InvariantError(f"{seq.seq_id}: {seq.num_computed_tokens} tokens in {table}")


_SEALED = ev.Reason("full")
