"""The paper page without a browser: recorded parts, their anchors, and running one again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import paper
from core.exec.attention_sweep import AttentionSweep
from core.machine import processor_name
from core.text import LANGUAGES, sentence
from tests.app import painting

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "assets" / "results"
PATIENCE = 120
pytestmark = pytest.mark.usefixtures("no_model")


def recorded(name: str) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((RESULTS / f"paper_{name}.json").read_text("utf-8"))
    return plain


def painted(lang: str = "en") -> AppTest:
    return painting.painted("paper", lang)


def html(page: AppTest) -> str:
    return "\n".join(str(item.proto.body) for item in page.get("html"))


def figures(page: AppTest) -> list[dict[str, Any]]:
    return [json.loads(item.proto.spec) for item in page.get("plotly_chart")]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_part_opens_recorded_and_says_by_which_command(lang: str) -> None:
    page = painted(lang)
    text = html(page)
    for name in ("figure2", "sharing", "blocks"):
        assert sentence(f"app.paper.part_{name}", lang) in text
        assert f"glassblock simulate --paper {name}" in text
    for name in ("figure2", "blocks"):
        record = recorded(name)
        assert record["command"] == f"glassblock simulate --paper {name}"
        assert record["machine"] and record["machine"] in text
    assert len(figures(page)) == 3
    assert "app.paper" not in text and "paper.note" not in text
    assert sentence("app.paper.no_recording", lang) not in text


def test_the_recorded_figure_2_has_the_exact_anchors_and_is_close_elsewhere() -> None:
    rows = {row["system"]: row for row in recorded("figure2")["rows"]}
    assert rows["orca-max"]["running_full"] == pytest.approx(7.0, abs=5e-3)
    assert rows["orca-max"]["shares"]["other"] == pytest.approx(8.86, abs=5e-3)
    assert rows["paged"]["shares"]["tokens"] >= 95
    assert all(row["largest_difference"] <= 5 for row in rows.values())


def test_figure_2_draws_ours_and_the_published_shares() -> None:
    figure = figures(painted())[0]
    rows = recorded("figure2")["rows"]
    tokens = next(bar for bar in figure["data"] if bar["name"] == "tokens")
    wanted = [row[key]["tokens"] / 100 for row in rows for key in ("shares", "published")]
    assert tokens["x"] == pytest.approx(wanted)
    assert tokens["meta"] == ["modelled", "published"] * 4
    for place in range(8):
        assert sum(bar["x"][place] for bar in figure["data"]) == pytest.approx(1, abs=2e-3)


def test_the_attention_times_are_measured_and_say_on_what() -> None:
    sweep = AttentionSweep.from_json(json.dumps(recorded("attention")))
    figure = figures(painted())[2]
    curve = next(c for c in figure["data"] if c.get("meta") == "measured")
    assert curve["y"] == pytest.approx([1000 * seconds for _, seconds in sweep.seconds])
    subtitle = figure["layout"]["title"]["subtitle"]["text"].replace("<br>", " ")
    assert sweep.processor in subtitle and "measured" in subtitle


def test_sharing_draws_published_numbers_but_no_range() -> None:
    figure = figures(painted())[1]
    rows = recorded("sharing")["rows"]
    drawn = sorted(y for bar in figure["data"] for y in bar["y"])
    published = [float(row["published"]) for row in rows if "–" not in row["published"]]
    assert drawn == pytest.approx(sorted([*published, *(row["saved"] for row in rows)]))
    assert {row["kind"] for row in rows} == {"samples", "beams"}


def test_a_part_is_run_again_and_says_so(monkeypatch: Any) -> None:
    made = recorded("figure2") | {"requests": 123}
    monkeypatch.setitem(paper._WORK, "figure2", lambda tell: made)
    page = painted()
    page.button(key="gbx_paper_figure2").click()
    page.run()
    page.session_state["gbx_paper_jobs"]["figure2"].wait(PATIENCE)
    page.run()
    page.run()
    assert not page.exception
    assert sentence("app.paper.made_here", "en", machine=processor_name()) in html(page)
    assert "123" in figures(page)[0]["layout"]["title"]["subtitle"]["text"]


def test_samples_counted_again_keep_the_recorded_beams(monkeypatch: Any) -> None:
    monkeypatch.setattr(paper, "_SHARING_REQUESTS", 10)
    made = paper._sharing(lambda share: None)
    beams = [row for row in made["rows"] if row["kind"] == "beams"]
    assert beams == [row for row in recorded("sharing")["rows"] if row["kind"] == "beams"]
    assert {row["requests"] for row in made["rows"] if row["kind"] == "samples"} == {10}
    assert "no_beams" not in {note["code"] for note in made["notes"]}
