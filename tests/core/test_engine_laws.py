"""The law of the house on random runs: fold(trace) equals the engine after every step.

The runner keeps every slot (`MemoryRunner`), so a table that points to the wrong place, a lost
copy or a block handed out too early shows as a wrong read, whatever the bookkeeping says.
"""

import ast
import sys
from dataclasses import astuple
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.cache.contiguous import RegionManager
from core.cache.manager import BlockManager
from core.config import EngineConfig
from core.engine import Engine
from core.request import Request, SamplingParams
from core.sched.output import SchedulerOutput, StepResult
from core.text import catalogue
from core.trace.explain import explain
from core.trace.metrics import breakdown, free_pieces, series
from core.trace.recorder import Recorder
from core.trace.snapshot import Snapshot
from core.trace.verify import verify
from tests.builders import FakeCodec, MemoryRunner, expected_tokens, make_config, make_engine
from tests.strategies import Abort, Add, Step, configs, contiguous_configs, scripts

_ROOT = Path(__file__).parents[2]
_STEP_CAP = 500


class Watched:
    """An engine whose fold is compared with its state after every move."""

    def __init__(self, config: EngineConfig, **runner: Any) -> None:
        self.engine = Engine(config, MemoryRunner(config, **runner), FakeCodec())
        self.snapshot = Snapshot(self.engine.header.layout)
        self.asked: list[tuple[Add, int, Request]] = []
        self._groups: list[str] = []
        self._seen = 0

    def move(self, move: Add | Abort | Step) -> None:
        match move:
            case Add(tokens, params, priority, salt):
                requests = self.engine.add_request(
                    tokens, params, priority=priority, cache_salt=salt
                )
                self._groups.append(requests[0].request_id)
                self.asked.extend((move, index, r) for index, r in enumerate(requests))
            case Abort(which):
                if which < len(self._groups):
                    self.engine.abort(self._groups[which])
            case Step(count):
                for _ in range(count):
                    self.step()
        self.compare()

    def step(self) -> None:
        if not self.engine.has_work:
            return
        try:
            record = self.engine.step()
            # A step that fails reports it: a wrong read must not pass for a planted fault.
            assert record.error in ("", "RuntimeError: out of memory (a test)")
            if self.engine.config.batching == "continuous":
                assert record.output.num_tokens <= self.engine.config.max_num_batched_tokens
            assert len(record.output.scheduled) <= self.engine.config.max_num_seqs
            assert not (record.output.swap_in and record.output.swap_out)
        except KeyboardInterrupt:
            pass
        self.compare()

    def finish(self) -> None:
        steps = 0
        while self.engine.has_work and steps < _STEP_CAP:
            self.step()
            steps += 1

    def compare(self) -> None:
        for event in self.engine.events.since(self._seen):
            self.snapshot.apply(event)
        self._seen = len(self.engine.events)
        assert self.snapshot.state() == self.engine.state()
        parts = breakdown(self.snapshot)
        layout = self.snapshot.layout
        assert min(astuple(parts)) >= 0
        assert parts.total == self.snapshot.num_usable * layout.block_size
        assert parts.total == self.engine.config.usable_slots
        self.engine.check()

    def assert_answers(self) -> None:
        for add, index, request in self.asked:
            if request.finish_reason not in ("stop", "length") or add.params.beam_width > 1:
                continue
            for seq in request.finished:
                sample = seq.sample_index
                limit = self.engine.scheduler.max_model_len - len(add.tokens)
                told = expected_tokens(add.tokens, min(add.params.max_tokens, limit), sample)
                assert seq.output_token_ids == told, (request.request_id, index)

    def assert_nothing_is_lost(self) -> None:
        manager = self.engine.manager
        if isinstance(manager, RegionManager):
            assert manager.space.num_free == self.engine.config.usable_slots
            assert not manager.regions
            assert not manager.spares
            return
        assert isinstance(manager, BlockManager)
        assert manager.pool.num_free == manager.pool.num_usable
        assert not manager.host_tables
        assert not any(manager.tables.values())
        assert len(manager.free_host_blocks) == self.engine.config.num_host_blocks


# The same examples every time: a suite that fails by chance teaches people to run it again.
_LAW = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _run(watched: Watched, moves: list[Add | Abort | Step]) -> None:
    for move in moves:
        watched.move(move)
    watched.finish()
    report = verify(watched.engine.trace())
    assert report.ok, report.violations[:3]
    watched.assert_answers()
    if not watched.engine.has_work:
        watched.assert_nothing_is_lost()


@pytest.mark.parametrize("semantics", ["v1", "paper"])
@_LAW
@given(data=st.data())
def test_fold_equals_the_engine_and_tokens_equal_the_models(
    semantics: str, data: st.DataObject
) -> None:
    watched = Watched(data.draw(configs(semantics=semantics)))
    _run(watched, data.draw(scripts(semantics)))


@pytest.mark.parametrize("semantics", ["v1", "paper"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@settings(_LAW, max_examples=30)
@given(data=st.data())
def test_a_failed_step_loses_no_block_and_the_engine_goes_on(
    semantics: str, error: type[BaseException], data: st.DataObject
) -> None:
    fail_at = data.draw(st.sets(st.integers(1, 12), min_size=1, max_size=3))
    watched = Watched(data.draw(configs(semantics=semantics)), fail_at=fail_at, error=error)
    _run(watched, data.draw(scripts(semantics)))


@_LAW
@given(data=st.data())
def test_contiguous_memory_keeps_the_law_under_every_reserve_placement_and_batching(
    data: st.DataObject,
) -> None:
    config = data.draw(contiguous_configs())
    watched = Watched(config)
    _run(watched, data.draw(scripts(config.semantics)))
    manager = watched.engine.manager
    assert isinstance(manager, RegionManager)
    assert watched.engine.scheduler.num_preemptions == 0, "who has a region can always go on"


@settings(_LAW, max_examples=100)
@given(data=st.data())
def test_free_pieces_are_those_of_the_allocator_at_every_moment(data: st.DataObject) -> None:
    config = data.draw(contiguous_configs())
    watched = Watched(config)
    manager = watched.engine.manager
    assert isinstance(manager, RegionManager)
    for move in data.draw(scripts(config.semantics)):
        watched.move(move)
        assert free_pieces(watched.snapshot) == manager.space.pieces()


@settings(_LAW, max_examples=60)
@given(data=st.data())
def test_paged_memory_under_static_batching_keeps_the_law(data: st.DataObject) -> None:
    config = data.draw(configs(batching="static"))
    _run(Watched(config), data.draw(scripts(config.semantics)))


@settings(_LAW, max_examples=40)
@given(data=st.data())
def test_a_failed_step_loses_no_region(data: st.DataObject) -> None:
    fail_at = data.draw(st.sets(st.integers(1, 12), min_size=1, max_size=3))
    config = data.draw(contiguous_configs())
    _run(Watched(config, fail_at=fail_at), data.draw(scripts(config.semantics)))


@settings(_LAW, max_examples=60)
@given(data=st.data())
def test_what_will_be_written_is_known_once_the_trace_tells_the_end(data: st.DataObject) -> None:
    config = data.draw(contiguous_configs(reserve="exact"))
    watched = Watched(config)
    moves = [m for m in data.draw(scripts(config.semantics)) if not isinstance(m, Abort)]
    for move in moves:
        if not (isinstance(move, Add) and move.params.beam_width > 1):
            watched.move(move)
    watched.finish()
    lengths = {s.finish_reason for _, _, r in watched.asked for s in r.finished}
    if lengths <= {"length"} and config.batching == "continuous":
        assert all(step.slots.unused == 0 for step in series(watched.engine.trace()))


@settings(_LAW, max_examples=60)
@given(data=st.data())
def test_swapping_by_priority_keeps_every_slot(data: st.DataObject) -> None:
    config = data.draw(
        configs(semantics="paper", policy="priority", preemption="swap", num_host_blocks=64)
    )
    _run(Watched(config), data.draw(scripts("paper")))


# ------------------------------------------------- every event of many runs


_SHAPES: list[dict[str, Any]] = [
    {},
    {"policy": "priority"},
    {"block_size": 1, "num_blocks": 40},
    {"max_num_batched_tokens": 6, "reserve_full_prompt": False},
    {"semantics": "paper"},
    {"semantics": "paper", "preemption": "swap", "num_blocks": 12},
    {"semantics": "paper", "prefix_caching": True, "num_host_blocks": 2, "num_blocks": 12},
    {"semantics": "paper", "prefix_caching": True, "max_num_seqs": 2},
    {"chunked_prefill": False, "max_num_batched_tokens": 8},
]


def _busy_run(**changes: Any) -> Engine:
    """A run with as many kinds of events as its settings allow."""
    from tests.builders import FakeRunner

    engine = make_engine(FakeRunner(fail_at={9}, max_model_len=60), **changes)
    paper = engine.config.semantics == "paper"
    for k in range(4):
        engine.add_request([2, 3, 4, 5, 6, 7, 8, 9, 10], SamplingParams(max_tokens=9))
        engine.add_request([2, 3, 4, 5, 11 + k], SamplingParams(max_tokens=8, n=2), priority=k % 2)
        if paper:
            beams = SamplingParams(max_tokens=7, beam_width=2)
            engine.add_request([12, 13, 14, 15, 16, k + 2], beams, priority=1)
    engine.add_request([2] * 70)
    engine.add_request([2] * 30, SamplingParams(max_tokens=20, n=6))
    engine.add_request([2, 3], SamplingParams(n=12, max_tokens=1))
    engine.add_request([2, 3] * 5, SamplingParams(max_tokens=2))
    gone = engine.add_request([2, 3, 4], SamplingParams(max_tokens=9))[0].request_id
    for _ in engine.run(max_steps=5):
        pass
    engine.abort(gone)
    for _ in engine.run(max_steps=_STEP_CAP):
        pass
    engine.manager.reset_cache()
    return engine


def test_every_event_says_something_in_both_languages() -> None:
    kinds = set()
    for shape in _SHAPES:
        engine = _busy_run(**shape)
        labels = engine.trace().snapshot().labels()
        for event in engine.events:
            key = f"event.{type(event).__name__}.{event.reason.code}"
            kinds.add(key)
            for lang in ("en", "zh"):
                assert key in catalogue(lang), (key, lang)
                text = explain(event, labels, lang)
                assert "{" not in text, (key, lang, text)
                assert text != type(event).__name__
    assert len(kinds) > 35  # the runs reach nearly all that can be said


def test_every_event_names_the_function_that_was_running(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = Recorder.emit
    places: set[str] = set()

    def watched(self: Recorder, kind: Any, at: str, reason: Any, *args: Any) -> None:
        path, _, name = at.partition(":")
        frame: FrameType | None = sys._getframe(1)
        stack = []
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        assert (str(_ROOT / path), name) in stack, f"{kind.__name__} says {at}"
        places.add(at)
        emit(self, kind, at, reason, *args)

    monkeypatch.setattr(Recorder, "emit", watched)
    for shape in _SHAPES:
        _busy_run(**shape)
    assert len(places) > 15
    for at in places:
        path, _, name = at.partition(":")
        tree = ast.parse((_ROOT / path).read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert name in functions, at


def test_a_run_without_a_record_gives_the_same_answers() -> None:
    with_record = make_engine(semantics="paper", preemption="swap", num_blocks=10)
    without = make_engine(semantics="paper", preemption="swap", num_blocks=10, record=False)
    for engine in (with_record, without):
        for k in range(4):
            engine.add_request([2, 3, 4, 5, k + 2], SamplingParams(max_tokens=6, n=2))
        for _ in engine.run():
            pass
    assert with_record.outputs() == without.outputs()
    assert with_record.state() == without.state()


# ------------------------------------------------------------ single stories


def test_explain_says_what_a_copy_on_write_does() -> None:
    engine = make_engine(semantics="paper")
    engine.add_request([2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=3, n=2))
    for _ in engine.run():
        pass
    labels = engine.trace().snapshot().labels()
    copied = next(e for e in engine.events if type(e).__name__ == "BlockCopied")
    for lang in ("en", "zh"):
        text = explain(copied, labels, lang)
        for part in ("**A·1**", "**1**", "**2**"):
            assert part in text, (lang, text)
    assert "copy" in explain(copied, labels, "en").lower()


def test_the_fold_counts_as_many_preemptions_as_the_engine() -> None:
    engine = make_engine(
        semantics="paper", num_blocks=12, num_host_blocks=0, watermark=0.0, preemption="auto"
    )
    for k in range(3):
        engine.add_request([2, 3, 4, 5, 6, k + 2], SamplingParams(max_tokens=12, n=2))
    for _ in engine.run():
        pass
    ended = [e for e in engine.events if e.reason.code == "no_swap_space"]
    assert ended, "the run shows what it should"
    assert engine.trace().snapshot().counters.preemptions == engine.summary().preemptions


def test_a_request_that_ends_for_want_of_swap_space_leaves_nothing_behind() -> None:
    engine = make_engine(semantics="paper", num_blocks=14, num_host_blocks=0, watermark=0.0)
    for k in range(4):
        params = SamplingParams(max_tokens=12, beam_width=2)
        engine.add_request([2, 3, 4, 5, 6, k + 2], params)
    for _ in engine.run():
        pass
    assert any(e.reason.code == "no_swap_space" for e in engine.events)
    assert not engine._update._beams
    assert not engine._update._beam_scores
    assert not engine._streams._streams


def test_a_group_wider_than_the_budget_is_refused_or_runs() -> None:
    engine = make_engine(semantics="paper", max_num_batched_tokens=2)
    (request,) = engine.add_request([2, 3, 4, 5, 6], SamplingParams(max_tokens=4, n=3))
    for _ in engine.run(max_steps=50):
        pass
    assert request.finish_reason in ("rejected", "length")


def test_an_id_of_the_users_never_meets_one_of_ours() -> None:
    for semantics in ("v1", "paper"):
        engine = make_engine(semantics=semantics)
        engine.add_request([2, 3, 4, 5, 6], SamplingParams(max_tokens=4, n=2), request_id="X")
        try:
            engine.add_request([7, 8, 9], SamplingParams(max_tokens=4), request_id="X.1")
        except ValueError:  # refused: as good
            continue
        for _ in engine.run():
            engine.check()
        assert verify(engine.trace()).ok
        assert engine.outputs()[1].outputs[0].token_ids == tuple(expected_tokens([7, 8, 9], 4))


def test_a_request_without_an_id_finds_a_free_one() -> None:
    engine = make_engine()
    engine.add_request([2, 3], request_id="B")
    (second,) = engine.add_request([4, 5])
    assert second.request_id != "B"


def test_a_victim_that_had_copied_in_this_step_swaps_out_what_it_had() -> None:
    """Its copy is taken back, so the copy's block holds nothing yet: the source must be saved."""
    config = EngineConfig(
        semantics="paper", block_size=4, num_blocks=11, policy="priority", num_host_blocks=64,
        watermark=0.0, max_num_batched_tokens=32, max_num_seqs=8,
    )  # fmt: skip
    watched = Watched(config)
    # Runs first with the worst priority: its beams copy, then the second finds no room.
    watched.move(Add((6, 3, 5, 2, 2), SamplingParams(max_tokens=8, beam_width=3), 9, None))
    watched.step()
    watched.move(Add((6, 6, 7), SamplingParams(max_tokens=8, beam_width=3), 6, None))
    watched.finish()
    assert watched.engine.scheduler.num_preemptions > 0


def test_a_swapped_request_ends_with_the_step_that_may_not_have_moved_its_blocks() -> None:
    """The forward fails before the swap-outs are carried out: the host blocks hold old data."""

    class FailsFirst(MemoryRunner):
        def execute(self, output: SchedulerOutput) -> StepResult:
            if output.swap_out:
                raise RuntimeError("out of memory (a test)")
            return super().execute(output)

    config = make_config(semantics="paper", preemption="swap", num_blocks=10, watermark=0.0)
    engine = Engine(config, FailsFirst(config), FakeCodec())
    for k in range(3):
        engine.add_request([2, 3, 4, 5, k + 6], SamplingParams(max_tokens=14))
    moved = []
    for record in engine.run():
        if record.output.swap_out:
            moved.extend(record.output.preempted)
            assert record.error
            assert set(record.output.preempted) <= set(record.finished)
        else:
            assert not record.error
        engine.check()
    assert moved
    assert {request.finish_reason for request in moved} == {"error"}
    assert engine.trace().snapshot().state() == engine.state()
    assert verify(engine.trace()).ok
