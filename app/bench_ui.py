"""Measures the page in Chromium: open to playable, click to repainted, bytes of a first visit.

The server runs in a process of its own, started as a user does. A step in the player is compared
with a bare Streamlit rerun: a button that does nothing. Playwright and Chromium are tools for
development and need not be here; without them one sentence says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from app.serve import free_port
from core.bench.report import Report, Row, Spread, machine
from core.errors import BenchError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["bench_ui"]

ROOT = Path(__file__).parents[1]
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY = '.gb[data-ready="true"]'
BARE = """
import streamlit as st
st.session_state["n"] = st.session_state.get("n", 0) + 1
st.button("nothing", key="nothing")
st.html(f'<div data-count="{st.session_state["n"]}">.</div>')
"""
# Clicks, and answers the milliseconds until the attribute has changed and a frame was drawn.
TIMED = """async ([button, watched, attribute]) => {
  const deep = (root, selector) => {
    const found = root.querySelector(selector);
    if (found) return found;
    for (const one of root.querySelectorAll("*")) {
      const inner = one.shadowRoot && deep(one.shadowRoot, selector);
      if (inner) return inner;
    }
    return null;
  };
  const value = () => deep(document, watched)?.getAttribute(attribute);
  const before = value();
  const start = performance.now();
  deep(document, button).click();
  while (value() === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def bench_ui(
    *,
    visits: int = 5,
    steps: int = 30,
    command: str = "",
    notes: Sequence[str] = (),
    tell: Callable[[float], None] = lambda done: None,
) -> Report:
    """Measures visits and steps.

    Args:
        visits: each with a browser profile of its own.
        steps: clicks on "Forward", and on the bare button.
        command: repeats it.
        notes: sentences that belong beside the figures.
        tell: called with the share done.

    Raises:
        BenchError: playwright or Chromium is missing.
    """
    browser_path = _tools()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=[*_ARGS])
        with _served(["-m", "app.cli", "serve", "--no-browser", "--port"]) as url:
            cold = [_visit(browser, url) for _ in range(visits)]
            tell(0.4)
            step = _clicks(browser, url, steps, READY,
                           '[aria-label="Forward"]', ".gb", "data-event")  # fmt: skip
        tell(0.7)
        rerun = _bare_reruns(browser, steps)
        browser.close()
    tell(1.0)
    page, bare = "glassblock", "bare Streamlit rerun"
    return Report(
        "ui", command, machine("streamlit", "playwright"), {"visits": visits, "steps": steps},
        (page, bare),
        (
            Row("open to playable", "s", "less", {page: Spread.of([s for s, _ in cold])}),
            Row("first visit", "bytes", "less", {page: Spread.of([size for _, size in cold])}),
            Row("click to repainted", "ms", "less",
                {page: Spread.of(step), bare: Spread.of(rerun)}),
        ),
        tuple(notes),
    )  # fmt: skip


def _tools() -> str:
    """The browser.

    Raises:
        BenchError: it, or playwright, is missing.
    """
    if find_spec("playwright") is None:
        raise BenchError("bench_browser", missing="playwright")
    for name in _BROWSERS:
        found = shutil.which(name)
        if found:
            return found
    raise BenchError("bench_browser", missing="Chromium")


def _bare_reruns(browser: Browser, steps: int) -> list[float]:
    """Milliseconds of each rerun of a page with one button that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE, encoding="utf-8")
        run = ["-m", "streamlit", "run", str(script), "--server.headless", "true",
               "--server.address", "127.0.0.1", "--server.fileWatcherType", "none",
               "--browser.gatherUsageStats", "false", "--server.port"]  # fmt: skip
        with _served(run, health="_stcore/health") as url:
            return _clicks(browser, url, steps, "[data-count]",
                           ".st-key-nothing button", "[data-count]", "data-count")  # fmt: skip


@contextmanager
def _served(arguments: list[str], health: str = "healthz") -> Iterator[str]:
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, *arguments, str(port)], cwd=folder, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/"
            _wait(url + health)
            yield url
        finally:
            server.terminate()
            server.wait(20)


def _wait(url: str) -> None:
    for _ in range(300):
        try:
            with urlopen(url, timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(url)


def _visit(browser: Browser, url: str) -> tuple[float, float]:
    """Seconds until a new browser profile can play, and the bytes that it was sent."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        network: Any = context.new_cdp_session(page)
        network.send("Network.enable")
        sizes: list[float] = []
        network.on("Network.loadingFinished", lambda e: sizes.append(e["encodedDataLength"]))
        network.on(
            "Network.webSocketFrameReceived",
            lambda e: sizes.append(len(e["response"]["payloadData"]) * 3 / 4),
        )
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector(READY)
        seconds = time.perf_counter() - start
        page.wait_for_timeout(1500)  # what comes after the first paint counts as well
        return seconds, sum(sizes)


def _clicks(
    browser: Browser, url: str, count: int, ready: str, button: str, watched: str, attribute: str
) -> list[float]:
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector(ready)
        page.wait_for_timeout(6000)  # the model's load is over
        return [_click(page, button, watched, attribute) for _ in range(count)]


def _click(page: Any, button: str, watched: str, attribute: str) -> float:
    page.wait_for_timeout(700)
    return float(page.evaluate(TIMED, [button, watched, attribute]))
