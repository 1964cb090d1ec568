"""The pool with a decode step's reads: the component, and the same in words.

It owns the way from `core.exec.decode_traffic` to what `traffic.js` draws. It does not know where
the step comes from.
"""

from pathlib import Path
from typing import Any

import streamlit as st

from app.state import Say
from app.theme import LOOKS, OWNERS, theme_name
from core.exec.decode_traffic import DecodeStep, Program, Traffic

__all__ = ["program_name", "reads_table", "show_pool"]

_SCRIPT = Path(__file__).parents[1] / "assets" / "player" / "traffic.js"
_MOST = 4096  # blocks of a pool that is drawn whole; of a larger one only what is read
_LISTED = 24  # blocks that a cell of the table names
_WORDS = ("back", "next", "play", "pause", "turn", "at", "pool", "programs", "block", "read",
          "held", "free", "before", "idle", "more")  # fmt: skip
_HTML = """
<div class="gbx-traffic">
  <div class="bar">
    <button type="button" data-part="back">‹</button>
    <button type="button" data-part="play"></button>
    <button type="button" data-part="next">›</button>
    <input type="range" min="0" max="1" step="1" data-part="turn">
    <output data-part="count"></output>
  </div>
  <div class="programs" role="group" data-part="programs"></div>
  <div class="pool"><canvas tabindex="0" role="img" data-part="pool"></canvas></div>
  <p class="says" role="status" data-part="says"></p>
  <p class="about" data-part="about"></p>
</div>
"""
_CSS = """
.gbx-traffic{border:1px solid var(--gbx-line);border-radius:12px;background:var(--gbx-card);
  padding:12px 16px;color:var(--gbx-text);font-size:13px}
.gbx-traffic .bar{display:flex;align-items:center;gap:8px}
.gbx-traffic .bar input{flex:1 1 60px;min-width:40px;accent-color:var(--gbx-accent)}
.gbx-traffic output{white-space:nowrap;font-variant-numeric:tabular-nums;color:var(--gbx-muted)}
.gbx-traffic button{font:inherit;font-size:12.5px;height:30px;padding:0 12px;cursor:pointer;
  border:1px solid var(--gbx-line);border-radius:999px;background:var(--gbx-card);
  color:var(--gbx-text);white-space:nowrap}
.gbx-traffic button:hover{border-color:var(--gbx-accent)}
.gbx-traffic button[aria-pressed=true]{border-color:var(--gbx-accent);
  box-shadow:inset 0 0 0 1px var(--gbx-accent)}
.gbx-traffic :focus-visible{outline:2px solid var(--gbx-accent);outline-offset:1px}
.gbx-traffic .programs{display:flex;flex-wrap:wrap;gap:6px;margin:10px 0;max-height:104px;
  overflow:auto}
.gbx-traffic .programs button{height:26px;display:inline-flex;align-items:center;gap:6px}
.gbx-traffic .programs i{width:10px;height:10px;border-radius:3px}
.gbx-traffic .pool{max-height:460px;overflow-y:auto;overflow-x:hidden}
.gbx-traffic canvas{display:block;border-radius:6px}
.gbx-traffic p{margin:8px 0 0;line-height:1.5;overflow-wrap:anywhere}
.gbx-traffic .says{min-height:3em}
.gbx-traffic .about{font-size:12px;color:var(--gbx-muted)}
"""


def show_pool(step: DecodeStep, found: Traffic, key: str, say: Say) -> None:
    """Draws the pool and the turns of the kernel's loop.

    Args:
        step: of the trace.
        found: its reads.
        key: changes when something else is shown: the drawing then starts anew.
        say: words in the visitor's language.
    """
    mount = st.components.v2.component(
        "glassblock_traffic", html=_HTML, css=_CSS, js=_SCRIPT.read_text(encoding="utf-8")
    )
    mount(key="gbx_lab_traffic", data=_data(step, found, key, say))


def reads_table(step: DecodeStep, found: Traffic, say: Say) -> list[list[str]]:
    """The picture in words: each program's share and the blocks of its turns."""
    rows = []
    for program in found.programs:
        turns = [", ".join(map(str, turn[:_LISTED])) for turn in program.turns[:_LISTED]]
        rows.append([
            program_name(step, found, program, say), str(found.heads.num_kv_heads),
            say("lab.positions", begin=program.begin, end=program.end - 1),
            str(len(program.turns)), " | ".join(turns),
        ])  # fmt: skip
    return rows


def program_name(step: DecodeStep, found: Traffic, program: Program, say: Say) -> str:
    """A sequence's label, with its share where a context is cut."""
    label = step.sequences[program.sequence].label
    if found.splits == 1:
        return label
    return say("lab.share", label=label, number=program.split + 1)


def _data(step: DecodeStep, found: Traffic, key: str, say: Say) -> dict[str, Any]:
    look, theme = LOOKS[theme_name()], theme_name()
    touched = {block for program in found.programs for block in program.blocks}
    is_whole = step.num_blocks <= _MOST
    ids = list(range(step.num_blocks)) if is_whole else sorted(touched)[:_MOST]
    about = say("lab.drawn_all") if is_whole else say("lab.drawn_read", shown=len(ids))
    return {
        "key": key,
        "turns": found.num_turns,
        "about": about,
        "blocks": [
            {"id": block, "filled": step.filled.get(block, 0) / step.block_size} for block in ids
        ],
        "programs": [
            {
                "name": program_name(step, found, program, say),
                "title": say("lab.positions", begin=program.begin, end=program.end - 1),
                "turns": [list(turn) for turn in program.turns],
            }
            for program in found.programs
        ],
        "words": {name: say(f"lab.js_{name}") for name in _WORDS},
        "look": {
            "ground": look.ground, "text": look.text, "muted": look.muted, "accent": look.accent,
            "free": look.part("free"), "lines": list(OWNERS[theme]),
        },
    }  # fmt: skip
