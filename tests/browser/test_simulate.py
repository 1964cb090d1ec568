"""The Simulate and paper pages as a visitor meets them: charts, their files, a run, a stop."""

from __future__ import annotations

import csv
import struct
import xml.etree.ElementTree as ElementTree
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from core.text import sentence
from tests.browser import steps
from tests.browser.steps import PATIENCE, Site, settled

pytestmark = pytest.mark.browser

ALERT = '[role="alert"].gbx-note'
SVG = "{http://www.w3.org/2000/svg}"


def visit(site: Site, path: str, query: str = "", **context: Any) -> AbstractContextManager[Page]:
    """A page with charts."""
    return steps.visit(site, path + query, ".js-plotly-plot .main-svg", **context)


def save(page: Page, key: str, kind: str, folder: Path) -> Path:
    button = page.locator(f".st-key-gbx_chart_{key}_export button[data-kind={kind}]")
    with page.expect_download() as waiting:
        button.click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))


CHARTS = ("systems", "concurrency", "latency", "system_memory", "throughput", "pools")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_saves_as_svg_png_and_csv(site: Site, scheme: Any, tmp_path: Path) -> None:
    with visit(site, "simulate", color_scheme=scheme) as page:
        for key in CHARTS:
            page.wait_for_selector(f".st-key-gbx_chart_{key} .main-svg")
            box = page.locator(f".st-key-gbx_chart_{key} .main-svg").first.bounding_box()
            assert box is not None
            drawing = save(page, key, "svg", tmp_path)
            assert drawing.name == f"glassblock-{key.replace('_', '-')}.svg"
            root = ElementTree.parse(drawing).getroot()
            assert root.tag == f"{SVG}svg"
            assert float(root.attrib["width"]) == pytest.approx(box["width"], abs=1)
            desc = root.findtext(f"{SVG}desc") or ""
            assert "Modelled, not measured" in desc and "glassblock simulate" in desc
            text = drawing.read_text(encoding="utf-8")
            assert text.count("<path") > 5 and "127.0.0.1" not in text
            _check_references(root)
            _check_picture(save(page, key, "png", tmp_path), box)
            rows = rows_of(save(page, key, "csv", tmp_path))
            assert len(rows) >= 8 and {row["kind"] for row in rows} == {"modelled"}


def _check_references(root: ElementTree.Element) -> None:
    """Whatever is clipped by or filled with something finds it in the same file."""
    ids = {node.attrib["id"] for node in root.iter() if "id" in node.attrib}
    for node in root.iter():
        for value in node.attrib.values():
            for part in value.split("url(")[1:]:
                assert part.split(")")[0].strip("\"'").removeprefix("#") in ids, value


def _check_picture(path: Path, box: Any) -> None:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert abs(width - 2 * box["width"]) <= 2 and abs(height - 2 * box["height"]) <= 2
    assert len(data) > 5_000  # an empty picture of this size is far smaller


def test_a_workload_is_simulated_shown_and_stays_beside_the_recorded_one(site: Site) -> None:
    with visit(site, "simulate") as page:
        count = page.locator(".st-key-gbx_sim_count_sharegpt input")
        count.fill("30")
        count.press("Enter")
        settled(page)
        page.locator(".st-key-gbx_sim_run button").click()
        pill = page.get_by_role("button", name="1 · ")
        pill.wait_for(timeout=PATIENCE)
        page.get_by_text("30 / 30").first.wait_for(timeout=PATIENCE)
        settled(page)
        assert page.locator(ALERT).count() == 0
        page.get_by_role("button", name=sentence("app.sim.recorded", "en")).first.click()
        page.get_by_text("1 · Orca (Max)").first.wait_for()


def test_a_run_can_be_stopped_and_keeps_what_it_has(site: Site) -> None:
    with visit(site, "simulate") as page:
        count = page.locator(".st-key-gbx_sim_count_sharegpt input")
        count.fill("20000")
        count.press("Enter")
        settled(page)
        page.locator(".st-key-gbx_sim_run button").click()
        page.locator(".st-key-gbx_sim_stop button").click(timeout=PATIENCE)
        page.get_by_text(sentence("app.sim.stopped", "en")).wait_for(timeout=PATIENCE)
        page.get_by_text("(stopped early)").first.wait_for(timeout=PATIENCE)


def test_a_bad_file_is_one_sentence_with_its_line(site: Site, tmp_path: Path) -> None:
    bad = tmp_path / "mine.csv"
    bad.write_text("prompt,output\n30,10\n40,-5\n", encoding="utf-8")
    with visit(site, "simulate") as page:
        page.locator(".st-key-gbx_sim_source input").click()
        page.get_by_role("option", name=sentence("app.sim.source_file", "en")).click()
        page.locator(".st-key-gbx_sim_file input[type=file]").set_input_files(bad)
        settled(page)
        page.get_by_text("mine.csv").first.wait_for()
        page.locator(".st-key-gbx_sim_run button").click()
        page.locator(ALERT).wait_for()
        assert "mine.csv, line 3" in page.locator(ALERT).inner_text()


@pytest.mark.parametrize("path", ["simulate", "paper"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_phone_shows_the_page_without_scrolling_sideways(
    site: Site, path: str, lang: str
) -> None:
    size = {"width": 390, "height": 844}
    with visit(site, path, f"?lang={lang}", viewport=size) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for card in page.locator('[class*="st-key-gbx-figure-"]').all():
            box = card.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_the_paper_page_shows_ours_beside_the_published_figure(site: Site, tmp_path: Path) -> None:
    with visit(site, "paper") as page:
        page.wait_for_selector(".st-key-gbx_chart_figure2 .main-svg")
        rows = rows_of(save(page, "figure2", "csv", tmp_path))
        kinds = {(row["y"].split(", ")[1], row["kind"]) for row in rows}
        assert kinds == {("ours", "modelled"), ("published", "published")}
        ElementTree.parse(save(page, "blocks", "svg", tmp_path))
