"""Several memories under one workload: where their slots go, who runs, how fast, how late.

Pure functions from `SystemRun`s, which are plain values: of a simulated run or of a trace. A system
keeps its colour and its dash in every figure of a page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.frame import Kind, Words, axis, empty, hatch, plain, source, titled
from app.figures.look import HATCHES, PARTS, Look

__all__ = ["DELAYS", "SystemRun", "bars", "concurrency", "latency", "memory", "throughput"]

DELAYS = ("ttft", "itl", "e2e")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKS = ("circle", "square", "diamond", "cross", "triangle-up", "star")
_BAR, _BARS = 50, 190  # pixels a bar, pixels of all that is not bars


@dataclass(frozen=True, slots=True)
class SystemRun:
    """One system's run.

    Attributes:
        times: seconds of the run's own clock, of every point of the series.
        parts: shares of all slots by part, at every point.
        mean: shares of all slots by part, averaged over time.
        delays: seconds by kind of delay (`DELAYS`) and quantile ("p50").
    """

    name: str
    times: tuple[float, ...]
    parts: Mapping[str, tuple[float, ...]]
    running: tuple[float, ...]
    waiting: tuple[float, ...]
    rates: tuple[float, ...]
    mean: Mapping[str, float]
    delays: Mapping[str, Mapping[str, float]]


def bars(
    means: Mapping[str, Mapping[str, float]],
    look: Look,
    words: Words,
    *,
    about: str,
    kind: Kind,
    kinds: Sequence[Kind] = (),
    title: str = "chart_systems",
) -> go.Figure:
    """One stacked bar a system: shares of all slots, in the paper's order.

    Args:
        means: shares by part, by the system's name; the first is drawn on top.
        look: colours.
        words: of the caller's catalogue.
        about: what the numbers are, and on what.
        kind: of the numbers.
        kinds: of each system's numbers, where they differ.
        title: key of the figure's title.
    """
    figure = empty(look, words(title), words("share"), "", _BARS + _BAR * len(means))
    names = [plain(name) for name in means]
    for part in PARTS:
        values = [shares.get(part, 0.0) for shares in means.values()]
        if not any(values):
            continue
        figure.add_bar(
            x=values, y=names, orientation="h", name=words(f"part_{part}"),
            marker={"color": look.part(part), "pattern": _pattern(look, part),
                    "line": {"width": 1, "color": look.ground}},
            text=[f"{value:.1%}" if value >= 0.045 else "" for value in values],
            textposition="inside", insidetextanchor="middle", textangle=0,
            textfont={"size": 11, "weight": 650, "color": _ink(look, part),
                      "shadow": _halo(look, part)},
            hovertemplate="%{x:.1%}", meta=list(kinds) or None,
        )  # fmt: skip
    figure.update_layout(
        barmode="stack", bargap=0.32, hovermode="y unified", margin={"b": 92},
        uniformtext={"minsize": 10, "mode": "hide"},
        legend={"y": 0, "yref": "container", "yanchor": "bottom"},
    )  # fmt: skip
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(autorange="reversed", title="", dtick=1)
    return source(figure, look, about, kind)


def memory(run: SystemRun, look: Look, words: Words, *, about: str, kind: Kind) -> go.Figure:
    """One system's slots by part over time, stacked, as shares of all slots."""
    title = words("chart_system_memory", name=plain(run.name))
    figure = empty(look, title, words("seconds"), words("share"))
    for part in PARTS:
        values = run.parts.get(part, ())
        if not any(values):
            continue
        colour = look.part(part)
        figure.add_scatter(
            x=run.times, y=values, name=words(f"part_{part}"), mode="lines", stackgroup="memory",
            line={"width": 0.6, "color": colour, "shape": "hv"}, fillcolor=colour,
            fillpattern=hatch(look, part), hovertemplate="%{y:.1%}",
        )  # fmt: skip
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    return source(figure, look, about, kind)


def concurrency(
    runs: Sequence[SystemRun], look: Look, words: Words, *, about: str, kind: Kind
) -> go.Figure:
    """Requests over time by system: running above, waiting below."""
    frame = empty(look, words("chart_concurrency"), "", "", 420)
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.08)
    figure.update_layout(frame.layout)
    for row, what in enumerate(("running", "waiting"), start=1):
        for place, run in enumerate(runs):
            colour, dash = _line(look, place)
            figure.add_scatter(
                x=run.times, y=getattr(run, what), mode="lines", legendgroup=run.name,
                name=plain(run.name), showlegend=row == 1, hovertemplate="%{y:,.0f}",
                line={"width": 1.8, "color": colour, "dash": dash, "shape": "hv"}, row=row, col=1,
            )  # fmt: skip
        figure.update_yaxes(**axis(look), title=titled(look, words(what)), row=row, col=1)
        title = titled(look, words("seconds") if row == 2 else "")
        figure.update_xaxes(**axis(look), title=title, row=row, col=1)
    return source(figure, look, about, kind)


def throughput(
    runs: Sequence[SystemRun], look: Look, words: Words, *, about: str, kind: Kind
) -> go.Figure:
    """Generated tokens a second over time, by system."""
    figure = empty(look, words("chart_throughput"), words("seconds"), words("tokens_per_second"))
    for place, run in enumerate(runs):
        colour, dash = _line(look, place)
        figure.add_scatter(
            x=run.times, y=run.rates, mode="lines", name=plain(run.name),
            line={"width": 2, "color": colour, "dash": dash}, hovertemplate="%{y:,.0f}",
        )  # fmt: skip
    return source(figure, look, about, kind)


def latency(
    runs: Sequence[SystemRun], look: Look, words: Words, *, about: str, kind: Kind
) -> go.Figure:
    """Delays by quantile, by system: to the first token, between tokens, to the last."""
    frame = empty(look, words("chart_latency"), "", "", 360)
    figure = make_subplots(1, len(DELAYS), horizontal_spacing=0.09)
    figure.update_layout(frame.layout)
    for column, delay in enumerate(DELAYS, start=1):
        for place, run in enumerate(runs):
            quantiles = run.delays.get(delay, {})
            colour, dash = _line(look, place)
            figure.add_scatter(
                x=list(quantiles), y=list(quantiles.values()), mode="lines+markers",
                name=plain(run.name), legendgroup=run.name, showlegend=column == 1,
                line={"width": 1.4, "color": colour, "dash": dash},
                marker={"size": 8, "symbol": _MARKS[place % len(_MARKS)]},
                hovertemplate="%{y:.3s}s", row=1, col=column,
            )  # fmt: skip
        figure.update_xaxes(
            **{**axis(look), "rangemode": "normal"}, type="category",
            title=titled(look, words(delay)), row=1, col=column,
        )  # fmt: skip
        figure.update_yaxes(
            **axis(look), title=titled(look, words("seconds") if column == 1 else ""),
            tickformat="~s", ticksuffix="s", row=1, col=column,
        )  # fmt: skip
    return source(figure, look, about, kind)


def _line(look: Look, place: int) -> tuple[str, str]:
    return look.lines[place % len(look.lines)], _DASHES[place % len(_DASHES)]


def _pattern(look: Look, part: str) -> Mapping[str, object]:
    return {k: v for k, v in hatch(look, part).items() if k != "fillmode"}


def _halo(look: Look, part: str) -> str:
    """A pale edge around letters on a hatch, whose lines would run through them."""
    return ", ".join(["0 0 3px " + look.part("free")] * 4) if part in HATCHES else "none"


def _ink(look: Look, part: str) -> str:
    """Letters that can be read on the part's fill; hatches stand on the pale ground."""
    return "#ffffff" if part == "tokens" and look.ground == "#ffffff" else look.text
