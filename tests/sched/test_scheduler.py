"""Who runs, who waits, who gives way: literal small cases."""

from typing import Any

import pytest

from core.config import EngineConfig
from core.engine import Engine
from core.request import Request, SamplingParams, Status
from core.sched.output import SchedulerOutput
from tests.builders import FakeCodec, MemoryRunner, make_config


def make(**changes: Any) -> Engine:
    config: EngineConfig = make_config(**changes)
    return Engine(config, MemoryRunner(config), FakeCodec())


def add(
    engine: Engine, length: int, max_tokens: int = 4, priority: int = 0, **params: Any
) -> Request:
    first = 2 + engine._num_requests * 7 % 50  # different prompts: no prefix hits
    tokens = [2 + (first + k) % 90 for k in range(length)]
    return engine.add_request(
        tokens, SamplingParams(max_tokens=max_tokens, **params), priority=priority
    )[0]


def plan(output: SchedulerOutput) -> dict[str, int]:
    return {item.seq.seq_id: item.num_tokens for item in output.scheduled}


def names(requests: Any) -> list[str]:
    return [request.request_id for request in requests]


def run(engine: Engine, steps: int = 300) -> None:
    for record in engine.run(max_steps=steps):
        assert record.error == ""
        engine.check()


def is_empty(engine: Engine) -> bool:
    manager = engine.manager
    return manager.pool.num_free == manager.pool.num_usable and not manager.host_tables


def test_the_budget_cuts_a_prompt_into_chunks() -> None:
    engine = make(max_num_batched_tokens=8)
    add(engine, 20)
    add(engine, 3)
    plans = [plan(engine.step().output) for _ in range(4)]
    assert plans == [{"A": 8}, {"A": 8}, {"A": 4, "B": 3}, {"A": 1, "B": 1}]


def test_without_chunks_a_prompt_waits_for_a_step_that_takes_it_whole() -> None:
    engine = make(max_num_batched_tokens=8, chunked_prefill=False)
    add(engine, 5)
    add(engine, 6)
    assert add(engine, 9).finish_reason == "rejected"
    plans = [plan(engine.step().output) for _ in range(3)]
    assert plans == [{"A": 5}, {"A": 1, "B": 6}, {"A": 1, "B": 1}]


def test_max_num_seqs_counts_sequences_in_paper_and_requests_in_v1() -> None:
    paper = make(semantics="paper", max_num_seqs=4)
    for _ in range(2):
        add(paper, 4, n=3)
    paper.step()
    assert (names(paper.scheduler.running), names(paper.scheduler.waiting)) == (["A"], ["B"])
    v1 = make(max_num_seqs=4)
    for _ in range(2):
        add(v1, 4, n=3)
    v1.step()
    assert names(v1.scheduler.running) == ["A", "A.1", "A.2", "B"]
    assert names(v1.scheduler.waiting) == ["B.1", "B.2"]


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "C"), ("priority", "A")])
def test_the_policy_names_the_victim(policy: str, victim: str) -> None:
    engine = make(policy=policy, num_blocks=7)
    for priority in (2, 0, 1):
        add(engine, 7, max_tokens=12, priority=priority)
    preempted = next(
        names(record.output.preempted) for record in engine.run() if record.output.preempted
    )
    assert preempted == [victim]


def test_a_preempted_request_returns_to_the_front_of_the_line() -> None:
    engine = make(num_blocks=7)
    for _ in range(4):
        add(engine, 7, max_tokens=12)
    for record in engine.run():
        if record.output.preempted:
            break
    assert names(engine.scheduler.waiting) == ["C", "D"]
    victim = engine.scheduler.waiting.first()
    assert victim.status is Status.PREEMPTED
    assert victim.sequences[0].num_computed_tokens == 0
    assert victim.sequences[0].num_output_tokens == 2  # what it said is kept
    run(engine)
    assert is_empty(engine)


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    engine = make(num_blocks=8)
    for _ in range(4):
        add(engine, 7, max_tokens=12)
    seen = 0
    for record in engine.run():
        if record.output.preempted:
            seen += 1
            assert not record.output.admitted
    assert seen


def test_the_watermark_keeps_blocks_free_while_others_run() -> None:
    engine = make(num_blocks=11, watermark=0.3)  # int(0.3 x 11) = 3 blocks
    add(engine, 16, max_tokens=1)  # alone: no watermark
    add(engine, 13, max_tokens=1)  # 4 + 3 > 10 - 4: waits
    engine.step()
    assert names(engine.scheduler.waiting) == ["B"]
    engine.step()
    assert not engine.has_work


@pytest.mark.parametrize("semantics", ["v1", "paper"])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_what_exactly_fits_runs_to_the_end_alone_and_one_block_more_is_refused(
    semantics: str, block_size: int
) -> None:
    engine = make(semantics=semantics, num_blocks=8, block_size=block_size, watermark=0.0,
                  max_num_batched_tokens=5)  # fmt: skip
    capacity = engine.config.usable_blocks * block_size
    # The last sampled token never gets a slot: one token more than there are slots.
    fits = add(engine, 5, max_tokens=capacity + 1 - 5)
    assert add(engine, 5, max_tokens=capacity + 2 - 5).finish_reason == "rejected"
    run(engine)
    assert fits.finish_reason == "length"
    assert fits.num_preemptions == 0
    assert is_empty(engine)


@pytest.mark.parametrize("kind", ["n", "beam_width"])
def test_a_group_that_exactly_fits_runs_to_the_end(kind: str) -> None:
    # 6 tokens: 1 shared full block; three sequences grow to 13 stored: 3 own blocks each.
    engine = make(semantics="paper", num_blocks=10, watermark=0.0)
    fits = add(engine, 6, max_tokens=8, ignore_eos=True, **{kind: 3})
    refused = add(engine, 6, max_tokens=12, **{kind: 3})
    assert refused.finish_reason == "rejected"
    run(engine)
    assert fits.finish_reason == "length"
    assert fits.num_preemptions == 0
    assert is_empty(engine)


def test_admission_asks_for_the_whole_prompt() -> None:
    engine = make(num_blocks=9, max_num_batched_tokens=4)
    add(engine, 12, max_tokens=2)
    add(engine, 24, max_tokens=2)  # its first chunk would fit, the whole does not
    for _ in range(3):
        engine.step()
    assert names(engine.scheduler.running) == ["A"]
    careless = make(num_blocks=9, max_num_batched_tokens=16, reserve_full_prompt=False)
    add(careless, 12, max_tokens=2)
    add(careless, 24, max_tokens=2)
    careless.step()
    assert names(careless.scheduler.running) == ["A", "B"]


def test_two_long_prompts_admitted_by_chunk_keep_stepping_and_lose_nothing() -> None:
    engine = make(num_blocks=8, max_num_batched_tokens=8, reserve_full_prompt=False,
                  prefix_caching=False, long_prefill_token_threshold=4)  # fmt: skip
    add(engine, 20, max_tokens=3)
    add(engine, 20, max_tokens=3)
    for _ in engine.run(max_steps=60):
        engine.check()
    assert engine.scheduler.num_preemptions > 0
    for name in ("A", "B"):
        engine.abort(name)
    assert is_empty(engine)


def _in_state(state: str) -> tuple[Engine, str]:
    """An engine with a request in the state, and its id."""
    swap = {"semantics": "paper", "preemption": "swap"}
    engine = make(num_blocks=7, watermark=0.0, **(swap if state == "swapped" else {}))
    for _ in range(4):
        add(engine, 7, max_tokens=12)
    for _ in engine.run(max_steps=20):
        for request in engine.scheduler.requests():
            if request.status == state:
                return engine, request.request_id
    raise AssertionError(f"nobody was ever {state}")


@pytest.mark.parametrize("state", ["waiting", "running", "swapped", "preempted"])
def test_abort_works_in_every_state(state: str) -> None:
    engine, name = _in_state(state)
    assert engine.abort(name)
    assert not engine.abort(name)
    assert name not in names(engine.scheduler.requests())
    assert engine.trace().snapshot().state() == engine.state()
    engine.check()
    run(engine)
    assert is_empty(engine)
    assert len(engine.manager.free_host_blocks) == engine.config.num_host_blocks


def test_swapped_requests_go_before_waiting_ones_and_never_in_and_out_in_one_step() -> None:
    engine = make(semantics="paper", preemption="swap", num_blocks=9, watermark=0.0)
    for _ in range(5):
        add(engine, 6, max_tokens=9, n=2)
    moved = {"in": 0, "out": 0}
    for record in engine.run(max_steps=200):
        output = record.output
        assert record.error == ""
        moved["in"] += len(output.swap_in)
        moved["out"] += len(output.swap_out)
        assert not (output.swap_in and output.swap_out)
        if engine.scheduler.swapped:
            assert all(request.num_preemptions for request in output.admitted)
    assert moved["in"] == moved["out"] > 0
    assert is_empty(engine)


def test_a_group_without_swap_space_ends_with_the_reason() -> None:
    engine = make(semantics="paper", num_blocks=9, watermark=0.0, num_host_blocks=0)
    requests = [add(engine, 6, max_tokens=9, n=2) for _ in range(3)]
    run(engine)
    ended = [request for request in requests if "swap space" in (request.error or "")]
    assert ended
    assert all(request.finish_reason == "error" for request in ended)
    assert is_empty(engine)


def test_the_threshold_caps_long_prompts_unless_one_is_alone() -> None:
    engine = make(long_prefill_token_threshold=5)
    add(engine, 20)
    add(engine, 3)
    assert plan(engine.step().output) == {"A": 5, "B": 3}
    alone = make(long_prefill_token_threshold=5)
    add(alone, 20)
    assert plan(alone.step().output) == {"A": 20}


def test_priority_decides_who_is_admitted_first() -> None:
    engine = make(policy="priority", max_num_seqs=1)
    for priority in (1, 0, 1, 0):
        add(engine, 4, max_tokens=1, priority=priority)
    order = [names(record.output.admitted)[0] for record in engine.run()]
    assert order == ["B", "D", "A", "C"]


@pytest.mark.parametrize(
    ("changes", "length", "params", "code"),
    [
        ({}, 70, {"max_tokens": 1}, "never_fits"),
        ({}, 4096, {}, "too_long"),
        ({"chunked_prefill": False}, 40, {"max_tokens": 1}, "over_budget"),
        ({"max_num_seqs": 2}, 4, {"n": 3}, "too_many_sequences"),
        ({"max_num_batched_tokens": 2}, 4, {"n": 3}, "wider_than_budget"),
    ],
)
def test_a_request_that_can_never_run_is_refused_at_arrival(
    changes: dict[str, Any], length: int, params: dict[str, Any], code: str
) -> None:
    engine = make(semantics="paper", **changes)
    request = add(engine, length, **params)
    (event,) = engine.events
    assert (request.finish_reason, event.reason.code) == ("rejected", code)
    assert request.error
    assert "{" not in request.error
    assert not engine.has_work
