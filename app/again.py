"""Work that a page's button starts: the button, how far the work is, and what it made.

It owns what a visitor's session keeps of it, apart for each page. It knows neither the work nor
what is drawn of its result; the thread and the caps are those of `app.tasks`.
"""

from collections.abc import Callable
from typing import Any

import streamlit as st

from app import nav, state, tasks
from app.state import Say
from core.errors import GlassblockError

__all__ = ["Tell", "Work", "button", "made", "progress"]

_TICK = 0.5
Tell = Callable[[float], None]
Work = Callable[[Tell], Any]


def button(page: str, name: str, words: str, work: Work, say: Say) -> None:
    """Starts the work.

    Args:
        page: prefix of the page's words, part of its keys.
        name: of the work on its page.
        words: key of the button's label; with `_help` of its help.
        work: takes "tell me the share" and returns what is kept.
        say: words in the visitor's language.
    """
    st.button(
        say(words), key=f"gbx_{page}_{name}", on_click=_start, args=(page, name, work),
        disabled=_is_working(page, name), help=say(f"{words}_help"),
    )  # fmt: skip


def progress(page: str, name: str, lang: str) -> None:
    """How far the work is, painted again by itself while it goes on."""
    alive = _is_working(page, name)
    st.fragment(_paint, run_every=_TICK if alive else None)(page, name, lang, alive)


def made(page: str) -> dict[str, Any]:
    """What the visitor's works on this page made, by name."""
    found: dict[str, Any] = st.session_state.setdefault(f"gbx_{page}_made", {})
    return found


def _start(page: str, name: str, work: Work) -> None:
    try:
        _tasks(page)[name] = tasks.start(work)
    except GlassblockError as fault:
        state.set_notice(fault)


def _paint(page: str, name: str, lang: str, was_alive: bool) -> None:
    """The task's share; when it is over its result is kept and the page painted again."""
    say = state.say(lang)
    task = _tasks(page).get(name)
    if task is None:
        return
    task.look()
    if task.is_running:
        with st.container(key=f"gbx-card-progress-{name}"):
            st.progress(task.share, text=say(f"{page}.progress", share=f"{task.share:.0%}"))
            st.button(say("stop"), key=f"gbx_{page}_stop_{name}", on_click=task.stop)
        return
    if task.state == "done" and task.result is not None:
        made(page)[name] = task.result
    if was_alive:
        st.rerun()
    if task.fault is not None:
        nav.note(task.fault.sentence(lang), is_error=True)
    elif task.state == "stopped":
        nav.note(say(f"{page}.stopped"))


def _is_working(page: str, name: str) -> bool:
    task = _tasks(page).get(name)
    return task is not None and task.is_running


def _tasks(page: str) -> dict[str, tasks.Task[Any]]:
    found: dict[str, tasks.Task[Any]] = st.session_state.setdefault(f"gbx_{page}_jobs", {})
    return found
