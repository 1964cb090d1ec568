"""The manager under random use: what a table says is stored where must always be so.

The machine plays scheduler and GPU: it writes tokens where the tables point, carries out every
copy and swap that the manager asks for, and reads each live sequence back after every rule.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.cache.manager import BlockManager
from core.config import EngineConfig
from core.request import Request, SamplingParams, SeqId, Sequence
from core.trace.recorder import Recorder
from tests.builders import SlotMemory

_TOKENS = st.integers(2, 4)


class ManagerMachine(RuleBasedStateMachine):
    """Both semantics share the rules for admission, growth and release."""

    config: EngineConfig

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(self.config, Recorder())
        self.memory = SlotMemory(
            self.config.total_blocks, self.config.block_size, self.config.num_host_blocks
        )
        self.groups: dict[str, list[Sequence]] = {}
        self.swapped: dict[str, list[Sequence]] = {}
        self.born = 0

    def _run(self, work: list[tuple[Sequence, int]], copies: list[tuple[int, int]]) -> None:
        """One forward: copies, then every write, then what follows it."""
        self.memory.move((), (), copies)
        for seq, count in work:
            table = self.manager.block_ids(seq)
            start = seq.num_computed_tokens
            self.memory.write(table, seq.token_ids, start, start + count)
        for seq, count in work:
            seq.num_computed_tokens += count
            self.manager.seal_written(seq)

    def _state(self) -> Any:
        manager = self.manager
        return (
            {k: [b.block_id for b in t] for k, t in manager.tables.items() if t},
            [(b.ref_count, b.hash) for b in manager.pool.blocks],
            [b.block_id for b in manager.pool.free_queue],
            list(manager.free_host_blocks),
            len(manager._recorder.events) if manager._recorder else 0,
        )

    def _admit(self, tokens: list[int], salt: str | None, keep: int) -> tuple[Sequence, int] | None:
        name = f"r{self.born}"
        request = Request.make(name, tokens, SamplingParams(), cache_salt=salt)
        seq = request.sequences[0]
        before = self._state()
        match = self.manager.find_prefix(seq)
        assert match.tokens < len(tokens), "the last token must be computed"
        assert match.tokens % self.config.block_size == 0
        count = len(tokens) - match.tokens
        allocation = self.manager.allocate_slots(seq, count, match, keep_free=keep)
        if allocation is None:
            assert self._state() == before, "a refused allocation leaves no trace"
            return None
        self.born += 1
        seq.num_computed_tokens = match.tokens
        self.groups[name] = [seq]
        return seq, count

    @rule(
        prompts=st.lists(st.lists(_TOKENS, min_size=1, max_size=11), min_size=1, max_size=3),
        salt=st.sampled_from([None, None, "t"]),
        keep=st.integers(0, 2),
    )
    def admit_in_one_step(self, prompts: list[list[int]], salt: str | None, keep: int) -> None:
        admitted = [self._admit(prompt, salt, keep) for prompt in prompts]
        self._run([item for item in admitted if item is not None], [])

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def append_one_token_each(self, data: st.DataObject) -> None:
        seqs = self.groups[data.draw(st.sampled_from(sorted(self.groups)))]
        for seq in seqs:
            seq.token_ids.append(data.draw(_TOKENS))
        need, free = self.manager.growth(seqs), self.manager.pool.num_free
        if need > free:
            for seq in seqs:
                seq.token_ids.pop()
            return
        plans = [self.manager.check_slots(seq, 1) for seq in seqs]
        assert None not in plans, "growth said that there is room"
        allocations = [self.manager.allocate(plan) for plan in plans if plan is not None]
        assert free - self.manager.pool.num_free == need, "growth is exact"
        self._run([(seq, 1) for seq in seqs], [a.copy for a in allocations if a.copy])

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def release_one(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        seqs = self.groups[name]
        seq = seqs.pop(data.draw(st.integers(0, len(seqs) - 1)))
        self.manager.release(seq)
        if not seqs:
            del self.groups[name]

    @rule()
    def reset(self) -> None:
        owned = bool(self.manager.pool.num_free < self.manager.pool.num_usable)
        assert self.manager.reset_cache() is not owned

    @invariant()
    def tables_tell_the_truth(self) -> None:
        seqs = [seq for group in self.groups.values() for seq in group]
        self.manager.check(seqs)
        for seq in seqs:
            table = self.manager.block_ids(seq)
            assert len(table) == self.manager.blocks_for(seq.num_computed_tokens)
            assert not self.memory.wrong(table, seq.token_ids, seq.num_computed_tokens), seq.seq_id
        if self.config.semantics == "v1":
            assert all(0 not in self.manager.block_ids(seq) for seq in seqs)

    @invariant()
    def a_hash_names_what_the_block_holds(self) -> None:
        contents: dict[bytes, list[int | None]] = {}
        for block in self.manager.pool.blocks:
            if block.hash is not None:
                held = self.memory.device[block.block_id]
                assert None not in held
                assert contents.setdefault(block.hash, held) == held


class V1Machine(ManagerMachine):
    config = EngineConfig(block_size=3, num_blocks=11, num_host_blocks=0)

    @rule(
        prompts=st.lists(st.lists(_TOKENS, min_size=1, max_size=9), min_size=1, max_size=2),
    )
    def a_step_that_fails(self, prompts: list[list[int]]) -> None:
        seqs = [item[0] for prompt in prompts if (item := self._admit(prompt, None, 0))]
        for seq in seqs:
            self.manager.forget_unwritten(seq)
        for seq in seqs:
            self.manager.release(seq)
            del self.groups[seq.seq_id]


class PaperMachine(ManagerMachine):
    config = EngineConfig(block_size=3, num_blocks=14, semantics="paper", num_host_blocks=9)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        seqs = self.groups[name]
        if len(seqs) >= 4:
            return
        parent = data.draw(st.sampled_from(seqs))
        self.born += 1
        child = parent.fork(SeqId(f"{name}.{self.born}"), len(seqs))
        free = self.manager.pool.num_free
        self.manager.fork(parent, child)
        assert self.manager.pool.num_free == free, "a fork allocates nothing"
        seqs.append(child)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        seqs = self.groups[name]
        if not self.manager.can_swap_out(seqs):
            return
        unique = {block for seq in seqs for block in self.manager.block_ids(seq)}
        pairs = self.manager.swap_out(name, seqs)
        assert {block for block, _ in pairs} == unique
        assert len(pairs) == len(unique), "a shared block goes once"
        self.memory.move(pairs, (), ())
        self.swapped[name] = self.groups.pop(name)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), keep=st.integers(0, 2))
    def swap_in(self, data: st.DataObject, keep: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.swapped)))
        before = self._state()
        pairs = self.manager.swap_in(name, self.swapped[name], keep_free=keep)
        if pairs is None:
            assert self._state() == before
            return
        self.memory.move((), pairs, ())
        self.groups[name] = self.swapped.pop(name)
        assert self.manager.growth(self.groups[name]) + keep <= self.manager.pool.num_free

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def give_up_a_swapped_one(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.swapped)))
        for seq in self.swapped.pop(name):
            self.manager.release(seq)
            self.manager.release_host(seq)


class CachingPaperMachine(PaperMachine):
    config = EngineConfig(
        block_size=3, num_blocks=14, semantics="paper", num_host_blocks=9, prefix_caching=True
    )

    @invariant()
    def equal_full_blocks_are_one(self) -> None:
        hashes = [block.hash for block in self.manager.pool.blocks if block.hash is not None]
        assert len(hashes) == len(set(hashes))


for machine in (V1Machine, PaperMachine, CachingPaperMachine):
    machine.TestCase.settings = settings(
        max_examples=60, stateful_step_count=25, deadline=None, derandomize=True
    )

TestV1Machine = V1Machine.TestCase
TestPaperMachine = PaperMachine.TestCase
TestCachingPaperMachine = CachingPaperMachine.TestCase
