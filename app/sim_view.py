"""The results of simulations: one table, the charts, what was refused, what was assumed.

It owns the order and the words beside the numbers. It does not know who made the results. Names
come from files and visitors: they are escaped here, or made plain by the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import streamlit as st

from app.cards import bullets, table
from app.export import chart, copy_button
from app.figures import sweeps, systems
from app.figures.frame import Words
from app.sim_command import told_as_one
from app.sim_form import system_title
from app.sim_sets import ResultSet, pool_curves, system_run
from app.state import Say
from app.theme import LOOKS, theme_name
from core.workload.sim_result import SimulationResult, Spread

__all__ = ["Entry", "about", "show_results", "words_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A result under the name that the page gives it."""

    name: str
    result: SimulationResult


def words_of(say: Say) -> Words:
    """The figures' words."""

    def words(key: str, **values: object) -> str:
        return say(f"chart.{key}", **values)

    return words


def about(results: Sequence[SimulationResult], say: Say) -> list[str]:
    """What results' numbers are and on what: the lines under a figure's title.

    Memories of one size differ by less than a block; such results share a line.
    """
    groups: dict[tuple[str, str], list[SimulationResult]] = {}
    for result in results:
        groups.setdefault((_cost(result, say), _named(result)), []).append(result)
    lines = []
    for (cost, workload), group in groups.items():
        sizes = {r.summary.slots for r in group if r.summary.slots is not None}
        slots = "–".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else "∞"
        line = say("sim.source_line", workload=workload, slots=slots, cost=cost)
        is_known = any(result.command for result in group)
        lines.append(f"{line} {say('sim.repeated_by')}" if is_known else line)
    return lines


def _cost(result: SimulationResult, say: Say) -> str:
    """The cost model in a few words; the assumptions at the page's end say all of it."""
    known: dict[str, Any] = {}
    for item in result.assumptions:
        if item.code in ("hardware", "model", "efficiency"):
            known |= item.values
    wanted = ("model", "dtype", "gpus", "hardware", "compute", "memory")
    return say("sim.cost_line", **{name: known.get(name, "?") for name in wanted})


def _named(result: SimulationResult) -> str:
    """The workload's name, and in brackets where its requests come from."""
    if not result.source or result.source == result.workload:
        return result.workload
    return f"{result.workload} ({result.source})"


def show_results(entries: Sequence[Entry], sets: Sequence[ResultSet], say: Say, lang: str) -> None:
    """Paints everything about the chosen systems.

    Args:
        entries: the systems, in the order of the charts.
        sets: that they come from, for the sweeps over pool sizes.
        say: words in the visitor's language.
        lang: of the sentences of results.
    """
    lines = about([entry.result for entry in entries], say)
    st.html(_table(entries, lines, say))
    repeat = told_as_one([entry.result.command for entry in entries])
    if repeat:
        with st.container(key="gbx-sim-repeat", horizontal=True, vertical_alignment="center"):
            text = f"{escape(say('sim.repeat'))} <code>{escape(repeat)}</code>"
            st.html(f'<div class="gbx-about">{text}</div>', width="stretch")
            # What is shown has bars between systems, which a shell would take for pipes.
            lines_of = dict.fromkeys(filter(None, (entry.result.command for entry in entries)))
            copy_button("\n".join(lines_of), "gbx_sim_copy", say)
    refused = [line for entry in entries for line in _refusals(entry, say, lang)]
    if refused:
        st.html(f'<div class="gbx-note" role="note">{bullets(refused)}</div>')
    _charts(entries, sets, " | ".join(lines[:2]), repeat, say)
    _assumptions(entries, sets, say, lang)


def _charts(
    entries: Sequence[Entry], sets: Sequence[ResultSet], source: str, repeat: str, say: Say
) -> None:
    look, words = LOOKS[theme_name()], words_of(say)
    runs = [system_run(entry.result, entry.name) for entry in entries]
    means = {run.name: run.mean for run in runs}
    chart(
        systems.bars(means, look, words, about=source, kind="modelled"),
        "systems",
        say,
        repeat=repeat,
    )
    left, right = st.columns(2, gap="small")
    with left:
        chart(
            systems.concurrency(runs, look, words, about=source, kind="modelled"),
            "concurrency", say, repeat=repeat,
        )  # fmt: skip
        chart(
            systems.latency(runs, look, words, about=source, kind="modelled"),
            "latency",
            say,
            repeat=repeat,
        )
    with right:
        _memory(entries, runs, say)
        chart(
            systems.throughput(runs, look, words, about=source, kind="modelled"),
            "throughput", say, repeat=repeat,
        )  # fmt: skip
    pools = [pool for found in sets for pool in found.pools]
    if pools:
        curves = {system_title(k, say): points for k, points in pool_curves(pools).items()}
        figure = sweeps.pool_sweep(curves, look, words, about=source, kind="modelled")
        chart(figure, "pools", say, repeat=repeat)


def _memory(entries: Sequence[Entry], runs: Sequence[systems.SystemRun], say: Say) -> None:
    """One system's memory over time, chosen above it."""
    names = [entry.name for entry in entries]
    place = st.session_state.get("gbx_sim_memory", 0)
    if place not in range(len(names)):
        place = st.session_state["gbx_sim_memory"] = 0

    def choose() -> None:
        st.selectbox(
            say("sim.memory_of"), range(len(names)), key="gbx_sim_memory",
            format_func=names.__getitem__, label_visibility="collapsed",
        )  # fmt: skip

    (source,) = about([entries[place].result], say)
    look = LOOKS[theme_name()]
    figure = systems.memory(runs[place], look, words_of(say), about=source, kind="modelled")
    chart(figure, "system_memory", say, choose, repeat=entries[place].result.command)


# -------------------------------------------------------------------------------------- words

# What a table always says, and what only where there is something to say.
_COLUMNS = ("running", "tokens", "waste", "speed", "ttft", "itl", "finished")
_EXTRA = ("refused", "preempted", "hits")


def _table(entries: Sequence[Entry], lines: Sequence[str], say: Say) -> str:
    rows = [_cells(entry.result) for entry in entries]
    names = [*_COLUMNS, *(name for name in _EXTRA if any(row[name] for row in rows))]
    head = [say("sim.col_system"), *(say(f"sim.col_{name}") for name in names)]
    body = [
        [entry.name, *(row[name] or "–" for name in names)]
        for entry, row in zip(entries, rows, strict=True)
    ]
    return table(lines, head, body)


def _cells(result: SimulationResult) -> dict[str, str]:
    """A system's row; "" where there is nothing to say."""
    summary = result.summary
    parts, latency = summary.breakdown, summary.latency
    rate = summary.hit_rate if summary.hit_rate is not None else summary.token_hit_rate
    return {
        "running": f"{summary.mean_running:.2f}",
        "tokens": f"{parts.tokens:.1%}",
        "waste": f"{parts.unused + parts.tail + parts.hole:.1%}",
        "speed": f"{summary.tokens_per_second:,.0f}",
        "ttft": _times(latency.ttft),
        "itl": _times(latency.itl),
        "finished": f"{summary.finished:,} / {summary.requests:,}",
        "refused": f"{summary.refused:,}" if summary.refused else "",
        "preempted": f"{summary.preemptions:,}" if summary.preemptions else "",
        "hits": "" if rate is None else f"{rate:.1%}",
    }


def _times(spread: Spread) -> str:
    """Median and 99 % in one cell.

    >>> _times(Spread(1, 0.5, 0.0123, 1.0, 1.0, 65.0, 65.0))
    '12.3 ms · 65.0 s'
    """
    if not spread.count:
        return "–"
    return f"{_seconds(spread.p50)} · {_seconds(spread.p99)}"


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.1f} s"


def _refusals(entry: Entry, say: Say, lang: str) -> list[str]:
    """At most one line a system: how many, and the first one's reason."""
    if not entry.result.refusals:
        return []
    first = entry.result.refusals[0]
    return [
        say(
            "sim.refused", name=entry.name, count=entry.result.summary.refused,
            number=first.number, why=first.text(lang),
        )
    ]  # fmt: skip


def _assumptions(entries: Sequence[Entry], sets: Sequence[ResultSet], say: Say, lang: str) -> None:
    with st.expander(say("sim.assumptions"), key="gbx_sim_assumptions"):
        texts = dict.fromkeys(t for e in entries for t in e.result.assumption_texts(lang))
        lines = [say("sim.formula"), *texts]
        lines += [say("sim.made_by", command=found.command) for found in sets if found.command]
        seconds = sum(entry.result.summary.wall_seconds for entry in entries)
        lines.append(say("sim.wall", seconds=f"{seconds:.1f}"))
        st.html(bullets(lines))
