"""The memory card of a step: the KV pool, the weights and the rest, in bytes, reconciled.

It owns which parts make which whole. On a GPU the whole is what torch has reserved and what others
took on the device; on a processor it is what the process holds. Parts always add up to their whole:
what nobody names is "other". It reads only a trace's `StepEnded.memory`, and knows no player.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from app.state import Say
from core.trace.events import StepEnded
from core.trace.trace import Trace

__all__ = ["SHEET", "Account", "StepMemory", "account_of", "card", "size_text"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# How each part is filled, so that it reads without colour too.
_LOOKS = {
    "kv_pool": "var(--gbx-accent)",
    "weights": "repeating-linear-gradient(45deg,#009e73 0 5px,transparent 5px 8px)",
    "graphs": "repeating-linear-gradient(90deg,#cc79a7 0 3px,transparent 3px 6px)",
    "other": "repeating-linear-gradient(-45deg,var(--gbx-muted) 0 2px,transparent 2px 6px)",
    "cached": "repeating-linear-gradient(0deg,#e69f00 0 2px,transparent 2px 6px)",
    "non_torch": "radial-gradient(circle,var(--gbx-muted) 1px,transparent 1.5px) 0 0/6px 6px",
}


@dataclass(frozen=True, slots=True)
class Account:
    """A step's memory as parts of a whole.

    Attributes:
        place: whose memory the whole is.
        parts: bytes by name; they add up to `whole`.
        whole: bytes.
        missing: bytes by which the named parts exceed what the process holds: memory that was
            given to it but isn't resident.
        peak: bytes that the step needed for a while beyond what it began with; None unless known.
        device: bytes of the whole GPU; None on a processor.
    """

    place: Literal["process", "gpu"]
    parts: Mapping[str, int]
    whole: int
    missing: int = 0
    peak: int | None = None
    device: int | None = None


@dataclass(slots=True)
class StepMemory:
    """The memory of every step of a trace, read as the trace grows."""

    _read: int = 0
    _steps: dict[int, Mapping[str, int]] = field(default_factory=dict)
    _last: int = 0

    def at(self, trace: Trace, step: int) -> tuple[int, Mapping[str, int]]:
        """The step, or the last one before it that has ended, and its memory."""
        for event in trace.events.since(self._read):
            self._read = event.index + 1
            if isinstance(event, StepEnded):
                self._steps[event.step] = event.memory
                self._last = event.step
        found = min(step, self._last)
        while found > 0 and found not in self._steps:
            found -= 1
        return found, self._steps.get(found, {})


def account_of(memory: Mapping[str, int]) -> Account | None:
    """The parts and their whole; None when the step recorded no memory.

    >>> account_of({"kv_pool": 10, "weights": 30, "process": 100}).parts
    {'kv_pool': 10, 'weights': 30, 'other': 60}
    """
    kv_pool, weights = memory.get("kv_pool", 0), memory.get("weights", 0)
    if "allocated" in memory:
        return _gpu(memory)
    process = memory.get("process", 0)
    if not process:
        return None
    other = process - kv_pool - weights
    parts = {"kv_pool": kv_pool, "weights": weights, "other": max(0, other)}
    return Account("process", parts, max(process, kv_pool + weights), max(0, -other))


def _gpu(memory: Mapping[str, int]) -> Account:
    """What torch accounts for: parts and "other" are allocated, the rest of reserved is cached."""
    allocated, reserved = memory["allocated"], memory.get("reserved", memory["allocated"])
    parts = {name: memory.get(name, 0) for name in ("kv_pool", "weights", "graphs")}
    parts["other"] = allocated - sum(parts.values())
    parts["cached"] = reserved - allocated
    parts["non_torch"] = memory.get("non_torch", 0)
    return Account(
        "gpu", parts, sum(parts.values()), 0, memory.get("activation_peak"), memory.get("device")
    )


def size_text(count: float) -> str:
    """Bytes in words.

    >>> size_text(0), size_text(1536), size_text(5 << 30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def card(trace: Trace, step: int, memory: Mapping[str, int], say: Say) -> str:
    """The card as HTML: a bar of all parts, a list of their bytes, what they are of."""
    if not trace.header.measured:
        return _framed(say, step, f"<p>{escape(say('mem.modelled'))}</p>")
    account = account_of(memory)
    if account is None:
        return _framed(say, step, f"<p>{escape(say('mem.none'))}</p>")
    bars = "".join(
        f'<i style="flex:{size} 0 0;background:{_LOOKS[name]}"></i>'
        for name, size in account.parts.items()
        if size > 0
    )
    items = "".join(_item(say, name, size, account.whole) for name, size in account.parts.items())
    notes = [say(f"mem.about_{account.place}", whole=size_text(account.whole))]
    if account.missing:
        notes.append(say("mem.missing", size=size_text(account.missing)))
    if account.peak is not None:
        notes.append(say("mem.peak", size=size_text(account.peak)))
    if account.device is not None:
        notes.append(say("mem.device", size=size_text(account.device)))
    if trace.header.config.get("kv_cache_dtype") == "fp8":
        notes.append(say("kv_fp8_note"))
    lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return _framed(
        say, step,
        f'<div class="gbx-membar" aria-hidden="true">{bars}</div><dl>{items}</dl>{lines}',
    )  # fmt: skip


def _item(say: Say, name: str, size: int, whole: int) -> str:
    share = size / whole if whole else 0.0
    return (
        f'<div><dt><i style="background:{_LOOKS[name]}"></i>{escape(say(f"mem.{name}"))}</dt>'
        f'<dd title="{size:,} B">{size_text(size)} <span>{share:.1%}</span></dd></div>'
    )


def _framed(say: Say, step: int, inner: str) -> str:
    title = escape(say("mem.title"))
    after = escape(say("mem.at_step", step=step))
    return (
        f'<section class="gbx-card gbx-mem" aria-label="{title}">'
        f"<h3>{title}<span>{after}</span></h3>{inner}</section>"
    )


SHEET = """
.gbx-mem .gbx-membar{display:flex;height:18px;border:1px solid var(--gbx-line);border-radius:6px;
  overflow:hidden;margin:2px 0 8px}
.gbx-membar i{min-width:2px;box-shadow:inset 1px 0 0 var(--gbx-card)}
.gbx-mem dl{display:flex;flex-wrap:wrap;gap:6px 26px;margin:0 0 6px;padding:0}
.gbx-mem dl>div{margin:0;padding:0}
.gbx-mem dt{display:flex;align-items:center;gap:6px;font-size:12px;color:var(--gbx-muted);
  font-weight:400}
.gbx-mem dt i{width:12px;height:12px;border:1px solid var(--gbx-line);border-radius:3px}
.gbx-mem dd{margin:0;font-size:14px;font-weight:650;font-variant-numeric:tabular-nums}
.gbx-mem dd span{font-size:12px;font-weight:400;color:var(--gbx-muted)}
.gbx-card.gbx-mem p{font-size:12px;color:var(--gbx-muted)}
"""
