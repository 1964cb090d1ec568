"""Background work keeps to itself: lanes, faults, stops, caps, and what pages may read."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.comparing import (
    Comparison,
    Gain,
    Lane,
    LanePlan,
    Proving,
    check_lanes,
    fork_plan_of,
    lane_figures,
    lane_of,
    opening_step,
    recorded_lanes,
)
from app.live import Limits, Registry
from app.shown import Shown, log_header
from core.config import EngineConfig
from core.engine import Engine
from core.errors import LimitError, ModelError
from core.trace.delta_log import decode, encode
from core.trace.verify import verify
from core.workload.compare import SYSTEMS, configure, equal_tokens
from core.workload.fork import Changes
from core.workload.scenario import Scenario
from tests.app.fakes import FakeBackend, HeldRunner, make_plan
from tests.builders import VOCAB, FakeCodec, FakeRunner, make_config

BASE = make_config(num_blocks=26, max_model_len=40)
ARRIVALS = make_plan("one two", "three", "four five six", max_tokens=7).arrivals


class WordCodec(FakeCodec):
    """Tokens are words, so that a scenario's prompts are about as long as the real model's."""

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        return [sum(map(ord, word)) % VOCAB for word in text.split()]


class WatchedFake(FakeBackend):
    """Hands a row of logits for every sampled sequence to the tap."""

    def build(self, config: EngineConfig, title: Mapping[str, str], first_step: int = 0) -> Engine:
        facts = dict(self.facts)
        return Engine(
            config, FakeRunner(), WordCodec(), model=facts, title=title, first_step=first_step
        )

    def build_watched(self, config: EngineConfig, first_step: int, on_logits: Any) -> Engine:
        import torch

        class Watched(FakeRunner):
            def execute(self, output):  # type: ignore[no-untyped-def]
                seqs = tuple(item.seq for item in output.scheduled if item.samples)
                if seqs:
                    on_logits(seqs, torch.ones(len(seqs), 8))
                return super().execute(output)

        return Engine(config, Watched(), WordCodec(), first_step=first_step)


def plans(*names: str) -> list[LanePlan]:
    return [LanePlan(name, configure(BASE, name), ARRIVALS, {"en": "T"}) for name in names]


def finished(work: Any) -> Any:
    work.start()
    work.wait(180)
    assert not work.is_running
    return work


@pytest.mark.parametrize("in_turn", [True, False])
def test_every_system_runs_to_its_end_with_a_whole_log(in_turn: bool) -> None:
    work = finished(Comparison(plans(*SYSTEMS), FakeBackend(), Limits(), in_turn=in_turn))
    assert [lane.name for lane in work.lanes] == list(SYSTEMS) and work.fault is None
    for lane in work.lanes:
        assert lane.state == "done" and lane.fault is None and verify(lane.trace).ok
        assert decode(lane.log)[1] == list(lane.trace.events)
        assert set(lane.params) == {"A", "B", "C"}
        assert lane.params["A"].max_tokens == 7 and lane.params["A"].ignore_eos
        assert equal_tokens(work.lanes[0].trace, lane.trace).holds
        assert lane_figures(lane).tokens == 21


class OneFails(FakeBackend):
    def build(self, config: EngineConfig, title: Mapping[str, str], first_step: int = 0) -> Engine:
        if config.is_contiguous:
            raise ModelError("model_load", detail="no room")
        return super().build(config, title, first_step)


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_lane_that_fails_leaves_the_others_alone(in_turn: bool) -> None:
    work = finished(
        Comparison(plans("static", "paged", "shared"), OneFails(), Limits(), in_turn=in_turn)
    )
    assert [lane.name for lane in work.lanes] == ["paged", "shared"]
    assert [kind for _, kind, _, _ in work.progress] == ["failed", "done", "done"]
    assert isinstance(work.lane_fault, ModelError)


def test_a_stop_keeps_what_was_done_and_lets_the_engines_go() -> None:
    runner = HeldRunner()
    work = Comparison(plans("paged", "shared"), FakeBackend(runner), Limits(), in_turn=True)
    work.start()
    work.stop()
    runner.gate.set()
    work.wait(20)
    assert not work.is_running
    assert all(kind == "stopped" for _, kind, _, _ in work.progress)
    for lane in work.lanes:
        assert decode(lane.log)[1] == list(lane.trace.events)


def test_each_lane_keeps_to_the_caps() -> None:
    work = finished(Comparison(plans("paged", "shared"), FakeBackend(), Limits(steps=3)))
    assert all(lane.trace.num_steps == 3 for lane in work.lanes)
    assert isinstance(work.lane_fault, LimitError)
    scenario = Scenario("x", {"en": "x"}, {"en": "x"}, BASE, ARRIVALS)
    with pytest.raises(LimitError, match="3 prompts"):
        check_lanes(scenario, [BASE], FakeBackend(), Limits(prompts=2))
    with pytest.raises(LimitError, match="MiB"):
        check_lanes(scenario, [BASE] * 3, FakeBackend(), Limits(pool_bytes=26 * 4096 * 2))


def test_a_comparison_counts_as_an_engine_and_replaces_the_one_before() -> None:
    registry = Registry(Limits(engines=1))
    runner = HeldRunner()
    first = Comparison(plans("paged", "shared"), FakeBackend(runner), Limits())
    registry.begin("one", "compare", first)
    with pytest.raises(LimitError, match="1 live runs"):
        registry.begin("two", "compare", Comparison(plans("paged"), FakeBackend(), Limits()))
    with pytest.raises(LimitError, match="1 live runs"):
        registry.start("two", make_plan("hello"), FakeBackend())
    threading.Timer(0.05, runner.gate.set).start()
    second = Comparison(plans("paged", "shared"), FakeBackend(), Limits())
    registry.begin("one", "compare", second)
    second.wait(20)
    assert first.was_stopped and registry.session("one").work["compare"] is second


def test_an_idle_visitors_work_is_stopped() -> None:
    now = [0.0]
    registry = Registry(Limits(idle_seconds=10), clock=lambda: now[0])
    runner = HeldRunner()
    work = Comparison(plans("paged", "shared"), FakeBackend(runner), Limits())
    registry.begin("one", "compare", work)
    now[0] = 11.0
    assert registry.sweep() == 1 and work.was_stopped and registry.was_dropped("one")
    runner.gate.set()
    work.wait(20)
    assert not work.is_running


def lane_from(names: Sequence[str] = ("paged",)) -> Lane:
    return finished(Comparison(plans(*names), FakeBackend(), Limits())).lanes[0]


def test_a_fork_runs_beside_its_past_and_can_be_forked_again() -> None:
    past = lane_from()
    plan = fork_plan_of(past, 3, Changes(engine={"block_size": 2}), Limits())
    fork = LanePlan("fork", plan.config, plan.arrivals, {}, plan.first_step)
    work = finished(Comparison([fork], FakeBackend(), Limits(), beside=[past], fork=plan))
    assert [lane.name for lane in work.lanes] == ["paged", "fork"]
    assert opening_step(work.lanes) == 4
    assert not equal_tokens(work.lanes[0].trace, work.lanes[1].trace).differences
    again = fork_plan_of(work.lanes[1], 5, Changes(), Limits())
    assert [e.params.max_tokens + e.carried for e in again.carried] == [
        e.params.max_tokens for e in plan.carried
    ]
    with pytest.raises(LimitError, match="9000 characters"):
        long = make_plan("x" * 9000).arrivals
        fork_plan_of(past, 3, Changes(add=long), Limits())


@pytest.mark.parametrize(
    "names", [("static", "continuous"), ("continuous", "paged"), ("static", "shared")]
)
def test_a_comparison_opens_where_one_waits_who_runs_elsewhere(names: tuple[str, str]) -> None:
    lanes = recorded_lanes(names)
    step = opening_step(lanes)
    first, second = (set(lane.trace.snapshot(step).running) for lane in lanes)
    assert second - first


def test_a_proof_plays_every_lane_again_from_its_own_trace() -> None:
    past = lane_from()
    plan = fork_plan_of(past, 3, Changes(engine={"block_size": 2}), Limits())
    fork = LanePlan("fork", plan.config, plan.arrivals, {}, plan.first_step)
    lanes = finished(Comparison([fork], FakeBackend(), Limits(), beside=[past], fork=plan)).lanes
    work = finished(Proving(lanes, WatchedFake()))
    assert work.fault is None and len(work.proofs) == 1
    proof = work.proofs[0]
    assert not proof.equality.differences and proof.rows.apart == 0
    assert proof.rows.compared == proof.rows.identical == 21 - sum(e.carried for e in plan.carried)


def test_the_gain_is_measured_in_rounds_and_can_be_stopped() -> None:
    scenario = Scenario("mine", {"en": "x"}, {"en": "x"}, BASE, ARRIVALS)
    work = finished(Gain(scenario, 2, FakeBackend(), Limits()))
    assert work.report is not None and work.report["repeat"] == 2
    assert [lane.name for lane in work.lanes] == [bar["system"] for bar in work.report["bars"]]
    runner = HeldRunner()
    held = Gain(scenario, 2, FakeBackend(runner), Limits())
    held.start()
    held.stop()
    runner.gate.set()
    held.wait(20)
    assert held.report is None and held.fault is not None and held.fault.code == "gain_stopped"


def test_a_run_of_the_explore_page_becomes_a_lane() -> None:
    trace = lane_from().trace
    shown = Shown("x", trace, encode(log_header(trace.header), trace.events), "live")
    lane = lane_of(shown, ARRIVALS)
    assert lane.name == "run" and lane.params["B"] == ARRIVALS[1].params
    assert lane.config.usable_slots == BASE.usable_slots


class OneBreaks(FakeBackend):
    def build(self, config: EngineConfig, title: Mapping[str, str], first_step: int = 0) -> Engine:
        if config.is_contiguous:
            raise MemoryError("a fault that nobody thought of")
        return super().build(config, title, first_step)


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_lane_that_breaks_leaves_the_others_alone(in_turn: bool) -> None:
    work = finished(Comparison(plans("static", "paged"), OneBreaks(), Limits(), in_turn=in_turn))
    assert [kind for _, kind, _, _ in work.progress] == ["failed", "done"]
    assert work.fault is None and "MemoryError" in str(work.lane_fault)


def test_a_long_chain_of_forks_lets_its_oldest_go() -> None:
    last = None
    for _ in range(30):
        last = Comparison(plans("paged", "shared"), FakeBackend(), Limits(), before=last)
    length = 0
    while last is not None:
        last, length = last.before, length + 1
    assert 2 < length < 10


def test_a_gain_that_is_stopped_later_keeps_its_whole_rounds() -> None:
    class StopsInRoundTwo(Gain):
        def _tell(self, turn: int, system: str) -> None:
            super()._tell(turn, system)
            if turn == 2:
                self.stop()

    scenario = Scenario("mine", {"en": "x"}, {"en": "x"}, BASE, ARRIVALS)
    work = finished(StopsInRoundTwo(scenario, 3, FakeBackend(), Limits()))
    assert work.fault is None and work.report is not None and work.report["repeat"] == 1
