"""What a visitor does, in one place: open, choose, run, wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE = 60_000


@dataclass(frozen=True)
class Site:
    """The app's address and a browser to visit it with."""

    url: str
    browser: Browser

    def visit(self, query: str = "", **context: Any) -> AbstractContextManager[Page]:
        """The page with a playable run; errors and outside requests fail the test."""
        return _visit(self, query, context)


@contextmanager
def visit(site: Site, address: str, ready: str, **context: Any) -> Iterator[Page]:
    """A page of the app, once `ready` is there and no script runs."""
    from tests.player.served import opened

    with opened(site.browser, site.url + address, ready, PATIENCE, **context) as page:
        settled(page)
        yield page


@contextmanager
def _visit(site: Site, query: str, context: dict[str, Any]) -> Iterator[Page]:
    from tests.player.served import opened

    with opened(site.browser, site.url + query, **context) as page:
        yield page


def settled(page: Page) -> None:
    """Waits until no script runs."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')


def model_ready(page: Page) -> None:
    """Waits for the model."""
    page.wait_for_selector('[data-model="ready"]', timeout=PATIENCE)
    settled(page)


def open_panel(page: Page) -> Locator:
    """Opens "Run it live"."""
    page.locator(".st-key-gbx_live button").first.click()
    panel = page.get_by_test_id("stPopoverBody")
    panel.wait_for()
    return panel


def run_own(page: Page, *prompts: str) -> None:
    """Runs own prompts."""
    panel = open_panel(page)
    panel.get_by_text("My own prompts").click()
    box = panel.locator("textarea")
    box.fill("\n".join(prompts))
    panel.locator(".st-key-gbx_run button").click()


def run_over(page: Page) -> None:
    """Waits for the end of a live run, and until the player has all of it."""
    page.get_by_text("· live run ·").wait_for(timeout=PATIENCE)
    page.locator(".st-key-gbx_download button").wait_for(timeout=PATIENCE)
    page.locator('.gb[data-live="false"]').wait_for(timeout=PATIENCE)
    settled(page)


def choose(page: Page, key: str, option: str) -> None:
    """Picks an option of a select box."""
    page.locator(f".st-key-{key} [data-testid='stSelectbox'] input").click()
    page.get_by_role("option", name=option).click()
    settled(page)


def at_event(page: Page, event: int) -> None:
    """Waits for the player's cursor."""
    page.wait_for_selector(f'.gb[data-event="{event}"]')
