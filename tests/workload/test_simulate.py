"""Workloads through the real scheduler and memory on a modelled clock."""

import json
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.capacity.hardware import HARDWARE
from core.capacity.shapes import SHAPES
from core.errors import ConfigError, WorkloadError
from core.exec.cost_model import CostModel
from core.trace import events as ev
from core.trace.metrics import breakdown, final_lengths
from core.trace.snapshot import Snapshot
from core.trace.verify import verify
from core.workload.requests import Workload, WorkloadRequest
from core.workload.sim_gauges import PARTS, LogHistogram, TimeAverages, spread_of
from core.workload.sim_result import SimulationResult
from core.workload.simulate import Simulation, SimulationProgress, simulate
from core.workload.synthetic import Recipe, make
from core.workload.systems import SYSTEMS, system_config

COST = CostModel(HARDWARE["a100-40gb"], SHAPES["opt-13b"])


def workload(*rows: tuple[float, int, int], **changes: Any) -> Workload:
    requests = tuple(WorkloadRequest(*row) for row in rows)
    return Workload("test", "lengths", requests, **changes)


def recipe(**changes: Any) -> Workload:
    values = {"count": 40, "rate": 20.0, "prompt_mean": 30, "output_mean": 20, "max_total": 128}
    return make(Recipe(**values | changes))


def config(system: str, slots: int = 600, **changes: Any) -> Any:
    values = {"block_size": 8, "max_num_seqs": 12, "max_num_batched_tokens": 64,
              "max_model_len": 128}  # fmt: skip
    return system_config(system, num_slots=slots, **values | changes)


@pytest.mark.parametrize("system", list(SYSTEMS))
@pytest.mark.parametrize("semantics", ["v1", "paper"])
def test_every_request_gets_its_whole_answer(system: str, semantics: str) -> None:
    load = recipe()
    simulation = Simulation(load, config(system, semantics=semantics), COST, system=system)
    result = simulation.run()
    total = result.summary
    assert (total.finished, total.refused, result.cancelled) == (40, 0, False)
    assert total.generated_tokens == sum(request.output_tokens for request in load.requests)
    assert total.prompt_tokens == sum(request.prompt_tokens for request in load.requests)
    assert total.latency.ttft.count == total.latency.e2e.count == 40
    assert total.latency.itl.count == total.generated_tokens - 40
    assert total.latency.ttft.max < total.latency.e2e.max <= total.simulated_seconds
    simulation.engine.check()
    assert simulation.engine.manager.occupancy.owned == 0


@pytest.mark.parametrize("system", list(SYSTEMS))
def test_slots_by_state_are_those_that_the_trace_tells(system: str) -> None:
    simulation = Simulation(recipe(), config(system), COST, record=True)
    seen: list[tuple[int, ...]] = []
    add = simulation._averages.add

    def spy(*args: Any, busy: bool) -> None:
        if busy:
            seen.append(args[4])
        add(*args, busy=busy)

    simulation._averages.add = spy  # type: ignore[method-assign]
    simulation.run()
    trace = simulation.trace()
    assert verify(trace).ok
    snapshot, finals = Snapshot(trace.header.layout), final_lengths(trace)
    events = list(trace.events)
    told = []
    for event, following in pairwise(events):
        snapshot.apply(event)
        if isinstance(event, ev.SlotsWritten) and not isinstance(following, ev.SlotsWritten):
            told.append(breakdown(snapshot, finals))
    assert len(told) == len(seen) > 40
    for slots, parts in zip(told, seen, strict=True):
        ours = dict(zip(PARTS, parts, strict=True))
        assert sum(parts) == slots.total == simulation.engine.config.usable_slots
        for part in ("tokens", "unused", "cached"):
            assert ours[part] == getattr(slots, part), (part, ours, slots)
        assert ours["hole"] + ours["free"] == slots.hole + slots.free
        # A trace knows how much the next one needs only when memory is what it waits for.
        assert ours["hole"] >= slots.hole
        if system in ("paged", "orca-max", "static"):
            assert ours["hole"] == slots.hole
        # The fold can't tell whether a prompt's newest token is already known to be written.
        assert 0 <= ours["reserved"] - slots.reserved <= len(snapshot.sequences)


@pytest.mark.parametrize("system", ["paged", "orca-pow2", "static"])
def test_a_line_outside_the_engine_makes_no_difference(system: str) -> None:
    load = recipe(arrivals="at_once")
    settings = config(system, max_num_seqs=3)
    fed_bit_by_bit = Simulation(load, settings, COST).run()
    fed_at_once = Simulation(load, settings, COST, record=True).run()
    assert fed_bit_by_bit.summary.mean_waiting > 10
    assert fed_bit_by_bit.series == fed_at_once.series
    assert replace(fed_bit_by_bit.summary, wall_seconds=0) == replace(
        fed_at_once.summary, wall_seconds=0
    )


def test_idle_time_is_skipped_and_not_averaged_over() -> None:
    result = simulate(workload((0.0, 8, 2), (500.0, 8, 2)), config("paged"), COST)
    total = result.summary
    assert 500 < total.simulated_seconds < 501
    assert total.busy_seconds < 1
    assert total.steps == 4
    assert total.mean_running == 1
    assert total.latency.e2e.max < 1, "nobody waits for the other"
    faster = simulate(workload((0.0, 8, 2), (500.0, 8, 2)), config("paged"), COST, rate_scale=10)
    assert 50 < faster.summary.simulated_seconds < 51


def test_orca_max_runs_seven_requests_and_loses_what_the_paper_says() -> None:
    load = make(Recipe(count=60, rate=50))
    orca = system_config("orca-max", num_slots=15_729, max_model_len=2048)
    total = simulate(load, orca, COST, limit=40).summary
    assert total.requests == 40
    assert total.peak_running == 7
    assert total.breakdown.hole == pytest.approx(0.0886, abs=5e-5)
    assert sum(getattr(total.breakdown, part) for part in PARTS) == pytest.approx(1)


def test_a_request_larger_than_memory_is_counted_and_named_and_the_rest_runs() -> None:
    load = workload((0.0, 900, 50), (0.0, 10, 5), (0.0, 130, 3), (0.1, 10, 5))
    result = simulate(load, config("paged", max_model_len=2048), COST)
    assert (result.summary.refused, result.summary.finished) == (1, 3)
    (refusal,) = result.refusals
    assert refusal.number == 1
    assert "119 blocks" in refusal.text("en")
    assert refusal.text("zh") != refusal.text("en")
    result = simulate(load, config("static"), COST)
    assert [refusal.number for refusal in result.refusals] == [1, 3]


def _tree(draw: st.DrawFn, unit: int) -> Workload:
    """Prompts that go down one tree of names: an equal name means an equal prefix."""
    rows, children = [], {(): {}}  # type: ignore[var-annotated]
    count = 0
    for number in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, 4 * unit))
        names: tuple[int, ...] = ()
        for place in range(-(-prompt // unit)):
            length = min(unit, prompt - place * unit)
            branch = draw(st.integers(0, 1)), length  # a partial run has a name of its own
            if branch not in children[names]:
                children[names][branch] = count
                children[(*names, count)] = {}
                count += 1
            names = (*names, children[names][branch])
        rows.append(WorkloadRequest(float(number), prompt, draw(st.integers(1, 20)), names))
    return Workload("tree", "test", tuple(rows), prefix_unit=unit)


@given(data=st.data(), block_size=st.sampled_from([2, 4, 8, 16]))
@settings(max_examples=60, deadline=None)
def test_an_unlimited_pool_finds_every_name_that_was_there_before(
    data: st.DataObject, block_size: int
) -> None:
    load = data.draw(st.composite(lambda draw: _tree(draw, 8))())
    seen: set[int] = set()
    hits = 0
    for request in load.requests:
        hits += sum(name in seen for name in request.prefix)
        seen.update(request.prefix)
    paged = system_config("paged", num_blocks=2, block_size=block_size)
    simulation = Simulation(load, paged, COST, unlimited=True)
    total = simulation.run().summary
    references = sum(len(request.prefix) for request in load.requests)
    if block_size <= 8:  # a larger block mixes names, and is found only as a whole
        assert total.hit_rate == hits / references
    assert total.slots is None
    assert total.preemptions == 0
    simulation.engine.check()


def test_a_block_may_be_smaller_than_a_name_and_the_last_token_is_always_computed() -> None:
    rows = (WorkloadRequest(0.0, 16, 4, (1, 2)), WorkloadRequest(9.0, 16, 4, (1, 2)))
    load = Workload("two", "test", rows, prefix_unit=8)
    for block_size, found in ((8, 8), (4, 12), (2, 14)):
        settings = system_config("paged", num_slots=600, block_size=block_size)
        total = simulate(load, settings, COST).summary
        assert total.token_hit_rate == found / 32
        assert total.hit_rate == 0.5
    off = system_config("paged", num_slots=600, block_size=8, prefix_caching=False)
    assert simulate(load, off, COST).summary.hit_rate is None


def test_a_preempted_requests_return_is_no_lookup() -> None:
    rows = tuple(WorkloadRequest(0.0, 32, 60, (number,)) for number in range(6))
    load = Workload("tight", "test", rows, prefix_unit=32)
    total = simulate(load, config("paged", slots=240), COST).summary
    assert total.preemptions > 0
    assert total.finished == 6
    assert total.token_hit_rate == total.hit_rate == 0


def test_prompts_without_names_share_nothing_even_with_caching_on() -> None:
    load = workload(*[(float(n), 24, 9) for n in range(5)])
    result = simulate(load, config("paged", prefix_caching=True), COST)
    assert result.summary.token_hit_rate == 0
    assert result.summary.breakdown.cached > 0, "answered blocks stay until they are needed"


class _After(threading.Event):
    """Set after it was looked at so many times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def is_set(self) -> bool:
        self._looks -= 1
        return self._looks < 0


def test_a_cancelled_run_keeps_what_it_has_and_a_file_keeps_it_all() -> None:
    told: list[SimulationProgress] = []
    result = simulate(recipe(), config("paged"), COST, progress=told.append, cancel=_After(60))
    assert result.cancelled
    assert 0 < result.summary.finished < 40
    assert result.summary.steps <= 60
    assert told[0].total == 40
    assert SimulationResult.from_json(result.to_json()) == result
    plain = json.loads(result.to_json(series=False))
    assert "series" not in plain
    assert plain["summary"]["measured"] is False
    texts = [item["text"] for item in plain["summary"]["assumptions"]]
    assert texts == result.assumption_texts("en")
    assert not any("simulate.assumption" in text or "{" in text for text in texts)
    assert not set(texts) & set(result.assumption_texts("zh"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "glassblock-simulation"}', "\0"])
def test_what_is_no_result_is_refused_by_name(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"kept\.json"):
        SimulationResult.from_json(text, "kept.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"rate_scale": 0.0}, "rate_scale"), ({"rate_scale": float("nan")}, "rate_scale"),
     ({"unlimited": True, "record": True}, "traced")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Simulation(recipe(), config("paged"), COST, **changes)


def test_large_traces_growing_regions_and_unknown_systems_are_refused() -> None:
    with pytest.raises(ConfigError, match="--limit"):
        Simulation(workload(*[(0.0, 600_000, 1)] * 2), config("paged"), COST, record=True)
    with pytest.raises(ConfigError, match="Only paged"):
        Simulation(recipe(), config("static"), COST, unlimited=True)
    with pytest.raises(ConfigError, match="orca-oracle"):
        system_config("orca", num_slots=100)
    with pytest.raises(ConfigError, match="one size"):
        system_config("paged", num_slots=100, num_blocks=10)


@pytest.mark.parametrize("semantics", ["v1", "paper"])
def test_all_systems_get_equally_many_slots(semantics: str) -> None:
    for name in SYSTEMS:
        by_slots = system_config(name, num_slots=640, semantics=semantics)
        by_blocks = system_config(name, num_blocks=40 + (semantics == "v1"), semantics=semantics)
        assert by_slots.usable_slots == by_blocks.usable_slots == 640


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=300), st.integers(1, 20))
def test_a_series_stays_short_and_loses_no_time(steps: list[float], points: int) -> None:
    averages, clock = TimeAverages(points), 0.0
    for number, seconds in enumerate(steps):
        clock += seconds
        averages.add(clock, seconds, number, 1, (3, 0, 0, 1, 0, 0, 4), number, 0.5)
    series = averages.series()
    assert len(series.time) <= 2 * points
    assert series.time[-1] == pytest.approx(clock, abs=1e-5)
    assert averages.busy_seconds == pytest.approx(clock)
    mean = sum(n * seconds for n, seconds in enumerate(steps)) / clock
    assert averages.mean_running == pytest.approx(mean)
    assert averages.shares().tokens == pytest.approx(3 / 8)
    assert set(series.free) == {0.5}


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200))
def test_a_histograms_quantiles_are_within_half_a_percent(values: list[float]) -> None:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    exact, ours = spread_of(values), histogram.spread()
    for name in ("mean", "p50", "p90", "p95", "p99", "max"):
        assert getattr(ours, name) == pytest.approx(getattr(exact, name), rel=0.0051, abs=2e-6)
