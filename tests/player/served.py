"""The player or the comparison alone in a page, from 127.0.0.1; Chromium may go nowhere else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright

__all__ = ["CHROMIUM", "launch", "opened", "serving"]

CHROMIUM = Path("/usr/bin/chromium")
_ASSETS = Path(__file__).parents[2] / "assets" / "player"
_PAGES = {"/": "page.html", "/compare": "compare.html"}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8"}
_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def serving(data: Callable[[str], bytes]) -> Iterator[str]:
    """The page's address; `data` answers the query with a packed player."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/data":
                body, kind = data(url.query), "application/octet-stream"
            else:
                page = _PAGES.get(url.path)
                path = Path(__file__).with_name(page) if page else _ASSETS / url.path.strip("/")
                body, kind = path.read_bytes(), _TYPES[path.suffix]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGS)


@contextmanager
def opened(
    browser: Browser,
    url: str,
    ready: str = '.gb[data-ready="true"]',
    patience: float = 20_000,
    **context: Any,
) -> Iterator[Page]:
    """A page in which `ready` has come up; any error or outside request fails the test.

    On an address below the root Streamlit's script asks there first where its server is: those
    misses are no errors.
    """
    settings: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}, **context}
    faults: list[str] = []

    def note(message: ConsoleMessage) -> None:
        probing = "_stcore/" in str(message.location.get("url", ""))
        if message.type in ("error", "warning") and not probing:
            faults.append(message.text)

    def check(asked: str) -> None:
        if urlsplit(asked).hostname not in ("127.0.0.1", None, ""):
            faults.append(f"outside: {asked}")

    with browser.new_context(**settings) as place:
        page = place.new_page()
        page.on("pageerror", lambda error: faults.append(f"page error: {error}"))
        page.on("console", note)
        page.on("request", lambda request: check(request.url))
        page.goto(url)
        page.wait_for_selector(ready, timeout=patience)
        yield page
    assert faults == []
