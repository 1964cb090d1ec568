"""One server and one Chromium for all journeys."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser

from app.serve import free_port
from tests.browser.steps import Site

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The app, started as a user does, in another folder; and a browser."""
    port = free_port()
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-m", "app.cli", "serve", "--no-browser", "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    log = folder / "log.txt"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _wait(f"http://127.0.0.1:{port}/healthz", server, log)
        yield Site(f"http://127.0.0.1:{port}/", browser)
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if server.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()}")
        try:
            with urlopen(url, timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    pytest.fail("the server does not answer")
