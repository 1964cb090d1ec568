"""The paper's figures: anchors that are exact, shares that add up, sharing counted by hand."""

import json
import re
from typing import Any

import pytest

from core.config import EngineConfig
from core.engine import Engine
from core.errors import WorkloadError
from core.request import SamplingParams
from core.text import LANGUAGES
from core.workload import paper
from core.workload.paper_figure2 import SYSTEMS, Figure2, Meter
from core.workload.paper_runs import SLOTS, backlog, paper_config, paper_cost, sim_engine
from core.workload.paper_sharing import table_entries
from core.workload.simulate import Simulation
from core.workload.tables import render_table
from tests.builders import FakeCodec, FakeRunner


@pytest.fixture(scope="module")
def small() -> Figure2:
    return paper.figure2(requests=150, seed=3)


def test_table_1_has_the_papers_slots() -> None:
    table = paper.table1()
    assert [row.slots for row in table.rows] == [15_729, 9_694, 60_075] and SLOTS == 15_729
    assert [row.slot_bytes for row in table.rows] == [819_200, 2_359_296, 4_718_592]
    for row in table.rows:
        assert row.slots / 1000 == pytest.approx(row.published_kslots, abs=0.05)
        assert row.weights_gb == pytest.approx(row.published_weights_gb, rel=0.015)


def test_orca_max_runs_seven_requests_and_loses_8_86_percent(small: Figure2) -> None:
    row = small.rows[0]
    assert row.system == "orca-max"
    assert row.running_full == row.running == 7.0
    assert row.shares.other == pytest.approx(8.86, abs=0.005)
    assert row.shares.other == pytest.approx(100 * (SLOTS - 7 * 2048) / SLOTS, abs=0.001)


def test_paged_memory_holds_at_least_95_percent_token_states(small: Figure2) -> None:
    assert small.rows[3].shares.tokens >= 95


def test_more_run_the_less_is_reserved_and_oracle_leaves_nothing_unused(small: Figure2) -> None:
    assert tuple(row.system for row in small.rows) == SYSTEMS
    running = [row.running_full for row in small.rows]
    assert running == sorted(running) and running[0] < running[1] < running[3]
    assert small.rows[2].shares.unused == 0
    for row in small.rows:
        parts = (row.shares.tokens, row.shares.reserved, row.shares.unused, row.shares.other)
        assert all(part is not None and part >= 0 for part in parts)
        assert sum(part or 0 for part in parts) == pytest.approx(100, abs=0.01)


def test_the_same_seed_gives_the_same_figures() -> None:
    first, again = (paper.sharing(requests=20, seed=5, mixes=["sharegpt"]) for _ in range(2))
    assert first == again != paper.sharing(requests=20, seed=6, mixes=["sharegpt"])


@pytest.mark.slow
def test_every_share_of_figure_2_is_within_five_points_of_the_published_one() -> None:
    figure = paper.figure2()
    assert {row.system: row.largest_difference for row in figure.rows if
            row.largest_difference > 5} == {}  # fmt: skip
    assert not any(note.code == "apart" for note in figure.notes)


@pytest.mark.parametrize("system", SYSTEMS)
def test_two_accounts_of_a_run_agree(system: str) -> None:
    """The simulator measures on its own, from regions and pools; ours from sums of lengths."""
    workload = backlog("sharegpt", 60, 1)
    theirs = Simulation(workload, paper_config(system), paper_cost()).run().summary
    meter = Meter(system, lambda meter: True)
    meter.run(workload, lambda done: None)
    ours, parts = meter.shares(), theirs.breakdown
    assert theirs.simulated_seconds == pytest.approx(meter.clock)
    assert theirs.preemptions == meter.preemptions
    assert theirs.mean_running == pytest.approx(meter.mean_running)
    slots = 983 * 16 if system == "paged" else SLOTS
    for mine, other in (
        (ours.tokens, parts.tokens),
        (ours.reserved, parts.reserved),
        (ours.unused, parts.unused + parts.tail),
        (ours.other, parts.hole + parts.free + parts.cached),
    ):
        assert mine == pytest.approx(100 * other * slots / SLOTS, abs=0.01)


def test_samples_share_the_full_blocks_of_their_prompt() -> None:
    engine, _ = sim_engine(paper_config(block_size=4), paper_cost())
    engine.add_request([0] * 10, SamplingParams(max_tokens=5, n=3))
    seen = []
    while engine.has_work:
        engine.step()
        seen.append(table_entries(engine))
    # 3 prompt blocks shared by 3; then the half-full one is copied twice; then 1 new block each.
    assert seen == [(9, 3), (9, 5), (9, 5), (12, 8), (0, 0)]


def test_sharing_grows_with_the_samples_and_stays_below_its_bound() -> None:
    result = paper.sharing(requests=40, mixes=["alpaca"])
    saved = [row.saved for row in result.rows]
    assert [row.width for row in result.rows] == [2, 4, 6] and saved == sorted(saved)
    for row in result.rows:
        assert 0 < row.saved < 100 * (1 - 1 / row.width)
        assert row.origin == "simulated"
    assert any(note.code == "no_beams" for note in result.notes)


def test_beams_run_on_the_callers_engine_and_save_more_than_samples() -> None:
    configs = []

    def build(config: EngineConfig) -> Engine:
        configs.append(config)
        return Engine(config, FakeRunner(), FakeCodec(), record=False)

    result = paper.sharing(build, requests=40, mixes=["alpaca"])
    assert len(configs) == 3 and all(config.semantics == "paper" for config in configs)
    samples, beams = result.rows[:3], result.rows[3:]
    for sample, beam in zip(samples, beams, strict=True):
        assert beam.origin == "real_model" and beam.width == sample.width
        assert beam.saved > sample.saved


def test_larger_blocks_waste_half_a_block_more_and_need_fewer_entries() -> None:
    study = paper.blocks(requests=100, sizes=(1, 8, 64))
    for mix in ("alpaca", "sharegpt"):
        rows = [row for row in study.rows if row.mix == mix]
        assert [row.block_size for row in rows] == [1, 8, 64]
        assert rows[0].waste < 0.5 < rows[2].waste
        assert rows[0].entries > 4 * rows[1].entries > 16 * rows[2].entries / 4
        assert rows[0].running >= rows[2].running
        assert rows[1].measured_waste == pytest.approx(3.5, abs=0.4)


def test_too_few_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(WorkloadError, match="nobody ever waits"):
        paper.figure2(requests=3)
    with pytest.raises(WorkloadError, match="nobody ever waits"):
        paper.blocks(requests=1, sizes=(16,))


def test_progress_rises_to_one_and_may_stop_a_run() -> None:
    told: list[float] = []
    paper.blocks(told.append, requests=100, sizes=(16,))
    assert told == sorted(told) and told[-1] == 1.0

    def stop(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        paper.figure2(stop, requests=150)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_results_read_in_both_languages_and_survive_json(small: Figure2, lang: str) -> None:
    results: list[Any] = [small, paper.table1(), paper.sharing(requests=20, mixes=["alpaca"])]
    for result in results:
        text = result.to_text(lang)
        assert not re.search(r"\{\w|paper\.\w", text)
        plain = result.to_json()
        assert json.loads(json.dumps(plain)) == json.loads(json.dumps(result.to_json()))
        assert plain["rows"]
    assert small.to_json()["origin"] == "modelled"


def test_a_table_lines_up_wide_letters() -> None:
    assert render_table(["a", "长度"], [["x", 1], ["yy", None]]).splitlines() == [
        "a   长度",
        "x      1",
        "yy     –",
    ]
