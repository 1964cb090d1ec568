"""Figures of systems, of the address space, of settings: what is drawn is what was given."""

import csv
import io
from typing import Any

import plotly.graph_objects as go
import pytest

from app.figures import memory_map, sweeps, systems, tail
from app.figures.frame import Kind, plain, source
from app.figures.look import HATCHES, PARTS
from app.figures.memory_map import Cell
from app.figures.sweeps import BlockPoint, PoolPoint
from app.figures.systems import SystemRun
from app.figures.table import COLUMNS, csv_text
from app.shown import recorded, recorded_names
from app.theme import LOOKS, ThemeName
from core.text import LANGUAGES, catalogue, sentence
from core.trace.metrics import series
from core.trace.trace import Trace

LOOK = LOOKS["light"]
THEMES: tuple[ThemeName, ...] = ("light", "dark")
MEANS = {
    "paged <16>": {"tokens": 0.9, "tail": 0.05, "free": 0.05},
    "static": {"tokens": 0.2, "reserved": 0.1, "unused": 0.6, "hole": 0.1},
}


def words(key: str, **values: object) -> str:
    return sentence(f"app.chart.{key}", "en", **values)


def make_run(name: str = "paged", **changes: Any) -> SystemRun:
    values: dict[str, Any] = {
        "name": name,
        "times": (0.0, 1.0, 2.0),
        "parts": {"tokens": (0.1, 0.5, 0.2), "free": (0.9, 0.5, 0.8)},
        "running": (1.0, 3.0, 2.0),
        "waiting": (0.0, 4.0, 1.0),
        "rates": (10.0, 30.0, 20.0),
        "mean": {"tokens": 0.3, "free": 0.7},
        "delays": {
            name: {"p50": 0.1 * k, "p99": 0.5 * k} for k, name in enumerate(systems.DELAYS, 1)
        },
    }
    return SystemRun(**values | changes)


def rows_of(figure: go.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(figure).removeprefix("\ufeff"))))


def test_a_bar_a_system_shows_every_part_in_the_papers_order() -> None:
    figure = systems.bars(MEANS, LOOK, words, about="made up", kind="derived")
    named = [words(f"part_{part}") for part in PARTS]
    drawn = [bar.name for bar in figure.data]
    assert drawn == [name for name in named if name in drawn]
    assert words("part_cached") not in drawn  # no system has any
    for place, shares in enumerate(MEANS.values()):
        assert {bar.name: bar.x[place] for bar in figure.data if bar.x[place]} == {
            words(f"part_{part}"): share for part, share in shares.items()
        }
    assert figure.data[0].y == ("paged &lt;16>", "static")


@pytest.mark.parametrize("theme", THEMES)
def test_waste_is_hatched_so_that_it_reads_without_colour(theme: ThemeName) -> None:
    bars = systems.bars(MEANS, LOOKS[theme], words, about="", kind="derived")
    shapes = {bar.name: bar.marker.pattern.shape for bar in bars.data}
    hatched = [shapes[words(f"part_{part}")] for part in ("unused", "tail", "hole")]
    assert all(hatched) and len(set(hatched)) == 3
    assert not shapes[words("part_tokens")] and not shapes[words("part_free")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_letters_on_a_hatch_stand_on_a_pale_edge(theme: ThemeName) -> None:
    look = LOOKS[theme]
    means = {"one": dict.fromkeys(PARTS, 1 / len(PARTS))}
    figure = systems.bars(means, look, str, about="x", kind="modelled")
    shadows = [bar.textfont.shadow for bar in figure.data]
    assert [shadow != "none" for shadow in shadows] == [part in HATCHES for part in PARTS]


def test_series_of_two_systems_keep_their_colours_and_dashes_apart() -> None:
    runs = [make_run("a"), make_run("b")]
    for draw in (systems.concurrency, systems.throughput, systems.latency):
        figure = draw(runs, LOOK, words, about="x", kind="modelled")
        looks = {
            curve.legendgroup or curve.name: (curve.line.color, curve.line.dash)
            for curve in figure.data
        }
        assert looks["a"][0] != looks["b"][0] and looks["a"][1] != looks["b"][1]
    figure = systems.concurrency(runs, LOOK, words, about="x", kind="modelled")
    assert [c.y for c in figure.data] == [*[runs[0].running] * 2, *[runs[0].waiting] * 2]


def test_the_memory_of_a_system_adds_up_at_every_moment() -> None:
    figure = systems.memory(make_run(), LOOK, words, about="x", kind="modelled")
    assert [sum(values) for values in zip(*(c.y for c in figure.data), strict=True)] == [1.0] * 3


def test_a_sweep_draws_each_point_and_says_which_are_measured() -> None:
    curves = {"mix": [BlockPoint(1, 0.0, 500.0), BlockPoint(16, 0.02, 31.0)]}
    attention = {"this machine": [(1, 0.002), (16, 0.001)]}
    figure = sweeps.block_sweep(curves, attention, LOOK, words, about="x", kind="modelled")
    rows = rows_of(figure)
    assert {(row["y_name"], row["kind"]) for row in rows} == {
        (words("blocks_waste"), "modelled"),
        (words("blocks_entries"), "modelled"),
        ("attention (milliseconds)", "measured"),
    }
    assert [float(row["y"]) for row in rows if row["kind"] == "measured"] == [2.0, 1.0]
    assert {row["x_name"] for row in rows} == {words("block_size")}
    without = sweeps.block_sweep(curves, {}, LOOK, words, about="x", kind="modelled")
    assert len(without.data) == 2


def test_a_pool_sweep_is_drawn_in_order_of_size() -> None:
    curves = {"paged": [PoolPoint(400, 8.0), PoolPoint(100, 2.0)]}
    figure = sweeps.pool_sweep(curves, LOOK, words, about="x", kind="modelled")
    assert figure.data[0].x == (100, 400) and figure.data[0].y == (2.0, 8.0)


@pytest.mark.parametrize("length", range(1, 33))
def test_the_theory_of_tail_waste_fills_the_last_block(length: int) -> None:
    for size in (1, 3, 16):
        waste = tail.theory(length, size)
        assert 0 <= waste < size and (length + waste) % size == 0


def run_of(name: str) -> Trace:
    return recorded(name).trace


@pytest.mark.parametrize("name", recorded_names())
def test_observed_tails_add_up_to_what_the_metrics_call_tail(name: str) -> None:
    """Where nothing is shared and no prompt is half in memory, both count the same slots."""
    trace = run_of(name)
    seen = tail.observed(trace.header.layout, trace.events)
    size = trace.header.layout.block_size
    assert seen and all((r + waste) % size == 0 for r, waste in seen)
    if name == "02_one_prompt":
        total = sum(waste * times for (_, waste), times in seen.items())
        assert total == sum(step.slots.tail + step.slots.reserved for step in series(trace))


def test_tail_waste_draws_the_theory_the_run_and_its_mean() -> None:
    trace = run_of("02_one_prompt")
    layout = trace.header.layout
    figure = tail.tail_waste(layout, trace.events, LOOK, words, measured=True)
    curve, points, mean = figure.data
    assert list(curve.y) == [tail.theory(r, layout.block_size) for r in curve.x]
    assert set(zip(points.x, points.y, strict=True)) <= set(zip(curve.x, curve.y, strict=True))
    assert min(points.y) <= mean.y[0] <= max(points.y)
    kinds = {row["series"]: row["kind"] for row in rows_of(figure)}
    assert kinds[words("tail_theory")] == "derived"
    assert kinds[words("tail_measured")] == kinds[words("tail_mean")] == "measured"


@pytest.mark.parametrize("name", recorded_names())
def test_the_address_map_shows_as_many_tokens_as_the_engine_counted(name: str) -> None:
    trace = run_of(name)
    layout = trace.header.layout
    slots = layout.num_blocks * layout.block_size
    sampled, labels = memory_map.columns(layout, trace.events, range(slots), 1)
    steps = series(trace)
    assert [step for step, _ in sampled] == [item.step for item in steps]
    for (_, cells), item in zip(sampled, steps, strict=True):
        states = [cell.state for cell in cells]
        assert states.count("written") == item.slots.tokens
        assert states.count("held") == item.slots.tail + item.slots.reserved
        assert states.count("cached") == item.slots.cached
        assert {cell.owner for cell in cells} - {""} <= labels.keys()


def test_a_long_run_in_a_large_memory_is_sampled_and_says_so(monkeypatch: Any) -> None:
    trace = run_of("01_tour")
    monkeypatch.setattr(memory_map, "_CELLS", 400)
    monkeypatch.setattr(memory_map, "_ROWS", 40)
    figure = memory_map.address_map(
        trace.header.layout, trace.events, trace.num_steps, LOOK, words, about="x", kind="measured"
    )
    grid = figure.data[0]
    assert len(grid.x) * len(grid.y) <= 400 + len(grid.y)
    assert f"{grid.y[1]} slots to a row" in figure.layout.title.subtitle.text
    assert f"{grid.x[1] - grid.x[0]} steps to a column" in figure.layout.title.subtitle.text


def test_the_map_as_a_table_has_a_column_a_step_and_a_row_an_address() -> None:
    trace = run_of("02_one_prompt")
    figure = memory_map.address_map(
        trace.header.layout, trace.events, trace.num_steps, LOOK, words, about="x", kind="measured"
    )
    rows = list(csv.reader(io.StringIO(csv_text(figure))))
    assert len(rows[0]) == trace.num_steps + 1
    assert [int(row[0]) for row in rows[1:]] == list(figure.data[0].y)
    assert any(cell == "token of A" for row in rows[1:] for cell in row[1:])


def test_the_table_of_a_figure_is_what_is_drawn() -> None:
    figure = systems.throughput([make_run("é")], LOOK, words, about="x", kind="modelled")
    text = csv_text(figure)
    assert text.startswith("\ufeff")  # for spreadsheets
    rows = rows_of(figure)
    assert tuple(rows[0]) == COLUMNS
    assert [(float(row["x"]), float(row["y"])) for row in rows] == [(0, 10), (1, 30), (2, 20)]
    assert {row["kind"] for row in rows} == {"modelled"}


@pytest.mark.parametrize("kind", ["measured", "modelled", "derived"])
def test_the_source_stands_under_the_title_without_markup(kind: Kind) -> None:
    figure = systems.throughput([make_run()], LOOK, words, about="", kind="derived")
    source(figure, LOOK, "<b>a name</b> & more " * 8, kind)
    text = figure.layout.title.subtitle.text
    assert "<b>" not in text.replace("<br>", "") and "&amp;" in text
    assert max(len(line) for line in text.split("<br>")) < 100
    assert figure.layout.meta["kind"] == kind
    assert plain("<") == "&lt;"


def test_a_cell_of_a_spare_region_says_so() -> None:
    text = memory_map._text(Cell("spare", "r1"), {"r1": "A"}, words)
    assert "A" in text and words("map_spare") in text


def test_every_word_of_these_figures_is_in_both_catalogues() -> None:
    asked: set[str] = set()

    def note(key: str, **values: object) -> str:
        asked.add(key)
        return key

    trace = run_of("01_tour")
    layout = trace.header.layout
    systems.bars(MEANS, LOOK, note, about="", kind="derived")
    systems.memory(make_run(), LOOK, note, about="", kind="derived")
    for draw in (systems.concurrency, systems.throughput, systems.latency):
        draw([make_run()], LOOK, note, about="", kind="derived")
    tail.tail_waste(layout, trace.events, LOOK, note, measured=True)
    memory_map.address_map(
        layout, trace.events, trace.num_steps, LOOK, note, about="", kind="measured"
    )
    sweeps.pool_sweep({}, LOOK, note, about="", kind="modelled")
    sweeps.block_sweep(
        {"a": [BlockPoint(1, 0, 1)]}, {"b": [(1, 1)]}, LOOK, note, about="", kind="modelled"
    )
    for lang in LANGUAGES:
        assert {f"app.chart.{key}" for key in asked} <= catalogue(lang).keys()


def test_a_name_in_a_csv_is_never_a_formula() -> None:
    figure = go.Figure(go.Bar(name="=HYPERLINK(1)", x=["@x", "b"], y=[-1, 2], meta="measured"))
    assert csv_text(figure).splitlines()[1:] == [
        "'=HYPERLINK(1),,'@x,,-1,measured",
        "'=HYPERLINK(1),,b,,2,measured",
    ]
