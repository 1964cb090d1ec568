"""The Compare page without a browser: what it opens with, and what its buttons set to work."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import models, state
from app.compare_forms import system_detail
from app.comparing import (
    SCENARIO,
    Comparison,
    Gain,
    Lane,
    Proving,
    recorded_gain,
    recorded_lanes,
    recorded_systems,
)
from app.fork_words import lane_name
from app.live import Limits, Registry, Session
from app.models import ModelHolder
from app.shown import Shown
from app.state import registry
from core.text import LANGUAGES, sentence
from core.workload.compare import GAIN
from core.workload.scenario import find_scenario
from tests.app.test_comparing import WatchedFake
from tests.app.test_page import MAIN


@pytest.fixture(autouse=True)
def own_process_state() -> Iterator[None]:
    before = models.shared(), registry()
    state.install_registry(Registry(Limits(pool_bytes=1 << 30)))
    holder = ModelHolder(lambda tell: WatchedFake())
    holder.start()
    holder.wait(20)
    models.install(holder)
    yield
    models.install(before[0])
    state.install_registry(before[1])


def painted(lang: str | None = None) -> AppTest:
    page = AppTest.from_file(str(MAIN), default_timeout=60)
    if lang:
        page.query_params["lang"] = lang
    page.switch_page("app_pages/compare.py")
    return settled(page)


def settled(page: AppTest) -> AppTest:
    page.run()
    assert not page.exception, page.exception
    return page


def html(page: AppTest) -> str:
    return "\n".join(str(item.proto.body) for item in page.get("html"))


def session(page: AppTest) -> Session:
    return registry().session(page.session_state["gbx_token"])


def press(page: AppTest, key: str) -> AppTest:
    page.button(key=key).click().run()
    assert not page.exception, page.exception
    return page


def worked(page: AppTest, name: str) -> Any:
    work = session(page).work[name]
    work.wait(180)
    settled(page)
    return work


@pytest.mark.parametrize("lang", LANGUAGES)
def test_it_opens_with_two_recorded_runs_and_the_recorded_gain(lang: str) -> None:
    page = painted(lang)
    assert len(page.get("bidi_component")) == 1
    text = html(page)
    assert sentence("app.cmp.from_recorded", lang) in text
    assert sentence("app.cmp.figures", lang) in text and sentence("app.cmp.gain", lang) in text
    assert sentence("app.cmp.gain_claim", lang)[:20] in text
    assert not re.search(r"\bapp\.cmp\.|\{\w+\}", text.replace("{--", ""))
    links = {item.proto.label for item in page.get("page_link")}
    assert {sentence("app.tab_explore", lang), sentence("app.tab_compare", lang)} <= links


def test_all_four_recorded_systems_are_there_and_can_be_chosen() -> None:
    assert recorded_systems() == list(GAIN)
    page = painted()
    page.button_group(key="gbx_cmp_recorded").set_value(list(GAIN)).run()
    assert not page.exception
    assert html(page).count('<th scope="row">') == 4


def test_a_live_comparison_runs_and_shows_its_lanes() -> None:
    page = press(painted(), "gbx_cmp_run")
    work = worked(page, "compare")
    assert isinstance(work, Comparison)
    assert [lane.name for lane in work.lanes] == ["continuous", "paged"]
    assert sentence("app.cmp.from_live", "en") in html(page)
    press(page, "gbx_cmp_back")
    assert sentence("app.cmp.from_recorded", "en") in html(page)


def test_systems_and_sizes_are_the_visitors() -> None:
    page = painted()
    page.multiselect(key="gbx_cmp_systems").set_value(["static", "custom", "buddy"]).run()
    page.selectbox(key="gbx_cmp_custom_batching").set_value("static")
    page.selectbox(key="gbx_cmp_custom_kv_cache_dtype").set_value("fp8")
    sizes = [item for item in page.number_input if "block_size" in str(item.key)]
    sizes[0].set_value(8)
    press(page, "gbx_cmp_run")
    lanes = worked(page, "compare").lanes
    assert [lane.name for lane in lanes] == ["static", "custom", "buddy"]
    assert {lane.config.usable_slots for lane in lanes} == {1136}
    assert lanes[1].config.batching == "static" and lanes[1].config.allocator == "paged"
    assert {lane.config.block_size for lane in lanes} == {8}
    assert [lane.config.kv_cache_dtype for lane in lanes] == ["auto", "fp8", "auto"]
    details = [system_detail(lane.config, state.say("en"), same=True) for lane in lanes]
    assert ["KV in fp8" in detail for detail in details] == [False, True, False]


def test_one_system_alone_and_a_memory_too_large_are_one_sentence_each() -> None:
    page = painted()
    page.multiselect(key="gbx_cmp_systems").set_value(["paged"]).run()
    press(page, "gbx_cmp_run")
    assert sentence("error.two_systems", "en") in html(page)
    assert html(page).count('role="alert"') == 1 and "compare" not in session(page).work
    state.install_registry(Registry(Limits(pool_bytes=1 << 16)))
    page = press(painted(), "gbx_cmp_run")
    assert "MiB" in html(page) and html(page).count('role="alert"') == 1


def test_the_proof_runs_at_a_click_and_says_what_it_compared() -> None:
    page = press(painted(), "gbx_cmp_run")
    worked(page, "compare")
    press(page, "gbx_prove")
    work = worked(page, "prove")
    assert isinstance(work, Proving) and work.fault is None
    text = html(page)
    assert "equal bit for bit" in text and sentence("app.cmp.proof", "en") in text


def test_the_past_is_forked_and_both_futures_are_shown_with_a_diff() -> None:
    page = press(painted(), "gbx_cmp_run")
    worked(page, "compare")
    press(page, "gbx_fork_toggle")
    page.number_input(key="gbx_fork_block_size").set_value(4)
    page.text_input(key="gbx_fork_add").set_value("<b>new</b> prompt")
    press(page, "gbx_fork_go")
    work = worked(page, "compare")
    assert work.fork is not None and [lane.name for lane in work.lanes] == ["paged", "fork"]
    assert work.lanes[1].config.block_size == 4
    text = html(page)
    assert "+1" in text and sentence("app.cmp.diff_finished", "en") in text
    assert sentence("app.cmp.fork_rate", "en") in text
    press(page, "gbx_cmp_back")
    assert [lane.name for lane in session(page).work["compare"].lanes] == ["continuous", "paged"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_fork_says_of_what_it_is_one_after_which_step_and_what_changed(lang: str) -> None:
    page = press(painted(lang), "gbx_fork_toggle")
    page.number_input(key="gbx_fork_block_size").set_value(4)
    page.selectbox(key="gbx_fork_policy").set_value("priority")
    page.text_input(key="gbx_fork_add").set_value("a <b>new</b> prompt")
    press(page, "gbx_fork_go")
    fork = worked(page, "compare").lanes[1]
    step, text = fork.first_step, html(page)
    past = f"{find_scenario(SCENARIO).title[lang]} · {sentence('app.cmp.system_paged', lang)}"
    title = fork.trace.header.title[lang]
    changed = {
        sentence("app.cmp.fork_change", lang, name=sentence("app.cmp.block_size", lang),
                 before=recorded_lanes(["paged"])[0].config.block_size, after=4),
        sentence("app.cmp.fork_change", lang, name=sentence("app.cmp.policy", lang),
                 before=sentence("app.cmp.policy_fcfs", lang),
                 after=sentence("app.cmp.policy_priority", lang)),
        sentence("app.cmp.fork_change_add", lang, n=1),
    }  # fmt: skip
    head, _, tail = title.partition(": " if lang == "en" else "：")
    assert past in head and str(step) in head and set(re.split("; |；", tail)) == changed
    assert title in text and sentence("app.cmp.past_recorded", lang) in text
    assert sentence("app.cmp.from_live", lang) not in text


def test_beside_a_fork_in_which_nobody_could_run_its_past_can_be_forked() -> None:
    page = press(painted(), "gbx_fork_toggle")
    press(page, "gbx_fork_go")  # the fake model refuses the recorded model's tokens
    assert worked(page, "compare").lanes[1].trace.num_steps == 0
    press(page, "gbx_fork_toggle")
    press(page, "gbx_fork_go")
    assert [lane.name for lane in worked(page, "compare").lanes] == ["paged", "fork"]


def test_a_fork_of_a_fork_names_the_run_that_both_go_back_to() -> None:
    page = press(painted(), "gbx_cmp_run")
    worked(page, "compare")
    press(page, "gbx_fork_toggle")
    press(page, "gbx_fork_go")
    first = worked(page, "compare").lanes[1].trace.header.title["en"]
    assert first.endswith(": nothing changed")
    press(page, "gbx_fork_toggle")
    press(page, "gbx_fork_go")
    second = worked(page, "compare").lanes[1].trace.header.title["en"]
    root = find_scenario(SCENARIO).title["en"]
    assert second.startswith(f"Fork of a fork of “{root} · ") and second.count("Fork") == 1
    assert sentence("app.cmp.past_live", "en") in html(page)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_run_opened_from_here_is_named_in_explores_box(lang: str) -> None:
    page = painted(lang)
    state.registry().session(page.session_state["gbx_token"]).opened = Shown(
        "recorded-static", *_parts(recorded_lanes(["static"])[0]), "recorded",
        label=lane_name(recorded_lanes(["static"])[0]),
    )  # fmt: skip
    page.switch_page("app_pages/explore.py")
    settled(page)
    box = page.selectbox(key="gbx_scenario")
    name = f"{find_scenario(SCENARIO).title[lang]} · {sentence('app.cmp.system_static', lang)}"
    assert box.options[box.index or 0] == sentence("app.opened_run", lang, name=name)
    assert name in html(page)


def _parts(lane: Lane) -> tuple[Any, bytes]:
    return lane.trace, lane.log


def test_a_fork_that_can_not_be_is_one_sentence() -> None:
    page = press(painted(), "gbx_fork_toggle")
    page.number_input(key="gbx_fork_slots").set_value(16)
    page.number_input(key="gbx_fork_block_size").set_value(32)
    press(page, "gbx_fork_go")
    assert "no block of 32" in html(page) and html(page).count('role="alert"') == 1


def test_the_gain_is_measured_again_and_a_bar_shows_its_run() -> None:
    page = press(painted(), "gbx_measure")
    work = worked(page, "gain")
    assert isinstance(work, Gain) and work.report is not None
    assert "Fake" in html(page)
    press(page, "gbx_gain_own_paged")
    assert [lane.name for lane in page.session_state["gbx_cmp_pinned"]] == ["continuous", "paged"]


def test_a_bar_of_the_recorded_gain_chooses_its_runs_in_the_pills_too() -> None:
    page = press(painted(), "gbx_gain_recorded_continuous")
    assert page.session_state["gbx_cmp_recorded"] == ["static", "continuous"]
    press(page, "gbx_gain_recorded_shared")
    assert page.session_state["gbx_cmp_recorded"] == ["paged", "shared"]


def test_the_recorded_gain_says_how_it_was_measured() -> None:
    report = recorded_gain()
    assert report is not None and report["measured"] and report["model"]["processor"]
    assert report["repeat"] >= 3 and [bar["system"] for bar in report["bars"]] == list(GAIN)
    for item in report["systems"]:
        assert item["figures"]["tokens"] == report["systems"][0]["figures"]["tokens"]


def test_explore_leads_a_run_here_to_be_forked() -> None:
    page = settled(AppTest.from_file(str(MAIN), default_timeout=60))
    press(page, "gbx_fork_here")
    base = page.session_state["gbx_fork_base"]
    assert base.name == "run" and base.params
    page.switch_page("app_pages/compare.py")
    settled(page)
    assert sentence("app.cmp.from_fork", "en") in html(page)
    page.selectbox(key="gbx_fork_policy").set_value("priority")
    press(page, "gbx_fork_go")
    work = worked(page, "compare")
    assert [lane.name for lane in work.lanes] == ["run", "fork"]
