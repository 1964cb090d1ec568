"""The Simulate page without a browser: what it opens with, runs, keeps, refuses."""

from __future__ import annotations

import json
import shlex
import threading
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import cli_simulate, sim_runs, tasks
from app.cli import make_parser
from app.sim_command import told_as_one
from app.sim_runs import Job, Limits, Part, Plan
from app.sim_sets import PoolRun, ResultSet, open_set, pool_curves, shipped, system_run
from app.theme import LOOKS
from core.capacity.hardware import find_hardware
from core.capacity.shapes import find_shape
from core.errors import GlassblockError, LimitError, WorkloadError
from core.exec.cost_model import CostModel
from core.text import LANGUAGES, sentence
from core.workload import synthetic
from core.workload.sim_result import SimulationResult
from core.workload.synthetic import Recipe
from core.workload.systems import SYSTEMS, system_config
from tests.app import painting

ROOT = Path(__file__).parents[2]
PATIENCE = 60
pytestmark = pytest.mark.usefixtures("no_model")


def painted(lang: str = "en") -> AppTest:
    return painting.painted("simulate", lang)


def html(page: AppTest) -> str:
    return "\n".join(str(item.proto.body) for item in page.get("html"))


def alerts(page: AppTest) -> list[str]:
    return [str(i.proto.body) for i in page.get("html") if 'role="alert"' in str(i.proto.body)]


def again(page: AppTest) -> AppTest:
    page.run()
    assert not page.exception
    return page


def small(page: AppTest, count: int = 12) -> AppTest:
    """A workload that is over at once."""
    page.number_input(key="gbx_sim_count_sharegpt").set_value(count)
    return again(page)


def simulated(page: AppTest) -> AppTest:
    """Presses "Simulate" and waits for the end."""
    page.button(key="gbx_sim_run").click()
    again(page)
    page.session_state["gbx_sim_job"].wait(PATIENCE)
    return again(page)


def make_plan(*systems: str, count: int = 10, slots: int = 4096, **changes: Any) -> Plan:
    recipe = Recipe(**{"count": count, "prompt_mean": 30, "output_mean": 20, **changes})
    cost = CostModel(find_hardware("a100-40gb"), find_shape("opt-13b"))
    parts = [
        Part(name, system_config(name, num_slots=slots, max_model_len=512)) for name in systems
    ]
    return Plan(synthetic.make(recipe, "a test"), cost, tuple(parts))


def make_set(*systems: str, **changes: Any) -> ResultSet:
    job = Job(make_plan(*systems, **changes), Limits())
    job.start()
    job.wait(PATIENCE)
    found = job.result()
    assert found is not None and job.state == "done"
    return found


# ------------------------------------------------------------------------------------ the page


def test_it_opens_with_a_recorded_set_and_says_that_it_is_modelled() -> None:
    page = painted()
    for words in ("OPT-13B, float16, 1 x NVIDIA A100 40 GB", "not measured", "400, poisson"):
        assert words in html(page)
    assert "<code>glassblock simulate --workload synthetic" in html(page)
    assert sentence("app.sim.recorded", "en") in page.pills(key="gbx_sim_chosen").options[0]
    assert len(page.get("plotly_chart")) == 6
    for item in page.get("plotly_chart"):
        figure = json.loads(item.proto.spec)
        subtitle = figure["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")
        assert subtitle.startswith("Modelled, not measured: ShareGPT-like (400, poisson, 2/s")
        assert "roofline" in subtitle and sentence("app.sim.repeated_by", "en") in subtitle
        assert figure["layout"]["meta"]["kind"] == "modelled"
    keys = [item.key for item in page.get("bidi_component")]
    assert len([key for key in keys if key.endswith("_export")]) == 6 and "gbx_sim_copy" in keys


@pytest.mark.parametrize("lang", LANGUAGES)
def test_words_follow_the_language(lang: str) -> None:
    page = painted(lang)
    assert page.button(key="gbx_sim_run").label == sentence("app.sim.run", lang)
    assert sentence("app.sim.about", lang) in html(page)
    shown = html(page) + "".join(w.label for w in [*page.number_input, *page.selectbox])
    assert "app.sim" not in shown and "app.chart" not in shown


def test_a_run_is_kept_and_shown_and_a_second_one_can_stand_beside_it() -> None:
    page = simulated(small(painted()))
    first = [
        option for option in page.pills(key="gbx_sim_chosen").options if option.startswith("1")
    ]
    assert len(first) == 1 and "12" in html(page)
    page.pills(key="gbx_sim_systems").set_value(["paged"])
    page = simulated(small(page, 9))
    numbers = page.session_state["gbx_sim_kept"]
    assert [item.number for item in numbers] == [2, 1]
    page.pills(key="gbx_sim_chosen").set_value([2, 1])
    again(page)
    assert f"1 · {sentence('app.sim.system_paged', 'en')}" in html(page)
    assert f"2 · {sentence('app.sim.system_paged', 'en')}" in html(page)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gbx_sim_source": "alpaca", "gbx_sim_caching": True, "gbx_sim_semantics": "paper"},
        {"gbx_sim_source": "own", "gbx_sim_caching": False, "gbx_sim_hardware": "l4",
         "gbx_sim_shape": "llama-3.1-8b"},
    ],
)  # fmt: skip
def test_the_command_beside_a_result_makes_the_same_run(settings: dict[str, Any]) -> None:
    page = painted()
    for key, value in settings.items():
        page.selectbox(key=key).set_value(value)
        again(page)
    source = settings.get("gbx_sim_source", "sharegpt")
    page.number_input(key=f"gbx_sim_count_{source}").set_value(9)
    if source == "own":
        page.selectbox(key="gbx_sim_arrivals").set_value("bursty")
        page.number_input(key="gbx_sim_shared_prefix").set_value(32)
        page.number_input(key="gbx_sim_block_size").set_value(8)
    page.pills(key="gbx_sim_systems").set_value(["paged", "orca-max"])
    again(page)
    found = simulated(page).session_state["gbx_sim_kept"][0].found
    for result in found.results:
        repeat(result)
    one = told_as_one([result.command for result in found.results])
    # Contiguous memory refuses to be asked for prefix caching, so it has a line of its own then.
    assert one.count("glassblock simulate") == 1 + ("gbx_sim_caching" in settings)
    assert one.endswith("orca-max") and ("--system paged|orca-max" in one or "; " in one)
    assert one in unescape(html(page))


def repeat(result: SimulationResult) -> None:
    """Runs the result's command and compares everything but the time that it took."""
    options = make_parser().parse_args(shlex.split(result.command)[1:])
    other = cli_simulate._simulation(vars(options)).run()
    assert other.config == result.config and other.source == result.source
    mine, theirs = asdict(result.summary), asdict(other.summary)
    assert mine | {"wall_seconds": 0} == theirs | {"wall_seconds": 0}
    costs = [
        {a.code: a.values for a in one.assumptions if a.code in ("hardware", "model", "efficiency")}
        for one in (result, other)
    ]
    assert costs[0] == costs[1]


def test_the_command_beside_a_files_result_makes_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "prompt,output\n30,10\nbroken\n40,20\n50,5\n"
    (tmp_path / "my file.csv").write_text(text)
    page = painted()
    page.selectbox(key="gbx_sim_source").set_value("file")
    again(page)
    page.toggle(key="gbx_sim_skip").set_value(True)
    page.number_input(key="gbx_sim_limit").set_value(2)
    page.file_uploader(key="gbx_sim_file").upload("my file.csv", text.encode(), "text/csv")
    page.pills(key="gbx_sim_systems").set_value(["paged"])
    (result,) = simulated(again(page)).session_state["gbx_sim_kept"][0].found.results
    assert result.summary.finished == 2 and "--retime 2" in result.command
    monkeypatch.chdir(tmp_path)
    repeat(result)


def test_the_shipped_results_bear_commands_that_make_them() -> None:
    for result in shipped()[0].results:
        repeat(result)


def test_a_sweep_adds_the_chart_of_concurrency_against_pool_size() -> None:
    page = small(painted())
    page.pills(key="gbx_sim_systems").set_value(["paged", "orca-max"])
    page.toggle(key="gbx_sim_sweep").set_value(True)
    page = simulated(page)
    kept = page.session_state["gbx_sim_kept"][0].found
    assert {pool.system for pool in kept.pools} == {"paged", "orca-max"}
    assert len(kept.pools) == 8
    assert len(page.get("plotly_chart")) == 6


def test_only_the_newest_results_are_kept() -> None:
    page = small(painted(), 3)
    page.pills(key="gbx_sim_systems").set_value(["paged"])
    for _ in range(8):
        page = simulated(page)
    assert [item.number for item in page.session_state["gbx_sim_kept"]] == [8, 7, 6, 5, 4, 3]


def test_nothing_to_compare_is_one_message() -> None:
    page = painted()
    page.pills(key="gbx_sim_systems").set_value([])
    again(page)
    page.button(key="gbx_sim_run").click()
    again(page)
    assert [sentence("error.sim_no_system", "en") in text for text in alerts(page)] == [True]
    assert not alerts(again(page))


def test_every_memory_can_be_simulated_with_any_choice() -> None:
    page = small(painted())
    page.pills(key="gbx_sim_systems").set_value(list(SYSTEMS))
    page.selectbox(key="gbx_sim_caching").set_value(True)
    page.selectbox(key="gbx_sim_semantics").set_value("paper")
    page = simulated(page)
    kept = page.session_state["gbx_sim_kept"][0].found
    assert [result.system for result in kept.results] == list(SYSTEMS)
    assert all(result.summary.finished == 12 for result in kept.results)


def with_file(name: str, text: str) -> AppTest:
    page = painted()
    page.selectbox(key="gbx_sim_source").set_value("file")
    again(page)
    page.file_uploader(key="gbx_sim_file").upload(name, text.encode(), "text/csv")
    page.pills(key="gbx_sim_systems").set_value(["paged"])
    again(page)
    page.button(key="gbx_sim_run").click()
    return again(page)


def test_a_file_is_simulated_and_one_without_times_gets_drawn_ones() -> None:
    page = with_file("mine.csv", "prompt,output\n30,10\n40,20\n")
    page.session_state["gbx_sim_job"].wait(PATIENCE)
    again(page)
    (result,) = page.session_state["gbx_sim_kept"][0].found.results
    assert result.summary.finished == 2 and result.summary.generated_tokens == 30
    assert "mine" in html(page) and "poisson" in result.source


def test_a_files_context_and_the_derived_memory_are_told_as_assumptions() -> None:
    page = painted()
    page.selectbox(key="gbx_sim_source").set_value("file")
    page.selectbox(key="gbx_sim_shape").set_value("llama-3.1-8b")
    again(page)
    page.file_uploader(key="gbx_sim_file").upload(
        "long.csv", b"prompt,output\n5000,10\n", "text/csv"
    )
    page.pills(key="gbx_sim_systems").set_value(["paged"])
    (result,) = simulated(again(page)).session_state["gbx_sim_kept"][0].found.results
    told = {item.code: item.values for item in result.assumptions}
    assert told["context"]["limit"] == result.config["max_model_len"] == 8192
    assert 0 <= told["pool"]["slots"] - result.summary.slots < 16
    assert result.summary.finished == 1


def test_weights_that_do_not_fit_are_said_beside_the_slots() -> None:
    page = painted()
    page.selectbox(key="gbx_sim_hardware").set_value("t4")
    again(page)
    fallback = sentence("app.sim.slots_too_big", "en", slots="4,096")
    assert fallback in [caption.value for caption in page.caption]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prompt,output\n30,ten\n", "line 2"),
        ("prompt,output\n30,-1\n", "line 2"),
        ("prompt,output\n30\n", "line 2"),
        ("", "empty"),
        ("a,b\n1,2\n", "no known workload format"),
        ("\x00\x01\xff", "mine.csv"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_it(text: str, word: str) -> None:
    (alert,) = alerts(with_file("mine.csv", text))
    assert "mine.csv" in alert and word in alert and "/tmp" not in alert


def test_no_file_is_one_sentence() -> None:
    page = painted()
    page.selectbox(key="gbx_sim_source").set_value("file")
    again(page)
    page.button(key="gbx_sim_run").click()
    assert sentence("error.sim_no_file", "en") in alerts(again(page))[0]


def opened(name: str, data: bytes) -> AppTest:
    page = painted()
    page.file_uploader(key="gbx_sim_opened").upload(name, data, "application/json")
    return again(page)


def test_a_saved_result_opens_and_its_text_is_never_markup() -> None:
    evil = "<img src=x onerror=alert(1)> **bold**"
    found = make_set("paged", "orca-max")
    changed = found.to_json().replace('"a test"', json.dumps(evil))
    page = opened("kept.json", changed.encode())
    assert not alerts(page)
    assert "<img" not in html(page)
    assert page.session_state["gbx_sim_chosen"] == [1]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b'{"kind": "other"}'])
def test_a_file_that_is_no_result_is_one_sentence(data: bytes) -> None:
    (alert,) = alerts(opened("wrong.json", data))
    assert "wrong.json" in alert


# ----------------------------------------------------------------------------- jobs and sets


def test_a_stopped_job_keeps_what_it_has() -> None:
    job = Job(make_plan("paged", "orca-max", count=4000, rate=50.0), Limits())
    job.start()
    while job.progress.inner is None and job.is_running:
        threading.Event().wait(0.01)
    job.stop()
    job.wait(PATIENCE)
    found = job.result()
    assert job.state == "stopped" and found is not None
    assert found.results[-1].cancelled and found.results[-1].summary.steps > 0
    assert found.results[-1].summary.finished < 4000


def test_a_job_past_its_time_stops_and_says_so() -> None:
    job = Job(make_plan("paged", count=4000, rate=50.0), Limits(seconds=0.0))
    job.start()
    job.wait(PATIENCE)
    assert job.state == "stopped" and job.fault is not None and job.fault.code == "sim_seconds"


def test_a_job_that_nobody_looks_at_stops() -> None:
    job = Job(make_plan("paged", count=4000, rate=50.0), Limits(unseen=-1.0))
    job.start()
    job.wait(PATIENCE)
    assert job.state == "stopped" and job.fault is None


@pytest.mark.parametrize(
    ("limits", "code"),
    [(Limits(requests=5), "sim_requests"), (Limits(tokens=5), "sim_tokens"),
     (Limits(jobs=0), "sim_busy")],
)  # fmt: skip
def test_too_much_is_refused_before_it_starts(limits: Limits, code: str) -> None:
    with pytest.raises(LimitError) as caught:
        sim_runs.start(make_plan("paged"), limits)
    assert caught.value.code == code


def test_a_set_survives_its_file() -> None:
    found = make_set("paged", "static")
    found = ResultSet(found.workload, found.results, (PoolRun("paged", 64, 1.5, 3, 0),), "made so")
    assert open_set("x.json", found.to_json().encode()) == found
    single = open_set("y.json", found.results[0].to_json().encode())
    assert single.results == found.results[:1]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("results", 0, "series", "tokens"), ["x"]),
        (("results", 0, "series", "tokens"), [0.1]),
        (("results", 0, "summary", "mean_running"), "many"),
        (("results", 0, "summary", "breakdown", "tokens"), None),
        (("results", 0, "summary", "latency", "ttft", "p50"), "NaN"),
        (("results",), []),
        (("pools",), [{"system": "paged"}]),
        (("schema",), 99),
    ],
)
def test_a_set_with_something_that_is_no_number_is_refused(
    path: tuple[Any, ...], value: Any
) -> None:
    plain = json.loads(make_set("paged").to_json())
    place = plain
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(WorkloadError):
        open_set("bad.json", json.dumps(plain).encode())


def test_a_result_becomes_what_figures_draw() -> None:
    (result,) = make_set("orca-max").results
    run = system_run(result, "Orca")
    assert sum(run.mean.values()) == pytest.approx(1)
    assert [sum(p) for p in zip(*run.parts.values(), strict=True)] == pytest.approx(
        [1.0] * len(run.times), abs=1e-4
    )
    assert run.delays["ttft"]["p50"] == result.summary.latency.ttft.p50


def test_a_pool_in_which_nobody_could_run_has_no_point() -> None:
    curves = pool_curves([PoolRun("paged", 10, 0.0, 0, 5), PoolRun("paged", 20, 1.0, 5, 0)])
    assert [point.slots for point in curves["paged"]] == [20]


def test_the_shipped_set_says_how_it_was_made_and_has_the_papers_anchor() -> None:
    first = shipped()[0]
    assert first.command.startswith("python -m tests.bench.record_simulation")
    by_system = {result.system: result for result in first.results}
    assert by_system["orca-max"].summary.slots == 15_729
    assert by_system["orca-max"].summary.breakdown.hole == pytest.approx(0.0886, abs=5e-4)
    assert all(not result.cancelled for result in first.results)
    assert LOOKS["light"].parts  # the figures' colours exist for every part of these shares


# -------------------------------------------------------------------------------------- tasks


def test_a_task_tells_its_share_and_hands_over_its_result() -> None:
    def work(tell: Any) -> str:
        tell(0.5)
        return "made"

    task = tasks.start(work)
    task.wait(PATIENCE)
    assert (task.state, task.result, task.share) == ("done", "made", 0.5)


def test_a_task_stops_when_it_next_tells_and_a_fault_is_kept() -> None:
    def endless(tell: Any) -> None:
        while True:
            tell(0.1)

    task = tasks.start(endless)
    task.stop()
    task.wait(PATIENCE)
    assert task.state == "stopped"

    def wrong(tell: Any) -> None:
        raise WorkloadError("sim_no_file")

    def broken(tell: Any) -> None:
        raise KeyError("x")

    for work, code in ((wrong, "sim_no_file"), (broken, "task_failed")):
        failed = tasks.start(work)
        failed.wait(PATIENCE)
        assert failed.state == "failed" and isinstance(failed.fault, GlassblockError)
        assert failed.fault.code == code


def test_only_so_many_tasks_work_at_once() -> None:
    gate = threading.Event()
    held = [tasks.start(lambda tell: gate.wait(PATIENCE)) for _ in range(2)]
    with pytest.raises(LimitError):
        tasks.start(lambda tell: None)
    gate.set()
    for task in held:
        task.wait(PATIENCE)


def test_a_jobs_name_is_not_given_again_when_its_memory_is() -> None:
    page = painted()
    page.pills(key="gbx_sim_systems").set_value(["paged"])
    plan = simulated(small(page, 3)).session_state["gbx_sim_job"].plan
    names = {sim_runs.Job(plan, sim_runs.Limits()).key for _ in range(50)}
    assert len(names) == 50


def test_a_number_past_every_float_is_refused_with_one_sentence() -> None:
    plain = json.loads(shipped()[0].to_json())
    plain["results"][0]["summary"]["requests"] = 10**400
    with pytest.raises(WorkloadError, match="mine"):
        open_set("mine", json.dumps(plain).encode())
