"""The Compare page: runs in lock step, live comparison, the fork of a past, the proof, the gain.

It owns the page's order and what is shown at the moment: a comparison at work or done, the runs
behind the gain's bars, one run from the Explore page that is to be forked, else the recorded
comparison. The runs stand inside a fragment, so that growing ones repaint it alone.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import streamlit as st

from app import compare_forms, models, nav, state
from app.compare_forms import system_detail, system_title
from app.compare_results import (
    SHEET,
    diff_card,
    equality_line,
    figures_card,
    gain_card,
    proof_card,
)
from app.comparing import (
    SCENARIO,
    Comparison,
    Gain,
    Lane,
    LanePlan,
    Proving,
    check_lanes,
    fork_plan_of,
    lane_figures,
    opening_step,
    recorded_gain,
    recorded_lanes,
    recorded_systems,
)
from app.fork_words import fork_title, kind_of_past, lane_name
from app.live import Session
from app.models import Backend
from app.player.component import CompareRun, CompareState, compare, player
from app.shown import Shown
from app.state import Say
from core.errors import GlassblockError, LimitError
from core.workload.compare import GAIN
from core.workload.fork import diff
from core.workload.scenario import find_scenario

__all__ = ["show"]

_HEIGHT = 770
_TICK = 0.5  # seconds between two paintings of growing runs
_PATIENCE = 5.0  # seconds that "stop" waits for the engines' step
_MODEL_DELAY = 1.5  # lets the first page's files out before torch is imported
_REPEATS = 3
_FIRST = ("continuous", "paged")


def show() -> None:
    """Paints the page."""
    lang = state.language()
    say = state.say(lang)
    nav.style(SHEET + _SHEET)
    try:
        session = state.registry().session(state.token())
    except LimitError as fault:
        nav.note(fault.sentence(lang), is_error=True)
        return
    nav.header("compare", lang, lambda: _controls(session, say, lang))
    _take_pick()
    lanes = _lanes(session, lang)
    _about(session, lanes, say, lang)
    _notices(session, lang)
    _stage(session, lang, say)
    if lanes and not _is_growing(session):
        _below(session, lanes, say)
    _gain(session, say)
    if lanes and not _is_growing(session):
        _charts(lanes, say)
    models.shared().start(_MODEL_DELAY)


def _charts(lanes: Sequence[Lane], say: Say) -> None:
    """A bar for each memory and its address space over time, drawn only when asked for."""
    if not st.toggle(say("charts"), key="gbx_cmp_charts", help=say("charts_help")):
        return
    from app.trace_charts import show_memories

    show_memories([(_full_title(lane, lanes, say), lane.trace) for lane in lanes], say)


# ------------------------------------------------------------------------------- header


def _controls(session: Session, say: Say, lang: str) -> None:
    ready, why = _readiness(session, say, lang)
    with st.popover(say("cmp.live"), type="primary", key="gbx_cmp_live", on_change="rerun"):
        compare_forms.live_form(say, lang, _run_pressed, is_ready=ready, why=why)
    if any(work.is_running for work in session.work.values()):
        st.button(say("stop"), key="gbx_cmp_stop", on_click=_stop_pressed)


def _readiness(session: Session, say: Say, lang: str) -> tuple[bool, str]:
    """Whether something can be set to work, and why not."""
    status = models.shared().status
    if any(work.is_running for work in session.work.values()):
        return False, say("still_running")
    if status.state != "ready":
        return False, status.fault.sentence(lang) if status.fault else say("not_ready")
    return True, ""


def _run_pressed() -> None:
    st.session_state["gbx_cmp_live"] = False
    _attempt(_start_comparison)


def _start_comparison(backend: Backend) -> None:
    scenario, plans = compare_forms.plans_of()
    limits = state.registry().limits
    check_lanes(scenario, [plan.config for plan in plans], backend, limits)
    in_turn = bool(st.session_state["gbx_cmp_in_turn"])
    _begin("compare", Comparison(plans, backend, limits, in_turn=in_turn))


def _attempt(start: Any) -> None:
    """Runs a button's work; a fault becomes the page's one message."""
    backend = models.shared().backend
    if backend is None:
        return
    try:
        start(backend)
    except GlassblockError as fault:
        state.set_notice(fault)


def _begin(name: str, work: Any) -> None:
    """Starts a work; a new comparison makes what belonged to the old one go."""
    state.registry().begin(state.token(), name, work)
    if name == "compare":
        _forget_shown()
        _let_go(state.registry().session(state.token()), "prove")


def _let_go(session: Session, *names: str) -> None:
    """Drops works; one that still goes on must not go on unseen and uncounted."""
    for name in names:
        work = session.work.pop(name, None)
        if work is not None:
            work.stop()


def _forget_shown() -> None:
    for key in ("gbx_cmp_pinned", "gbx_fork_base", "gbx_fork_open"):
        st.session_state.pop(key, None)


def _stop_pressed() -> None:
    for work in state.registry().session(state.token()).work.values():
        if work.is_running:
            work.stop()
            work.wait(_PATIENCE)


# ------------------------------------------------------------------------------- what is shown


def _comparison(session: Session) -> Comparison | None:
    work = session.work.get("compare")
    return work if isinstance(work, Comparison) else None


def _is_growing(session: Session) -> bool:
    comparison = _comparison(session)
    return comparison is not None and comparison.is_running


def _lanes(session: Session, lang: str) -> tuple[Lane, ...]:
    comparison = _comparison(session)
    if comparison is not None:
        return comparison.lanes
    if pinned := st.session_state.get("gbx_cmp_pinned"):
        return tuple(pinned)
    if base := st.session_state.get("gbx_fork_base"):
        return (base,)
    names = [n for n in recorded_systems() if n in _chosen_systems()]
    try:
        return recorded_lanes(names)
    except GlassblockError as fault:
        nav.note(fault.sentence(lang), is_error=True)
        return ()


def _take_pick() -> None:
    """Sets the pills to what a bar of the gain asked for, before they are painted."""
    picked = st.session_state.pop("gbx_cmp_pick", None)
    if picked or "gbx_cmp_recorded" not in st.session_state:
        st.session_state["gbx_cmp_recorded"] = list(picked or _FIRST)


def _chosen_systems() -> Sequence[str]:
    chosen = st.session_state.get("gbx_cmp_recorded") or _FIRST
    return chosen if len(chosen) > 1 else _FIRST


def _about(session: Session, lanes: Sequence[Lane], say: Say, lang: str) -> None:
    if not lanes:
        if not _is_growing(session):
            st.html(f'<div class="gbx-about">{escape(say("cmp.no_recording"))}</div>')
        return
    comparison = _comparison(session)
    header = lanes[-1 if comparison is not None else 0].trace.header
    titles = header.title if comparison is None else comparison.title
    title = str(titles.get(lang) or titles.get("en") or say("untitled"))
    is_recorded = all(lane.key.startswith("recorded-") for lane in lanes)
    source = say("cmp.from_recorded" if is_recorded else "cmp.from_live")
    if comparison is not None and comparison.fork is not None:
        source = say(f"cmp.past_{kind_of_past(lanes[0])}")
    elif st.session_state.get("gbx_fork_base") and len(lanes) == 1:
        source = say("cmp.from_fork")
    facts = nav.model_line(header.model, say, measured=header.measured)
    with st.container(key="gbx-what", horizontal=True, vertical_alignment="center", gap="small"):
        st.html(
            f'<div class="gbx-about"><b>{escape(title)}</b> · {escape(source)} · '
            f"{escape(facts)}</div>",
            width="stretch",
        )
        if is_recorded and len(recorded_systems()) > 2:
            st.pills(
                say("cmp.systems"), recorded_systems(), selection_mode="multi",
                key="gbx_cmp_recorded", label_visibility="collapsed",
                format_func=lambda n: say(f"cmp.system_{n}"), width="content",
            )  # fmt: skip
        elif not is_recorded and not _is_growing(session):
            st.button(say("cmp.back"), key="gbx_cmp_back", on_click=_back_pressed)


def _back_pressed() -> None:
    """From a fork to the comparison that it came from, else to the recorded one."""
    session = state.registry().session(state.token())
    comparison = _comparison(session)
    _forget_shown()
    _let_go(session, "compare", "prove")
    if comparison is not None and comparison.before is not None:
        session.work["compare"] = comparison.before


def _notices(session: Session, lang: str) -> None:
    """At most one message."""
    notice = state.take_notice()
    for work in session.work.values():
        notice = notice or getattr(work, "fault", None)
    comparison = _comparison(session)
    if comparison is not None:
        notice = notice or comparison.lane_fault
    if notice is not None:
        nav.note(notice.sentence(lang), is_error=True)


# ------------------------------------------------------------------------------- stage


def _stage(session: Session, lang: str, say: Say) -> None:
    alive = _is_growing(session)
    st.fragment(_paint_stage, run_every=_TICK if alive else None)(session, lang, alive)


def _paint_stage(session: Session, lang: str, was_alive: bool) -> None:
    say = state.say(lang)
    state.registry().session(state.token())
    if was_alive:
        _paint_progress(session, say)
    lanes = _lanes(session, lang)
    if len(lanes) == 1:
        _paint_one(lanes[0], lang, is_live=was_alive)
    elif lanes:
        _paint_lanes(lanes, lang, say, is_live=was_alive)
    if was_alive and not _is_growing(session):
        st.rerun()


def _paint_progress(session: Session, say: Say) -> None:
    comparison = _comparison(session)
    if comparison is None:
        return
    parts = [
        say("cmp.progress_lane", system=say(f"cmp.system_{name}"), state=say(f"cmp.is_{kind}"),
            steps=steps, tokens=tokens)
        for name, kind, steps, tokens in comparison.progress
    ]  # fmt: skip
    text = " · ".join(parts) + f" · {comparison.seconds:.1f} s"
    with st.container(key="gbx-progress"):
        st.html(f'<div class="gbx-about" role="status">{escape(text)}</div>')


def _paint_lanes(lanes: Sequence[Lane], lang: str, say: Say, *, is_live: bool) -> None:
    same = len({lane.config.usable_slots for lane in lanes}) == 1
    runs = [
        CompareRun(lane.log, system_title(lane, say), system_detail(lane.config, say, same=same))
        for lane in lanes
    ]
    key = "compare-" + "-".join(lane.key for lane in lanes)
    answer = compare(
        runs, key=key, lang=lang, theme="auto", start=_start(lanes, is_live=is_live),
        is_live=is_live,
    )  # fmt: skip
    if not is_live:
        _answer(answer, lanes)


def _start(lanes: Sequence[Lane], *, is_live: bool) -> int:
    """Growing runs are followed from their head, a fork from where it begins."""
    if is_live and not any(lane.first_step for lane in lanes):
        return max(lane.trace.num_steps for lane in lanes)
    return opening_step(lanes)


def _answer(answer: CompareState, lanes: Sequence[Lane]) -> None:
    """What was asked for inside the component: a fork, or one run by itself."""
    if answer.open is not None and answer.open < len(lanes):
        _open_alone(lanes[answer.open])
    if answer.fork is not None and st.session_state.get("gbx_fork_open") != answer.fork:
        st.session_state["gbx_fork_open"] = answer.fork
        st.rerun()


def _open_alone(lane: Lane) -> None:
    """Shows a lane on the Explore page."""
    session = state.registry().session(state.token())
    if session.run is not None:
        session.run.stop()
        session.run = None
    is_recorded = lane.key.startswith("recorded-")
    source = "recorded" if is_recorded else "live"
    label = lane_name(lane)
    session.opened = Shown(lane.key, lane.trace, lane.log, source, label=label)  # type: ignore[arg-type]
    session.warning = None
    asked = st.query_params.get("lang")
    st.switch_page(nav.script_of("explore"), query_params={"lang": asked} if asked else None)


def _paint_one(lane: Lane, lang: str, *, is_live: bool) -> None:
    """The run that is to be forked, or the first that grows."""
    start = len(lane.trace.events)
    step = st.session_state.get("gbx_fork_open")
    if step is not None and not is_live:
        start = sum(1 for event in lane.trace.events if event.step <= step)
    cursor = player(
        lane.log, key=f"fork-{lane.key}", lang=lang, theme="auto", height=_HEIGHT, start=start,
        is_live=is_live,
    )  # fmt: skip
    if cursor is not None and not is_live and cursor.step != step:
        st.session_state["gbx_fork_open"] = cursor.step
        st.rerun()


# ------------------------------------------------------------------------------- below


def _below(session: Session, lanes: Sequence[Lane], say: Say) -> None:
    titles = [_full_title(lane, lanes, say) for lane in lanes]
    if len(lanes) > 1:
        with st.container(key="gbx-bar", horizontal=True, vertical_alignment="center"):
            _prove_button(session, lanes, say)
            st.button(say("cmp.fork"), key="gbx_fork_toggle", on_click=_fork_toggled,
                      help=say("cmp.fork_help"))  # fmt: skip
        _proof(session, lanes, titles, say)
    if "gbx_fork_open" in st.session_state:
        _fork_panel(session, lanes, titles, say)
    comparison = _comparison(session)
    if comparison is not None and comparison.fork is not None and len(lanes) == 2:
        plan = comparison.fork
        found = diff(lanes[0].trace, lanes[1].trace, plan)
        diff_card(found, plan, _changed(lanes, say), say)
    if len(lanes) > 1:
        figures_card(lanes, titles, [lane_figures(lane) for lane in lanes], say)


def _full_title(lane: Lane, lanes: Sequence[Lane], say: Say) -> str:
    title = system_title(lane, say)
    if [other.name for other in lanes].count(lane.name) > 1:
        title += f" · {system_detail(lane.config, say, same=False)}"
    return title


def _changed(lanes: Sequence[Lane], say: Say) -> str:
    """Both settings in words, where the fork's differ."""
    before, after = (system_detail(lane.config, say, same=False) for lane in lanes)
    return say("cmp.same_memory") if before == after else f"{before}  →  {after}"


def _prove_button(session: Session, lanes: Sequence[Lane], say: Say) -> None:
    status = models.shared().status
    busy = any(work.is_running for work in session.work.values())
    st.button(
        equality_line(lanes, say), key="gbx_prove", disabled=status.state != "ready" or busy,
        on_click=_prove_pressed, args=(tuple(lanes),), help=say("cmp.prove_help"),
    )  # fmt: skip


def _prove_pressed(lanes: tuple[Lane, ...]) -> None:
    _attempt(lambda backend: _begin("prove", Proving(lanes, backend)))


def _proof(session: Session, lanes: Sequence[Lane], titles: Sequence[str], say: Say) -> None:
    work = session.work.get("prove")
    if not isinstance(work, Proving):
        return
    if [lane.key for lane in work.lanes] != [lane.key for lane in lanes]:
        return
    if work.is_running:
        st.fragment(_paint_proving, run_every=_TICK)(work, tuple(titles), say)
    elif work.proofs:
        proof_card(work.proofs, lanes, titles, say)


def _paint_proving(work: Proving, titles: Sequence[str], say: Say) -> None:
    state.registry().session(state.token())
    if not work.is_running:
        st.rerun()
    text = say("cmp.proving", system=titles[min(work.run, len(titles) - 1)], step=work.step)
    st.html(f'<div class="gbx-note" role="status">{escape(text)}</div>')


# ------------------------------------------------------------------------------- fork


def _fork_toggled() -> None:
    if "gbx_fork_open" in st.session_state:
        del st.session_state["gbx_fork_open"]
    else:
        st.session_state["gbx_fork_open"] = -1


def _fork_panel(session: Session, lanes: Sequence[Lane], titles: Sequence[str], say: Say) -> None:
    ready, why = _readiness(session, say, state.language())
    asked = int(st.session_state["gbx_fork_open"])
    step = asked if asked >= 0 else opening_step(lanes)
    # A fork in which nobody could run has no step of its own to fork at.
    able = [k for k, lane in enumerate(lanes) if lane.trace.num_steps >= lane.first_step]
    lanes, titles = [lanes[k] for k in able], [titles[k] for k in able]
    if not lanes:
        return
    with st.container(key="gbx-forking"):
        st.html(
            f'<div class="gbx-title">{escape(say("cmp.fork_title"))}</div>'
            f'<div class="gbx-about">{escape(say("cmp.fork_about"))}</div>'
        )
        compare_forms.fork_form(
            lanes, titles, step, len(lanes) - 1, say, _fork_pressed, is_ready=ready, why=why
        )


def _fork_pressed() -> None:
    _attempt(_start_fork)


def _start_fork(backend: Backend) -> None:
    source, step = st.session_state["gbx_fork"]
    limits = state.registry().limits
    changes = compare_forms.changes_of(source, step)
    plan = fork_plan_of(source, step, changes, limits)
    session = state.registry().session(state.token())
    title, origin = fork_title(source, plan, changes), lane_name(source, of_past=True)
    lane = LanePlan("fork", plan.config, plan.arrivals, title, step, origin)
    work = Comparison(
        [lane], backend, limits, beside=[source], fork=plan, before=_comparison(session)
    )
    check_lanes(find_scenario(SCENARIO), [plan.config], backend, limits)
    _begin("compare", work)


# ------------------------------------------------------------------------------- gain


def _gain(session: Session, say: Say) -> None:
    """The waterfall: what comes with glassblock, or what was measured here."""
    work = session.work.get("gain")
    own = work if isinstance(work, Gain) else None
    if own is not None and own.is_running:
        st.fragment(_paint_measuring, run_every=_TICK)(own, say)
    report = own.report if own is not None and own.report else recorded_gain()
    if report is None:
        return
    is_own = own is not None and report is own.report
    clicked = gain_card(report, say, f"gbx_gain_{'own' if is_own else 'recorded'}")
    if clicked is not None:
        _show_bar(session, clicked, own if is_own else None)
    ready, _ = _readiness(session, say, state.language())
    st.button(
        say("cmp.measure", repeat=_REPEATS), key="gbx_measure", on_click=_measure_pressed,
        disabled=not ready, help=say("cmp.measure_help"),
    )  # fmt: skip


def _paint_measuring(work: Gain, say: Say) -> None:
    state.registry().session(state.token())
    if not work.is_running:
        st.rerun()
    text = say(
        "cmp.measuring", turn=work.turn, of=work.rounds, system=say(f"cmp.system_{work.system}"),
        seconds=f"{work.seconds:.0f}",
    )  # fmt: skip
    st.html(f'<div class="gbx-note" role="status">{escape(text)}</div>')


def _measure_pressed() -> None:
    limits = state.registry().limits
    scenario = find_scenario(SCENARIO)
    _attempt(lambda backend: _begin("gain", Gain(scenario, _REPEATS, backend, limits)))


def _show_bar(session: Session, system: str, own: Gain | None) -> None:
    """The run behind a bar, beside the run before it."""
    at = GAIN.index(system)
    names = GAIN[max(0, at - 1) : max(0, at - 1) + 2]
    _let_go(session, "compare", "prove")
    _forget_shown()
    if own is None:
        st.session_state["gbx_cmp_pick"] = names
    else:
        lanes = tuple(lane for lane in own.lanes if lane.name in names)
        st.session_state["gbx_cmp_pinned"] = lanes
    st.rerun()


_SHEET = """
.st-key-gbx-what{min-height:34px}
.st-key-gbx-what [data-testid="stButtonGroup"] button{min-height:28px;padding:2px 11px}
.st-key-gbx-what [data-testid="stButtonGroup"] p{font-size:12.5px}
.st-key-gbx_prove button{border-radius:999px;border-color:var(--gbx-accent);
  color:var(--gbx-accent)}
.st-key-gbx-forking [data-testid="stForm"]{border:0;padding:0}
"""
