"""A real Chromium for tests, which are skipped if none is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, ViewportSize, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
IN_A_BROWSER = [
    pytest.mark.needs(browser=True),
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt install chromium)"),
]
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}
EVERYTHING = {"rules": {"target-size": {"enabled": True}}}  # axe's rule: 24 pixels, or as much space around
OF_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
OF_COLOURS_AND_TARGETS = {"runOnly": [*OF_COLOURS["runOnly"], "target-size"]}


def found_in(page: Page, options: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the violations that axe finds, each with its first element."""
    found = Axe().run(page, options=options | {"resultTypes": ["violations"]}).response["violations"]
    return [(item["id"], item["nodes"][0]["target"]) for item in found]


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, address: str) -> Iterator[Page]:
    """Open a page of the service at `address` in its own context."""
    context = browser.new_context(base_url=address, viewport=VIEWPORT)
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


@contextmanager
def watched(page: Page, address: str) -> Iterator[Page]:
    """Fail on any console message and any request to another host; reset the page afterwards.

    A new page starts a process of Chromium, which is slower than most tests.
    """
    messages: list[str] = []
    strangers: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # Chromium reports every rejected upload and missing page, which tests provoke.
        is_missing = "status of 404" in message.text and message.location["url"].endswith("/nothing")
        if "status of 422" not in message.text and not is_missing:
            messages.append(f"{message.type}: {message.text}")

    def note_error(error: Error) -> None:
        messages.append(str(error))

    def note_stranger(request: Request) -> None:
        if not request.url.startswith((address, "data:", f"blob:{address}", "about:")):
            strangers.append(request.url)

    page.on("console", note)
    page.on("pageerror", note_error)
    page.on("request", note_stranger)
    yield page
    page.unroute_all(behavior="ignoreErrors")
    if page.url.startswith(address):
        page.evaluate("sessionStorage.clear(); localStorage.clear()")
    page.goto("about:blank")
    page.context.clear_cookies()
    page.emulate_media(color_scheme="null", reduced_motion="null")
    page.set_viewport_size(VIEWPORT)
    page.remove_listener("console", note)
    page.remove_listener("pageerror", note_error)
    page.remove_listener("request", note_stranger)
    assert not messages, messages
    assert not strangers, strangers
