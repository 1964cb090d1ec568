"""Benchmarks in the Kernel lab as a visitor meets them: choose, read, save, open a file, copy."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.lab_results import benches
from core.text import sentence
from tests.bench.test_report_file import made
from tests.browser import steps
from tests.browser.steps import Site, settled
from tests.browser.test_simulate import rows_of, save

pytestmark = pytest.mark.browser

ROWS = ".gbx-bench-rows img"
SVG = "{http://www.w3.org/2000/svg}"


def visit(site: Site, query: str = "", **context: Any) -> Any:
    return steps.visit(site, f"kernel-lab{query}", ROWS, **context)


def choose(page: Any, name: str) -> None:
    title = sentence(f"app.benchword.bench_{name}", "en")
    page.locator(".st-key-gbx_lab_bench").get_by_role("radio", name=title, exact=True).click()
    page.locator(".gbx-bench h3", has_text=title).wait_for()
    settled(page)


def images(page: Any) -> list[str]:
    """The words of every drawing that the browser could paint."""
    page.wait_for_function(
        "selector => [...document.querySelectorAll(selector)].every(i => i.naturalWidth > 0)",
        arg=ROWS,
    )
    return [str(one) for one in page.locator(ROWS).evaluate_all("all => all.map(i => i.alt)")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_benchmark_is_chosen_drawn_and_saved(site: Site, scheme: Any, tmp_path: Path) -> None:
    report = benches()["pool"]
    with visit(site, color_scheme=scheme) as page:
        choose(page, "pool")
        told = images(page)
        assert len(told) == len(report.rows)
        assert all("less is better" in words for words in told)
        drawing = save(page, "lab_bench_pool", "svg", tmp_path)
        assert drawing.name == "glassblock-lab-bench-pool.svg"
        root = ElementTree.parse(drawing).getroot()
        assert len(list(root.iter(f"{SVG}g"))) == len(report.rows)
        assert str(report.machine["processor"]) in (root.findtext(f"{SVG}desc") or "")
        picture = save(page, "lab_bench_pool", "png", tmp_path).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert int.from_bytes(picture[16:20], "big") == 2 * int(root.attrib["width"])
        rows = rows_of(save(page, "lab_bench_pool", "csv", tmp_path))
        assert len(rows) == sum(len(row.figures) for row in report.rows)
        assert {row["kind"] for row in rows} == {"measured"}


def test_a_file_is_opened_and_a_bad_one_loses_nothing(site: Site, tmp_path: Path) -> None:
    made().save(tmp_path / "mine.json")
    (tmp_path / "bad.json").write_text(json.dumps({"ways": ["a"], "rows": 3}))
    with visit(site) as page:
        page.locator(".st-key-gbx-lab-bench-open button").first.click()
        chooser = page.locator(".st-key-gbx_lab_bench_file input[type=file]")
        chooser.set_input_files(tmp_path / "mine.json")
        page.get_by_text("A note.").wait_for()
        settled(page)
        assert len(images(page)) == 2
        rows = save(page, "lab_bench_pool", "csv", tmp_path).read_text(encoding="utf-8-sig")
        assert [row["way"] for row in csv.DictReader(rows.splitlines())][:2] == ["ours", "theirs"]
        page.locator(".st-key-gbx-lab-bench-open button").first.click()
        chooser.set_input_files(tmp_path / "bad.json")
        fault = sentence("error.bench_file_report", "en", name="bad.json", where="rows")
        page.get_by_text(fault).wait_for()
        assert len(images(page)) == 2
        assert page.get_by_text("A note.").is_visible()


def test_the_command_that_repeats_it_can_be_copied(site: Site) -> None:
    with visit(site, permissions=["clipboard-read", "clipboard-write"]) as page:
        button = page.locator(".st-key-gbx_lab_bench_copy button")
        button.click()
        page.locator(".st-key-gbx_lab_bench_copy button", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == benches()["engine"].command


@pytest.mark.parametrize("width", [390, 1920])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_drawing_fits_the_screen(site: Site, width: int, lang: str) -> None:
    with visit(site, f"?lang={lang}", viewport={"width": width, "height": 900}) as page:
        images(page)
        for image in page.locator(ROWS).all():
            box = image.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
            assert box["width"] >= 300  # smaller would be too small to read
        assert page.evaluate("document.documentElement.scrollWidth") <= width
