"""One Chromium for every browser test: Playwright's synchronous API runs once in a process.

And Triton's interpreter where there is no GPU.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.player.served import CHROMIUM, launch

# Without a GPU Triton's kernels run in its interpreter, which they learn when they are loaded.
if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


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
