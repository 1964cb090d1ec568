"""Starts the app's server: a free port on this machine, our own settings, one line on stdout.

It owns the server's settings and the wish for a browser. It knows nothing of pages or engines; the
model's name and the language go to the pages through the environment and the address.
"""

import os
import socket
import threading
import time
import tomllib
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from core.errors import ConfigError

__all__ = ["MODEL_VARIABLE", "free_port", "serve", "settings"]

MODEL_VARIABLE = "GLASSBLOCK_MODEL"
_ROOT = Path(__file__).parents[1]
_SETTINGS = _ROOT / "assets" / "streamlit.toml"
_FIRST_PORT = 8501
_TRIES = 100
_PATIENCE = 30.0  # seconds that a browser waits for the server


def serve(
    port: int | None = None,
    model: str | None = None,
    lang: str | None = None,
    open_browser: bool = True,
    address: str = "127.0.0.1",
) -> None:
    """Serves the app until it is interrupted.

    Args:
        port: None or 0 takes a free one from 8501 on.
        model: for live runs; None is the embedded default.
        lang: of the address that is opened; None leaves it to the browser.
        open_browser: whether to open the page.
        address: the network interface; the default is reachable from this machine alone.

    Raises:
        ConfigError: the port is taken, or none is free.
    """
    chosen = port or free_port(address)
    if port and not _is_free(address, port):
        raise ConfigError("port_taken", port=port)
    if model:
        os.environ[MODEL_VARIABLE] = model
    url = f"http://{_visible(address)}:{chosen}/" + (f"?lang={lang}" if lang else "")
    print(f"glassblock: {url}", flush=True)
    if open_browser:
        health = f"http://{_visible(address)}:{chosen}/healthz"
        threading.Thread(target=_open_when_ready, args=(url, health), daemon=True).start()
    _run(address, chosen)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on, the lowest from 8501 on.

    Raises:
        ConfigError: a hundred ports are taken.
    """
    for port in range(_FIRST_PORT, _FIRST_PORT + _TRIES):
        if _is_free(address, port):
            return port
    raise ConfigError("no_port", first=_FIRST_PORT, last=_FIRST_PORT + _TRIES - 1)


def settings() -> dict[str, Any]:
    """The server's settings by dotted name."""
    with _SETTINGS.open("rb") as file:
        return _flatten(tomllib.load(file))


def _run(address: str, port: int) -> None:
    import streamlit as st
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from app.compress import ScriptCompression

    async def health(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    app = st.App(
        _ROOT / "app" / "main.py",
        routes=[Route("/healthz", health)],
        middleware=[Middleware(ScriptCompression)],
    )
    own = {"server.address": address, "server.port": port, "server.headless": True}
    app.run(config=settings() | own)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _visible(address: str) -> str:
    """An address that a browser on this machine can open."""
    return "127.0.0.1" if address == "0.0.0.0" else address


def _open_when_ready(url: str, health: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            with urlopen(health, timeout=1):
                webbrowser.open(url)
                return
        except (URLError, OSError):
            time.sleep(0.1)
