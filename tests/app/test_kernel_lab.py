"""The Kernel lab and Explore's memory card without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import kernel_lab, lab_results, state
from app.figures.roofline import Roof
from app.lab_results import GpuResult, gpu_results, recorded
from app.memory_panel import StepMemory, account_of, card
from app.shown import open_upload
from app.shown import recorded as recorded_run
from app.state import say
from core.errors import TraceError
from core.exec.decode_speed import measure
from core.exec.interpreter_check import Check
from core.text import LANGUAGES, sentence
from core.trace.events import StepEnded
from tests.app import painting
from tests.app.painting import html
from tests.exec.test_decode_speed import CASES

ROOT = Path(__file__).parents[2]
PATIENCE = 120
pytestmark = pytest.mark.usefixtures("no_model")


def painted(lang: str = "en") -> AppTest:
    return painting.painted("kernels", lang)


def figures(page: AppTest) -> dict[str, dict[str, Any]]:
    found = [json.loads(item.proto.spec) for item in page.get("plotly_chart")]
    return {figure["layout"]["title"]["text"]: figure for figure in found}


def figure(page: AppTest, name: str) -> dict[str, Any]:
    return figures(page)[sentence(f"app.chart.chart_lab_{name}", "en")]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_opens_with_its_record_and_says_what_is_measured(lang: str) -> None:
    page = painted(lang)
    text = html(page)
    for part in ("traffic", "times", "roofline", "gpu", "triton"):
        assert sentence(f"app.lab.part_{part}", lang) in text
    assert lab_results.COMMAND in text
    assert len(figures(page)) == 5 + len(gpu_results())
    assert "app.lab" not in text and "app.chart" not in text
    assert not [name for name in figures(page) if "app." in name]


def test_times_are_those_of_the_record_and_the_limit_is_derived() -> None:
    run = recorded()
    assert run is not None
    drawn = figure(painted(), "context")
    fastest, median, limit = drawn["data"]
    points = run.of("context")
    assert fastest["y"] == pytest.approx([1000 * p.time.fastest for p in points])
    assert median["y"] == pytest.approx([1000 * p.time.median for p in points])
    assert limit["y"] == pytest.approx([1000 * p.bytes_read / run.copy_rate for p in points])
    assert [curve["meta"] for curve in drawn["data"]] == ["measured", "measured", "derived"]
    assert run.processor in drawn["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")


def test_blocks_are_said_to_be_shared_only_where_they_are() -> None:
    page = painted()
    apart, shared = (sentence(f"app.lab.{name}", "en") for name in ("blocks_apart", "blocks_line"))
    tails = [text.rpartition(": ")[2] for text in (apart, shared)]
    assert [tail in html(page) for tail in tails] == [True, False]
    page.selectbox("gbx_lab_run").select("06_beam_of_four").run()
    assert [tail in html(page) for tail in tails] == [False, True]


def test_a_curve_within_one_power_of_ten_has_labels_beside_it() -> None:
    for name in ("block_size", "batch", "context"):
        assert figure(painted(), name)["layout"]["yaxis"]["dtick"] == "D2"


def test_the_roofline_names_each_roof_as_measured_or_published() -> None:
    drawn = figure(painted(), "roof")
    roofs = [c for c in drawn["data"] if c["mode"] == "lines"]
    points = [c for c in drawn["data"] if c["mode"] == "markers"]
    assert [roof["meta"] for roof in roofs] == ["measured", "published", "published"]
    assert sorted(point["x"][0] for point in points) == [0.5, 1.5, 4.5]


def test_a_roof_is_the_lower_of_its_limits() -> None:
    roof = Roof("", 10.0, 50.0, "measured")
    assert (roof.at(1), roof.at(roof.ridge), roof.at(100)) == (10.0, 50.0, 50.0)


def test_another_run_and_step_change_the_counts() -> None:
    page = painted()
    before = figure(page, "reads")
    page.selectbox(key="gbx_lab_run").set_value("08_static_and_paged").run()
    page.select_slider(key="gbx_lab_step_08_static_and_paged").set_value(49).run()
    assert not page.exception
    after = figure(page, "reads")
    shared, separate, padded = (curve["y"] for curve in after["data"])
    assert after["data"][0]["y"] != before["data"][0]["y"]
    assert separate == pytest.approx([3 * one for one in shared])
    assert max(shared) == pytest.approx(padded[0])
    assert "derived: step 49" in after["layout"]["title"]["subtitle"]["text"]


def test_the_visitors_own_run_can_be_looked_at_also_in_contiguous_memory() -> None:
    page = painted()
    path = ROOT / "assets" / "traces" / "compare" / "static.jsonl.gz"
    session = state.registry().session(page.session_state["gbx_token"])
    session.opened = open_upload(path.name, path.read_bytes())
    page.run()
    page.selectbox(key="gbx_lab_run").set_value("").run()
    assert not page.exception
    step = page.select_slider(key=f"gbx_lab_step_{session.opened.key}").value
    assert f"derived: step {step}," in figure(page, "reads")["layout"]["title"]["subtitle"]["text"]


def test_cutting_contexts_multiplies_the_programs() -> None:
    page = painted()
    assert "9 programs: 3 sequences x 3 KV heads x 1 share." in html(page)
    page.selectbox(key="gbx_lab_splits").set_value(4).run()
    assert "36 programs: 3 sequences x 3 KV heads x 4 shares." in html(page)


def test_measuring_here_replaces_the_record_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = measure(cases=CASES, repeats=2, copied=1 << 12, side=8)
    monkeypatch.setitem(kernel_lab._WORK, "speed", lambda tell: made)
    page = painted()
    page.button(key="gbx_lab_speed").click()
    page.run()
    page.session_state["gbx_lab_jobs"]["speed"].wait(PATIENCE)
    page.run()
    page.run()
    assert not page.exception
    assert sentence("app.lab.made_here", "en") in html(page)
    fastest = figure(page, "block_size")["data"][0]
    assert fastest["y"] == pytest.approx([1000 * made.points[0].time.fastest])


def test_a_wrong_kernel_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        Check(4, 2, 1, 16, (1, 9), 1e-7, 1e-5, 0.1),
        Check(8, 2, 1, 16, (1, 9), 0.5, 1e-5, 0.1),
        Check(16, 2, 1, 16, (1, 9), float("nan"), 1e-5, 0.1),
    )
    monkeypatch.setitem(kernel_lab._WORK, "check", lambda tell: checks)
    page = painted()
    page.button(key="gbx_lab_check").click()
    page.run()
    page.session_state["gbx_lab_jobs"]["check"].wait(PATIENCE)
    page.run()
    page.run()
    assert html(page).count(f">{sentence('app.lab.check_wrong', 'en')}<") == 2
    assert sentence("app.lab.check_caption", "en") in html(page)


# ---------------------------------------------------------------------------------------- GPU


def gpu_file(**changes: Any) -> dict[str, Any]:
    """As `python -m tests.gpu` writes it; the numbers are made up for the test."""
    shape = {"num_seqs": 64, "context": 4096, "block_size": 16, "num_heads": 32,
             "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}  # fmt: skip
    times = {"seconds": {"median": 2e-4, "p10": 1e-4, "p90": 3e-4}}
    kernels = {
        name: {**times, "gb_per_s": 100.0 * n, "share_of_copy": 0.1 * n}
        for n, name in enumerate(("paged", "contiguous kernel"), start=1)
    }
    return {
        "machine": {"device": "Test GPU", "torch": "2", "triton": "3", "dry_run": False},
        "correctness": {"seed": 1, "attention": {"checks": 7, "largest_error": 1e-6}},
        "kernels": {
            "copy": {"gb_per_s": {"median": 1000.0}},
            "decode": [{"shape": shape, "splits": 2, "bytes": 5, "kernels": kernels}],
        },
        "engine": {"eager": {"tokens_per_s": 123.0}, "tokens": {"prompts": 50}},
        **changes,
    }


def test_without_a_gpu_result_the_page_says_that_none_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lab_results, "gpu_results", lambda: [])
    assert "No GPU figure has been measured yet" in html(painted())


def test_a_gpu_result_is_drawn_with_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpu_test.json").write_text(json.dumps(gpu_file()))
    (tmp_path / "gpu_broken.json").write_text("{")
    found = gpu_results(tmp_path)
    assert len(found) == 1
    monkeypatch.setattr(lab_results, "gpu_results", lambda: found)
    page = painted()
    assert "No GPU figure" not in html(page)
    bars = {curve["name"]: curve["x"] for curve in figure(page, "shares")["data"]}
    assert bars == {"paged": [0.1], "contiguous kernel": [0.2]}
    assert "Test GPU" in html(page) and "123" in html(page)


def test_a_dry_run_is_no_gpu_result() -> None:
    assert GpuResult.from_json(gpu_file(machine={"device": "cpu", "dry_run": True})) is None
    assert GpuResult.from_json(gpu_file(machine={"device": "cpu"})) is None


def test_a_part_that_failed_is_told_and_the_others_are_kept() -> None:
    result = GpuResult.from_json(gpu_file(kernels={"failed": "OutOfMemory"}))
    assert result is not None
    assert result.failed == (("kernels", "OutOfMemory"),)
    assert result.cases == () and result.engine == {"eager": 123.0}
    with pytest.raises(TraceError):
        GpuResult.from_json({"kernels": {}})


# ------------------------------------------------------------------------------- memory card


@pytest.mark.parametrize(
    "memory",
    [
        {"kv_pool": 5, "weights": 20, "process": 100},
        {"kv_pool": 50, "weights": 80, "process": 100},
        {"kv_pool": 5, "weights": 20, "graphs": 3, "other": 2, "allocated": 30, "reserved": 40,
         "non_torch": 7, "activation_peak": 4, "device": 99, "process": 100},
    ],
)  # fmt: skip
def test_the_parts_of_memory_add_up_to_the_whole(memory: dict[str, int]) -> None:
    account = account_of(memory)
    assert account is not None
    assert sum(account.parts.values()) == account.whole
    if "allocated" in memory:
        assert account.whole == memory["reserved"] + memory["non_torch"]
        assert account.peak == 4 and account.device == 99
    else:
        assert account.whole - account.missing == memory["process"]


def test_a_step_without_memory_has_no_account() -> None:
    assert account_of({}) is None


def test_the_memory_of_a_step_is_that_of_its_end() -> None:
    trace = recorded_run("01_tour").trace
    read = StepMemory()
    ended = {e.step: e.memory for e in trace.events if isinstance(e, StepEnded)}
    assert read.at(trace, 5) == (5, ended[5])
    assert read.at(trace, 9999) == (max(ended), ended[max(ended)])
    assert read.at(trace, 0) == (0, {})


@pytest.mark.parametrize("lang", LANGUAGES)
def test_explore_says_that_without_a_gpu_memory_is_the_process_own(lang: str) -> None:
    page = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    page.query_params["lang"] = lang
    page.run()
    assert not page.exception
    text = html(page)
    assert sentence("app.mem.title", lang) in text
    about = sentence("app.mem.about_process", lang, whole="|").split("|")[0]
    assert about in text
    assert "app.mem" not in text


def test_a_modelled_run_shows_no_bytes() -> None:
    trace = recorded_run("01_tour").trace
    from dataclasses import replace

    modelled = type(trace)(replace(trace.header, measured=False), trace.events)
    shown = card(modelled, 3, {"process": 10}, say("en"))
    assert sentence("app.mem.modelled", "en") in shown and "gbx-membar" not in shown
