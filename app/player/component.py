"""The canvas player inside Streamlit.

It owns the packing of options and log into one value (bytes inside a dict would arrive as text),
and the component's registration. It knows nothing of engines: it takes a binary delta log. The
JavaScript and CSS are the files that every other page uses, unchanged.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from core.text import catalogue

__all__ = ["Cursor", "Theme", "pack", "player", "strings"]

Theme = Literal["light", "dark", "auto"]
_ASSETS = Path(__file__).parents[2] / "assets" / "player"
_PREFIXES = ("player.", "event.")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the user rests: after `event` events, the last of them in this step and phase."""

    event: int
    step: int
    phase: str


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
    data = pack(log, lang=lang, theme=theme, height=height, start=start, is_live=is_live)
    mount = st.components.v2.component(
        "glassblock_player",
        css=(_ASSETS / "player.css").read_text(encoding="utf-8"),
        js=_script("player.js") + "export default playerComponent;\n",
    )
    callback = on_cursor or (lambda: None)
    result = mount(key=key, data=data, default={"cursor": None}, on_cursor_change=callback)
    return _cursor(result.get("cursor"))


def pack(log: bytes, *, lang: str = "en", **options: Any) -> bytes:
    """What the player's `unpack` takes: u32 length, JSON options with strings, log."""
    plain = json.dumps({**options, "lang": lang, "strings": strings(lang)}, ensure_ascii=False)
    encoded = plain.encode()
    return struct.pack("<I", len(encoded)) + encoded + log


def strings(lang: str) -> dict[str, str]:
    """The catalogue's sentences that the player uses."""
    return {k: v for k, v in catalogue(lang).items() if k.startswith(_PREFIXES)}


def _script(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _cursor(value: Mapping[str, Any] | None) -> Cursor | None:
    if not value:
        return None
    return Cursor(int(value["event"]), int(value["step"]), str(value["phase"]))
