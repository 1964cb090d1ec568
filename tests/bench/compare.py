"""Measures the comparison in Chromium: what a frame takes while two runs play in lock step.

    python -m tests.bench.compare [--blocks 4096] [--frames 300]

Two memories of equal size, one contiguous and one paged, filled by the same requests through the
real engine. Prints the milliseconds of a frame's script (step, page, canvases) and from one frame
to the next, as the browser's own clock tells them, and the processor time that a frame takes of the
page's thread: other work on the machine lengthens the first two, and not the third.
"""

import argparse
import json
import statistics
from typing import Any

from playwright.sync_api import sync_playwright

from app.player.component import CompareRun, pack_runs
from core.trace.delta_log import encode
from tests.player.runs import header_of, made_run
from tests.player.served import launch, opened, serving

# Plays at a step a frame, and notes what each frame cost.
PLAY = """async (count) => {
  const { view } = window;
  const scripts = [], frames = [];
  let last = 0;
  view.go(0);
  for (let k = 0; k < count; k++) {
    const now = await new Promise(requestAnimationFrame);
    if (last) frames.push(now - last);
    last = now;
    const start = performance.now();
    view.go(view.position >= view.end ? 0 : view.position + 1);
    cancelAnimationFrame(view.frameId);
    view.frameId = 0;
    view.draw();
    scripts.push(performance.now() - start);
  }
  return { scripts, frames, steps: view.end };
}"""


def main() -> None:
    """Prints medians and worst cases as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--frames", type=int, default=300)
    options = parser.parse_args()
    runs = []
    for system in ("static", "paged"):
        trace = made_run(system, options.blocks + 1, options.blocks // 14)
        runs.append(CompareRun(encode(header_of(trace), trace.events), system))
    data = pack_runs(runs, theme="light", height=800)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        with serving(lambda _: data) as url, opened(browser, f"{url}compare") as page:
            first = page.evaluate("performance.now()")
            tools: Any = page.context.new_cdp_session(page)
            tools.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = _thread_seconds(tools)
            told = page.evaluate(PLAY, options.frames)
            spent = _thread_seconds(tools) - before
        browser.close()
    print(json.dumps({
        "blocks_each": options.blocks, "bytes": len(data), "steps": told["steps"],
        "ready_ms": round(first), **_summary("script", told["scripts"]),
        **_summary("frame", told["frames"]),
        "thread_mean_ms": round(1000 * spent / options.frames, 2),
    }, indent=1))  # fmt: skip


def _thread_seconds(tools: Any) -> float:
    metrics = tools.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def _summary(name: str, values: list[float]) -> dict[str, float]:
    values.sort()
    return {
        f"{name}_median_ms": round(statistics.median(values), 2),
        f"{name}_p95_ms": round(values[int(0.95 * len(values))], 2),
        f"{name}_worst_ms": round(values[-1], 2),
    }


if __name__ == "__main__":
    main()
