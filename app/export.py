"""A chart on the page with its three buttons: PNG, SVG, CSV.

It owns the card around a figure and the component that saves it. A figure's picture is made in the
browser from the drawing that stands there, its table here from the figure's data; what was drawn
without Plotly hands in both. The same component copies a line of text. It does not know what is
drawn.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from app.figures.table import csv_text
from app.state import Say
from app.theme import LOOKS, theme_name

__all__ = ["chart", "copy_button", "picture"]

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
_SAVED = ("png", "svg", "csv")


def chart(
    figure: go.Figure,
    key: str,
    say: Say,
    controls: Callable[[], None] | None = None,
    repeat: str = "",
) -> None:
    """Draws the figure in a card.

    Args:
        figure: of `app.figures`.
        key: of this chart on its page: letters, digits and `_`; also the saved files' name.
        say: words in the visitor's language.
        controls: paints widgets at the top of the card.
        repeat: a command that makes the figure's numbers again; saved with the picture.
    """
    target = f"gbx_chart_{key}"
    with st.container(key=f"gbx-figure-{key}"):
        if controls is not None:
            controls()
        st.plotly_chart(figure, key=target, theme=None, config={"displayModeBar": False})
        _buttons(figure, target, key, say, repeat)


def picture(svg: str, table: str, key: str, say: Say) -> None:
    """The buttons of something that was drawn without Plotly.

    Args:
        svg: what is saved, with its width and height.
        table: its data as CSV.
        key: as of `chart`.
        say: words in the visitor's language.
    """
    _mount({"svg": svg, "csv": table}, f"gbx_chart_{key}_export", key, say)


def copy_button(text: str, key: str, say: Say) -> None:
    """A button that puts the text on the clipboard.

    Args:
        text: what is copied.
        key: of the button.
        say: words in the visitor's language.
    """
    _mount({"text": text}, key, "", say, kinds=("copy",))


def _buttons(figure: go.Figure, target: str, key: str, say: Say, repeat: str) -> None:
    title = figure.layout.title
    data = {
        "target": target,
        "title": _bare(title.text),
        "source": " ".join(filter(None, (_bare(title.subtitle.text), repeat))),
        "csv": csv_text(figure),
        "ground": LOOKS[theme_name()].ground,
    }
    _mount(data, f"{target}_export", key, say)


def _mount(
    data: dict[str, str], key: str, name: str, say: Say, kinds: Sequence[str] = _SAVED
) -> None:
    words = [*kinds, *(f"{kind}_help" for kind in kinds), "label", "copied"]
    whole = {
        **data,
        "kinds": kinds,
        "name": f"glassblock-{name.replace('_', '-')}",
        "words": {word: say(f"chart.export_{word}") for word in words},
    }
    mount = st.components.v2.component(
        "glassblock_export", html=_HTML, css=_CSS, js=_SCRIPT.read_text(encoding="utf-8")
    )
    mount(key=key, data=whole)


def _bare(text: str | None) -> str:
    """A figure's text without Plotly's line breaks and escapes."""
    lines = re.sub(r"<br>", " ", text or "")
    return lines.replace("&lt;", "<").replace("&amp;", "&")
