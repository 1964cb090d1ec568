"""Figures and equalities are what the runs did; the gain adds up; memories have equal sizes."""

import pytest

from core.config import EngineConfig
from core.engine import Engine
from core.errors import ConfigError
from core.request import SamplingParams
from core.trace.metrics import series
from core.trace.trace import Trace
from core.workload.compare import (
    GAIN,
    SYSTEMS,
    configure,
    equal_tokens,
    figures,
    gain_report,
    lines,
    measure,
    resized,
    waterfall,
)
from core.workload.scenario import Arrival, play
from tests.builders import FakeCodec, FakeRunner, MemoryRunner, make_config

ARRIVALS = tuple(
    Arrival(
        "the same opening " + letter * 3,
        SamplingParams(max_tokens=length, ignore_eos=True),
        at_step=step,
    )
    for letter, length, step in
    [("a", 9, 1), ("b", 3, 1), ("c", 14, 1), ("d", 6, 2), ("e", 11, 4), ("f", 4, 9)]
)  # fmt: skip
BASE = make_config(block_size=4, num_blocks=26, max_model_len=40, max_num_seqs=6)


def run(config: EngineConfig, arrivals: tuple[Arrival, ...] = ARRIVALS) -> tuple[Engine, Trace]:
    runner = FakeRunner() if config.is_contiguous else MemoryRunner(config)
    engine = Engine(config, runner, FakeCodec())
    for _ in play(engine, arrivals):
        pass
    return engine, engine.trace()


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_gives_the_same_tokens_from_equally_many_slots(system: str) -> None:
    config = configure(BASE, system)
    assert config.usable_slots == BASE.usable_slots
    found = equal_tokens(run(configure(BASE, "static"))[1], run(config)[1])
    assert found.holds and found.tokens == found.equal == 47 and found.sequences == 6


@pytest.mark.parametrize("system", SYSTEMS)
def test_figures_are_the_engines_own(system: str) -> None:
    engine, trace = run(configure(BASE, system))
    own, summary = figures(trace), engine.summary()
    assert (own.steps, own.tokens) == (summary.steps, summary.generated_tokens)
    assert own.preemptions == summary.preemptions
    assert own.finished == len(ARRIVALS) and own.rejected == 0
    assert sum(own.shares.values()) == pytest.approx(1.0, abs=1e-4)
    assert own.hit_rate is None or own.hit_rate == pytest.approx(summary.hit_rate)


def test_static_memory_lets_fewer_in_and_says_why() -> None:
    static, paged = (figures(run(configure(BASE, name))[1]) for name in ("continuous", "paged"))
    assert static.peak_running < paged.peak_running
    assert static.shares["unused"] > 0 == paged.shares["unused"]
    assert sum(static.deferred.values()) > 0
    assert static.waste > paged.waste


def test_figures_after_a_step_leave_out_what_came_before() -> None:
    _, trace = run(configure(BASE, "paged"))
    whole, late, early = figures(trace), figures(trace, since=10), trace.num_steps - 10
    assert late.steps == early
    assert late.tokens + sum(
        1 for e in trace.events if type(e).__name__ == "TokenSampled" and e.step <= 10
    ) == whole.tokens  # fmt: skip


def test_another_token_is_found_with_its_place() -> None:
    _, left = run(configure(BASE, "paged"))

    class Slip(FakeRunner):
        def execute(self, output):  # type: ignore[no-untyped-def]
            result = super().execute(output)
            for item in output.scheduled:
                seq = item.seq
                if seq.seq_id == "C" and seq.num_output_tokens == 5 and item.samples:
                    sampled = dict(result.samples)
                    sampled["C"] = (type(sampled["C"][0])(96, -1.0),)
                    result = type(result)(sampled, result.candidates, result.timings, {})
            return result

    engine = Engine(configure(BASE, "paged"), Slip(), FakeCodec())
    for _ in play(engine, ARRIVALS):
        pass
    found = equal_tokens(left, engine.trace())
    prompt = lines(left)["C"].num_prompt_tokens
    assert not found.holds and len(found.differences) == 1
    assert found.first is not None
    assert (found.first.label, found.first.position) == ("C", prompt + 5)
    assert found.first.right == 96 != found.first.left
    assert found.equal == found.tokens - (14 - 5)


def test_a_run_cut_short_is_compared_as_far_as_it_goes_and_a_missing_one_is_named() -> None:
    _, whole = run(configure(BASE, "paged"))
    engine = Engine(configure(BASE, "paged"), FakeRunner(), FakeCodec())
    for record in play(engine, ARRIVALS):
        if record.step == 5:
            break
    found = equal_tokens(whole, engine.trace())
    assert found.first is None and found.missing == ("F",)
    assert 0 < found.tokens == found.equal < 47


def test_other_blocks_keep_the_slots_and_a_memory_without_a_block_is_refused() -> None:
    assert resized(BASE, 10).usable_slots == 100
    assert resized(BASE, 8, 64).num_blocks == 9
    paper = make_config(semantics="paper", num_blocks=10, block_size=4)
    assert resized(paper, 8).num_blocks == 5
    with pytest.raises(ConfigError, match="no block of 16"):
        resized(BASE, 16, 15)
    with pytest.raises(ConfigError, match="no system orca"):
        configure(BASE, "orca")


def test_the_gain_adds_up_and_a_loss_is_shown_as_one() -> None:
    bars = waterfall([("a", 40.0), ("b", 60.0), ("c", 50.0), ("d", 80.0)])
    assert [bar.delta for bar in bars] == [40, 20, -10, 30]
    assert bars[-1].end == 80 and [bar.share for bar in bars] == [None, 0.5, -0.25, 0.75]
    assert bars[1].factor == 1.5
    assert waterfall([]) == [] and waterfall([("a", 2.0), ("b", 1.0)])[1].share is None


def test_rounds_are_interleaved_and_the_report_holds_every_rate() -> None:
    order: list[str] = []

    def play_one(system: str) -> Trace:
        order.append(system)
        return run(configure(BASE, system))[1]

    told: list[tuple[int, str]] = []
    found = measure(GAIN, play_one, repeat=3, tell=lambda turn, name: told.append((turn, name)))
    assert order[:4] == list(GAIN) and order[4] == GAIN[1] and len(order) == 12
    assert [turn for turn, _ in told] == [1] * 4 + [2] * 4 + [3] * 4
    assert all(len(item.rates) == 3 and item.rate == sorted(item.rates)[1] for item in found)
    assert all(figures(i.trace).tokens_per_second == pytest.approx(i.rate) for i in found)
    report = gain_report(found, "mine", {"name": "Fake"})
    assert [item["system"] for item in report["systems"]] == list(GAIN)
    assert report["bars"][-1]["end"] == pytest.approx(found[-1].rate)
    assert report["repeat"] == 3 and "mine" in report["command"]


def test_a_hit_rate_after_a_step_counts_the_lookups_after_it() -> None:
    trace = run(configure(BASE, "shared"))[1]
    asked = [e for e in trace.events if type(e).__name__ == "RequestAdmitted" and e.step > 3]
    queried, hit = sum(e.queried_tokens for e in asked), sum(e.hit_tokens for e in asked)
    assert 0 < hit < queried
    assert figures(trace, 3).hit_rate == pytest.approx(hit / queried)
    assert figures(trace).hit_rate == pytest.approx(series(trace)[-1].hit_rate)
    assert figures(trace).hit_rate != pytest.approx(figures(trace, 3).hit_rate)


def test_a_measuring_that_is_stopped_keeps_the_runs_that_were_done() -> None:
    left = iter(range(6))

    def play_one(system: str) -> Trace | None:
        return None if next(left) == 5 else run(configure(BASE, system))[1]

    found = measure(GAIN, play_one, repeat=2)
    assert {item.system: len(item.rates) for item in found} == {
        "static": 1, "continuous": 2, "paged": 1, "shared": 1
    }  # fmt: skip
    assert gain_report(found, "mine", {})["repeat"] == 1
    assert measure(GAIN, lambda system: None) == []
