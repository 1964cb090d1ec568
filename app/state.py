"""What one visitor's page remembers: the session's token, the language, the notice to show.

It owns the keys of `st.session_state` that are no widget's, and the registry of this process.
"""

import secrets
from collections.abc import Callable

import streamlit as st

from app.live import Registry
from core.errors import GlassblockError
from core.text import LANGUAGES, sentence

__all__ = ["Say", "install_registry", "language", "registry", "say", "set_notice", "take_notice",
           "token"]  # fmt: skip

Say = Callable[..., str]

_registry = Registry()


def registry() -> Registry:
    """The registry of this process; its sweep runs from the first call on."""
    _registry.keep_sweeping()
    return _registry


def install_registry(other: Registry) -> None:
    """Puts another registry in place: a test's, with its own caps."""
    global _registry
    _registry = other


def token() -> str:
    """The visitor's own, unguessable name; it never leaves the server."""
    if "gbx_token" not in st.session_state:
        st.session_state["gbx_token"] = secrets.token_urlsafe(16)
    return str(st.session_state["gbx_token"])


def language() -> str:
    """`?lang=`, else the browser's, else English."""
    asked = st.query_params.get("lang", "")
    locale = st.context.locale or ""
    for wish in (asked, locale.split("-")[0].lower()):
        if wish in LANGUAGES:
            return wish
    return "en"


def say(lang: str) -> Say:
    """A function from a key of the catalogue's `app` section to its sentence."""

    def speak(key: str, /, **values: object) -> str:
        return sentence(f"app.{key}", lang, **values)

    return speak


def set_notice(fault: GlassblockError) -> None:
    """Leaves one message for the next painting of the page."""
    st.session_state["gbx_notice"] = fault


def take_notice() -> GlassblockError | None:
    """The message that was left, once."""
    fault = st.session_state.pop("gbx_notice", None)
    return fault if isinstance(fault, GlassblockError) else None
