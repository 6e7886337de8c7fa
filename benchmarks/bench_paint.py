"""Goal: with 1,400 runs with curves a page has its first paint within half a second.

A new Chromium profile each time, so that nothing is cached, on the same machine as the service; first contentful paint
by the browser's own clock, the median of several visits.  The database is made up (`benchmarks.many_runs`).
There is no peer.  Run: python -m benchmarks paint
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.bench_serving import free_port, server
from benchmarks.many_runs import build
from benchmarks.timing import Line, milliseconds

GOAL_SECONDS, VISITS = 0.5, 7
PAGES = {
    "the front page": "/",
    "a data set": "/?dataset=cifar100",
    "an experiment": "/experiments/dac-resnet-cifar100",
    "a paper": "/papers/dac",
}
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def first_paint_seconds(browser: Browser, address: str) -> float:
    """Seconds to first paint for one visit by a first-time visitor."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(address, wait_until="load")
        page.wait_for_function(PAINT)
        return float(page.evaluate(PAINT)) / 1000
    finally:
        context.close()


def measure() -> list[Line]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise RuntimeError("no Chromium on this machine (apt install chromium)")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        count = build(Path(folder) / "results.db", times=1)
        port = free_port()
        command = [sys.executable, "-m", "service", "--port", str(port)]
        settings = {"CLAIMCHECK_ROOT": folder, "CLAIMCHECK_DATABASE": "results.db"}
        with server(command, port, "/health/ready", **settings):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            return [_line(name, f"http://127.0.0.1:{port}{path}", browser, count) for name, path in PAGES.items()]


def _line(name: str, address: str, browser: Browser, count: int) -> Line:
    seconds = [first_paint_seconds(browser, address) for _ in range(VISITS + 1)]
    return Line(
        what=f"first paint of {name}, {count:,} runs (wall)",
        peer="none",
        ours=f"{milliseconds(statistics.median(seconds[1:]))}; the first visit {milliseconds(seconds[0])}",
        value=statistics.median(seconds[1:]),
        goal=GOAL_SECONDS,
        at_most=True,
        unit="s",
    )
