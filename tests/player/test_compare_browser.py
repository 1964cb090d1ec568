"""The comparison alone in a real Chromium: lock step, both clocks, keys, highlights, widths."""

from collections.abc import Iterator
from functools import cache
from urllib.parse import parse_qsl

import pytest
from playwright.sync_api import Browser, Page

from app.player.component import CompareRun, pack_runs
from core.trace import events as ev
from core.trace.delta_log import encode
from core.trace.metrics import breakdown, final_lengths
from core.trace.trace import Trace
from tests.player.contrast import assert_aa_contrast
from tests.player.runs import contrast_run, header_of
from tests.player.served import opened, serving

pytestmark = pytest.mark.browser

TITLES = {"static": "Static", "continuous": "Continuous", "buddy": "Buddy", "paged": "Paged"}
PAIR = ("static", "paged")


@cache
def run_named(name: str) -> Trace:
    return contrast_run(name)


@cache
def events_of(name: str) -> list[ev.Event]:
    return list(run_named(name).events)


@cache
def log_of(name: str, cut: int | None = None) -> bytes:
    return encode(header_of(run_named(name)), events_of(name)[:cut])


def data(query: str) -> bytes:
    asked = dict(parse_qsl(query))
    cut = int(asked["cut"]) if "cut" in asked else None
    names = asked.get("runs", ",".join(PAIR)).split(",")
    runs = [CompareRun(log_of(name, cut), TITLES[name]) for name in names]
    return pack_runs(
        runs, lang=asked.get("lang", "en"), theme=asked.get("theme", "light"), height=800,
        start=int(asked.get("start", 0)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(data) as url:
        yield f"{url}compare"


def end_of(name: str, step: int) -> int:
    """How many events have happened when a step has ended, or all when it never came."""
    ends = [k for k, e in enumerate(events_of(name), start=1)
            if isinstance(e, ev.StepEnded) and e.step <= step]  # fmt: skip
    return ends[-1] if step < run_named(name).num_steps else len(events_of(name))


def wait_at(page: Page, tick: int) -> None:
    page.wait_for_selector(f'.gc[data-tick="{tick}"]')


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def positions(page: Page) -> list[int]:
    told = page.locator(".gc").get_attribute("data-positions") or ""
    return [int(part) for part in told.split(",")]


def test_both_runs_show_the_same_step_whichever_way_one_goes(
    browser: Browser, address: str
) -> None:
    with opened(browser, address) as page:
        press(page, "ArrowRight", "ArrowRight", "ArrowRight")
        wait_at(page, 3)
        assert positions(page) == [end_of(name, 3) for name in PAIR]
        press(page, "Shift+ArrowRight", "ArrowLeft")
        wait_at(page, 12)
        assert positions(page) == [end_of(name, 12) for name in PAIR]
        assert page.locator(".gc").get_attribute("data-steps") == "12,12"
        press(page, "Home")
        wait_at(page, 0)
        press(page, "[")
        wait_at(page, 0)


def test_the_shorter_run_rests_at_its_end_and_says_so(browser: Browser, address: str) -> None:
    static, paged = (run_named(name).num_steps for name in PAIR)
    assert paged < static
    with opened(browser, f"{address}?start={paged + 5}") as page:
        assert positions(page) == [end_of("static", paged + 5), len(events_of("paged"))]
        assert page.locator('[data-run="1"] .gc-note').inner_text() == f"done at step {paged}"
        assert not page.locator('[data-run="0"] .gc-note').is_visible()
        press(page, "End")
        wait_at(page, static)
        assert page.locator('[data-run="0"] .gc-note').inner_text() == f"done at step {static}"
        why = page.locator(".gc-why").inner_text()
        assert f"Static at step {static}" in why
        assert f"Paged at step {paged}" in why


def test_by_token_both_have_sampled_equally_many(browser: Browser, address: str) -> None:
    sampled = "window.view.runs.map((run) => run.fold.state.sampled)"
    with opened(browser, f"{address}?start=20") as page:
        page.get_by_role("radio", name="token").click()
        at = int(page.locator(".gc").get_attribute("data-tick") or 0)
        assert page.evaluate(sampled) == [at, at]
        page.locator(".gc-shell").focus()
        press(page, "ArrowRight", "ArrowRight", "Shift+ArrowRight")
        wait_at(page, at + 12)
        assert page.evaluate(sampled) == [at + 12, at + 12]
        for name, place in zip(PAIR, positions(page), strict=True):
            assert isinstance(events_of(name)[place - 1], ev.TokenSampled)
        press(page, "End")
        assert positions(page) == [len(events_of(name)) for name in PAIR]


@pytest.mark.parametrize("step", [5, 31, 60])
@pytest.mark.parametrize("name", ["static", "buddy", "paged"])
def test_the_legend_is_the_breakdown_of_the_python_fold(
    browser: Browser, address: str, name: str, step: int
) -> None:
    trace = run_named(name)
    parts = breakdown(trace.snapshot(step), final_lengths(trace))
    with opened(browser, f"{address}?runs={name},paged&start={step}") as page:
        shown = page.locator('[data-run="0"] .gb-legend li')
        for k in range(shown.count()):
            part = shown.nth(k).get_attribute("data-part") or ""
            assert int(shown.nth(k).locator("b").inner_text()) == getattr(parts, part), part


def test_the_numbers_are_those_of_the_step(browser: Browser, address: str) -> None:
    trace = run_named("static")
    snapshot = trace.snapshot(31)
    with opened(browser, f"{address}?start=31") as page:
        told = page.locator('[data-run="0"] .gc-numbers dd').all_inner_texts()
        assert int(told[0]) == len(snapshot.running)
        assert int(told[1]) == len(snapshot.waiting)
        ends = [e for e in events_of("static") if isinstance(e, ev.StepEnded) and e.step <= 31]
        seconds = sum(sum(e.timings.values()) for e in ends)
        assert int(told[3]) == round(snapshot.counters.sampled / seconds)
        names = page.locator('[data-run="0"] .gc-numbers dt').all_inner_texts()
        assert names[3] == "tokens a second so far, modelled"


def test_the_sentence_tells_who_waits_for_what_and_who_gave_it(
    browser: Browser, address: str
) -> None:
    at = next(
        e for e in events_of("buddy")
        if isinstance(e, ev.RequestDeferred) and e.reason.code == "fragmented"
    )  # fmt: skip
    snapshot = run_named("buddy").snapshot(at.step)
    label = snapshot.requests[at.request_id].label
    with opened(browser, f"{address}?runs=buddy,paged&start={at.step}") as page:
        why = page.locator(".gc-why").inner_text()
        assert f"In Buddy, {label} needs {at.need} slots in one piece" in why
        assert f"{at.free} are free, but in {at.reason.values['pieces']} pieces" in why
        assert f"at most {at.largest}" in why
        table = len(run_named("paged").snapshot(at.step).sequences[at.request_id].table)
        assert f"Paged gave {label} the {table} block" in why
        page.wait_for_function(
            "(s) => document.querySelector('.gb-live').textContent.includes(s)", arg=why
        )


def test_pointing_at_a_request_lights_it_in_every_run(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=31") as page:
        strip = page.locator('[data-run="0"] .gb-canvas')
        strip.hover(position={"x": 20, "y": 20})
        page.wait_for_selector('.gc[data-hot="A"]')
        tip = page.locator(".gb-tip").inner_text()
        assert "1 Static" in tip
        assert "2 Paged" in tip
        assert "memory held until the batch ends" in tip
        lanes = page.locator(".gc-lanes")
        lanes.hover(position={"x": 100, "y": 24 + 10})
        page.wait_for_selector('.gc[data-hot="B"]')
        lit = "window.view.runs.map((run) => [...window.view.litColours(run)])"
        first, second = page.evaluate(lit)
        assert first == second != []
        strip.hover(position={"x": 20, "y": 150})
        assert "a hole" in page.locator(".gb-tip").inner_text()
        page.locator(".gb-where").hover()
        page.wait_for_selector('.gc[data-hot=""]')
        assert not page.locator(".gb-tip").is_visible()


def test_the_same_label_has_the_same_colour_in_every_run(browser: Browser, address: str) -> None:
    script = """() => window.view.runs.map((run) => Object.fromEntries(
        run.fold.facts.sequences.map((one, k) => [one.label, run.colours[k]])))"""
    with opened(browser, address) as page:
        first, second = page.evaluate(script)
    assert first == second
    assert len(first) == 12


def test_requests_are_walked_over_by_key_and_heard(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=31") as page:
        page.locator(".gc-shell").focus()
        press(page, "ArrowDown", "ArrowDown")
        page.wait_for_selector('.gc[data-hot="B"]')
        page.wait_for_function(
            "document.querySelector('.gb-live').textContent.startsWith('B. Static: running')"
        )
        press(page, "ArrowUp")
        page.wait_for_selector('.gc[data-hot="A"]')
        press(page, "Escape")
        page.wait_for_selector('.gc[data-hot=""]')


def test_marks_of_every_run_are_reached_by_key(browser: Browser, address: str) -> None:
    marked = set()
    for name in PAIR:
        last = ""
        for event in events_of(name):
            if isinstance(event, (ev.RequestFinished, ev.RequestPreempted, ev.BlockCopied)):
                marked.add(event.step)
            elif isinstance(event, ev.RequestDeferred) and event.need and last != event.request_id:
                marked.add(event.step)
                last = event.request_id
    ticks = sorted(marked)
    with opened(browser, address) as page:
        press(page, "]")
        wait_at(page, ticks[0])
        press(page, "]", "]")
        wait_at(page, ticks[2])
        press(page, "[")
        wait_at(page, ticks[1])


def test_play_moves_all_runs_and_space_pauses(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.get_by_label("Speed").select_option("32")
        page.locator(".gc-shell").focus()
        press(page, "Space")
        page.wait_for_function("Number(document.querySelector('.gc').dataset.tick) > 5")
        press(page, "Space")
        assert page.get_by_role("button", name="Play").count() == 1
        at = int(page.locator(".gc").get_attribute("data-tick") or 0)
        assert positions(page) == [end_of(name, at) for name in PAIR]
        page.wait_for_function("window.view.frameId === 0")  # at rest no loop runs


def test_forking_and_opening_are_told(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=40") as page:
        page.get_by_role("button", name="fork here").click()
        page.get_by_role("button", name="Paged", exact=True).click()
        told = page.evaluate("window.told")
        assert ["fork", {"step": 40}] in told
        assert ["open", {"index": 1, "event": end_of("paged", 40)}] in told
        page.locator(".gc-shell").focus()
        press(page, "ArrowRight")
        page.wait_for_function("window.told.some(([name]) => name === 'cursor')")
        cursor = ["cursor", {"clock": "step", "at": 41, "step": 41}]
        assert cursor in page.evaluate("window.told")


def test_dragging_the_timeline_moves_all_runs(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        box = page.locator(".gc-timeline").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 40, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        page.mouse.up()
        tick = int(page.locator(".gc").get_attribute("data-tick") or 0)
        assert abs(tick - run_named("static").num_steps / 2) <= 3
        assert positions(page) == [end_of(name, tick) for name in PAIR]


def test_the_table_says_what_every_request_does_in_every_run(
    browser: Browser, address: str
) -> None:
    with opened(browser, f"{address}?start=31") as page:
        page.get_by_role("button", name="view as table").click()
        assert not page.locator(".gc-runs").is_visible()
        rows = [r.split("\t") for r in page.locator(".gc-table tbody tr").all_inner_texts()]
        cells = {row[0]: row[1:] for row in rows}
        assert cells["running"] == ["1", "8"]
        assert cells["A"][0].startswith("in from step 1, finished at step")
        assert cells["C"][0] == "waits: the batch before it has 1 member left"
        assert cells["B"][0] == "running · 49 tokens · slots 256–511 · in since step 1"
        assert cells["B"][1].startswith("running · ")
        assert len([row for row in rows if len(row[0]) == 1]) == 12


def test_growing_runs_are_followed_from_their_end_and_only_from_there(
    browser: Browser, address: str
) -> None:
    with opened(browser, f"{address}?cut=300") as page:
        press(page, "End")
        page.evaluate("window.show('cut=700')")
        ends = [events_of(name)[699].step for name in PAIR]
        wait_at(page, max(ends))
        page.evaluate("window.view.go(9)")
        page.evaluate("window.show('cut=1200')")
        wait_at(page, 9)
        assert page.evaluate("window.view.runs.map((run) => run.fold.length)") == [1200, 1200]
        assert page.locator(".gc").count() == 1


def test_runs_that_had_not_begun_are_followed_from_their_first_step(
    browser: Browser, address: str
) -> None:
    with opened(browser, f"{address}?cut=0") as page:
        page.evaluate("window.show('cut=700')")
        wait_at(page, max(events_of(name)[699].step for name in PAIR))


def test_nothing_jumps_when_a_run_is_done(browser: Browser, address: str) -> None:
    settings = {"viewport": {"width": 1280, "height": 720}}
    with opened(browser, f"{address}?start=2", **settings) as page:
        below = page.locator(".gc-below")
        before = below.evaluate("(node) => node.offsetTop")
        press(page, "End")
        page.get_by_text("done at step").first.wait_for()
        assert below.evaluate("(node) => node.offsetTop") == before


def test_the_controls_are_in_sight_on_a_projector(browser: Browser, address: str) -> None:
    settings = {"viewport": {"width": 1280, "height": 720}}
    with opened(browser, f"{address}?start=2", **settings) as page:
        place = page.locator(".gb-transport").bounding_box()
        assert place is not None and place["y"] + place["height"] <= 720


def test_other_runs_another_theme_and_language_take_the_place(
    browser: Browser, address: str
) -> None:
    with opened(browser, f"{address}?start=20") as page:
        page.evaluate("window.show('theme=dark&lang=zh')")
        root = page.locator(".gc")
        assert (root.get_attribute("data-theme"), root.get_attribute("lang")) == ("dark", "zh")
        wait_at(page, 20)
        page.evaluate("window.show('runs=continuous,buddy,paged')")
        assert page.locator(".gc-run").count() == 3
        assert page.locator(".gc").count() == 1


@pytest.mark.parametrize(("width", "height"), [(390, 844), (820, 1100), (1440, 900), (1920, 1080)])
@pytest.mark.parametrize(
    "query", ["lang=en", "lang=zh", "runs=static,continuous,buddy,paged&lang=en"]
)
def test_no_width_overflows(
    browser: Browser, address: str, width: int, height: int, query: str
) -> None:
    viewport = {"width": width, "height": height}
    with opened(browser, f"{address}?start=31&{query}", viewport=viewport) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        overflowing = page.evaluate(
            """[...document.querySelectorAll('.gb-card, .gc-below > div, .gc-numbers')].filter(
                (card) => card.scrollWidth > card.clientWidth + 1).map((card) => card.className)"""
        )
        assert overflowing == []
        if width <= 820:
            bar = page.locator(".gb-transport").bounding_box()
            assert bar is not None
            assert bar["y"] + bar["height"] <= height  # in sight without scrolling


def test_no_animation_runs_when_motion_is_not_wanted(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=5", reduced_motion="reduce") as page:
        assert page.evaluate("(window.view.move(1), window.view.progress())") == 1
        durations = page.evaluate(
            "getComputedStyle(document.querySelector('.gb-bar span')).transitionDuration"
        )
        assert durations == "0s"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_aa_contrast(browser: Browser, address: str, theme: str) -> None:
    with opened(browser, f"{address}?start=31&theme={theme}") as page:
        assert_aa_contrast(page, more_than=40)
