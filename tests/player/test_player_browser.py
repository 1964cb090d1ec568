"""The player alone in a real Chromium: keys, highlights, marks, motion, widths, languages."""

from collections.abc import Iterator
from functools import cache
from urllib.parse import parse_qsl

import pytest
from playwright.sync_api import Browser, Page

from app.player.component import pack
from core.trace import events as ev
from core.trace.delta_log import encode
from core.trace.trace import Trace
from tests.player.contrast import assert_aa_contrast
from tests.player.runs import RUNS, header_of, story_run
from tests.player.served import opened, serving

pytestmark = pytest.mark.browser


@cache
def run_named(name: str) -> Trace:
    return story_run() if name == "story" else RUNS[name]()


@cache
def events_of(name: str) -> list[ev.Event]:
    return list(run_named(name).events)


@cache
def log_of(name: str, cut: int | None = None) -> bytes:
    return encode(header_of(run_named(name)), events_of(name)[:cut])


def data(query: str) -> bytes:
    asked = dict(parse_qsl(query))
    log = log_of(asked.get("run", "story"), int(asked["cut"]) if "cut" in asked else None)
    theme, start = asked.get("theme", "light"), int(asked.get("start", 0))
    return pack(log, lang=asked.get("lang", "en"), theme=theme, height=800, start=start)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(data) as url:
        yield url


def wait_at(page: Page, event: int) -> None:
    page.wait_for_selector(f'.gb[data-event="{event}"]')


def places(name: str, kind: type[ev.Event]) -> list[int]:
    """Cursor positions just after each event of a kind."""
    return [k for k, event in enumerate(events_of(name), start=1) if isinstance(event, kind)]


def deferrals(name: str) -> list[int]:
    """Cursor positions where a request was first told to wait for memory."""
    found: list[int] = []
    last = ""
    for place in places(name, ev.RequestDeferred):
        event = events_of(name)[place - 1]
        assert isinstance(event, ev.RequestDeferred)
        if event.need and event.request_id != last:
            found.append(place)
            last = event.request_id
    return found


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_keys_work_before_anything_was_clicked(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        press(page, "ArrowRight", "ArrowRight", "ArrowRight")
        wait_at(page, 3)


def test_keys_step_both_ways_by_event_phase_and_step(browser: Browser, address: str) -> None:
    events = events_of("story")
    with opened(browser, address) as page:
        page.locator(".gb-shell").focus()
        press(page, "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft")
        wait_at(page, 2)
        press(page, "Shift+ArrowRight")
        wait_at(page, 12)
        press(page, "End")
        wait_at(page, len(events))
        press(page, "ArrowRight")
        wait_at(page, len(events))
        press(page, "Home")
        wait_at(page, 0)
        page.get_by_role("radio", name="step").click()
        press(page, "ArrowRight", "ArrowRight")
        last_of_step_1 = max(k for k, event in enumerate(events, start=1) if event.step == 1)
        wait_at(page, last_of_step_1)
        assert page.locator(".gb").get_attribute("data-step") == "1"
        page.get_by_role("radio", name="phase").click()
        press(page, "ArrowLeft")
        assert page.locator(".gb").get_attribute("data-phase") != "free"


def test_the_sentence_and_its_source_are_those_of_the_event(browser: Browser, address: str) -> None:
    place = places("story", ev.BlockCopied)[0]
    copied = events_of("story")[place - 1]
    assert isinstance(copied, ev.BlockCopied)
    with opened(browser, f"{address}?start={place}") as page:
        sentence = page.locator(".gb-sentence")
        assert str(copied.destination) in sentence.inner_text()
        assert sentence.locator("b").count() > 0
        assert "**" not in sentence.inner_text()
        assert page.locator(".gb-source").inner_text() == copied.at.replace(":", " · ")
        assert page.locator('.gb-phases [aria-current="step"]').inner_text() == "allocate"


def test_marks_are_reached_by_key_and_by_the_selector(browser: Browser, address: str) -> None:
    kinds = (ev.BlockCopied, ev.BlockEvicted, ev.RequestPreempted, ev.RequestFinished)
    marks = sorted([*(p for kind in kinds for p in places("story", kind)), *deferrals("story")])
    with opened(browser, address) as page:
        page.locator(".gb-shell").focus()
        press(page, "]")
        wait_at(page, marks[0])
        press(page, "]", "]")
        wait_at(page, marks[2])
        press(page, "[")
        wait_at(page, marks[1])
        press(page, "Home")
        page.get_by_label("What to look for").select_option("1")
        page.get_by_role("button", name="Run to the next one").click()
        wait_at(page, places("story", ev.BlockEvicted)[0])


def test_hovering_lights_the_same_block_everywhere(browser: Browser, address: str) -> None:
    place = places("story", ev.BlockCopied)[0]
    copied = events_of("story")[place - 1]
    assert isinstance(copied, ev.BlockCopied)
    block = copied.destination
    with opened(browser, f"{address}?start={place}") as page:
        page.locator(f'.gb-logical[data-block="{block}"]').hover()
        page.wait_for_selector(f'.gb[data-hot="{block}"]')
        lit = page.locator(f'.gb-hot[data-block="{block}"]')
        assert lit.count() >= 2  # the logical block and the number in the sentence
        assert page.locator(".gb-lines path").count() == 1
        assert f"Block {block}" in page.locator(".gb-tip").inner_text()
        page.locator(".gb-where").hover()
        page.wait_for_selector('.gb[data-hot="-1"], .gb[data-hot=""]')
        assert page.locator(".gb-hot").count() == 0


def test_hovering_the_pool_lights_the_logical_block_and_a_click_pins_it(
    browser: Browser, address: str
) -> None:
    place = places("story", ev.BlockCopied)[0]
    with opened(browser, f"{address}?start={place}") as page:
        rect = page.evaluate("window.player.pool.rect(0)")
        at = {"x": rect["x"] + rect["w"] / 2, "y": rect["y"] + rect["h"] / 2}
        canvas = page.locator(".gb-canvas")
        canvas.hover(position=at)
        page.wait_for_selector('.gb-logical.gb-hot[data-block="0"]')
        assert page.locator('.gb-logical.gb-hot[data-block="0"]').count() == 2  # shared
        canvas.click(position=at)
        page.locator(".gb-where").hover()
        assert page.locator(".gb").get_attribute("data-hot") == "0"
        page.locator(".gb-shell").focus()
        press(page, "Escape")
        page.wait_for_selector('.gb[data-hot=""]')


def test_what_the_page_holds_equals_the_python_fold(browser: Browser, address: str) -> None:
    from tests.player.test_fold_js import python_states

    states = list(python_states(run_named("story")))
    with opened(browser, address) as page:
        for place in (0, 1, 150, 777, 400, len(states) - 1):
            page.evaluate(f"window.player.go({place})")
            assert page.evaluate("window.player.fold.snapshot()") == states[place]


def test_play_moves_on_and_space_pauses(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.locator(".gb-shell").focus()
        page.get_by_label("Speed").select_option("64")
        page.locator(".gb-shell").focus()
        press(page, "Space")
        page.wait_for_function("Number(document.querySelector('.gb').dataset.event) > 5")
        assert page.get_by_role("button", name="Pause").count() == 1
        press(page, "Space")
        assert page.get_by_role("button", name="Play").count() == 1


def test_the_cursor_is_reported_once_it_rests(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.locator(".gb-shell").focus()
        press(page, *["ArrowRight"] * 5)
        page.wait_for_function("window.cursors.length > 0")
        fifth = events_of("story")[4]
        rested = {"event": 5, "step": fifth.step, "phase": fifth.phase}
        assert page.evaluate("window.cursors") == [rested]


def test_dragging_the_timeline_moves_the_cursor(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        box = page.locator(".gb-timeline").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 10, box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30)
        page.mouse.up()
        steps = run_named("story").num_steps
        step = int(page.locator(".gb").get_attribute("data-step") or 0)
        assert abs(step - steps / 2) <= 2
        slider = page.get_by_role("slider")
        assert slider.get_attribute("aria-valuenow") == page.locator(".gb").get_attribute(
            "data-event"
        )


def test_a_growing_run_is_followed_from_its_end_and_only_from_there(
    browser: Browser, address: str
) -> None:
    grow = """async (query) => {
        const { unpack } = await import("/player.js");
        const data = new Uint8Array(await (await fetch("/data?" + query)).arrayBuffer());
        const { options, bytes } = unpack(data);
        window.mountPlayer(document.getElementById("player"), bytes, options);
    }"""
    with opened(browser, f"{address}?cut=200&start=200") as page:
        page.evaluate(grow, "cut=500")
        wait_at(page, 500)
        page.evaluate("window.player.go(120)")
        page.evaluate(grow, "cut=900")
        wait_at(page, 120)
        assert page.evaluate("window.player.fold.length") == 900
        assert page.locator(".gb").count() == 1


def test_a_remount_with_another_theme_or_language_keeps_the_place(
    browser: Browser, address: str
) -> None:
    again = """async (query) => {
        const { unpack } = await import("/player.js");
        const data = new Uint8Array(await (await fetch("/data?" + query)).arrayBuffer());
        const { options, bytes } = unpack(data);
        window.mountPlayer(document.getElementById("player"), bytes, options);
    }"""
    with opened(browser, address) as page:
        page.evaluate("window.player.go(321)")
        page.evaluate(again, "theme=dark&lang=zh")
        wait_at(page, 321)
        root = page.locator(".gb")
        assert root.count() == 1
        assert root.get_attribute("data-theme") == "dark"
        assert root.get_attribute("lang") == "zh"
        assert "物理块" in page.locator(".gb-pool h2").inner_text()


def test_bookmarks_are_set_shown_and_kept_over_a_reload(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.locator(".gb-shell").focus()
        press(page, "ArrowRight", "ArrowRight", "b", "End")
        page.wait_for_selector(f'.gb[data-event="{len(events_of("story"))}"]')
        page.reload()
        page.wait_for_selector('.gb[data-ready="true"]')
        page.get_by_label("Bookmarks").select_option("2")
        wait_at(page, 2)


def test_the_table_says_what_the_pool_draws(browser: Browser, address: str) -> None:
    place = places("story", ev.BlockCopied)[0]
    snapshot = run_named("story").snapshot(events_of("story")[place - 1].step)
    with opened(browser, address) as page:
        last = max(k for k, e in enumerate(events_of("story"), start=1) if e.step == snapshot.step)
        page.evaluate(f"window.player.go({last})")
        page.get_by_role("button", name="view as table").click()
        rows = page.locator(".gb-table tbody tr")
        held = {b: n for b, n in enumerate(snapshot.ref_counts) if n or snapshot.hashes[b]}
        cells = [row.split("\t") for row in rows.all_inner_texts()]
        assert {int(row[0]): int(row[2]) for row in cells} == held


def test_user_text_is_never_markup(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=900") as page:
        assert "<script>" in page.locator(".gb-sequences, .gb-requests").first.inner_text()
        assert page.locator(".gb script").count() == 0


def test_reduced_motion_shows_the_end_of_a_move_at_once(browser: Browser, address: str) -> None:
    place = places("story", ev.BlockCopied)[0]
    for motion, at_once in (("reduce", True), ("no-preference", False)):
        with opened(browser, f"{address}?start={place - 1}", reduced_motion=motion) as page:
            page.locator(".gb-shell").focus()
            progress = page.evaluate("(window.player.move(1), window.player.progress())")
            assert (progress == 1) is at_once
            page.wait_for_function("window.player.frameId === 0")  # at rest no loop runs


@pytest.mark.parametrize(("width", "height"), [(390, 844), (820, 1100), (1440, 900), (1920, 1080)])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_width_overflows(
    browser: Browser, address: str, width: int, height: int, lang: str
) -> None:
    place = places("story", ev.BlockCopied)[0]
    viewport = {"width": width, "height": height}
    with opened(browser, f"{address}?start={place}&lang={lang}", viewport=viewport) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        bar = page.locator(".gb-transport").bounding_box()
        assert bar is not None
        assert bar["y"] + bar["height"] <= height  # the transport is in sight without scrolling
        overflowing = page.evaluate(
            """[...document.querySelectorAll('.gb-card')].filter(
                (card) => card.scrollWidth > card.clientWidth + 1).map((card) => card.className)"""
        )
        assert overflowing == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_aa_contrast(browser: Browser, address: str, theme: str) -> None:
    place = places("story", ev.BlockCopied)[0] + 700
    with opened(browser, f"{address}?start={place}&theme={theme}") as page:
        assert_aa_contrast(page, more_than=60)


def test_the_null_block_of_v1_is_reserved_and_not_counted(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?run=v1&start=0") as page:
        assert "23 × 4 slots" in page.locator(".gb-pool h2").inner_text().lower()
        page.get_by_role("button", name="view as table").focus()
        rect = page.evaluate("window.player.pool.rect(0)")
        page.locator(".gb-canvas").hover(position={"x": rect["x"] + 9, "y": rect["y"] + 9})
        assert "null block" in page.locator(".gb-tip").inner_text()


def test_blocks_are_walked_over_with_the_arrow_keys(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=400") as page:
        page.locator(".gb-canvas").focus()
        press(page, "ArrowDown", "ArrowRight")
        page.wait_for_selector('.gb[data-hot="1"]')
        press(page, "Enter", "Escape")
        page.wait_for_selector('.gb[data-hot=""]')
        press(page, "ArrowRight")
        wait_at(page, 401)


def test_help_opens_and_closes_by_key(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.locator(".gb-shell").focus()
        press(page, "?")
        assert page.get_by_role("dialog").is_visible()
        press(page, "Escape")
        assert not page.get_by_role("dialog").is_visible()


def test_a_screen_reader_hears_the_sentence(browser: Browser, address: str) -> None:
    place = places("story", ev.BlockCopied)[0]
    with opened(browser, f"{address}?start={place - 1}") as page:
        page.locator(".gb-shell").focus()
        press(page, "ArrowRight")
        sentence = page.locator(".gb-sentence").inner_text()
        page.wait_for_function(
            "(s) => document.querySelector('.gb-live').textContent === s", arg=sentence
        )
