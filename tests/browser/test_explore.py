"""The Explore page as a visitor meets it, in a real Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.answers import answers
from app.shown import recorded
from core.text import sentence
from core.trace import events as ev
from core.trace.trace import load_trace
from core.trace.verify import verify
from core.workload.scenario import find_scenario, scenario_names
from tests.browser.steps import (
    Site,
    at_event,
    choose,
    model_ready,
    open_panel,
    run_over,
    run_own,
    settled,
)

pytestmark = pytest.mark.browser

FIRST = scenario_names()[0]
ALERT = '[role="alert"].gbx-note'


def copy_places() -> list[int]:
    events = recorded(FIRST).trace.events
    return [k for k, event in enumerate(events, start=1) if isinstance(event, ev.BlockCopied)]


def test_the_page_opens_with_a_run_that_steps_both_ways(site: Site) -> None:
    with site.visit() as page:
        at_event(page, copy_places()[0])  # it opens at a telling moment
        page.locator(".gb-shell").focus()
        for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
            page.keyboard.press(key)
        at_event(page, 1)
        page.get_by_role("button", name="Run to the next one").click()
        at_event(page, copy_places()[0])
        assert "Copy-on-write" in page.locator(".gb-sentence").inner_text()
        block = page.locator(".gb-logical").last.get_attribute("data-block")
        page.locator(".gb-logical").last.hover()
        page.wait_for_selector(f'.gb[data-hot="{block}"]')
        assert page.locator(f'.gb-hot[data-block="{block}"]').count() >= 1


@pytest.mark.model
def test_the_header_stays_one_row_when_the_model_is_ready(site: Site) -> None:
    with site.visit(viewport={"width": 1280, "height": 720}) as page:
        model_ready(page)
        header = page.locator(".st-key-gbx-header").bounding_box()
        transport = page.locator(".gb-transport").bounding_box()
        assert header is not None and header["height"] <= 60
        assert transport is not None and transport["y"] + transport["height"] <= 720


def test_the_keyboard_shows_which_page_it_is_about_to_open(site: Site) -> None:
    with site.visit() as page:
        link = page.locator(".st-key-gbx-tabs a").nth(1)
        page.locator(".st-key-gbx-tabs a").first.focus()
        page.keyboard.press("Tab")
        ring = link.evaluate("a => [a.matches(':focus-visible'), getComputedStyle(a).outlineStyle]")
        assert ring == [True, "solid"]


def test_the_transport_is_seen_without_scrolling(site: Site) -> None:
    with site.visit() as page:
        box = page.locator(".gb-transport").bounding_box()
        assert box is not None and box["y"] + box["height"] <= 900
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_the_first_visit_is_small_and_has_no_charts_script(site: Site) -> None:
    with site.browser.new_context() as context:
        page = context.new_page()
        sizes: dict[str, float] = {}
        urls: dict[str, str] = {}
        network: Any = context.new_cdp_session(page)
        network.send("Network.enable")
        network.on(
            "Network.responseReceived",
            lambda e: urls.update({e["requestId"]: e["response"]["url"]}),
        )
        network.on(
            "Network.loadingFinished",
            lambda e: sizes.update({e["requestId"]: e["encodedDataLength"]}),
        )
        network.on(
            "Network.webSocketFrameReceived",
            lambda e: sizes.update({f"ws{len(sizes)}": len(e["response"]["payloadData"]) * 3 / 4}),
        )
        page.goto(site.url)
        page.wait_for_selector('.gb[data-ready="true"]')
        settled(page)
        assert sum(sizes.values()) < 3_000_000
        assert not [url for url in urls.values() if "plotly" in url.lower()]


@pytest.mark.model
def test_a_scenario_runs_live_to_its_end_and_its_trace_can_be_kept(
    site: Site, tmp_path: Path
) -> None:
    title = find_scenario("one_prompt").title["en"]
    with site.visit() as page:
        choose(page, "gbx_scenario", title)
        model_ready(page)
        open_panel(page).locator(".st-key-gbx_run button").click()
        run_over(page)
        with page.expect_download() as waiting:
            page.locator(".st-key-gbx_download button").click()
        waiting.value.save_as(tmp_path / "live.jsonl.gz")
        trace = load_trace(tmp_path / "live.jsonl.gz")
        assert verify(trace).ok and trace.header.title["en"] == title
        assert trace.header.measured and "SmolLM2" in trace.header.model["name"]
        events = int(page.locator(".gb").get_attribute("data-event") or -1)
        assert events == len(trace.events)  # the player followed the head
        last = sentence("app.mem.at_step", "en", step=trace.num_steps)
        page.get_by_text(last).wait_for()  # and the page knows where it stands
        page.locator(".st-key-gbx_open button").first.click()
        page.locator("input[type=file]").set_input_files(tmp_path / "live.jsonl.gz")
        page.get_by_text("· opened file ·").wait_for()


@pytest.mark.model
def test_english_and_chinese_prompts_are_answered_as_plain_text(site: Site) -> None:
    with site.visit() as page:
        model_ready(page)
        run_own(page, "The <b>sea</b> is **deep** and", "@3 虚拟内存是")
        run_over(page)
        prompts = page.locator(".gbx-prompt").all_inner_texts()
        assert prompts == ["The <b>sea</b> is **deep** and", "虚拟内存是"]
        assert all(text.strip() for text in page.locator(".gbx-answer").all_inner_texts())
        assert page.locator(ALERT).count() == 0


@pytest.mark.model
def test_two_visitors_at_once_keep_their_own_runs(site: Site) -> None:
    with site.visit() as one, site.visit() as two:
        model_ready(one)
        model_ready(two)
        run_own(one, "Rivers flow to")
        run_own(two, "Mountains rise from")
        run_over(one)
        run_over(two)
        assert one.locator(".gbx-prompt").all_inner_texts() == ["Rivers flow to"]
        assert two.locator(".gbx-prompt").all_inner_texts() == ["Mountains rise from"]


@pytest.mark.model
def test_a_bad_request_is_one_sentence_and_the_page_goes_on(site: Site) -> None:
    with site.visit() as page:
        model_ready(page)
        run_own(page, "  ")
        page.wait_for_selector(ALERT)
        assert page.locator(ALERT).all_inner_texts() == [sentence("error.empty_prompt", "en")]
        run_own(page, "x" * 8001)
        page.get_by_text("8001 characters").wait_for()
        assert page.locator(ALERT).count() == 1
        assert page.locator('.gb[data-ready="true"]').count() == 1


def test_the_language_switch_reaches_every_word(site: Site) -> None:
    with site.visit() as page:
        choose(page, "gbx_lang", "中文")
        page.get_by_text("发生了什么").wait_for()
        assert re.search(r"[?&]lang=zh", page.url)
        assert page.locator(".gbx-about b").inner_text() == find_scenario(FIRST).title["zh"]
        page.reload()
        page.get_by_text("发生了什么").wait_for()


def test_a_chinese_browser_gets_chinese(site: Site) -> None:
    with site.visit(locale="zh-CN") as page:
        assert "现场运行" in page.locator(".st-key-gbx_live button").first.inner_text()


def test_dark_follows_the_system_and_the_menu(site: Site) -> None:
    with site.visit(color_scheme="dark") as page:
        page.wait_for_selector('.gb[data-theme="dark"]')
        ground = page.evaluate(
            "getComputedStyle(document.querySelector('.st-key-gbx-header')).backgroundColor"
        )
        assert ground == "rgb(24, 28, 38)"
        page.get_by_test_id("stMainMenu").click()
        page.get_by_test_id("stMainMenuItem-theme-Light").click()
        page.wait_for_selector('.gb[data-theme="light"]')


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_phone_shows_all_without_sideways_scrolling(site: Site, lang: str) -> None:
    with site.visit(f"?lang={lang}", viewport={"width": 390, "height": 844}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        open_panel(page)
        box = page.get_by_test_id("stPopoverBody").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff rubbish", b'{"glassblock": {"schema": 99}}\n', b"\x1f\x8b cut"]
)
def test_an_upload_of_rubbish_is_one_sentence(site: Site, data: bytes) -> None:
    with site.visit() as page:
        page.locator(".st-key-gbx_open button").first.click()
        page.locator("input[type=file]").set_input_files(
            {"name": "mine.jsonl", "mimeType": "application/octet-stream", "buffer": data}
        )
        page.wait_for_selector(ALERT)
        (text,) = page.locator(ALERT).all_inner_texts()
        assert text.startswith("mine.jsonl")
        # The note comes above the player, which is mounted again below it.
        page.wait_for_selector('.gb[data-ready="true"]')


def test_charts_come_when_asked_for_and_mark_the_step(site: Site) -> None:
    with site.visit() as page:
        page.locator(".st-key-gbx_charts label").first.click()
        page.wait_for_selector(".js-plotly-plot >> nth=2", timeout=30_000)
        settled(page)
        page.locator(".gb-shell").focus()
        page.keyboard.press("Home")
        page.keyboard.press("]")
        at_event(page, copy_places()[0])
        page.wait_for_selector(".js-plotly-plot .shapelayer path >> nth=0", state="attached")


def test_the_texts_of_the_recorded_run_stand_below_it(site: Site) -> None:
    with site.visit() as page:
        lines = [line for answer in answers(recorded(FIRST).trace.events) for line in answer.lines]
        shown = page.locator(".gbx-cards .gbx-card h3").all_inner_texts()
        assert len(shown) == len(lines)
        assert all(text.startswith(line.label) for text, line in zip(shown, lines, strict=True))
