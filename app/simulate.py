"""The Simulate page: a workload without a model, through several memories, on a modelled clock.

It owns the page's order and the sets of results that a visitor keeps. It opens with a recorded set,
so that there is something to see before anything ran. Every figure and table says that its numbers
are modelled, and the assumptions stand at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import streamlit as st

from app import nav, sim_runs, state
from app.cards import SHEET
from app.sim_form import plan_of, show_form, system_title
from app.sim_sets import ResultSet, open_set, shipped
from app.sim_view import Entry, show_results
from app.state import Say
from core.errors import GlassblockError

__all__ = ["show"]

_KEPT = 6
_TICK = 0.5  # seconds between two looks at a run
_SHOWN = 6  # systems that charts can still tell apart


@dataclass(frozen=True, slots=True)
class _Kept:
    """A set with its number on the page; 0 is the recorded one."""

    number: int
    found: ResultSet
    origin: str  # recorded, run, file


def show() -> None:
    """Paints the page."""
    lang = state.language()
    say = state.say(lang)
    nav.style(SHEET + _SHEET)
    nav.header("simulate", lang, lambda: None)
    st.html(
        f'<div class="gbx-about"><b>{escape(say("sim.title"))}</b> · {escape(say("sim.about"))}'
        "</div>"
    )
    notice = state.take_notice()
    if notice is not None:
        nav.note(notice.sentence(lang), is_error=True)
    with st.container(key="gbx-sim-page", horizontal=True, vertical_alignment="top"):
        with st.container(key="gbx-sim-setup", width=372):
            st.fragment(_paint_setup)(lang)
            _progress(lang)
        with st.container(key="gbx-sim-results"):
            _results(say, lang)


# -------------------------------------------------------------------------------------- setup


def _paint_setup(lang: str) -> None:
    say = state.say(lang)
    st.html(f'<div class="gbx-title">{escape(say("sim.setup"))}</div>')
    show_form(say)
    job = _job()
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            say("sim.run"), type="primary", key="gbx_sim_run",
            disabled=job is not None and job.is_running,
        ):  # fmt: skip
            _run_pressed(say)
            st.rerun()
        st.html(f'<span class="gbx-tag">{escape(say("sim.modelled"))}</span>', width="content")


def _run_pressed(say: Say) -> None:
    """Starts what the widgets ask for; a fault becomes the page's one message."""
    try:
        st.session_state["gbx_sim_job"] = sim_runs.start(plan_of(say))
    except GlassblockError as fault:
        state.set_notice(fault)


def _job() -> sim_runs.Job | None:
    found = st.session_state.get("gbx_sim_job")
    return found if isinstance(found, sim_runs.Job) else None


# ------------------------------------------------------------------------------------ results


def _results(say: Say, lang: str) -> None:
    kept = _kept()
    chosen = _choice(kept, say)
    _file_bar(chosen, say)
    entries = _entries(chosen, say)
    if len(entries) > _SHOWN:
        nav.note(say("sim.too_many", limit=_SHOWN, count=len(entries)))
        entries = entries[:_SHOWN]
    show_results(entries, [item.found for item in chosen], say, lang)


def _progress(lang: str) -> None:
    """Below the button that was pressed, so that it is seen there."""
    job = _job()
    if job is not None:
        alive = job.is_running
        st.fragment(_paint_progress, run_every=_TICK if alive else None)(job, lang, alive)


def _paint_progress(job: sim_runs.Job, lang: str, was_alive: bool) -> None:
    """How far the run is; when it is over its set is kept and the page painted again."""
    say = state.say(lang)
    job.look()
    if was_alive and not job.is_running:
        st.rerun()
    if not job.is_running:
        if job.fault is not None:
            nav.note(job.fault.sentence(lang), is_error=True)
        elif job.state == "stopped":
            nav.note(say("sim.stopped"))
        return
    progress = job.progress
    inner = progress.inner
    with st.container(key="gbx-card-progress"):
        text = say(
            "sim.progress", part=progress.part + 1, parts=progress.parts,
            system=system_title(progress.system, say), done=inner.done if inner else 0,
            total=inner.total if inner else len(job.plan.workload),
            seconds=f"{progress.seconds:.0f}",
        )  # fmt: skip
        st.progress(progress.share, text=escape(text))
        st.button(say("stop"), key="gbx_sim_stop", on_click=job.stop)


def _kept() -> list[_Kept]:
    """The visitor's sets, newest first, then the recorded ones; a run's set grows while it runs."""
    own: list[_Kept] = list(st.session_state.setdefault("gbx_sim_kept", []))
    job = _job()
    if job is not None and (found := job.result()) is not None:
        number = st.session_state.setdefault("gbx_sim_numbers", {}).get(job.key)
        if number is None:
            number = _next_number()
            st.session_state["gbx_sim_numbers"][job.key] = number
            st.session_state["gbx_sim_chosen"] = [number]
        own = [item for item in own if item.number != number]
        own.insert(0, _Kept(number, found, "run"))
    del own[_KEPT:]
    st.session_state["gbx_sim_kept"] = own
    return [*own, *(_Kept(-k, found, "recorded") for k, found in enumerate(shipped()))]


def _next_number() -> int:
    number = int(st.session_state.get("gbx_sim_next", 1))
    st.session_state["gbx_sim_next"] = number + 1
    return number


def _choice(kept: Sequence[_Kept], say: Say) -> list[_Kept]:
    """Which sets are shown, at least one; several stand side by side."""
    by_number = {item.number: item for item in kept}
    wanted = [n for n in st.session_state.get("gbx_sim_chosen", []) if n in by_number]
    st.session_state["gbx_sim_chosen"] = wanted or [kept[0].number]
    picked = st.pills(
        say("sim.results"), list(by_number), selection_mode="multi", key="gbx_sim_chosen",
        format_func=lambda number: _title(by_number[number], say), label_visibility="collapsed",
    )  # fmt: skip
    return [by_number[number] for number in by_number if number in picked]


def _title(item: _Kept, say: Say) -> str:
    """A pill's words; Streamlit reads Markdown in them, and a file may say anything."""
    words = (
        item.found.workload if len(item.found.workload) <= 44 else item.found.workload[:43] + "…"
    )
    plain = "".join("\\" + c if c in "\\`*_{}[]()#+-.!|~<>$:" else c for c in words)
    before = say("sim.recorded") if item.origin == "recorded" else f"{item.number}"
    return f"{before} · {plain}"


def _entries(chosen: Sequence[_Kept], say: Say) -> list[Entry]:
    """The systems to show, named apart when two sets have the same."""
    several = len(chosen) > 1
    entries = []
    for item in chosen:
        for result in item.found.results:
            name = system_title(result.system, say)
            if several:
                before = say("sim.recorded") if item.origin == "recorded" else str(item.number)
                name = f"{before} · {name}"
            if result.cancelled:
                name = say("sim.cut", name=name)
            entries.append(Entry(name, result))
    return entries


def _file_bar(chosen: Sequence[_Kept], say: Say) -> None:
    with st.container(key="gbx-bar", horizontal=True, vertical_alignment="center"):
        st.download_button(
            say("sim.download"), chosen[0].found.to_json, "glassblock-simulation.json",
            "application/json", key="gbx_sim_download", on_click="ignore",
        )  # fmt: skip
        with st.popover(say("sim.open"), key="gbx_sim_open"):
            st.file_uploader(
                say("sim.open_help"), ["json"], key="gbx_sim_opened", max_upload_size=8,
                on_change=_file_chosen,
            )  # fmt: skip


def _file_chosen() -> None:
    upload = st.session_state["gbx_sim_opened"]
    if upload is None:
        return
    try:
        found = open_set(upload.name, upload.getvalue())
    except GlassblockError as fault:
        state.set_notice(fault)
        return
    number = _next_number()
    st.session_state["gbx_sim_kept"].insert(0, _Kept(number, found, "file"))
    st.session_state["gbx_sim_chosen"] = [number]


_SHEET = """
.st-key-gbx-sim-page{flex-wrap:nowrap!important;gap:14px!important;align-items:flex-start}
.st-key-gbx-sim-setup{flex:none;position:sticky;top:8px;border-radius:12px;
  border:1px solid var(--gbx-line);
  background:var(--gbx-card);padding:10px 16px 16px}
.st-key-gbx-sim-results{min-width:0;flex:1 1 0}
.st-key-gbx-sim-setup [data-testid="stCaptionContainer"] p{font-size:12px}
.st-key-gbx-sim-setup [data-testid="stExpander"] details{border-radius:12px}
@media (max-width:760px){
  .st-key-gbx-sim-page{flex-direction:column}
  .st-key-gbx-sim-setup{position:static}
  .st-key-gbx-sim-setup,.st-key-gbx-sim-results{width:100%!important;max-width:100%!important}
}
"""
