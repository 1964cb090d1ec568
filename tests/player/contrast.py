"""Whether a page's texts can be read: the contrast of every one with the ground below it."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page

_INKS = """() => [...document.querySelectorAll('.gb *')].filter((node) => node.offsetParent
    && [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim())).map((node) => {
      const canvas = document.createElement('canvas');
      const paint = canvas.getContext('2d', {willReadFrequently: true});
      const chain = [];
      for (let n = node; n; n = n.parentElement) {
        chain.push(getComputedStyle(n).backgroundColor);
      }
      chain.reverse().forEach((c) => { paint.fillStyle = c; paint.fillRect(0, 0, 1, 1); });
      const ground = [...paint.getImageData(0, 0, 1, 1).data].join();
      paint.fillStyle = getComputedStyle(node).color; paint.fillRect(0, 0, 1, 1);
      return [node.className || node.tagName, node.textContent.slice(0, 20),
              [...paint.getImageData(0, 0, 1, 1).data].join(), ground];
    })"""


def assert_aa_contrast(page: Page, *, more_than: int) -> None:
    """Every text of the page has AA contrast, and there are more than so many of them."""
    found: list[Any] = page.evaluate(_INKS)
    assert len(found) > more_than
    for name, text, ink, ground in found:
        low, high = sorted((_luminance(ink), _luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (name, text, ink, ground)


def _luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
