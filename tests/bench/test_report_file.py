"""A report is read back as it was written, and anything else is refused by name and place."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from core.bench.report import Report, Row, Spread, short
from core.bench.report_file import MOST_BYTES, read_report
from core.errors import BenchError
from core.text import LANGUAGES

RESULTS = sorted((Path(__file__).parents[2] / "assets" / "results").glob("bench_*.json"))


def made() -> Report:
    rows = (
        Row("pool: append", "us", "less", {"ours": Spread(1.0, 0.5, 2.0, 3),
                                           "theirs": Spread.of([4.0])}),
        Row("memory", "MiB", "", {"ours": Spread.of([0.0])}, "derived"),
    )  # fmt: skip
    return Report("pool", "glassblock bench pool", {"processor": "one", "load at start": 0.5},
                  {"windows": [None, 4]}, ("ours", "theirs"), rows, ("A note.",))  # fmt: skip


def as_bytes(plain: Any) -> bytes:
    return json.dumps(plain).encode()


def test_a_report_that_was_saved_is_read_back_equal(tmp_path: Path) -> None:
    made().save(tmp_path / "r.json")
    assert read_report((tmp_path / "r.json").read_bytes(), "r.json") == made()
    assert read_report(b"\xef\xbb\xbf" + as_bytes(made().plain()), "r.json") == made()


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_every_recorded_report_is_one(path: Path) -> None:
    report = read_report(path.read_bytes(), path.name)
    assert path.name in (f"bench_{report.bench}.json", f"bench_{report.bench}_at_once.json")
    assert report.command.startswith(f"glassblock bench {report.bench}")
    assert "load at start" in report.machine
    assert json.loads(as_bytes(report.plain())) == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("keys", "value", "where"),
    [
        (("bench",), 3, "bench"),
        (("ways",), ["ours", "ours"], "ways"),
        (("ways",), [], "ways"),
        (("rows",), [], "rows"),
        (("rows",), {}, "rows"),
        (("rows",), [{}] * 201, "rows"),
        (("rows", 0, "better"), "most", "rows[0].better"),
        (("rows", 0, "better"), ["more"], "rows[0].better"),
        (("rows", 0, "name"), " ", "rows[0].name"),
        (("rows", 0, "name"), "x" * 2001, "rows[0].name"),
        (("rows", 1, "figures"), {}, "rows[1].figures"),
        (("rows", 1, "figures"), {"others": {}}, "rows[1].figures"),
        (("rows", 0, "figures", "ours", "median"), float("nan"), "rows[0].figures[ours].median"),
        (("rows", 0, "figures", "ours", "high"), float("inf"), "rows[0].figures[ours].high"),
        (("rows", 0, "figures", "ours", "high"), 10**400, "rows[0].figures[ours].high"),
        (("rows", 0, "figures", "ours", "low"), -1, "rows[0].figures[ours].low"),
        (("rows", 0, "figures", "ours", "low"), True, "rows[0].figures[ours].low"),
        (("rows", 0, "figures", "ours", "low"), 1.5, "rows[0].figures[ours].median"),
        (("rows", 0, "figures", "ours", "turns"), 0, "rows[0].figures[ours].turns"),
        (("machine", "processor"), {"a": 1}, "machine.processor"),
        (("settings",), None, "settings"),
        (("notes",), "A note.", "notes"),
        (("notes", 0), 5, "notes[0]"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(keys: tuple[Any, ...], value: Any, where: str) -> None:
    plain = deepcopy(json.loads(as_bytes(made().plain())))
    place = plain
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(BenchError) as caught:
        read_report(as_bytes(plain), "mine.json")
    assert caught.value.code == "bench_file_report"
    for lang in LANGUAGES:
        told = caught.value.sentence(lang)
        assert "mine.json" in told and where in told and "--out" in told


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bench_file_json"),
        (b"\xff\xfe{", "bench_file_json"),
        (b"[" * 100_000, "bench_file_json"),
        (b"1" * 5000, "bench_file_json"),
        (b'{"bench": "\\ud800"}', "bench_file_json"),
        (b"[]", "bench_file_report"),
        (b"null", "bench_file_report"),
        (b'{"rows": 1}', "bench_file_report"),
        (b" " * (MOST_BYTES + 1), "bench_file_large"),
    ],
    ids=["empty", "no text", "deep", "long", "half a letter", "list", "null", "other", "large"],
)
def test_a_file_of_another_kind_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(BenchError) as caught:
        read_report(data, "mine.json")
    assert caught.value.code == code
    assert all("mine.json" in caught.value.sentence(lang) for lang in LANGUAGES)


def test_a_number_never_becomes_an_exponent_at_a_thousand() -> None:
    assert [short(value) for value in (0, 0.5, 999.4, 999.6, 1e6)] == [
        "0", "0.5", "999", "1,000", "1,000,000",
    ]  # fmt: skip
