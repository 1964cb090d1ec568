"""What the Compare page says below its runs: figures, the proof, a fork's diff, the gain.

It paints values that others made; every text of a run is escaped. The bars of the gain are buttons
whose place and width come from a style sheet, so they need neither a script nor Plotly.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import streamlit as st

from app.comparing import Lane
from app.nav import model_line
from app.state import Say
from core.workload.compare import Equality, Figures, equal_tokens
from core.workload.fork import Fate, ForkDiff, ForkPlan, RequestDiff

if TYPE_CHECKING:
    from core.exec.prove import Proof

__all__ = ["SHEET", "diff_card", "equality_line", "figures_card", "gain_card", "proof_card"]

_PARTS = ("tokens", "reserved", "unused", "tail", "cached", "hole", "free")


def figures_card(
    lanes: Sequence[Lane], titles: Sequence[str], found: Sequence[Figures], say: Say
) -> None:
    """One row a lane: where its memory went, how many ran, how fast, equal tokens."""
    heads = ["", *(say(f"cmp.part_{part}") for part in _PARTS)]
    heads += [say(f"cmp.col_{name}") for name in
              ("steps", "running", "rate", "preempted", "refused", "hits", "equal")]  # fmt: skip
    rows = []
    for number, (lane, title, own) in enumerate(zip(lanes, titles, found, strict=True)):
        equality = equal_tokens(lanes[0].trace, lane.trace) if number else None
        cells = [f"{own.shares.get(part, 0.0):.1%}" for part in _PARTS]
        cells += [
            str(own.steps), f"{own.mean_running:.2f}", f"{own.tokens_per_second:,.1f}",
            str(own.preemptions), str(own.rejected),
            "–" if own.hit_rate is None else f"{own.hit_rate:.0%}",
            "–" if equality is None else f"{equality.equal:,} / {equality.tokens:,}",
        ]  # fmt: skip
        rows.append([title, *cells])
    header = lanes[0].trace.header
    kind = model_line(header.model, say, measured=header.measured)
    where = str(header.model.get("processor", ""))
    foot = say("cmp.figures_foot", where=" · ".join(part for part in (kind, where) if part))
    st.html(_card(say("cmp.figures"), _table(heads, rows) + f"<p>{escape(foot)}</p>"))


def equality_line(lanes: Sequence[Lane], say: Say) -> str:
    """What the button of the proof says: how many tokens are equal by the traces."""
    found = [equal_tokens(lanes[0].trace, lane.trace) for lane in lanes[1:]]
    if found and not any(item.differences for item in found):
        return say("cmp.prove_same", tokens=f"{min(item.tokens for item in found):,}")
    equal, tokens = sum(item.equal for item in found), sum(item.tokens for item in found)
    return say("cmp.prove_some", equal=f"{equal:,}", tokens=f"{tokens:,}")


# ------------------------------------------------------------------------------- proof


def proof_card(
    proofs: Sequence["Proof"], lanes: Sequence[Lane], titles: Sequence[str], say: Say
) -> None:
    """What was played again, and what it showed."""
    dtype = str(lanes[0].trace.header.model.get("dtype", "?"))
    parts = []
    for number, (proof, title) in enumerate(zip(proofs, titles[1:], strict=False), start=1):
        recorded = equal_tokens(lanes[0].trace, lanes[number].trace)
        lines = [
            _equality_sentence(proof.equality, title, titles[0], say),
            _rows_sentence(proof, say),
        ]
        if proof.equality.first is not None:
            lines.append(_why(proof, dtype, say))
        elif proof.rows.identical < proof.rows.compared:
            lines.append(say("cmp.proof_order", dtype=dtype))
        if recorded.differences != proof.equality.differences:
            lines.append(say("cmp.proof_unlike", equal=recorded.equal, tokens=recorded.tokens))
        if proof.equality.missing:
            lines.append(say("cmp.proof_missing", labels=", ".join(proof.equality.missing)))
        if not proof.is_whole:
            lines.append(say("cmp.proof_cut"))
        mark = "≠" if proof.equality.differences else "✓"
        body = "".join(f"<p>{escape(line)}</p>" for line in lines)
        parts.append(f"<h4><b>{mark}</b> {escape(title)}</h4>{body}")
    st.html(_card(say("cmp.proof"), "".join(parts), role="status"))


def _equality_sentence(found: Equality, title: str, first: str, say: Say) -> str:
    if found.first is None:
        return say("cmp.proof_equal", tokens=found.tokens, sequences=found.sequences, first=first)
    place = found.first
    return say(
        "cmp.proof_differs", equal=found.equal, tokens=found.tokens, label=place.label,
        position=place.position, left=_token(place.left, place.left_text, say),
        right=_token(place.right, place.right_text, say), system=title,
    )  # fmt: skip


def _rows_sentence(proof: "Proof", say: Say) -> str:
    rows = proof.rows
    text = say(
        "cmp.proof_rows", rows=rows.compared, largest=f"{rows.largest:.4g}", label=rows.label,
        position=rows.position, identical=rows.identical,
    )  # fmt: skip
    left, right = proof.steps
    if left != right:
        text += " " + say("cmp.proof_steps", left=left, right=right)
    if rows.apart:
        text += " " + say("cmp.proof_apart", rows=rows.apart)
    if rows.beyond:
        text += " " + say("cmp.proof_beyond", rows=rows.beyond)
    return text


def _why(proof: "Proof", dtype: str, say: Say) -> str:
    rows = proof.rows
    if rows.margin is None or rows.nudge is None:
        return say("cmp.proof_unseen")
    key = "cmp.proof_rounding" if rows.rounding_explains else "cmp.proof_unexplained"
    return say(key, margin=f"{rows.margin:.4g}", nudge=f"{rows.nudge:.4g}", dtype=dtype)


def _token(token_id: int, text: str, say: Say) -> str:
    return say("cmp.no_token") if token_id < 0 else f"{token_id} {text.strip()!r}"


# ------------------------------------------------------------------------------- fork


def diff_card(found: ForkDiff, plan: ForkPlan, changed: str, say: Say) -> None:
    """What the fork changed: a row a request, the totals, and what the fork itself cost."""
    heads = ["", *(say(f"cmp.diff_{n}") for n in ("admitted", "finished", "preempted", "same"))]
    rows = [_diff_row(row, say) for row in found.requests]
    totals = [
        [say(f"cmp.total_{name}"), before, after]
        for name, before, after in (
            ("steps", str(found.before.steps), str(found.after.steps)),
            ("tokens", str(found.before.tokens), str(found.after.tokens)),
            ("rate", _rate(found.before), _rate(found.after)),
            ("waste", f"{found.before.waste:.1%}", f"{found.after.waste:.1%}"),
            ("running", f"{found.before.mean_running:.2f}", f"{found.after.mean_running:.2f}"),
            ("preemptions", str(found.before.preemptions), str(found.after.preemptions)),
            ("hits", _share(found.before.hit_rate), _share(found.after.hit_rate)),
        )
    ]
    notes = [say("cmp.fork_cost", tokens=found.recomputed, step=found.first_step)]
    notes.append(say("cmp.fork_rate"))
    if plan.restarted:
        notes.append(say("cmp.fork_restarted", labels=", ".join(plan.restarted)))
    equality = found.equality
    notes.append(say("cmp.fork_equal", equal=equality.equal, tokens=equality.tokens))
    body = (
        f"<p>{escape(changed)}</p>"
        f'<div class="gbx-two">{_table(heads, rows)}'
        f"{_table(['', say('cmp.was'), say('cmp.became')], totals)}</div>"
        + "".join(f"<p>{escape(text)}</p>" for text in notes)
    )
    st.html(_card(say("cmp.diff_title", step=found.first_step), body))


def _diff_row(row: RequestDiff, say: Say) -> list[str]:
    before, after = row.before, row.after
    same = "–" if row.same_tokens is None else "✓" if row.same_tokens else "≠"
    label = row.label + (f" · {say('cmp.carried')}" if row.carried else "")
    return [
        label,
        _arrow(_step(before, "admitted", say), _step(after, "admitted", say)),
        _arrow(_step(before, "finished", say), _step(after, "finished", say)),
        _arrow(
            str(before.preemptions) if before else "–", str(after.preemptions) if after else "–"
        ),
        same,
    ]


def _step(fate: Fate | None, name: str, say: Say) -> str:
    if fate is None:
        return say("cmp.not_there")
    if name == "finished" and fate.finish_reason == "rejected":
        return say("end_rejected")
    value = getattr(fate, name)
    return "–" if value is None else str(value)


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _rate(found: Figures) -> str:
    return f"{found.tokens_per_second:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


# ------------------------------------------------------------------------------- gain


def gain_card(report: Mapping[str, Any], say: Say, prefix: str) -> str | None:
    """The waterfall; returns the system whose bar was clicked."""
    bars = report["bars"]
    whole = max(bar["end"] for bar in bars) or 1.0
    clicked = None
    with st.container(key="gbx-gain"):
        st.html(f'<div class="gbx-title">{escape(say("cmp.gain"))}</div>{_bar_places(bars, whole)}')
        for number, bar in enumerate(bars):
            name = bar["system"]
            label = say(f"cmp.gain_{name}")
            figure = f"{bar['end']:,.1f}" if not number else f"{bar['delta']:+,.1f}"
            detail = say("cmp.gain_unit")
            if number:
                detail += f" · ×{bar['factor']:.2f}"
            if bar["share"] is not None:
                detail += " · " + say("cmp.gain_share", share=f"{bar['share']:.0%}")
            with st.container(key=f"gbx-gain-row-{name}"):
                st.html(
                    f'<div class="gbx-gain-words"><b>{escape(label)}</b>'
                    f"<span>{escape(figure)} {escape(detail)}</span></div>"
                )
                words = say("cmp.gain_open", system=say(f"cmp.system_{name}"))
                if st.button(words, key=f"{prefix}_{name}"):
                    clicked = name
        st.html(_gain_foot(report, say))
    return clicked


def _bar_places(bars: Sequence[Mapping[str, Any]], whole: float) -> str:
    """The bars' places, as a style sheet: a bar that goes down begins where it ends."""
    rules = []
    for bar in bars:
        left = min(bar["start"], bar["end"]) / whole
        width = max(abs(bar["delta"]) / whole, 0.004)
        rules.append(
            f".st-key-gbx-gain-row-{bar['system']} button{{margin-left:{left:.2%}!important;"
            f"width:{width:.2%}!important}}"
        )
    return f"<style>{''.join(rules)}</style>"


def _gain_foot(report: Mapping[str, Any], say: Say) -> str:
    model = report["model"]
    where = " · ".join(
        str(part) for part in (model.get("name"), model.get("dtype"), model.get("processor"))
        if part
    )  # fmt: skip
    ranges = "; ".join(
        f"{say('cmp.system_' + item['system'])} {min(item['rates']):,.1f}–{max(item['rates']):,.1f}"
        for item in report["systems"]
    )
    factor = report.get("factor")
    texts = [
        say("cmp.gain_foot", factor="?" if factor is None else f"{factor:.2f}",
            repeat=report["repeat"], where=where),
        say("cmp.gain_ranges", ranges=ranges),
        say("cmp.gain_help"),
        say("cmp.gain_claim"),
        say("cmp.gain_padding"),
        say("cmp.gain_command", command=report["command"]),
    ]  # fmt: skip
    return '<div class="gbx-foot">' + "".join(f"<p>{escape(t)}</p>" for t in texts) + "</div>"


# ------------------------------------------------------------------------------- html


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="gbx-table"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _card(title: str, body: str, role: str = "") -> str:
    attribute = f' role="{role}"' if role else ""
    return (
        f'<div class="gbx-card gbx-wide"{attribute}><div class="gbx-title">{escape(title)}</div>'
        f"{body}</div>"
    )


SHEET = """
.gbx-wide{margin:0}
.gbx-wide .gbx-title{margin:0 0 8px}
.gbx-wide h4{font-size:13.5px;font-weight:650;margin:10px 0 4px;padding:0;color:var(--gbx-text)}
.gbx-wide p,.gbx-foot p{font-size:12.5px;line-height:1.55;color:var(--gbx-muted);margin:6px 0 0;
  max-height:none;white-space:normal;overflow-wrap:anywhere}
.gbx-table{overflow-x:auto;min-width:0}
.gbx-table table{border-collapse:collapse;font-size:12.5px;width:100%;
  font-variant-numeric:tabular-nums;color:var(--gbx-text)}
.gbx-table th,.gbx-table td{padding:5px 7px;text-align:right;border:0;
  border-bottom:1px solid var(--gbx-line);white-space:nowrap;font-weight:400}
.gbx-table thead th{color:var(--gbx-muted);font-size:11.5px}
.gbx-table tbody th,.gbx-table thead th:first-child{text-align:left;font-weight:600}
.gbx-two{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:24px}
.st-key-gbx-gain,.st-key-gbx-forking{border:1px solid var(--gbx-line);border-radius:12px;
  background:var(--gbx-card);padding:12px 16px;gap:8px!important}
.st-key-gbx-gain [class*="st-key-gbx-gain-row"]{gap:3px!important}
.gbx-gain-words{display:flex;justify-content:space-between;gap:12px;font-size:12.5px;
  color:var(--gbx-muted);font-variant-numeric:tabular-nums}
.gbx-gain-words b{color:var(--gbx-text);font-weight:600}
.st-key-gbx-gain [class*="st-key-gbx-gain-row"] [data-testid="stButton"],
.st-key-gbx-gain [class*="st-key-gbx-gain-row"] [data-testid="stElementContainer"]{
  width:100%!important}
.st-key-gbx-gain [class*="st-key-gbx-gain-row"] button{min-height:20px;height:20px;padding:0;
  border:0;border-radius:5px;background:#0072b2;display:block}
.st-key-gbx-gain .st-key-gbx-gain-row-static button{background:#8b93a7}
.st-key-gbx-gain .st-key-gbx-gain-row-continuous button{background:#e69f00}
.st-key-gbx-gain .st-key-gbx-gain-row-shared button{background:#009e73}
.st-key-gbx-gain [class*="st-key-gbx-gain-row"] button p{position:absolute;width:1px;height:1px;
  overflow:hidden;clip-path:inset(50%)}
.st-key-gbx-gain [class*="st-key-gbx-gain-row"] button:hover,
.st-key-gbx-gain [class*="st-key-gbx-gain-row"] button:focus-visible{
  outline:2.5px solid var(--gbx-accent);outline-offset:2px}
@media (max-width:760px){.gbx-two{grid-template-columns:minmax(0,1fr)}
  .gbx-gain-words{flex-wrap:wrap}}
"""
