"""The header that all pages share: the name, real links to the pages, the model's state, language.

It owns the list of pages, the header's order and its style. It does not know what a page shows: a
page hands in a function that paints its own controls between the links and the model's state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeVar

import streamlit as st

from app import models, state
from app.state import Say
from app.theme import css, theme_name
from core.errors import GlassblockError
from core.text import LANGUAGES

__all__ = ["PAGES", "PageLink", "header", "model_line", "note", "pages", "script_of", "style"]

T = TypeVar("T")
_FOLDER = Path(__file__).parent
_LANGUAGE_NAMES = {"en": "English", "zh": "中文"}


@dataclass(frozen=True, slots=True)
class PageLink:
    """One page: `name` is its address and, with "tab_" before it, the key of its word."""

    name: str
    script: str


PAGES = (
    PageLink("explore", "app_pages/explore.py"),
    PageLink("compare", "app_pages/compare.py"),
    PageLink("simulate", "app_pages/simulate.py"),
    PageLink("paper", "app_pages/paper.py"),
    PageLink("kernel-lab", "app_pages/kernels.py"),
)


def pages() -> list["st.Page"]:
    """The pages for `st.navigation`; the first one opens at the bare address."""
    return [_page(link) for link in _present()]


def _page(link: PageLink) -> "st.Page":
    is_first = link is PAGES[0]
    path = None if is_first else link.name
    title = link.name.replace("-", " ").capitalize()
    return st.Page(link.script, title=title, default=is_first, url_path=path)


def script_of(name: str) -> str:
    """A page's script, for `st.switch_page`."""
    return next(link.script for link in PAGES if link.name == name)


def style(extra: str = "") -> None:
    """The page's style sheet; `extra` is the page's own."""
    st.html(css(theme_name()) + f"<style>{_SHEET}{extra}</style>")


def header(page: str, lang: str, controls: Callable[[], T]) -> T:
    """Paints the header.

    Args:
        page: name of the page that is open.
        lang: of its words.
        controls: paints the page's own controls; what it returns is handed on.
    """
    say = state.say(lang)
    with st.container(key="gbx-header", horizontal=True, vertical_alignment="center", gap="small"):
        st.html('<div class="gbx-brand">glassblock</div>', width="content")
        _tabs(page, say)
        answer = controls()
        st.space("stretch")
        _pill(lang)
        st.selectbox(
            say("language"), LANGUAGES, index=LANGUAGES.index(lang), key="gbx_lang", width=112,
            format_func=_LANGUAGE_NAMES.__getitem__, label_visibility="collapsed",
            on_change=_language_chosen,
        )  # fmt: skip
    return answer


def note(text: str, *, is_error: bool = False) -> None:
    """One message, as plain text."""
    kind = "gbx-note gbx-error" if is_error else "gbx-note"
    st.html(f'<div class="{kind}" role="alert">{escape(text)}</div>')


def model_line(facts: object, say: Say, *, measured: bool) -> str:
    """What a run's times were measured on, in a few words."""
    values = facts if isinstance(facts, Mapping) else {}
    name = str(values.get("name", "?")).removesuffix("-Instruct")
    dtype = str(values.get("dtype", "")).replace("bfloat", "bf").replace("float", "fp")
    device = str(values.get("device", "")).upper()
    parts = [name, dtype, device, say("measured" if measured else "simulated")]
    return " · ".join(part for part in parts if part)


def _present() -> list[PageLink]:
    return [link for link in PAGES if (_FOLDER / link.script).is_file()]


def _tabs(page: str, say: Say) -> None:
    """Links that a browser can open in a new tab; the language stays in the address."""
    asked = st.query_params.get("lang")
    with st.container(key="gbx-tabs", horizontal=True, gap=None, width="content"):
        for link in _present():
            chosen = "on" if link.name == page else "off"
            with st.container(key=f"gbx-tab-{chosen}-{link.name}", width="content"):
                st.page_link(
                    link.script, label=say(f"tab_{link.name}"),
                    query_params={"lang": asked} if asked else None,
                )  # fmt: skip


def _language_chosen() -> None:
    st.query_params["lang"] = st.session_state["gbx_lang"]


def _pill(lang: str) -> None:
    """The model's state; it asks again every second until the load is over."""
    waiting = models.shared().status.state in ("idle", "loading")
    st.fragment(_paint_pill, run_every=1.0 if waiting else None)(lang, waiting)


def _paint_pill(lang: str, waiting: bool) -> None:
    say = state.say(lang)
    holder = models.shared()
    status = holder.status
    if status.state == "ready" and holder.backend is not None:
        text, kind = model_line(holder.backend.facts, say, measured=True), "ready"
    elif status.state == "failed":
        text, kind = _sentence(status.fault, lang), "failed"
    else:
        text, kind = say("model_loading"), "loading"
    st.html(
        f'<div class="gbx-pill gbx-{kind}" data-model="{kind}" role="status"'
        f' title="{escape(text)}">'
        f"<i></i><span>{escape(text)}</span></div>",
        width="content",
    )
    if waiting and kind != "loading":
        st.rerun()


def _sentence(fault: GlassblockError | None, lang: str) -> str:
    return fault.sentence(lang) if fault else ""


_SHEET = """
.st-key-gbx-tabs{gap:20px!important;margin:0 8px 0 10px;flex-wrap:nowrap!important}
.st-key-gbx-tabs [data-testid="stPageLink"] a{background:none!important;border-radius:0;
  padding:17px 1px 14px;border-bottom:2.5px solid transparent;line-height:1.5}
.st-key-gbx-tabs [data-testid="stPageLink"] a p{font-size:14px;color:var(--gbx-muted);
  white-space:nowrap;font-weight:400}
.st-key-gbx-tabs [data-testid="stPageLink"] a:hover p{color:var(--gbx-text)}
.st-key-gbx-tabs [data-testid="stPageLink"] a:focus-visible{
  outline:2px solid var(--gbx-accent)!important;outline-offset:-2px;border-radius:6px}
.st-key-gbx-tabs [class*="st-key-gbx-tab-on"] a{border-bottom-color:var(--gbx-accent)}
.st-key-gbx-tabs [class*="st-key-gbx-tab-on"] a p{font-weight:650;color:var(--gbx-text)}
@media (max-width:760px){
  .st-key-gbx-tabs{gap:0 12px!important;margin:0;flex-basis:100%!important;
    flex-wrap:wrap!important}
  .st-key-gbx-tabs [data-testid="stPageLink"] a{padding:6px 1px 4px}
}
"""
