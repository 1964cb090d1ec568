"""Figures of real traces: what is drawn is what the metrics say."""

from typing import Any

import pytest

from app.figures import charts, frame
from app.figures.look import PARTS
from app.shown import recorded, recorded_names
from app.theme import LOOKS, ThemeName
from core.text import LANGUAGES, catalogue, sentence
from core.trace.metrics import StepMetrics, series
from core.trace.trace import Trace

THEMES: tuple[ThemeName, ...] = ("light", "dark")


def words(key: str) -> str:
    return sentence(f"app.chart.{key}", "en")


def run_of(name: str) -> tuple[Trace, list[StepMetrics]]:
    trace = recorded(name).trace
    return trace, series(trace)


def test_a_line_of_the_source_begins_with_no_closing_mark_and_ends_with_no_opening_one() -> None:
    text = "模拟值，并非实测：经真实的调度器与分配器（成本模型为屋顶线），" * 6
    lines = frame._wrapped(text)
    assert len(lines) > 3 and "".join(lines) == text
    assert not any(line[0] in "，。；：）" or line[-1] in "（“" for line in lines)


@pytest.mark.parametrize("name", recorded_names())
@pytest.mark.parametrize("theme", THEMES)
def test_the_parts_of_memory_add_up_at_every_step(name: str, theme: ThemeName) -> None:
    trace, steps = run_of(name)
    figure = charts.memory(steps, LOOKS[theme], words)
    named = {words(f"part_{part}"): LOOKS[theme].part(part) for part in PARTS}
    for curve in figure.data:
        assert curve.fillcolor == named[curve.name] and any(curve.y)
    usable = steps[0].slots.total
    for values in zip(*(curve.y for curve in figure.data), strict=True):
        assert sum(values) == usable
    assert list(figure.data[0].x) == list(range(1, trace.num_steps + 1))


@pytest.mark.parametrize("name", recorded_names())
def test_requests_and_rates_draw_the_metrics(name: str) -> None:
    _, steps = run_of(name)
    requests = charts.requests(steps, LOOKS["light"], words)
    assert list(requests.data[0].y) == [item.running for item in steps]
    assert list(requests.data[1].y) == [item.waiting for item in steps]
    rates = charts.rates(steps, LOOKS["light"], words, measured_on="measured on a test")
    assert list(rates.data[0].y) == [item.tokens_per_second for item in steps]
    assert rates.layout.title.subtitle.text == "measured on a test"
    hits = [item.hit_rate for item in steps]
    drawn = [curve for curve in rates.data if curve.yaxis == "y2"]
    assert [list(curve.y) for curve in drawn] == (
        [hits] if any(h is not None for h in hits) else []
    )


def test_smoothing_divides_tokens_by_time_over_a_window() -> None:
    _, steps = run_of(recorded_names()[0])
    last = steps[-5:]
    expected = sum(s.sampled_tokens for s in last) / sum(s.seconds for s in last)
    assert charts.smoothed(steps)[-1] == pytest.approx(expected)
    assert len(charts.smoothed(steps)) == len(steps)


def test_the_cursor_is_a_line_at_its_step() -> None:
    _, steps = run_of(recorded_names()[0])
    assert not charts.memory(steps, LOOKS["light"], words).layout.shapes
    (line,) = charts.memory(steps, LOOKS["light"], words, 3).layout.shapes
    assert line.x0 == line.x1 == 3


def test_measured_and_simulated_say_so() -> None:
    model: dict[str, Any] = {"name": "M<b>", "dtype": "bfloat16", "device": "cpu", "processor": "P"}
    assert charts.provenance(model, True, words) == "measured on M<b>, bfloat16, cpu, P"
    assert "simulated" in charts.provenance(model, False, words)
    assert "does not say" in charts.provenance({}, True, words)


def test_every_word_of_a_figure_is_in_both_catalogues() -> None:
    _, steps = run_of(recorded_names()[0])
    asked: set[str] = set()

    def note(key: str) -> str:
        asked.add(key)
        return key

    for draw in (charts.memory, charts.requests, charts.rates):
        draw(steps, LOOKS["light"], note)
    charts.provenance({}, False, note)
    for lang in LANGUAGES:
        assert {f"app.chart.{key}" for key in asked} <= catalogue(lang).keys()
