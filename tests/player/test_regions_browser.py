"""The player on contiguous memory in a real Chromium: regions, holes, held memory, waiting."""

from collections.abc import Iterator
from functools import cache
from urllib.parse import parse_qsl

import pytest
from playwright.sync_api import Browser, Page

from app.player.component import pack
from core.trace import events as ev
from core.trace.delta_log import encode
from core.trace.metrics import breakdown, final_lengths, free_pieces
from core.trace.snapshot import Snapshot, fold
from core.trace.trace import Trace
from tests.player.runs import RUNS, contrast_run, header_of
from tests.player.served import opened, serving

pytestmark = pytest.mark.browser

SYSTEMS = ("static", "continuous", "buddy")


@cache
def run_named(name: str) -> Trace:
    return contrast_run(name) if name in (*SYSTEMS, "paged") else RUNS[name]()


@cache
def events_of(name: str) -> list[ev.Event]:
    return list(run_named(name).events)


def data(query: str) -> bytes:
    asked = dict(parse_qsl(query))
    name = asked.get("run", "static")
    log = encode(header_of(run_named(name)), events_of(name))
    theme, start = asked.get("theme", "light"), int(asked.get("start", 0))
    return pack(log, lang=asked.get("lang", "en"), theme=theme, height=800, start=start)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(data) as url:
        yield url


def after(name: str, position: int) -> Snapshot:
    """The Python fold after so many events."""
    return fold(run_named(name).header.layout, events_of(name)[:position])


def place_of(name: str, kind: type[ev.Event], code: str = "") -> int:
    """The cursor position just after the first event of a kind."""
    for place, event in enumerate(events_of(name), start=1):
        if isinstance(event, kind) and code in ("", event.reason.code):
            return place
    raise AssertionError((name, kind, code))


def held_place() -> int:
    """A position in the static run at which a finished request holds its region."""
    return place_of("static", ev.RequestFinished) + 2


def rect_of(page: Page, start: int) -> dict[str, float]:
    found: dict[str, float] = page.evaluate(f"window.player.pool.rect({start})")
    return found


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_free_pieces_are_those_of_the_allocator(
    browser: Browser, address: str, name: str
) -> None:
    place = len(events_of(name)) // 2
    pieces = free_pieces(after(name, place))
    with opened(browser, f"{address}?run={name}&start={place}") as page:
        chips = page.locator(".gb-chip").all_inner_texts()
        assert chips == [f"{size} at {start}" for start, size in pieces]


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_memory_card_is_the_breakdown_of_the_python_fold(
    browser: Browser, address: str, name: str
) -> None:
    place = 2 * len(events_of(name)) // 3
    parts = breakdown(after(name, place), final_lengths(run_named(name)))
    with opened(browser, f"{address}?run={name}&start={place}") as page:
        for item in page.locator(".gb-memory .gb-legend li").all():
            part = item.get_attribute("data-part") or ""
            assert int(item.locator("b").inner_text()) == getattr(parts, part), part


def test_pointing_at_a_region_lights_its_request_and_draws_the_line(
    browser: Browser, address: str
) -> None:
    place = 700
    start, (_, seq_id, length, _) = next(iter(after("static", place).state().regions.items()))
    label = after("static", place).sequences[seq_id].label
    with opened(browser, f"{address}?start={place}") as page:
        rect = rect_of(page, start)
        page.locator(".gb-canvas").hover(position={"x": rect["x"] + 30, "y": rect["y"] + 10})
        page.wait_for_selector(f'.gb[data-hot="{start}"]')
        assert page.locator(f'.gb-region.gb-hot[data-block="{start}"]').count() == 1
        assert page.locator(".gb-lines path").count() == 1
        tip = page.locator(".gb-tip").inner_text()
        assert label in tip
        assert f"slots {start}–{start + length - 1}" in tip
        page.locator(".gb-chip").first.hover()
        page.wait_for_selector('.gb[data-hot="512"]')
        assert "a hole" in page.locator(".gb-tip").inner_text()


def test_a_request_says_what_it_waits_for(browser: Browser, address: str) -> None:
    place = place_of("buddy", ev.RequestDeferred, "fragmented")
    event = events_of("buddy")[place - 1]
    assert isinstance(event, ev.RequestDeferred)
    with opened(browser, f"{address}?run=buddy&start={place}") as page:
        waits = page.locator(".gb-waits:visible").all_inner_texts()
        assert waits == [
            f"waits: needs {event.need} slots in one piece; {event.free} are free, "
            f"the largest piece has {event.largest}"
        ]


def test_a_finished_member_of_a_batch_is_shown_with_the_memory_it_holds(
    browser: Browser, address: str
) -> None:
    with opened(browser, f"{address}?start={held_place()}") as page:
        held = page.locator(".gb-sequence", has_text="its memory is held until the batch ends")
        assert held.count() == 1
        assert held.locator(".gb-region").count() == 1
        slots = page.locator('[data-fact="held"] b').inner_text()
        assert slots == "256 slots"


def test_blocks_of_a_finished_member_are_shown_as_held_in_paged_memory(
    browser: Browser, address: str
) -> None:
    """Static batches hold blocks as they hold regions."""
    finished = place_of("paged_static", ev.RequestFinished)
    event = events_of("paged_static")[finished - 1]
    assert isinstance(event, ev.RequestFinished)
    with opened(browser, f"{address}?run=paged_static&start={finished + 1}") as page:
        held = page.locator(".gb-sequence", has_text="its memory is held until the batch ends")
        table = after("paged_static", finished + 1).sequences[event.request_id].table
        assert held.locator(".gb-logical").count() == len(table) > 0


def test_the_table_lists_every_region_and_free_piece(browser: Browser, address: str) -> None:
    place = 800
    snapshot = after("buddy", place)
    spans = sorted(
        [*((r.start, r.size) for r in snapshot.regions.values()), *free_pieces(snapshot)]
    )
    with opened(browser, f"{address}?run=buddy&start={place}") as page:
        page.get_by_role("button", name="view as table").click()
        rows = page.locator(".gb-table tbody td:first-child").all_inner_texts()
        assert rows == [f"{start}–{start + size - 1}" for start, size in spans]


def test_pieces_are_walked_over_with_the_arrow_keys(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}?start=700") as page:
        page.locator(".gb-canvas").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_selector('.gb[data-hot="0"]')
        page.keyboard.press("ArrowRight")
        page.wait_for_selector('.gb[data-hot="256"]')
        page.wait_for_function(
            "document.querySelector('.gb-live').textContent.startsWith('slots 256–511')"
        )


def test_zooming_in_shows_the_slots_of_a_region(browser: Browser, address: str) -> None:
    place = 700
    snapshot = after("static", place)
    sequence = snapshot.sequences[snapshot.regions[0].seq_id]
    with opened(browser, f"{address}?start={place}") as page:
        for _ in range(12):
            page.get_by_role("button", name="Zoom in").click()
        assert page.evaluate("window.player.pool.pitchX") >= 30
        page.evaluate("window.player.pan(-1e6, -1e6)")
        page.locator(".gb-canvas").hover(position={"x": 10, "y": 20})
        tip = page.locator(".gb-tip").inner_text()
        assert "slot 0" in tip
        assert f"token {sequence.token_ids[0]} “{sequence.texts[0]}”" in tip


def test_spares_and_copies_of_beams_are_shown(browser: Browser, address: str) -> None:
    place = place_of("region_beams", ev.RegionCopied)
    with opened(browser, f"{address}?run=region_beams&start={place}") as page:
        copied = events_of("region_beams")[place - 1]
        assert isinstance(copied, ev.RegionCopied)
        arrows = page.evaluate("window.player.arrows")
        assert [(a["from"], a["to"]) for a in arrows] == [(copied.source, copied.destination)]
        assert page.locator(".gb-sequence", has_text="for a sample to come").count() > 0


def test_another_kind_of_memory_takes_the_place_of_the_first(
    browser: Browser, address: str
) -> None:
    again = """async (query) => {
        const { unpack } = await import("/player.js");
        const data = new Uint8Array(await (await fetch("/data?" + query)).arrayBuffer());
        const { options, bytes } = unpack(data);
        window.mountPlayer(document.getElementById("player"), bytes, options);
    }"""
    with opened(browser, f"{address}?start=700") as page:
        assert "address space" in page.locator(".gb-pool h2").inner_text().lower()
        page.evaluate(again, "run=paged&start=100")
        assert "physical blocks" in page.locator(".gb-pool h2").inner_text().lower()
        page.wait_for_selector('.gb[data-event="100"]')
        page.evaluate(again, "run=buddy&start=100")
        assert "address space" in page.locator(".gb-pool h2").inner_text().lower()


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1440, 900)])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_width_overflows(
    browser: Browser, address: str, width: int, height: int, lang: str
) -> None:
    query = f"start={held_place()}&lang={lang}"
    with opened(browser, f"{address}?{query}", viewport={"width": width, "height": height}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        overflowing = page.evaluate(
            """[...document.querySelectorAll('.gb-card')].filter(
                (card) => card.scrollWidth > card.clientWidth + 1).map((card) => card.className)"""
        )
        assert overflowing == []
