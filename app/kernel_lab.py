"""The Kernel lab: what a decode step reads, how long that takes, and what the machine allows.

It owns the page's order and the work that its buttons start. It opens with recorded results, so
that there is something to see before anything is measured. Every number says whether it is
measured, derived or published, and on what; where nothing was measured the page says that.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

import streamlit as st

from app import again, bench_view, kernel_view, lab_results, nav, state, traffic_view
from app.again import Tell, Work
from app.cards import SHEET, table
from app.export import chart
from app.figures.traffic import Reads, reads
from app.memory_panel import size_text
from app.shown import Shown, recorded, recorded_names
from app.sim_view import words_of
from app.state import Say
from app.theme import LOOKS, theme_name
from core.capacity.hardware import HARDWARE
from core.errors import GlassblockError
from core.exec.decode_points import SpeedRun
from core.exec.decode_traffic import (
    CUTS,
    DecodeStep,
    Heads,
    Traffic,
    decode_steps,
    step_of,
    traffic,
)
from core.workload.scenario import find_scenario

__all__ = ["show"]

_SPLITS = (0, 1, 2, 4, 8)  # 0: the kernel's own choice
_BESIDE = ("cpu", "h100-80gb")


def show() -> None:
    """Paints the page."""
    lang = state.language()
    say = state.say(lang)
    nav.style(SHEET + bench_view.SHEET + _SHEET)
    nav.header("kernel-lab", lang, lambda: None)
    st.html(
        f'<div class="gbx-about"><b>{escape(say("lab.title"))}</b> · '
        f"{escape(say('lab.about'))}</div>"
    )
    notice = state.take_notice()
    if notice is not None:
        nav.note(notice.sentence(lang), is_error=True)
    _title("traffic", say, say("lab.traffic_kind"))
    st.fragment(_paint_traffic)(lang)
    _times(say, lang)
    _title("bench", say, say("lab.bench_origin"))
    st.fragment(bench_view.show)(lang)
    _gpu(say)
    _triton(say, lang)


def _title(name: str, say: Say, origin: str) -> None:
    st.html(
        f'<h2 class="gbx-part" id="{name}">{escape(say(f"lab.part_{name}"))}'
        f"<span>{escape(origin)}</span></h2>"
    )


# ------------------------------------------------------------------------------------ traffic


def _paint_traffic(lang: str) -> None:
    """One step of a run: where it comes from, the pool, the counts."""
    say = state.say(lang)
    try:
        shown = _run_choice(say, lang)
        steps = decode_steps(shown.trace)
        heads = Heads.of(shown.trace.header.model)
        if heads is None or not steps:
            nav.note(say("lab.no_heads" if heads is None else "lab.no_decodes"))
            return
        number, device, splits = _settings(shown, steps, say)
        window = _window(heads, shown.key, say)
        step = step_of(shown.trace, number)
    except GlassblockError as fault:
        nav.note(fault.sentence(lang), is_error=True)
        return
    kinds = {
        kind: traffic(step, heads, CUTS[device], window=kind, splits=splits or None)
        for kind in heads.kinds
    }
    found = kinds[window]
    key = f"{shown.key}/{number}/{device}/{splits}/{window}/{len(found.programs)}"
    traffic_view.show_pool(step, found, key, say)
    left, right = st.columns(2, gap="small")
    with left:
        st.html(_counts(step, found, kinds, say))
    with right:
        _bars(shown, step, found, say)
    with st.expander(say("lab.reads_title")):
        rows = traffic_view.reads_table(step, found, say)
        st.html(table([say("lab.reads_caption")], say("lab.reads_head").split("|"), rows, words=5))


def _run_choice(say: Say, lang: str) -> Shown:
    """A recorded run, or what the visitor's Explore page shows."""
    session = state.registry().session(state.token())
    own = session.run.shown if session.run is not None else None
    own = own or session.opened
    names = [*([""] if own is not None else []), *recorded_names()]
    with st.container(key="gbx-lab-run"):
        chosen = st.selectbox(
            say("lab.run"), names, key="gbx_lab_run",
            format_func=lambda name: _run_title(name, say, lang),
        )  # fmt: skip
    return own if own is not None and not chosen else recorded(chosen)


def _run_title(name: str, say: Say, lang: str) -> str:
    if not name:
        return say("lab.own_run")
    title = find_scenario(name).title
    return title.get(lang) or title["en"]


def _settings(shown: Shown, steps: list[int], say: Say) -> tuple[int, str, int]:
    """The step, the device whose cut is taken, and the shares of a context (0: its own choice)."""
    first, second, third = st.columns([2, 1, 1], gap="small")
    with first:
        middle = steps[len(steps) // 2]
        number = middle
        if len(steps) > 1:
            number = st.select_slider(
                say("lab.step"), steps, middle, key=f"gbx_lab_step_{shown.key}"
            )
    with second:
        device = st.selectbox(
            say("lab.cut"), list(CUTS), key="gbx_lab_cut", help=say("lab.cut_help"),
            format_func=lambda name: say(f"lab.cut_{name}"),
        )  # fmt: skip
    with third:
        splits = st.selectbox(
            say("lab.splits"), _SPLITS, key="gbx_lab_splits", help=say("lab.splits_help"),
            format_func=lambda count: str(count) if count else say("lab.splits_auto"),
        )  # fmt: skip
    return number, device, splits


def _window(heads: Heads, key: str, say: Say) -> int | None:
    """The window of the layer that is drawn; a choice where layers differ."""
    kinds = list(heads.kinds)
    if len(kinds) == 1:
        return kinds[0]

    def title(kind: int | None) -> str:
        name = "lab.layers_whole" if kind is None else "lab.layers_window"
        return say(name, layers=heads.kinds[kind], window=kind)

    chosen: int | None = st.selectbox(
        say("lab.layer"), kinds, key=f"gbx_lab_window_{key}", format_func=title
    )
    return chosen


def _counts(step: DecodeStep, found: Traffic, kinds: Mapping[int | None, Traffic], say: Say) -> str:
    """The step in numbers, all of them derived.

    Args:
        step: of the trace.
        found: reads of the layer that is drawn.
        kinds: reads of one layer of each window.
        say: words in the visitor's language.
    """
    heads, layers = found.heads, found.heads.layers
    rows = []
    for name in ("shared", "separate", "padded"):
        one, least = getattr(found, f"{name}_bytes"), found.shared_bytes
        all_layers = sum(
            heads.kinds[kind] * getattr(each, f"{name}_bytes") for kind, each in kinds.items()
        )
        rows.append([say(f"lab.row_{name}"), size_text(one), size_text(all_layers),
                     f"{one / least:.2f}" if least else "–"])  # fmt: skip
    facts = [
        say("lab.programs_line", programs=found.num_programs, seqs=len(step.sequences),
            kv_heads=heads.num_kv_heads, splits=found.splits),
        say("lab.turns_line", turns=found.num_turns, tile=found.tile, lanes=found.idle_lanes),
        _visits(found, say),
        say("lab.group_line", heads=heads.num_heads, kv_heads=heads.num_kv_heads,
            group=heads.group, dim=heads.head_dim, dtype=heads.stored),
    ]  # fmt: skip
    facts.append(
        say("lab.window_none") if found.window is None else
        say("lab.window_line", window=found.window, layers=heads.kinds[found.window])
    )  # fmt: skip
    if step.other_tokens:
        facts.append(say("lab.others_line", tokens=step.other_tokens))
    head = say("lab.counts_head", layers=layers).split("|")
    return table(facts, head, rows)


def _visits(found: Traffic, say: Say) -> str:
    """How many blocks are read, and whether sequences read the same ones."""
    if found.block_reads == found.blocks_touched:
        return say("lab.blocks_apart", blocks=found.blocks_touched)
    return say("lab.blocks_line", blocks=found.blocks_touched, visits=found.block_reads)


def _bars(shown: Shown, step: DecodeStep, found: Traffic, say: Say) -> None:
    """Bytes by sequence."""
    most = max((sequence.seq_len for sequence in step.sequences), default=0)
    most = min(most, found.window or most)
    row = found.heads.token_bytes * found.heads.num_kv_heads
    bars = [
        Reads(s.label, found.bytes_of(n), found.bytes_of(n) * found.heads.group, most * row)
        for n, s in enumerate(step.sequences)
    ]
    about = say("lab.reads_about", step=step.step, model=_model(shown), dtype=found.heads.stored)
    chart(reads(bars, LOOKS[theme_name()], words_of(say), about=about), "lab_reads", say)


def _model(shown: Shown) -> str:
    return str(shown.trace.header.model.get("name", "?"))


# -------------------------------------------------------------------------------------- times


def _times(say: Say, lang: str) -> None:
    made = again.made("lab").get("speed")
    try:
        run: SpeedRun | None = made if made is not None else lab_results.recorded()
    except GlassblockError as fault:
        nav.note(fault.sentence(lang), is_error=True)
        run = None
    origin = say("lab.made_here") if made is not None else _recorded_by(say)
    _title("times", say, origin)
    _work("speed", say, lang)
    if run is None:
        nav.note(say("lab.no_recording"))
        return
    kernel_view.show_times(run, say)
    nav.note(say("lab.times_and_bench"))
    _title("roofline", say, origin)
    beside = st.multiselect(
        say("lab.beside"), list(HARDWARE), list(_BESIDE), key="gbx_lab_beside", max_selections=4,
        format_func=lambda name: HARDWARE[name].title,
    )  # fmt: skip
    kernel_view.show_roofline(run, say, beside)


def _recorded_by(say: Say) -> str:
    return say("lab.made_before", command=lab_results.COMMAND)


def _gpu(say: Say) -> None:
    results = lab_results.gpu_results()
    _title("gpu", say, say("lab.made_before", command="python -m tests.gpu") if results else "")
    if not results:
        nav.note(say("lab.no_gpu", command="python -m tests.gpu"))
    for result in results:
        kernel_view.show_gpu(result, say)


def _triton(say: Say, lang: str) -> None:
    _title("triton", say, say("lab.triton_kind"))
    _work("check", say, lang)
    if "check" in again.made("lab"):
        kernel_view.show_checks(again.made("lab")["check"], say)
    found = lab_results.compiled()
    if found is None:
        nav.note(say("lab.no_compiled"))
    else:
        kernel_view.show_compiled(found, say)


# --------------------------------------------------------------------------------------- work


def _work(name: str, say: Say, lang: str) -> None:
    """A button that starts the work, and how far it is."""
    again.button("lab", name, f"lab.run_{name}", _WORK[name], say)
    again.progress("lab", name, lang)


def _speed(tell: Tell) -> SpeedRun:
    from core.exec.decode_speed import measure  # loads torch

    try:
        return measure(tell)
    except (MemoryError, RuntimeError, ValueError) as fault:
        detail = (str(fault) or type(fault).__name__).partition("\n")[0][:200]
        raise GlassblockError("lab_failed", detail=detail) from fault


def _check(tell: Tell) -> Any:
    from core.exec.interpreter_check import run

    return run(tell)


_WORK: dict[str, Work] = {"speed": _speed, "check": _check}

_SHEET = """
@media (max-width:760px){
  .gbx-table tbody th{white-space:normal;min-width:112px}
}
"""
