"""A fork is the past's own future with one thing changed: ids, tokens, steps and what it cost."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config import EngineConfig
from core.engine import Engine
from core.errors import ConfigError, TraceError, WorkloadError
from core.request import SamplingParams
from core.trace.trace import Trace
from core.trace.verify import verify
from core.workload.compare import lines
from core.workload.fork import Changes, ForkPlan, diff, params_by_id, plan_fork, to_come
from core.workload.scenario import Arrival, play
from tests.builders import FakeCodec, FakeRunner, MemoryRunner, expected_tokens, make_config


def arrival(prompt: str, tokens: int, at_step: int = 1, **params: Any) -> Arrival:
    settings = {"max_tokens": tokens, "ignore_eos": True, **params}
    return Arrival(prompt, SamplingParams(**settings), at_step=at_step)


ARRIVALS = (
    arrival("alpha beta gamma", 12),
    arrival("delta", 20, 2),
    arrival("epsilon zeta", 8, 4),
    arrival("eta theta iota", 10, 9),
)
CONFIG = make_config(num_blocks=40, max_num_batched_tokens=64)


def run(arrivals: Any = ARRIVALS, config: EngineConfig = CONFIG, first_step: int = 0) -> Trace:
    runner = FakeRunner() if config.is_contiguous else MemoryRunner(config)
    engine = Engine(config, runner, FakeCodec(), first_step=first_step)
    for _ in play(engine, arrivals):
        engine.check()
    return engine.trace()


def forked(trace: Trace, step: int, **changes: Any) -> tuple[ForkPlan, Trace]:
    known = params_by_id(trace, ARRIVALS)
    plan = plan_fork(trace, step, Changes(**changes), known)
    return plan, run(plan.arrivals, plan.config, plan.first_step)


PAST = run()


@settings(max_examples=25, deadline=None)
@given(
    step=st.integers(0, 24),
    engine=st.sampled_from(
        [{}, {"block_size": 2}, {"block_size": 16}, {"prefix_caching": False}, {"num_blocks": 12},
         {"policy": "priority"}, {"batching": "static"}, {"allocator": "contiguous",
         "max_model_len": 40, "reserve": "pow2", "placement": "buddy"}]
    ),
)  # fmt: skip
def test_the_other_future_has_the_same_tokens_whatever_its_memory(
    step: int, engine: dict[str, Any]
) -> None:
    trace = PAST
    if step >= trace.num_steps:
        with pytest.raises((WorkloadError, TraceError)):
            plan_fork(trace, step, Changes(engine=engine))
        return
    plan, after = forked(trace, step, engine=engine)
    found = diff(trace, after, plan)
    assert not found.equality.differences
    assert verify(after).ok
    ours = {line.label: line.token_ids for line in lines(trace).values()}
    for line in lines(after).values():
        assert line.token_ids == ours[line.label]
    assert all(event.step >= step for event in after.events)
    assert found.recomputed <= sum(entry.stored for entry in plan.carried)


def test_nothing_changed_is_the_same_future_but_for_the_tokens_computed_again() -> None:
    trace = run()
    plan, after = forked(trace, 6)
    snapshot = trace.snapshot(6)
    assert {entry.request_id for entry in plan.carried} == set(snapshot.running)
    found = diff(trace, after, plan)
    stored = sum(snapshot.sequences[name].stored for name in snapshot.running)
    assert found.recomputed == stored == sum(entry.stored for entry in plan.carried)
    assert [row.label for row in found.requests] == ["A", "B", "C", "D"]
    assert [row.carried for row in found.requests] == [True, True, True, False]
    for row in found.requests:
        assert row.before is not None and row.after is not None
        assert row.before.finished == row.after.finished and row.same_tokens
        assert row.before.tokens == row.after.tokens
    assert found.before.tokens == found.after.tokens
    assert found.before.steps == found.after.steps


def test_requests_that_were_over_are_left_out_and_those_to_come_come() -> None:
    trace = run()
    ended = next(s for s in range(trace.num_steps) if "C" not in trace.snapshot(s + 1).running
                 and s > 4)  # fmt: skip
    plan, after = forked(trace, ended + 1)
    assert "C" not in {entry.request_id for entry in plan.arrivals}
    assert "C" not in {row.label for row in diff(trace, after, plan).requests}
    assert to_come(trace, 3) == {"C": ("C", 4), "D": ("D", 9)}


def test_an_arrival_can_be_added_dropped_and_moved() -> None:
    trace = run()
    added = arrival("something new", 5, at_step=7)
    plan, after = forked(trace, 3, add=(added,), drop=frozenset({"B"}), move={"D": 5})
    found = diff(trace, after, plan)
    rows = {row.label: row for row in found.requests}
    assert rows["B"].after is None and rows["+1"].before is None
    assert rows["+1"].after is not None and rows["+1"].after.admitted == 7
    assert rows["D"].before is not None and rows["D"].after is not None
    assert (rows["D"].before.admitted, rows["D"].after.admitted) == (9, 5)
    answer = lines(after)["+1"]
    prompt = FakeCodec().encode(added.prompt)
    assert answer.token_ids[len(prompt) :] == expected_tokens(prompt, 5)


def test_settings_that_are_unknown_are_greedy_with_the_traces_limit() -> None:
    trace = run()
    plan = plan_fork(trace, 5, Changes())
    entry = next(item for item in plan.arrivals if item.request_id == "B")
    assert entry.params.is_greedy and entry.carried == 4
    assert entry.params.max_tokens == 20 - entry.carried


def test_a_request_with_several_samples_begins_again_and_says_so() -> None:
    for semantics in ("v1", "paper"):
        config = replace(CONFIG, semantics=semantics)
        arrivals = (arrival("alpha", 9, n=3), arrival("beta", 12))
        trace = run(arrivals, config)
        plan = plan_fork(trace, 4, Changes(), params_by_id(trace, arrivals))
        assert plan.restarted == ("A",)
        after = run(plan.arrivals, plan.config, plan.first_step)
        found = diff(trace, after, plan)
        assert not found.equality.differences and found.equality.sequences == 4


def test_a_block_size_alone_keeps_the_slots() -> None:
    trace = run()
    plan = plan_fork(trace, 2, Changes(engine={"block_size": 13}))
    assert plan.config.usable_slots == 39 * 4 // 13 * 13
    asked = plan_fork(trace, 2, Changes(engine={"block_size": 8, "num_blocks": 9})).config
    assert (asked.block_size, asked.num_blocks) == (8, 9)


_WRONG: list[tuple[int, dict[str, Any], type[Exception], str]] = [
    (99, {}, TraceError, "99"),
    (3, {"drop": frozenset({"Z"})}, WorkloadError, "no request Z"),
    (3, {"move": {"A": 8}}, WorkloadError, "A has arrived"),
    (3, {"move": {"D": 3}}, WorkloadError, "before step 3"),
    (3, {"add": (arrival("  ", 3),)}, WorkloadError, "empty"),
    (3, {"engine": {"block_size": 0}}, ConfigError, "block_size"),
    (3, {"engine": {"allocator": "contiguous", "prefix_caching": True}}, ConfigError, "prefix"),
    (3, {"drop": frozenset("ABCD")}, WorkloadError, "nothing is alive"),
]


@pytest.mark.parametrize(("step", "changes", "kind", "words"), _WRONG)
def test_a_fork_that_can_not_be_is_one_sentence(
    step: int, changes: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        plan_fork(PAST, step, Changes(**changes))


def test_a_fork_of_a_fork_goes_on_from_its_steps() -> None:
    trace = run()
    first, after = forked(trace, 5, engine={"block_size": 2})
    known = {entry.request_id: entry.params for entry in first.arrivals}
    plan = plan_fork(after, 9, Changes(engine={"block_size": 8}), known)
    again = run(plan.arrivals, plan.config, plan.first_step)
    ours = {line.label: line.token_ids for line in lines(trace).values()}
    assert all(line.token_ids == ours[line.label] for line in lines(again).values())
