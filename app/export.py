"""A chart on the page with its three buttons: PNG, SVG, CSV.

It owns the card around a figure and the component that saves it. The picture is made in the
browser from the drawing that stands there; the table is made here from the figure's data. It does
not know what is drawn.
"""

import re
from collections.abc import Callable
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from app.figures.table import csv_text
from app.state import Say
from app.theme import LOOKS, theme_name

__all__ = ["chart"]

_SCRIPT = Path(__file__).parents[1] / "assets" / "player" / "export.js"
_HTML = '<div class="gbx-export" role="group"></div>'
_CSS = """
.gbx-export{display:flex;justify-content:flex-end;gap:6px;height:26px}
.gbx-export button{font:inherit;font-size:11px;line-height:1;letter-spacing:.04em;height:24px;
  padding:0 10px;border:1px solid var(--gbx-line);border-radius:999px;cursor:pointer;
  color:var(--gbx-muted);background:var(--gbx-card)}
.gbx-export button:hover{color:var(--gbx-accent);border-color:var(--gbx-accent)}
.gbx-export button:focus-visible{outline:2px solid var(--gbx-accent);outline-offset:1px}
"""
_WORDS = ("png", "svg", "csv", "png_help", "svg_help", "csv_help", "label")


def chart(
    figure: go.Figure, key: str, say: Say, controls: Callable[[], None] | None = None
) -> None:
    """Draws the figure in a card.

    Args:
        figure: of `app.figures`.
        key: of this chart on its page: letters, digits and `_`; also the saved files' name.
        say: words in the visitor's language.
        controls: paints widgets at the top of the card.
    """
    target = f"gbx_chart_{key}"
    with st.container(key=f"gbx-figure-{key}"):
        if controls is not None:
            controls()
        st.plotly_chart(figure, key=target, theme=None, config={"displayModeBar": False})
        _buttons(figure, target, key, say)


def _buttons(figure: go.Figure, target: str, key: str, say: Say) -> None:
    title = figure.layout.title
    data = {
        "target": target,
        "name": f"glassblock-{key.replace('_', '-')}",
        "title": _bare(title.text),
        "source": _bare(title.subtitle.text),
        "csv": csv_text(figure),
        "ground": LOOKS[theme_name()].ground,
        "words": {name: say(f"chart.export_{name}") for name in _WORDS},
    }
    mount = st.components.v2.component(
        "glassblock_export", html=_HTML, css=_CSS, js=_SCRIPT.read_text(encoding="utf-8")
    )
    mount(key=f"{target}_export", data=data)


def _bare(text: str | None) -> str:
    """A figure's text without Plotly's line breaks and escapes."""
    lines = re.sub(r"<br>", " ", text or "")
    return lines.replace("&lt;", "<").replace("&amp;", "&")
