"""Measures the page in Chromium: open to playable, click to repainted, bytes of a first visit.

    python -m tests.bench.ui [--visits 5] [--steps 30]

The server runs in a process of its own, started as a user does. A step in the player is compared
with a bare Streamlit rerun of the same server: a button that does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Browser, sync_playwright

from app.serve import free_port
from tests.player.served import launch

ROOT = Path(__file__).parents[2]
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


def main() -> None:
    """Prints the medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = launch(playwright)
        with _served(["-m", "app.cli", "serve", "--no-browser", "--port"]) as url:
            cold = [_visit(browser, url) for _ in range(options.visits)]
            step = _clicks(browser, url, options.steps, READY,
                           '[aria-label="Forward"]', ".gb", "data-event")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "bare.py"
            script.write_text(BARE, encoding="utf-8")
            run = ["-m", "streamlit", "run", str(script), "--server.headless", "true",
                   "--server.address", "127.0.0.1", "--server.fileWatcherType", "none",
                   "--browser.gatherUsageStats", "false", "--server.port"]  # fmt: skip
            with _served(run, health="_stcore/health") as url:
                rerun = _clicks(browser, url, options.steps, "[data-count]",
                                ".st-key-nothing button", "[data-count]", "data-count")  # fmt: skip
        browser.close()
    print(json.dumps({
        "open_to_playable_s": [round(seconds, 2) for seconds, _ in cold],
        "open_to_playable_median_s": round(statistics.median(s for s, _ in cold), 2),
        "first_visit_bytes": round(statistics.median(size for _, size in cold)),
        "player_step_ms": round(statistics.median(step), 1),
        "bare_rerun_ms": round(statistics.median(rerun), 1),
        "ratio": round(statistics.median(step) / statistics.median(rerun), 3),
    }, indent=1))  # fmt: skip


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


if __name__ == "__main__":
    main()
