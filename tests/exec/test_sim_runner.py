"""The runner without a model: what a step has to do, how long that takes, and what it answers."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.capacity.hardware import HARDWARE
from core.capacity.shapes import SHAPES
from core.engine import Engine
from core.errors import ConfigError
from core.exec.cost_model import CostModel, StepLoad
from core.exec.sim_runner import NoText, SimRunner, load_of
from core.request import SamplingParams
from core.sched.output import ScheduledSequence, SchedulerOutput
from tests.builders import make_config, make_request

COST = CostModel(HARDWARE["a100-40gb"], SHAPES["opt-13b"])


def _output(parts: list[tuple[int, int]]) -> SchedulerOutput:
    items = [
        ScheduledSequence(make_request(str(n)).sequences[0], "prefill", start, count, (), True)
        for n, (start, count) in enumerate(parts)
    ]
    return SchedulerOutput(1, tuple(items), copies=((1, 2),), swap_in=((0, 3), (1, 4)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=6))
def test_a_steps_load_is_what_counting_every_query_and_key_gives(
    parts: list[tuple[int, int]],
) -> None:
    load = load_of(_output(parts), block_size=4)
    pairs = sum(position + 1 for start, n in parts for position in range(start, start + n))
    assert load.pairs == pairs
    assert load.tokens == sum(count for _, count in parts)
    assert load.context == sum(start + count for start, count in parts)
    assert (load.sequences, load.sampled) == (len(parts), len(parts))
    assert (load.moved, load.swapped) == (4, 8)


def test_one_token_alone_takes_the_time_of_reading_the_weights() -> None:
    shape = SHAPES["opt-13b"]
    weights = 2 * (shape.params - shape.positions * shape.hidden)
    reading = (weights + 11 * shape.slot_bytes()) / (1555e9 * 0.8)
    seconds = COST.seconds(StepLoad(1, 1, 10, 10, 1))
    assert seconds == pytest.approx(reading + 1e-3 + 14e-6)


def test_an_fp8_cache_halves_what_is_read_of_it_and_not_the_weights() -> None:
    fp8 = replace(COST, kv_cache_dtype="fp8")
    assert 2 * fp8.slot_bytes == COST.slot_bytes
    few, many = StepLoad(8, 8, 8, 8, 8), StepLoad(8, 8, 8000, 8, 8)
    context = [cost.seconds(many) - cost.seconds(few) for cost in (COST, fp8)]
    assert context[0] == pytest.approx(2 * context[1])
    assert fp8.seconds(few) == pytest.approx(COST.seconds(few), rel=1e-3)


def test_a_long_prompt_takes_the_time_of_its_arithmetic() -> None:
    shape, n = SHAPES["opt-13b"], 2048
    pairs = n * (n + 1) // 2
    flops = 2 * shape.layer_params * n + 4 * 40 * 5120 * pairs + 2 * shape.head_params
    seconds = COST.seconds(StepLoad(1, n, n, pairs, 1))
    assert seconds == pytest.approx(flops / (312e12 * 0.6) + 1e-3 + 14e-6)


_LOADS = st.builds(StepLoad, *[st.integers(1, 10_000)] * 5)


@given(_LOADS, st.integers(0, 5), st.integers(1, 1000))
def test_more_to_do_never_takes_less_time(load: StepLoad, which: int, more: int) -> None:
    name = ("sequences", "tokens", "context", "pairs", "sampled", "swapped")[which]
    values = {field: getattr(load, field) for field in StepLoad.__slots__}
    grown = StepLoad(**values | {name: values[name] + more})
    assert COST.seconds(grown) >= COST.seconds(load)
    two = CostModel(COST.hardware, COST.shape, gpus=2)
    assert two.seconds(load) <= COST.seconds(load)


def test_a_type_that_the_device_lacks_and_shares_above_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        CostModel(HARDWARE["t4"], SHAPES["opt-13b"], dtype="bfloat16")
    with pytest.raises(ConfigError, match="memory_efficiency"):
        CostModel(HARDWARE["t4"], SHAPES["opt-13b"], memory_efficiency=1.5)


@pytest.mark.parametrize("semantics", ["v1", "paper"])
def test_every_sample_is_exactly_as_long_as_asked(semantics: str) -> None:
    seen: list[float] = []
    runner = SimRunner(COST, observe=lambda output, load, seconds: seen.append(seconds))
    engine = Engine(make_config(semantics=semantics), runner, NoText(), measured=False)
    engine.add_request([0] * 6, SamplingParams(max_tokens=5, n=3, ignore_eos=True))
    engine.add_request("four", SamplingParams(max_tokens=2))
    records = list(engine.run())
    assert [len(done.token_ids) for out in engine.outputs() for done in out.outputs] == [5, 5, 5, 2]
    assert len(seen) == len(records)
    ends = [event for event in engine.events if type(event).__name__ == "StepEnded"]
    assert [event.timings for event in ends] == [{"forward": round(s, 6)} for s in seen]


def test_beams_end_with_a_sentence_and_without_a_leak() -> None:
    engine = Engine(make_config(semantics="paper"), SimRunner(COST), NoText(), measured=False)
    engine.add_request([0] * 6, SamplingParams(max_tokens=5, beam_width=2))
    records = list(engine.run())
    assert "real candidates" in records[-1].error
    engine.check()
    assert engine.manager.occupancy.owned == 0


def test_cost_model_and_runner_load_no_torch() -> None:
    code = "import core.exec.sim_runner, core.exec.cost_model, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
