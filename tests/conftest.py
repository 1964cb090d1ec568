"""One Chromium for every browser test: Playwright's synchronous API runs once in a process."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.player.served import CHROMIUM, launch


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; without it the test is skipped, but fails where CI is set."""
    if not CHROMIUM.exists():
        reason = "Debian's chromium is not installed"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()
