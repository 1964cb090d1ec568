"""The Explore page: the player, and below it texts, files and charts.

It owns the page's order. The player stands inside a fragment, so a growing live run repaints it
alone. Everything shown comes from a trace; user text is escaped, never markup.
"""

from html import escape
from pathlib import Path

import streamlit as st

from app import models, nav, state
from app.answers import Answer, Line, answers
from app.comparing import lane_of
from app.live import Progress, Session
from app.memory_panel import SHEET as MEMORY_SHEET
from app.memory_panel import StepMemory
from app.memory_panel import card as memory_card
from app.panel import plan_of, reset, show_panel
from app.player.component import Cursor, player
from app.shown import Shown, open_upload, recorded, recorded_names
from app.state import Say
from core.errors import GlassblockError, LimitError
from core.text import LANGUAGES, catalogue, sentence
from core.workload.scenario import Arrival, Scenario, find_scenario, scenario_names

__all__ = ["show"]

_HEIGHT = 770  # the player with its transport fits 1440 x 900 without scrolling the page
_PATIENCE = 5.0  # seconds that "stop" waits for the engine's step
_BUILD = 1.0  # seconds that the page waits for a run's engine before it paints
_TICK = 0.4  # seconds between two paintings of a live run
_MODEL_DELAY = 1.5  # lets the first page's files out before torch is imported
_FILE_TYPES = ["jsonl", "gz"]
_OPENED = "opened"  # in the scenario's box: a run that is no scenario's recording


def show() -> None:
    """Paints the page."""
    lang = state.language()
    say = state.say(lang)
    nav.style(MEMORY_SHEET)
    try:
        session = state.registry().session(state.token())
    except LimitError as fault:
        nav.note(fault.sentence(lang), is_error=True)
        return
    scenario = nav.header("explore", lang, lambda: _controls(session, say, lang))
    shown = _current(session, scenario.name, lang)
    _about(scenario, shown, say, lang)
    _notices(session, lang)
    _stage(session, scenario.name, lang, shown)
    _below(session, shown, say, lang)
    models.shared().start(_MODEL_DELAY)


# ------------------------------------------------------------------------------------- header


def _controls(session: Session, say: Say, lang: str) -> Scenario:
    scenario = _scenario_choice(session, say, lang)
    _live_button(session, scenario, say, lang)
    return scenario


def _scenario_choice(session: Session, say: Say, lang: str) -> Scenario:
    """The box says what is shown: a scenario, or the run that was opened.

    Beside an opened run the settings are those of the scenario that it played, if it played one.
    """
    names = scenario_names()
    opened = session.opened if session.run is None else None
    last = st.session_state.get("gbx_explore_scenario", names[0])
    if opened is not None:
        st.session_state["gbx_scenario"] = _OPENED
    elif st.session_state.get("gbx_scenario") not in names:
        st.session_state["gbx_scenario"] = last

    def words(name: str) -> str:
        if name == _OPENED and opened is not None:
            return say("opened_run", name=_name(opened, say, lang))
        return _title(find_scenario(name), lang)

    chosen = st.selectbox(
        say("scenario"), [_OPENED, *names] if opened else names, key="gbx_scenario", width=270,
        label_visibility="collapsed", format_func=words, on_change=_scenario_chosen,
        args=(session,),
    )  # fmt: skip
    name = chosen if chosen in names else _played_by(opened) or last
    if name != last:
        reset()
    st.session_state["gbx_explore_scenario"] = name
    return find_scenario(name)


def _played_by(shown: Shown | None) -> str | None:
    """The scenario that bears the run's title."""
    titles = dict(shown.trace.header.title) if shown is not None else {}
    return next((n for n in scenario_names() if dict(find_scenario(n).title) == titles), None)


def _scenario_chosen(session: Session) -> None:
    """Shows the chosen scenario's recorded run, and takes its settings for a live one."""
    # The box loses the opened run's entry and so becomes another widget: hand the choice over.
    st.session_state["gbx_scenario"] = st.session_state["gbx_scenario"]
    reset()
    session.opened, session.warning = None, None
    if session.run is not None:
        session.run.stop()
        session.run = None


def _title(scenario: Scenario, lang: str) -> str:
    return scenario.title.get(lang) or scenario.title["en"]


def _live_button(session: Session, scenario: Scenario, say: Say, lang: str) -> None:
    """The panel, always there so that its settings last; beside it "stop" during a run."""
    status = models.shared().status
    running = session.run is not None and session.run.is_running
    why = status.fault.sentence(lang) if status.fault else say("not_ready")
    if running:
        why = say("still_running")
    with st.popover(say("run_live"), type="primary", key="gbx_live", on_change="rerun"):
        show_panel(
            scenario, say, _run_pressed, is_ready=status.state == "ready" and not running, why=why
        )
    if running:
        st.button(say("stop"), key="gbx_stop", on_click=_stop_pressed)


def _run_pressed() -> None:
    """Starts what the panel asks for; a fault becomes the page's one message."""
    st.session_state["gbx_live"] = False
    backend = models.shared().backend
    if backend is None:
        return
    try:
        scenario = find_scenario(st.session_state["gbx_explore_scenario"])
        titles = {lang: sentence("app.own_title", lang) for lang in LANGUAGES}
        run = state.registry().start(state.token(), plan_of(scenario, titles), backend)
        run.wait_for_engine(_BUILD)
    except GlassblockError as fault:
        state.set_notice(fault)


def _stop_pressed() -> None:
    run = state.registry().session(state.token()).run
    if run is not None:
        run.stop()
        run.wait(_PATIENCE)


# ------------------------------------------------------------------------------------- player


def _current(session: Session, name: str, lang: str) -> Shown | None:
    """What the player shows: the live run, else the opened file, else the recorded run."""
    if session.run is not None and (live := session.run.shown) is not None:
        return live
    if session.opened is not None:
        return session.opened
    if name not in recorded_names():
        return None
    try:
        return recorded(name)
    except GlassblockError as fault:
        nav.note(fault.sentence(lang), is_error=True)
        return None


def _about(scenario: Scenario, shown: Shown | None, say: Say, lang: str) -> None:
    if shown is None:
        st.html(f'<div class="gbx-about">{escape(say("no_recording"))}</div>')
        return
    titles = shown.trace.header.title
    title = _heading(shown, say, lang) if shown.source == "file" else _name(shown, say, lang)
    about = scenario.about.get(lang) or scenario.about["en"] if titles == scenario.title else ""
    header = shown.trace.header
    facts = nav.model_line(header.model, say, measured=header.measured)
    # While a run grows its progress stands in the second line, so that nothing jumps.
    second = "" if shown.is_live else f"<br>{escape(about) or '&nbsp;'}"
    st.html(
        f'<div class="gbx-about"><b>{escape(title)}</b> · {escape(say("from_" + shown.source))} · '
        f"{escape(facts)}{second}</div>"
    )


def _name(shown: Shown, say: Say, lang: str) -> str:
    """What the run is called where it was opened, else its own title."""
    return shown.label.get(lang) or shown.label.get("en") or _heading(shown, say, lang)


def _heading(shown: Shown, say: Say, lang: str) -> str:
    """The title that the run bears."""
    titles = shown.trace.header.title
    return str(titles.get(lang) or titles.get("en") or say("untitled"))


def _notices(session: Session, lang: str) -> None:
    """At most one message: what was just refused, else what befell the run or the file."""
    notice = state.take_notice()
    if notice is None and state.registry().was_dropped(state.token()):
        minutes = round(state.registry().limits.idle_seconds / 60)
        notice = LimitError("idle_dropped", minutes=minutes)
    if notice is None and session.run is not None:
        notice = session.run.fault
    if notice is not None:
        nav.note(notice.sentence(lang), is_error=True)
    elif session.warning is not None:
        nav.note(session.warning.sentence(lang), is_error=True)


def _stage(session: Session, name: str, lang: str, painted: Shown | None) -> None:
    """The player, repainted alone while its run grows."""
    alive = session.run is not None and session.run.is_running
    st.fragment(_paint_stage, run_every=_TICK if alive else None)(
        session, name, lang, alive, painted.key if painted else ""
    )  # fmt: skip


def _paint_stage(session: Session, name: str, lang: str, was_alive: bool, painted: str) -> None:
    """Paints the player; the whole page again when its run ended, or first has a trace."""
    say = state.say(lang)
    state.registry().session(state.token())
    run = session.run
    if was_alive and run is not None:
        with st.container(key="gbx-progress"):
            text = escape(_progress(run.progress, say))
            st.html(f'<div class="gbx-about" role="status">{text}</div>')
    shown = _current(session, name, lang)
    if shown is not None:
        cursor = player(
            shown.log, key=f"player-{shown.key}", lang=lang, theme="auto", height=_HEIGHT,
            start=shown.opening, is_live=shown.is_live,
        )  # fmt: skip
        if cursor is not None:
            st.session_state["gbx_explore_at"] = {shown.key: cursor.step}
        _memory(shown, cursor, say)
        if not was_alive:
            _charts(shown, cursor, say)
    is_over = run is None or not run.is_running
    if was_alive and (is_over or (shown is not None and shown.key != painted)):
        st.rerun()


def _memory(shown: Shown, cursor: Cursor | None, say: Say) -> None:
    """Bytes at the player's step, below the pool that they belong to."""
    read: dict[str, StepMemory] = st.session_state.setdefault("gbx_explore_memory", {})
    if shown.key not in read:
        read.clear()
        read[shown.key] = StepMemory()
    events = shown.trace.events
    if shown.is_live:
        step = shown.trace.num_steps
    else:
        first = next((e.step for e in events.since(max(0, shown.opening - 1))), 0)
        step = cursor.step if cursor is not None else first
    step, memory = read[shown.key].at(shown.trace, step)
    st.html(memory_card(shown.trace, step, memory, say))


def _progress(progress: Progress, say: Say) -> str:
    return say(
        "progress", steps=progress.steps, tokens=progress.tokens, seconds=f"{progress.seconds:.1f}"
    )


# -------------------------------------------------------------------------------------- below


def _below(session: Session, shown: Shown | None, say: Say, lang: str) -> None:
    if st.session_state.pop("gbx_to_compare", False):
        asked = st.query_params.get("lang")
        query = {"lang": asked} if asked else None
        st.switch_page(nav.script_of("compare"), query_params=query)
    if shown is not None:
        _texts(shown, say, lang)
    with st.container(key="gbx-bar", horizontal=True, vertical_alignment="center"):
        if shown is not None and not shown.is_live:
            st.button(
                say("cmp.fork_here"), key="gbx_fork_here", on_click=_fork_pressed, args=(shown,),
                help=say("cmp.fork_here_help"),
            )  # fmt: skip
            st.download_button(
                say("download"), lambda: _packed(shown), f"{shown.key}.jsonl.gz",
                "application/gzip", key="gbx_download", on_click="ignore",
            )  # fmt: skip
        with st.popover(say("open_file"), key="gbx_open"):
            st.file_uploader(
                say("open_help"), _FILE_TYPES, key="gbx_file", max_upload_size=16,
                on_change=_file_chosen, args=(session, lang),
            )  # fmt: skip


def _fork_pressed(shown: Shown) -> None:
    """Takes the run, and the step where the player stands, to the Compare page."""
    session = state.registry().session(state.token())
    arrivals: tuple[Arrival, ...] = ()
    if shown.source == "live" and session.run is not None and session.run.key == shown.key:
        arrivals = session.run.plan.arrivals
    elif shown.source == "recorded" and shown.key in scenario_names():
        arrivals = find_scenario(shown.key).arrivals
    session.work.pop("compare", None)
    st.session_state.pop("gbx_cmp_pinned", None)
    try:
        st.session_state["gbx_fork_base"] = lane_of(shown, arrivals)
    except GlassblockError as fault:
        state.set_notice(fault)
        return
    at = st.session_state.get("gbx_explore_at", {})
    events = shown.trace.events
    step = next((event.step for event in events.since(max(0, shown.opening - 1))), 0)
    st.session_state["gbx_fork_open"] = at.get(shown.key, step)
    st.session_state["gbx_to_compare"] = True


def _packed(shown: Shown) -> bytes:
    """The trace as a file's bytes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl.gz"
        shown.trace.save(path)
        return path.read_bytes()


def _file_chosen(session: Session, lang: str) -> None:
    upload = st.session_state["gbx_file"]
    if upload is None:
        return
    try:
        opened = open_upload(upload.name, upload.getvalue())
    except GlassblockError as fault:
        state.set_notice(fault)
        return
    if session.run is not None:
        session.run.stop()
        session.run = None
    session.opened = opened
    session.warning = opened.trace.damage


def _texts(shown: Shown, say: Say, lang: str) -> None:
    cards = [
        _card(answer, line, say, lang)
        for answer in answers(shown.trace.events)
        for line in (answer.lines or (None,))
    ]
    st.html(
        f'<div class="gbx-title">{escape(say("answers"))}</div>'
        f'<div class="gbx-cards">{"".join(cards)}</div>'
    )


def _card(answer: Answer, line: Line | None, say: Say, lang: str) -> str:
    """One sequence's card, every text of it escaped."""
    if line is None:
        reason = answer.refusal
        values = reason.values if reason else {}
        text = sentence(f"error.{reason.code}", lang, **values) if reason else ""
        return _card_html(answer.label, say("end_rejected"), "", text)
    known = f"app.end_{line.state}" in catalogue("en")
    end = say(f"end_{line.state}") if known else say("end_running")
    status = f"{end} · {say('tokens_n', n=line.tokens)}"
    return _card_html(line.label, status, answer.prompt, line.text or answer.error)


def _card_html(label: str, status: str, prompt: str, text: str) -> str:
    before = f'<p class="gbx-prompt">{escape(prompt)}</p>' if prompt else ""
    return (
        f'<div class="gbx-card"><h3>{escape(label)}<span>{escape(status)}</span></h3>'
        f'{before}<p class="gbx-answer">{escape(text)}</p></div>'
    )


def _charts(shown: Shown, cursor: Cursor | None, say: Say) -> None:
    """The curves, drawn only when asked for: Plotly's script is larger than all the rest."""
    if not st.toggle(say("charts"), key="gbx_charts", help=say("charts_help")):
        return
    from app.trace_charts import show_trace

    show_trace(shown.trace, say, cursor.step if cursor else None)
