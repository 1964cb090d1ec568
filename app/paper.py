"""The paper page: what PagedAttention's paper published, beside what this engine comes to.

It owns the page's order, the recorded reproductions, and running one again. Every number says
whether it is published, modelled, counted on a real model, or derived. A part whose recording is
missing says so and can still be run.
"""

import json
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import streamlit as st

from app import again, nav, paper_view, state
from app.again import Tell, Work
from app.cards import SHEET
from app.state import Say
from core.machine import processor_name
from core.workload import paper

__all__ = ["show"]

_FOLDER = Path(__file__).parents[1] / "assets" / "results"
_SHARING_REQUESTS = 200


def show() -> None:
    """Paints the page."""
    lang = state.language()
    say = state.say(lang)
    nav.style(SHEET)
    nav.header("paper", lang, lambda: None)
    st.html(
        f'<div class="gbx-about"><b>{escape(say("paper.title"))}</b> · '
        f"{escape(say('paper.about'))}</div>"
    )
    notice = state.take_notice()
    if notice is not None:
        nav.note(notice.sentence(lang), is_error=True)
    _part("figure2", say, lang, lambda plain: paper_view.show_figure2(plain, say, lang))
    _title("table1", say, say("paper.derived"))
    paper_view.show_table1(paper.table1().to_json(), say, lang)
    _part("sharing", say, lang, lambda plain: paper_view.show_sharing(plain, say, lang))
    _part("blocks", say, lang, lambda plain: _blocks(plain, say, lang))


def _blocks(plain: dict[str, Any], say: Say, lang: str) -> None:
    paper_view.show_blocks(plain, _current("attention"), say, lang)
    _again("attention", say, lang)


def _part(name: str, say: Say, lang: str, draw: Callable[[dict[str, Any]], None]) -> None:
    """One reproduction: its title and where it comes from, the drawing, notes, "run again"."""
    plain = _current(name)
    _title(name, say, _origin(name, say))
    if plain is None:
        nav.note(say("paper.no_recording"))
    else:
        draw(plain)
        paper_view.show_notes(plain, lang)
    _again(name, say, lang)


def _title(name: str, say: Say, origin: str) -> None:
    st.html(
        f'<h2 class="gbx-part" id="{name}">{escape(say(f"paper.part_{name}"))}'
        f"<span>{escape(origin)}</span></h2>"
    )


def _origin(name: str, say: Say) -> str:
    if name in again.made("paper"):
        return say("paper.made_here", machine=processor_name())
    plain = _recorded(name) or {}
    made = say("paper.made_before", command=plain.get("command", _command(name)))
    machine = plain.get("machine")
    return say("paper.made_on", made=made, machine=machine) if machine else made


def _command(name: str) -> str:
    return f"glassblock simulate --paper {name}"


# ---------------------------------------------------------------------------------- run again


def _again(name: str, say: Say, lang: str) -> None:
    """A button that runs the part again, and how far that is."""
    with st.container(horizontal=True, vertical_alignment="center"):
        again.button("paper", name, f"paper.again_{name}", _WORK[name], say)
    again.progress("paper", name, lang)


def _figure2(tell: Tell) -> dict[str, Any]:
    return paper.figure2(tell).to_json()


def _blocks_again(tell: Tell) -> dict[str, Any]:
    return paper.blocks(tell).to_json()


def _sharing(tell: Tell) -> dict[str, Any]:
    """Samples again; beams need a real model for many minutes, so theirs stay as recorded."""
    made = paper.sharing(None, tell, requests=_SHARING_REQUESTS).to_json()
    before = _recorded("sharing") or {"rows": [], "notes": []}
    beams = [row for row in before["rows"] if row["kind"] == "beams"]
    known = {note["code"] for note in made["notes"]}
    notes = [note for note in before["notes"] if note["code"] not in known]
    kept = [note for note in made["notes"] if not (beams and note["code"] == "no_beams")]
    return {**made, "rows": [*made["rows"], *beams], "notes": [*kept, *notes]}


def _attention(tell: Tell) -> dict[str, Any]:
    from core.exec.attention_sweep import measure  # loads torch

    repeats = 21
    sweep = measure(repeats=repeats, on_turn=lambda turn: tell(turn / repeats))
    plain: dict[str, Any] = json.loads(sweep.to_json())
    return plain


_WORK: dict[str, Work] = {
    "figure2": _figure2,
    "sharing": _sharing,
    "blocks": _blocks_again,
    "attention": _attention,
}


def _current(name: str) -> dict[str, Any] | None:
    """What the visitor made, else the recording, else nothing."""
    return again.made("paper").get(name) or _recorded(name)


@cache
def _recorded(name: str) -> dict[str, Any] | None:
    path = _FOLDER / f"paper_{name}.json"
    if not path.is_file():
        return None
    plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return plain
