"""The Kernel lab as a visitor meets it: turns by mouse and keys, charts, small screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.steps import Site, settled
from tests.browser.test_simulate import rows_of, save, visit

pytestmark = pytest.mark.browser

SAYS = ".gbx-traffic [data-part=says]"


def said(page: Any) -> str:
    return str(page.locator(SAYS).inner_text())


def test_the_turns_of_the_loop_go_by_buttons_keys_and_play(site: Site) -> None:
    with visit(site, "kernel-lab", reduced_motion="reduce") as page:
        page.wait_for_selector(".gbx-traffic canvas")
        turn = page.locator(".gbx-traffic [data-part=turn]")
        last = int(turn.get_attribute("max"))
        assert last > 2
        assert said(page).startswith(f"turn {last} of {last}")
        turn.focus()
        page.keyboard.press("Home")
        assert "nothing is read yet" in said(page)
        page.keyboard.press("ArrowRight")
        assert said(page).startswith(f"turn 1 of {last}")
        page.locator(".gbx-traffic [data-part=next]").click()
        assert said(page).startswith(f"turn 2 of {last}")
        page.keyboard.press("Shift+Tab")
        turn.focus()
        page.keyboard.press("End")
        page.locator(".gbx-traffic [data-part=play]").click()
        page.locator(SAYS, has_text=f"turn {last} of {last}: ").wait_for()
        assert page.locator(".gbx-traffic [data-part=play]").inner_text() == "Play"


def test_a_block_tells_who_reads_it_by_mouse_and_by_keys(site: Site) -> None:
    with visit(site, "kernel-lab") as page:
        page.wait_for_selector(".gbx-traffic canvas")
        pool = page.locator(".gbx-traffic canvas")
        pool.focus()
        page.keyboard.press("Home")
        assert said(page).startswith("Block 0:")
        page.keyboard.press("ArrowRight")
        assert said(page).startswith("Block 1:")
        page.keyboard.press("Escape")
        assert said(page).startswith("turn ")
        box = pool.bounding_box()
        pool.hover(position={"x": 26, "y": 26})
        assert box is not None and said(page).startswith("Block 0:")


def test_a_program_can_be_looked_at_alone(site: Site) -> None:
    with visit(site, "kernel-lab") as page:
        chips = page.locator(".gbx-traffic .programs button")
        chips.first.wait_for()
        name = chips.first.inner_text()
        page.locator(".gbx-traffic [data-part=turn]").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        chips.first.click()
        assert chips.first.get_attribute("aria-pressed") == "true"
        assert said(page).split(": ", 1)[1].startswith(f"{name} → ")
        assert "·" not in said(page)


def test_charts_save_what_they_show(site: Site, tmp_path: Path) -> None:
    with visit(site, "kernel-lab") as page:
        for key in ("lab_block_size", "lab_roofline", "lab_reads"):
            page.wait_for_selector(f".st-key-gbx_chart_{key} .main-svg")
            kinds = {row["kind"] for row in rows_of(save(page, key, "csv", tmp_path))}
            assert kinds <= {"measured", "derived", "published"} and kinds


@pytest.mark.parametrize("width", [390, 1920])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nothing_is_wider_than_the_screen(site: Site, width: int, lang: str) -> None:
    viewport = {"width": width, "height": 900}
    with visit(site, "kernel-lab", f"?lang={lang}", viewport=viewport) as page:
        page.wait_for_selector(".gbx-traffic canvas")
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        canvas = page.locator(".gbx-traffic canvas").bounding_box()
        assert canvas is not None and canvas["x"] + canvas["width"] <= width
