"""The canvas player and the comparison inside Streamlit.

It owns the packing of options and logs into one value (bytes inside a dict would arrive as text),
and the components' registration. It knows nothing of engines: it takes binary delta logs. The
JavaScript and CSS are the files that every other page uses; a component is one module, so the
comparison's file is joined to the player's, on which it stands.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from core.text import catalogue

__all__ = [
    "CompareRun",
    "CompareState",
    "Cursor",
    "Theme",
    "compare",
    "pack",
    "pack_runs",
    "player",
    "strings",
]

Theme = Literal["light", "dark", "auto"]
_ASSETS = Path(__file__).parents[2] / "assets" / "player"
_PREFIXES = ("player.", "event.")
_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./player\.js\";\n", re.M)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the user rests: after `event` events, the last of them in this step and phase."""

    event: int
    step: int
    phase: str


@dataclass(frozen=True, slots=True)
class CompareRun:
    """One run of a comparison.

    Attributes:
        log: from `core.trace.delta_log`.
        title: the system's short name, as sentences call it.
        detail: its settings in a few words; "" lets the page say them.
    """

    log: bytes
    title: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CompareState:
    """Where the user rests in a comparison, and what was just asked for.

    Attributes:
        clock: what `at` counts: engine steps or sampled tokens.
        at: the tick, None before the first move.
        step: the latest engine step shown, None before the first move.
        fork: the step at which to fork, in the rerun that the click causes only.
        open: the run to open by itself, in the rerun that the click causes only.
        event: the event at which to open it.
    """

    clock: Literal["step", "token"] = "step"
    at: int | None = None
    step: int | None = None
    fork: int | None = None
    open: int | None = None
    event: int | None = None


def player(
    log: bytes,
    *,
    key: str,
    lang: str = "en",
    theme: Theme = "auto",
    height: int | None = None,
    start: int | None = None,
    is_live: bool = False,
    on_cursor: Callable[[], None] | None = None,
) -> Cursor | None:
    """Shows a run and returns where the user rests in it, None before the first move.

    Sending a longer log of the same run continues: a player at the end follows the head, any
    other stays where it is.

    Args:
        log: from `core.trace.delta_log`.
        key: of the component; two players on a page have two keys.
        lang: of every word that the player shows.
        theme: "auto" follows Streamlit's own ground, then the browser's wish.
        height: of the whole player on a wide page, in CSS pixels.
        start: events to have applied when the run is first shown.
        is_live: the run still grows, so playing waits at its end.
        on_cursor: called before the rerun that a settled move causes.
    """
    data = pack(log, lang=lang, theme=theme, height=height, start=start, isLive=is_live)
    mount = st.components.v2.component(
        "glassblock_player",
        css=_asset("player.css"),
        js=_asset("player.js") + "export default playerComponent;\n",
    )
    callback = on_cursor or (lambda: None)
    result = mount(key=key, data=data, default={"cursor": None}, on_cursor_change=callback)
    return _cursor(result.get("cursor"))


def compare(
    runs: Sequence[CompareRun],
    *,
    key: str,
    lang: str = "en",
    theme: Theme = "auto",
    height: int | None = None,
    start: int | None = None,
    is_live: bool = False,
    on_fork: Callable[[], None] | None = None,
    on_open: Callable[[], None] | None = None,
) -> CompareState:
    """Shows two to four runs in lock step.

    Sending longer logs of the same runs continues, as in `player`.

    Args:
        runs: of the same requests, the older way first.
        key: of the component.
        lang: of every word that it shows.
        theme: as in `player`.
        height: of the whole comparison on a wide page, in CSS pixels.
        start: the engine step that is first shown.
        is_live: a run still grows, so playing waits at the end.
        on_fork: called before the rerun that "fork here" causes.
        on_open: called before the rerun that a click on a run's title causes.
    """
    data = pack_runs(runs, lang=lang, theme=theme, height=height, start=start, isLive=is_live)
    mount = st.components.v2.component(
        "glassblock_compare",
        css=_asset("player.css") + _asset("compare.css"),
        js=_compare_script() + "export default compareComponent;\n",
    )
    result = mount(
        key=key,
        data=data,
        default={"cursor": None},
        on_cursor_change=lambda: None,
        on_fork_change=on_fork or (lambda: None),
        on_open_change=on_open or (lambda: None),
    )
    return _compare_state(result)


def pack_runs(runs: Sequence[CompareRun], *, lang: str = "en", **options: Any) -> bytes:
    """What the comparison takes: options with each run's words and length, then all logs."""
    words = [{"title": run.title, "detail": run.detail, "bytes": len(run.log)} for run in runs]
    return pack(b"".join(run.log for run in runs), lang=lang, runs=words, **options)


def pack(log: bytes, *, lang: str = "en", **options: Any) -> bytes:
    """What the player's `unpack` takes: u32 length, JSON options with strings, log."""
    plain = json.dumps({**options, "lang": lang, "strings": strings(lang)}, ensure_ascii=False)
    encoded = plain.encode()
    return struct.pack("<I", len(encoded)) + encoded + log


def strings(lang: str) -> dict[str, str]:
    """The catalogue's sentences that the player uses."""
    return {k: v for k, v in catalogue(lang).items() if k.startswith(_PREFIXES)}


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _compare_script() -> str:
    """The player's file and the comparison's as one module: what was imported is in scope."""
    return _asset("player.js") + _IMPORT.sub("", _asset("compare.js"), count=1)


def _compare_state(result: Mapping[str, Any]) -> CompareState:
    cursor = result.get("cursor") or {}
    fork, opened = result.get("fork") or {}, result.get("open") or {}
    return CompareState(
        clock=cursor.get("clock", "step"),
        at=cursor.get("at"),
        step=cursor.get("step"),
        fork=fork.get("step"),
        open=opened.get("index"),
        event=opened.get("event"),
    )


def _cursor(value: Mapping[str, Any] | None) -> Cursor | None:
    if not value:
        return None
    return Cursor(int(value["event"]), int(value["step"]), str(value["phase"]))
