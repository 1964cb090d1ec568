"""The curves of a run: memory by part, requests by state, throughput, hit rate.

Pure functions from a run's step metrics to Plotly figures. Words come from the caller (`Words`), so
a figure knows no catalogue; colours come as a `Look`. A part keeps its place and its colour in
every figure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.figures.frame import Words, axis, empty, hatch, source, titled
from app.figures.look import PARTS, Look
from core.trace.metrics import StepMetrics

__all__ = ["memory", "provenance", "rates", "requests", "smoothed"]

_WINDOW = 5


def memory(
    steps: Sequence[StepMetrics], look: Look, words: Words, cursor: int | None = None
) -> go.Figure:
    """Slots by part over the steps, stacked; every step adds up to all usable slots.

    A part that this run never has is left out: paged memory has no holes, static memory no tails.
    """
    figure = _empty(look, words("chart_memory"), words("slots"), words)
    at = [item.step for item in steps]
    for name, colour in zip(PARTS, look.parts, strict=True):
        values = [getattr(item.slots, name) for item in steps]
        if not any(values):
            continue
        shares = [value / item.slots.total for value, item in zip(values, steps, strict=True)]
        figure.add_scatter(
            x=at, y=values, name=words(f"part_{name}"), mode="lines", stackgroup="memory",
            line={"width": 0.6, "color": colour, "shape": "hv"}, fillcolor=colour,
            fillpattern=hatch(look, name), customdata=shares,
            hovertemplate="%{y:,} " + words("slots") + " (%{customdata:.1%})",
        )  # fmt: skip
    return _marked(figure, look, cursor)


def requests(
    steps: Sequence[StepMetrics], look: Look, words: Words, cursor: int | None = None
) -> go.Figure:
    """Requests running, waiting and swapped out over the steps."""
    figure = _empty(look, words("chart_requests"), words("requests"), words)
    names = ("running", "waiting", "swapped")
    dashes = ("solid", "dash", "dot")  # readable without colour
    for name, colour, dash in zip(names, look.lines, dashes, strict=False):
        values = [getattr(item, name) for item in steps]
        if name == "swapped" and not any(values):
            continue
        figure.add_scatter(
            x=[item.step for item in steps], y=values, name=words(name), mode="lines",
            line={"width": 2, "color": colour, "shape": "hv", "dash": dash},
            hovertemplate="%{y} " + words("requests"),
        )  # fmt: skip
    return _marked(figure, look, cursor)


def rates(
    steps: Sequence[StepMetrics],
    look: Look,
    words: Words,
    cursor: int | None = None,
    *,
    measured_on: str = "",
) -> go.Figure:
    """Sampled tokens a second (each step, and smoothed) and the hit rate so far."""
    figure = _empty(look, words("chart_rates"), words("tokens_per_second"), words)
    at = [item.step for item in steps]
    unit = " " + words("tokens_per_second")
    figure.add_scatter(
        x=at, y=[item.tokens_per_second for item in steps], name=words("each_step"),
        mode="markers", marker={"size": 4, "color": look.muted, "opacity": 0.55},
        hovertemplate="%{y:,.0f}" + unit,
    )  # fmt: skip
    figure.add_scatter(
        x=at, y=smoothed(steps), name=words("smoothed"), mode="lines",
        line={"width": 2, "color": look.lines[0]}, hovertemplate="%{y:,.0f}" + unit,
    )  # fmt: skip
    hits = [item.hit_rate for item in steps]
    if any(rate is not None for rate in hits):
        figure.add_scatter(
            x=at, y=hits, name=words("hit_rate"), mode="lines", yaxis="y2",
            line={"width": 2, "color": look.lines[2], "dash": "dash"}, hovertemplate="%{y:.1%}",
        )  # fmt: skip
        figure.update_layout(
            yaxis2={
                **axis(look), "overlaying": "y", "side": "right", "range": [0, 1.02],
                "tickformat": ".0%", "showgrid": False, "nticks": 5, "tickmode": "auto",
                "title": titled(look, words("hit_rate")),
            }
        )  # fmt: skip
    if measured_on:
        source(figure, look, measured_on, "measured")
    return _marked(figure, look, cursor)


def smoothed(steps: Sequence[StepMetrics], window: int = _WINDOW) -> list[float]:
    """Tokens a second over the last `window` steps: tokens by time, not a mean of rates."""
    rates: list[float] = []
    for end in range(1, len(steps) + 1):
        part = steps[max(0, end - window) : end]
        seconds = sum(item.seconds for item in part)
        tokens = sum(item.sampled_tokens for item in part)
        rates.append(tokens / seconds if seconds else 0.0)
    return rates


def provenance(model: Mapping[str, Any], measured: bool, words: Words) -> str:
    """What the figures' times were measured on, or that they are simulated."""
    if not measured:
        return words("simulated")
    facts = [str(model[k]) for k in ("name", "dtype", "device", "processor") if model.get(k)]
    return f"{words('measured_on')} {', '.join(facts)}" if facts else words("measured_unknown")


def _empty(look: Look, title: str, unit: str, words: Words) -> go.Figure:
    return empty(look, title, words("step"), unit)


def _marked(figure: go.Figure, look: Look, cursor: int | None) -> go.Figure:
    """The figure with a line where the player stands."""
    if cursor is not None:
        figure.add_vline(x=cursor, line={"width": 1.5, "color": look.accent, "dash": "dot"})
    return figure
