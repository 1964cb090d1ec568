"""The Compare page as a visitor meets it, in a real Chromium."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.comparing import SCENARIO, recorded_lanes
from core.text import sentence
from core.workload.scenario import find_scenario
from tests.browser import steps
from tests.browser.steps import PATIENCE, Site, choose, model_ready, settled

pytestmark = pytest.mark.browser

ALERT = '[role="alert"].gbx-note'
LONG = 6 * PATIENCE


def visit(site: Site, query: str = "", **context: Any) -> AbstractContextManager[Page]:
    """The page with its runs."""
    return steps.visit(site, f"compare{query}", '[data-ready="true"]', **context)


def runs(page: Page) -> list[str]:
    return page.locator(".gc-title").all_inner_texts()


def compare_live(page: Page, scenario: str, *systems: str) -> None:
    """Runs the systems of the panel, which opens with two of them, on a scenario."""
    page.locator(".st-key-gbx_cmp_live button").first.click()
    page.get_by_test_id("stPopoverBody").wait_for()
    choose(page, "gbx_cmp_scenario", find_scenario(scenario).title["en"])
    for system in systems:
        page.locator(".st-key-gbx_cmp_systems input").click()
        page.get_by_role("option", name=sentence(f"app.cmp.system_{system}", "en")).click()
        settled(page)
        page.keyboard.press("Tab")  # closes the list, which lies over the form
    page.locator(".st-key-gbx_cmp_run button").click()


def over(page: Page, key: str) -> None:
    page.locator(f".st-key-{key} button").first.wait_for(timeout=LONG)
    settled(page)


def test_the_page_opens_on_its_own_address_in_lock_step_without_a_model(site: Site) -> None:
    with visit(site) as page:
        assert page.locator(".gc-run").count() == 2
        page.locator('[data-ready="true"]').first.focus()
        page.keyboard.press("End")
        last = max(lane.trace.num_steps for lane in recorded_lanes(["continuous", "paged"]))
        page.locator(".gb-where", has_text=f"{last} of {last}").wait_for()
        assert not [u for u in _urls(page) if "plotly" in u]


def _urls(page: Page) -> list[str]:
    script = "performance.getEntriesByType('resource').map((entry) => entry.name)"
    return [str(url).lower() for url in page.evaluate(script)]


def test_the_links_lead_from_page_to_page_and_keep_the_language(site: Site) -> None:
    with visit(site, "?lang=zh") as page:
        page.get_by_role("link", name=sentence("app.tab_explore", "zh")).click()
        page.wait_for_url("**/?lang=zh")
        page.get_by_text(sentence("app.from_recorded", "zh")).wait_for(timeout=PATIENCE)
        page.get_by_role("link", name=sentence("app.tab_compare", "zh")).click()
        page.locator(".gc-run").first.wait_for(timeout=PATIENCE)
        assert "/compare" in page.url and "lang=zh" in page.url
        page.get_by_text(sentence("app.cmp.gain", "zh")).wait_for()


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_wider_than_the_page(site: Site, width: int) -> None:
    with visit(site, viewport={"width": width, "height": 844}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_another_recorded_system_joins_and_a_bar_of_the_gain_shows_its_run(site: Site) -> None:
    with visit(site) as page:
        page.get_by_role("button", name=sentence("app.cmp.system_shared", "en"), exact=True).click()
        expect(page.locator(".gc-run")).to_have_count(3)
        settled(page)
        page.locator(".st-key-gbx_gain_recorded_shared button").click()
        expect(page.locator(".gc-run")).to_have_count(2)
        names = " ".join(runs(page))
        assert sentence("app.cmp.system_shared", "en") in names


def test_a_run_opens_alone_and_explore_leads_back_to_fork_it(site: Site) -> None:
    with visit(site) as page:
        page.locator(".gc-title").first.click()
        page.wait_for_selector(".gb-transport", timeout=PATIENCE)
        page.locator(".st-key-gbx_fork_here button").first.wait_for(timeout=PATIENCE)
        settled(page)
        page.locator(".st-key-gbx_fork_here button").first.click()
        page.get_by_text(sentence("app.cmp.from_fork", "en")).wait_for(timeout=PATIENCE)
        page.locator(".st-key-gbx_fork_go button").wait_for()
        assert page.locator(ALERT).count() == 0


def test_explores_box_names_the_run_that_was_opened_until_a_scenario_is_chosen(site: Site) -> None:
    with visit(site) as page:
        page.locator(".gc-title").first.click()
        page.wait_for_selector(".gb-transport", timeout=PATIENCE)
        name = find_scenario(SCENARIO).title["en"]
        box = page.locator(".st-key-gbx_scenario input")
        expect(box).to_have_value(re.compile(f"^Opened: {name} · "))
        settled(page)
        choose(page, "gbx_scenario", find_scenario("tour").title["en"])
        expect(box).to_have_value(find_scenario("tour").title["en"])
        assert page.locator(ALERT).count() == 0


@pytest.mark.model
@pytest.mark.slow
def test_systems_run_live_are_proved_and_forked(site: Site) -> None:
    with visit(site) as page:
        model_ready(page)
        compare_live(page, "one_prompt", "shared")
        over(page, "gbx_cmp_back")
        expect(page.locator(".gc-run")).to_have_count(3)
        page.locator(".st-key-gbx_prove button").first.click()
        page.get_by_text("equal bit for bit").first.wait_for(timeout=LONG)
        page.locator('[data-ready="true"]').first.focus()
        for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        page.locator(".gc-fork").click()
        page.locator(".st-key-gbx_fork_go button").wait_for()
        settled(page)
        page.locator(".st-key-gbx_fork_block_size input").fill("2")
        page.locator(".st-key-gbx_fork_add input").fill("Birds sing because")
        page.locator(".st-key-gbx_fork_go button").click()
        page.get_by_text(sentence("app.cmp.diff_title", "en", step=3)).wait_for(timeout=LONG)
        expect(page.locator(".gc-run")).to_have_count(2)
        page.get_by_text("+1", exact=True).first.wait_for()
        assert page.locator(ALERT).count() == 0


@pytest.mark.model
def test_a_running_comparison_can_be_stopped_and_keeps_what_it_has(site: Site) -> None:
    with visit(site) as page:
        model_ready(page)
        compare_live(page, SCENARIO)
        page.locator(".st-key-gbx_cmp_stop button").wait_for(timeout=PATIENCE)
        page.locator(".gc-run").nth(1).wait_for(timeout=PATIENCE)
        page.locator(".st-key-gbx_cmp_stop button").click()
        over(page, "gbx_cmp_back")
        assert page.locator(".gc-run").count() == 2
        assert page.locator(ALERT).count() == 0


def test_charts_come_only_when_asked_for_one_bar_and_one_map_a_memory(site: Site) -> None:
    with visit(site) as page:
        assert page.locator(".js-plotly-plot").count() == 0
        page.locator(".st-key-gbx_cmp_charts label").first.click()
        page.wait_for_selector(".js-plotly-plot .main-svg", timeout=PATIENCE)
        settled(page)
        expect(page.locator(".js-plotly-plot")).to_have_count(1 + len(runs(page)), timeout=PATIENCE)
