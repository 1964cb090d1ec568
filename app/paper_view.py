"""What the paper page draws of each reproduction: a figure, a table, the notes.

It owns the way from a reproduction's plain values (`to_json()` of `core.workload.paper`, recorded
or just made) to figures and tables, with the published numbers beside ours. It does not know where
the values come from, nor Streamlit's state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.cards import bullets, table
from app.export import chart
from app.figures import savings, sweeps, systems
from app.figures.frame import Kind
from app.figures.savings import Saving
from app.figures.sweeps import BlockPoint
from app.sim_view import words_of
from app.state import Say
from app.theme import LOOKS, theme_name
from core.text import catalogue, sentence

__all__ = ["show_blocks", "show_figure2", "show_notes", "show_sharing", "show_table1"]

Plain = Mapping[str, Any]
# The paper's "external & others" is our hole; paged memory's unused slots are its tails, and what
# is left of it is free.
_PARTS = {
    "contiguous": {
        "tokens": "tokens", "reserved": "reserved", "unused": "unused", "other": "hole",
    },
    "paged": {"tokens": "tokens", "reserved": "reserved", "unused": "tail", "other": "free"},
}  # fmt: skip
_SHARES = ("tokens", "reserved", "unused", "other")


def show_figure2(plain: Plain, say: Say, lang: str) -> None:
    """Our shares beside the published ones, as bars and as a table with the differences."""
    means: dict[str, dict[str, float]] = {}
    kinds: list[Kind] = []
    for row in plain["rows"]:
        name = sentence(f"paper.system.{row['system']}", lang)
        names = _PARTS["paged" if row["system"] == "paged" else "contiguous"]
        ours = say("chart.paper_ours", name=name)
        theirs = say("chart.paper_theirs", name=name)
        means[ours] = _shares(row["shares"], names)
        means[theirs] = _published(row["published"], names)
        kinds += ["modelled", "published"]
    about = say("paper.figure2_source", requests=plain["requests"], slots=f"{plain['slots']:,}")
    figure = systems.bars(
        means, LOOKS[theme_name()], words_of(say), about=about, kind="modelled", kinds=kinds,
        title="chart_paper",
    )  # fmt: skip
    chart(figure, "figure2", say)
    head = [say("paper.col_system"), *(say(f"paper.col_{name}") for name in _SHARES),
            say("paper.col_apart"), say("paper.col_full"), say("paper.col_running")]  # fmt: skip
    rows = []
    for row in plain["rows"]:
        cells = [_beside(row["shares"][name], row["published"][name]) for name in _SHARES]
        running = _beside(row["running"], row["published_running"], 2)
        apart = say("paper.points", points=f"{row['largest_difference']:.1f}")
        name = sentence(f"paper.system.{row['system']}", lang)
        rows.append([name, *cells, apart, f"{row['running_full']:.2f}", running])
    st.html(table([say("paper.figure2_caption")], head, rows))


def show_table1(plain: Plain, say: Say, lang: str) -> None:
    """A slot's bytes and the slots of three models."""
    head = sentence("paper.table1.header", lang).split("|")
    rows = [
        [
            row["model"], row["devices"],
            f"{row['weights_gb']:.1f} / {row['published_weights_gb']}",
            f"{row['kv_gib']:g}", f"{row['left_gb']:.1f}", f"{row['slot_bytes']:,}",
            f"{row['slots']:,} / {row['published_kslots']}K",
        ]
        for row in plain["rows"]
    ]  # fmt: skip
    st.html(table([sentence("paper.table1.note", lang)], head, rows, words=2))


def show_sharing(plain: Plain, say: Say, lang: str) -> None:
    """What samples and beams save, beside the published numbers."""
    points: list[Saving] = []
    rows = []
    for row in plain["rows"]:
        mix, kind = (sentence(f"paper.{key}", lang) for key in (f"mix.{row['mix']}", row["kind"]))
        origin = sentence(f"paper.origin.{row['origin']}", lang)
        measured: Kind = "measured" if row["origin"] == "real_model" else "modelled"
        group = f"{kind} {row['width']}"
        ours = say("chart.paper_ours", name=mix)
        points.append(Saving(group, ours, row["saved"], measured))
        number = _number(row["published"])
        if number is not None:
            theirs = say("chart.paper_theirs", name=mix)
            points.append(Saving(group, theirs, number, "published"))
        rows.append([mix, kind, str(row["width"]), f"{row['saved']:.2f}", row["published"],
                     origin, str(row["requests"])])  # fmt: skip
    look = LOOKS[theme_name()]
    figure = savings.savings(
        points, look, words_of(say), about=say("paper.sharing_source", size=plain["block_size"])
    )
    chart(figure, "savings", say)
    head = sentence("paper.sharing.header", lang).split("|")
    st.html(table([say("paper.sharing_caption")], head, rows, words=2))


def show_blocks(plain: Plain, attention: Plain | None, say: Say, lang: str) -> None:
    """What each block size costs: counted and modelled; attention time as measured."""
    curves: dict[str, list[BlockPoint]] = {}
    for row in plain["rows"]:
        mix = sentence(f"paper.mix.{row['mix']}", lang)
        point = BlockPoint(row["block_size"], row["waste"] / 100, row["entries"])
        curves.setdefault(mix, []).append(point)
    times: dict[str, Sequence[tuple[int, float]]] = {}
    if attention is not None:
        name = say("paper.attention_of", model=attention["shape"]["name"])
        times[name] = [(int(size), float(seconds)) for size, seconds in attention["seconds"]]
    about = say("paper.blocks_source")
    if attention is not None:
        about = f"{about} {_measured(attention, say)}"
    figure = sweeps.block_sweep(
        curves, times, LOOKS[theme_name()], words_of(say), about=about, kind="modelled"
    )
    chart(figure, "blocks", say)
    head = sentence("paper.blocks.header", lang).split("|")
    rows = [
        [
            sentence(f"paper.mix.{row['mix']}", lang), str(row["block_size"]),
            f"{row['waste']:.2f}", f"{row['measured_waste']:.2f} / {row['expected_waste']:g}",
            f"{row['entries']:.1f}", f"{row['running']:.1f}",
            f"{row['tokens_per_second']:,.0f}", f"{row['preemptions']:,}",
        ]
        for row in plain["rows"]
    ]  # fmt: skip
    with st.expander(say("paper.blocks_caption")):
        st.html(table([], head, rows))


def show_notes(plain: Plain, lang: str) -> None:
    """What a reader must know of the numbers: differences explained, choices named."""
    notes = [note for note in plain.get("notes", ()) if f"paper.note.{note['code']}" in _known()]
    lines = [sentence(f"paper.note.{note['code']}", lang, **_named(note, lang)) for note in notes]
    if lines:
        st.html(f'<div class="gbx-card">{bullets(lines)}</div>')


def _known() -> Mapping[str, str]:
    return catalogue("en")


def _named(note: Plain, lang: str) -> dict[str, object]:
    """A note's values, a system's with its name for readers."""
    values = dict(note["values"])
    if "system" in values:
        values["system"] = sentence(f"paper.system.{values['system']}", lang)
    return values


def _shares(shares: Plain, names: Mapping[str, str]) -> dict[str, float]:
    return {names[part]: shares[part] / 100 for part in _SHARES}


def _published(shares: Plain, names: Mapping[str, str]) -> dict[str, float]:
    """Published shares; of paged memory only tokens are, and the rest is all the waste there is."""
    found = {names[part]: shares[part] / 100 for part in _SHARES if shares[part] is not None}
    found.setdefault(names["unused"], 1 - sum(found.values()))
    return found


def _beside(ours: float, published: float | None, digits: int = 1) -> str:
    theirs = "–" if published is None else f"{published:.{digits}f}"
    return f"{ours:.{digits}f} / {theirs}"


def _number(text: str) -> float | None:
    """A published figure; a range of them is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _measured(attention: Plain, say: Say) -> str:
    return say(
        "paper.attention_source",
        seqs=attention["num_seqs"], context=attention["context"], dtype=attention["dtype"],
        processor=attention["processor"], threads=attention["threads"],
        repeats=attention["repeats"],
    )  # fmt: skip
