"""The Kernel lab's benchmarks: what `glassblock bench` measured, recorded or opened by the visitor.

It owns which report is shown, the opened file, and the order of what is said of a report: charts,
notes, the machine, the table, the command. Drawing is `app.bench_drawing`. A file that can't be
read leaves one sentence, and what was shown before stays.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape

import streamlit as st

from app import lab_results, nav, state
from app.bench_drawing import (
    compared,
    csv_text,
    direction,
    draw,
    groups,
    range_text,
    sheet,
    spoken,
)
from app.cards import bullets, table
from app.export import copy_button, picture
from app.state import Say
from app.theme import LOOKS, theme_name
from core.bench.report import Report, Row
from core.bench.report_file import MOST_BYTES, read_report
from core.errors import GlassblockError

__all__ = ["SHEET", "show"]

# Settings that only the table tells: they follow from the model's name.
_LONG = {"architecture", "layers", "heads", "kv_heads", "head_dim", "vocab", "max_model_len"}
_PLAIN = {"name", "processor", "system", "dtype"}  # what needs no word before it
_OWN = "opened"  # the choice that stands for the visitor's file
_OWN_KEY, _FAULT_KEY, _CHOICE_KEY = "gbx_lab_bench_own", "gbx_lab_bench_fault", "gbx_lab_bench"


def show(lang: str) -> None:
    """Paints the choice of a report and the report."""
    say = state.say(lang)
    reports = {**lab_results.benches()}
    own: tuple[str, Report] | None = st.session_state.get(_OWN_KEY)
    if own is not None:
        reports[_OWN] = own[1]
    _choice(reports, say, lang)
    if not reports:
        nav.note(say("lab.bench_none"))
        return
    name = st.session_state.get(_CHOICE_KEY) or next(iter(reports))
    _report(reports[name], name, say, lang)


def _choice(reports: Mapping[str, Report], say: Say, lang: str) -> None:
    names = list(reports)
    if st.session_state.get(_CHOICE_KEY) not in [*names, None]:
        del st.session_state[_CHOICE_KEY]

    def title(name: str) -> str:
        own = st.session_state.get(_OWN_KEY)
        return str(own[0])[:60] if name == _OWN and own else spoken(f"bench {name}", lang)

    with st.container(key="gbx-lab-bench", horizontal=True, vertical_alignment="bottom"):
        if names:
            if _CHOICE_KEY not in st.session_state:
                st.session_state[_CHOICE_KEY] = names[0]
            st.pills(
                say("lab.bench_which"), names, key=_CHOICE_KEY, format_func=title, required=True,
                label_visibility="collapsed",
            )  # fmt: skip
        with st.popover(say("lab.bench_open"), key="gbx-lab-bench-open"):
            st.file_uploader(
                say("lab.bench_open_help"), ("json",), key="gbx_lab_bench_file",
                max_upload_size=MOST_BYTES >> 20, on_change=_file_chosen,
            )  # fmt: skip
            fault = st.session_state.pop(_FAULT_KEY, None)
            if isinstance(fault, GlassblockError):  # here, as what is behind can't be seen
                nav.note(fault.sentence(lang), is_error=True)


def _file_chosen() -> None:
    upload = st.session_state["gbx_lab_bench_file"]
    if upload is None:
        return
    try:
        report = read_report(upload.getvalue(), upload.name)
    except GlassblockError as fault:
        st.session_state[_FAULT_KEY] = fault
        return
    st.session_state[_OWN_KEY] = (upload.name, report)
    st.session_state[_CHOICE_KEY] = _OWN


# ------------------------------------------------------------------------------------- report


def _report(report: Report, name: str, say: Say, lang: str) -> None:
    title = spoken(f"bench {report.bench if name == _OWN else name}", lang)
    told = {name: value for name, value in report.settings.items() if name not in _LONG}
    settings = _pairs({n: v for n, v in told.items() if n not in report.machine}, lang)
    measured = say("lab.bench_on", machine=_pairs(report.machine, lang))
    with st.container(key="gbx-card-bench"):
        st.html(
            f'<div class="gbx-bench"><h3>{escape(title)}</h3><p>{escape(measured)}</p>'
            f"<p>{escape(say('lab.bench_with', settings=settings))}</p>"
            f"<p>{escape(say('lab.bench_scale'))}</p>{_charts(report, say, lang)}</div>"
        )
        about = [measured, say("lab.bench_with", settings=settings), say("lab.bench_scale"),
                 *report.notes, report.command]  # fmt: skip
        look = LOOKS[theme_name()]
        svg = sheet(report, f"glassblock bench: {title}", about, look, say, lang)
        picture(svg, csv_text(report), f"lab_bench_{_safe(report.bench)}", say)
    if report.notes:
        head = escape(say("lab.bench_notes"))
        st.html(f'<div class="gbx-card"><h3>{head}</h3>{bullets(report.notes)}</div>')
    if name == "kernels":
        nav.note(say("lab.bench_kernels_and_times", command=lab_results.COMMAND))
    with st.expander(say("lab.bench_table")):
        every = say("lab.bench_with", settings=_pairs(report.settings, lang))
        st.html(_table(report, f"{measured}. {every}.", say, lang))
    if report.command:
        st.html(f'<div class="gbx-title">{escape(say("lab.bench_again"))}</div>')
        st.html(f'<pre class="gbx-bench-command">{escape(report.command)}</pre>')
        copy_button(report.command, "gbx_lab_bench_copy", say)


def _charts(report: Report, say: Say, lang: str) -> str:
    """A picture for each row; a reader who sees none hears its words."""
    look = LOOKS[theme_name()]
    parts = []
    for name, rows in groups(report):
        parts.append(f"<h4>{escape(spoken(name, lang))}</h4>" if name else "")
        images = []
        for row in rows:
            drawing = draw(report, row, look, say, lang)
            data = base64.b64encode(drawing.svg(look).encode()).decode()
            images.append(
                f'<img alt="{escape(drawing.words)}" width="360" height="{drawing.height}" '
                f'src="data:image/svg+xml;base64,{data}">'
            )
        parts.append(f'<div class="gbx-bench-rows">{"".join(images)}</div>')
    return "".join(parts)


def _table(report: Report, caption: str, say: Say, lang: str) -> str:
    ways = report.ways
    versus = [say("lab.bench_against", way=spoken(way, lang)) for way in ways[1:]]
    head = [say("lab.bench_what"), say("lab.bench_unit"), say("lab.bench_direction"),
            say("lab.bench_kind"), *(spoken(way, lang) for way in ways), *versus]  # fmt: skip
    rows = [[spoken(row.name, lang), spoken(row.unit, lang), direction(row, say),
             spoken(row.kind, lang), *_cells(row, ways, say)] for row in report.rows]  # fmt: skip
    return table([caption, say("lab.bench_cells")], head, rows, words=4)


def _cells(row: Row, ways: Sequence[str], say: Say) -> list[str]:
    figures = [range_text(row.figures[way]) if way in row.figures else "–" for way in ways]
    return [*figures, *(compared(row, ways[0], way, say) or "–" for way in ways[1:])]


def _pairs(values: Mapping[str, object], lang: str) -> str:
    return " · ".join(
        str(value) if name in _PLAIN else f"{spoken(name, lang)} {value}"
        for name, value in values.items()
    )


def _safe(name: str) -> str:
    """Letters, digits and `_` of a name, for a key and a file's name."""
    kept = "".join(c if c.isascii() and c.isalnum() else "_" for c in name.lower())
    return kept[:40].strip("_") or "report"


SHEET = """
.gbx-bench h3{font-size:14px;font-weight:650;margin:0 0 4px;padding:0;color:var(--gbx-text)}
.gbx-bench h4{font-size:11px;font-weight:650;letter-spacing:.08em;text-transform:uppercase;
  color:var(--gbx-muted);margin:16px 0 0;padding:0}
.gbx-bench p{font-size:12px;line-height:1.5;color:var(--gbx-muted);margin:0 0 2px;
  overflow-wrap:anywhere}
.gbx-bench-command{margin:0;padding:10px 14px;border:1px solid var(--gbx-line);border-radius:12px;
  background:var(--gbx-card);color:var(--gbx-text);font-size:12.5px;white-space:pre-wrap;
  overflow-wrap:anywhere}
.gbx-bench-rows{display:grid;gap:18px 28px;margin-top:12px;align-items:start;
  grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr))}
.gbx-bench-rows img{display:block;width:100%;max-width:430px;height:auto}
"""
