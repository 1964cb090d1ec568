"""Benchmarks in the Kernel lab: drawings, words, CSV, the choice, and files of visitors."""

from __future__ import annotations

import base64
import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from streamlit.testing.v1 import AppTest

from app import bench_drawing, lab_results, tasks
from app.bench_drawing import compared, draw, sheet, spoken
from app.state import say
from app.theme import LOOKS
from core.bench.report import Report, Row, Spread
from core.errors import LimitError
from core.text import LANGUAGES, sentence
from tests.app import painting
from tests.app.painting import html
from tests.bench.test_report_file import made

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
LOOK = LOOKS["light"]


pytestmark = pytest.mark.usefixtures("no_model")


def painted(lang: str = "en") -> AppTest:
    return painting.painted("kernels", lang)


def drawings(page: AppTest) -> list[ElementTree.Element]:
    data = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html(page))
    found = [ElementTree.fromstring(base64.b64decode(one)) for one in data]
    return [one for one in found if one.get("width") == "360"]


# ---------------------------------------------------------------------------------- drawings


def bars(row: Row, ways: tuple[str, ...] = ("ours", "theirs")) -> list[tuple[float, str]]:
    """Width and colour of each way's bar; its track lies before it."""
    report = Report("b", "", {}, {}, ways, (row,))
    root = ElementTree.fromstring(draw(report, row, LOOK, say("en"), "en").svg(LOOK))
    found = [(float(r.attrib["width"]), r.attrib["fill"]) for r in root.iter(f"{SVG}rect")]
    return found[1::2]


def test_bars_are_as_long_as_medians_on_the_rows_own_scale_and_ours_is_filled() -> None:
    figures = {"ours": Spread(2.0, 1.0, 4.0, 5), "theirs": Spread(1.0, 1.0, 1.0, 5)}
    mine, its = bars(Row("r", "s", "less", figures))
    assert mine == (124.0, LOOK.accent)
    assert its[0] == 62.0 and its[1] != LOOK.accent


def test_a_row_of_zeros_has_bars_of_no_length() -> None:
    assert bars(Row("r", "", "", {"ours": Spread.of([0.0])}))[0][0] == 0


def test_a_drawing_says_in_words_what_it_shows() -> None:
    report = made()
    words = draw(report, report.rows[0], LOOK, say("en"), "en").words
    assert words == (
        "append, µs · less is better · measured, 1–3 turns. "
        "ours: 1 (0.5–2) µs. theirs: 4 µs. ours 4 x better"
    )


def test_a_comparison_is_never_told_the_wrong_way_round() -> None:
    def told(better: str, mine: float, its: float) -> str:
        figures = {"a": Spread.of([mine]), "b": Spread.of([its])}
        return compared(Row("r", "", better, figures), "a", "b", say("en"))  # type: ignore[arg-type]

    assert told("more", 6, 2) == told("less", 2, 6) == "ours 3 x better"
    assert told("more", 2, 6) == told("less", 6, 2) == "ours 3 x worse"
    assert told("more", 1000, 1001) == "as ours"
    assert told("", 2, 6) == told("more", 2, 0) == ""


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", lab_results.benches())
def test_every_name_of_a_recorded_report_is_known_in_both_languages(name: str, lang: str) -> None:
    report = lab_results.benches()[name]
    names = {row.name for row in report.rows} | {row.unit for row in report.rows}
    names |= {way for way in report.ways if "vLLM" not in way}
    for word in names - {"GB/s", "MiB", "glassblock"}:
        if lang == "en":
            assert spoken(word, lang) == word.replace("us", "µs") or word != "us"
        else:
            assert re.search("[\u4e00-\u9fff，]|token", spoken(word, lang)), word


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", lab_results.benches())
def test_the_sheet_holds_every_row_within_its_size(name: str, lang: str) -> None:
    report = lab_results.benches()[name]
    about = [str(report.machine), str(report.settings), report.command]
    root = ElementTree.fromstring(sheet(report, "Title", about, LOOK, say(lang), lang))
    places = [
        tuple(map(float, re.findall(r"[\d.]+", g.attrib["transform"])))
        for g in root.iter(f"{SVG}g")
    ]
    assert len(places) == len(set(places)) == len(report.rows)
    assert all(x + 360 < float(root.attrib["width"]) for x, _ in places)
    assert all(y + 84 < float(root.attrib["height"]) for _, y in places)
    shown = "".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert report.command.replace(" ", "") in shown.replace(" ", "")


def test_a_strangers_texts_are_neither_markup_nor_formulas() -> None:
    evil = '<img src=x onerror="1">&\x00\x1b\ud800'
    row = Row(f"=1+1: {evil}", evil, "less", {evil: Spread.of([1.0])}, evil)
    report = Report(evil, evil, {evil: evil}, {}, (evil,), (row,))
    drawing = draw(report, row, LOOK, say("en"), "en")
    for text in (drawing.svg(LOOK), sheet(report, evil, [evil], LOOK, say("en"), "en")):
        root = ElementTree.fromstring(text.encode())
        assert not [one for one in root.iter() if one.tag == f"{SVG}img"]
    rows = list(csv.DictReader(bench_drawing.csv_text(report).lstrip("\ufeff").splitlines()))
    assert rows[0]["row"].startswith("'=1+1")


def test_the_csv_has_every_figure_and_the_ratios_of_the_table() -> None:
    rows = list(csv.DictReader(bench_drawing.csv_text(made()).splitlines()))
    assert [(r["way"], r["median"], r["turns"], r["ours_times_better"]) for r in rows] == [
        ("ours", "1.0", "3", ""), ("theirs", "4.0", "1", "4.0"), ("ours", "0.0", "1", ""),
    ]  # fmt: skip
    assert [r["kind"] for r in rows] == ["measured", "measured", "derived"]


# --------------------------------------------------------------------------------------- page


@pytest.mark.parametrize("lang", LANGUAGES)
def test_each_recorded_benchmark_is_drawn_with_its_machine_and_command(lang: str) -> None:
    page = painted(lang)
    for name, report in lab_results.benches().items():
        page.pills(key="gbx_lab_bench").set_value(name).run()
        assert not page.exception
        text = html(page)
        assert str(report.machine["processor"]) in text
        assert sentence("app.benchword.load_at_start", lang) in text
        assert all(note in text for note in report.notes)
        assert len(drawings(page)) == len(report.rows)
        assert f'<pre class="gbx-bench-command">{report.command}</pre>' in text
        assert "app.lab" not in text and "benchword" not in text


def test_the_kernels_report_tells_apart_the_two_measurements_of_attention() -> None:
    page = painted()
    page.pills(key="gbx_lab_bench").set_value("kernels").run()
    note = sentence("app.lab.bench_kernels_and_times", "en", command=lab_results.COMMAND)
    assert note in html(page)
    assert sentence("app.lab.times_and_bench", "en") in html(page)


def test_an_opened_report_is_shown_and_a_bad_file_changes_nothing_but_one_sentence() -> None:
    page = painted()
    good = json.dumps(made().plain()).encode()
    page.file_uploader(key="gbx_lab_bench_file").set_value(("mine.json", good, "application/json"))
    page.run()
    assert not page.exception
    assert page.pills(key="gbx_lab_bench").value == "opened"
    assert "A note." in html(page) and len(drawings(page)) == 2
    page.file_uploader(key="gbx_lab_bench_file").set_value(("b.json", b"{}", "application/json"))
    page.run()
    assert not page.exception
    assert sentence("error.bench_file_report", "en", name="b.json", where="ways") in html(page)
    assert "A note." in html(page) and len(drawings(page)) == 2
    page.pills(key="gbx_lab_bench").set_value("pool").run()
    assert "b.json" not in html(page)
    assert len(drawings(page)) == len(lab_results.benches()["pool"].rows)


def test_a_recorded_report_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    made().save(tmp_path / "bench_pool.json")
    (tmp_path / "bench_ui.json").write_text("{")
    assert list(lab_results.benches(tmp_path)) == ["pool"]


def test_a_full_server_speaks_of_measurements_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_CAP", 0)
    with pytest.raises(LimitError) as caught:
        tasks.start(lambda tell: None)
    assert "measurements or simulations" in caught.value.sentence("en")
