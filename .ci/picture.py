"""Take docs/page.png (`make picture`): the service's first screen, light, 1440 pixels wide, at most 150 KB."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.server import free_port, server
from tests.service.browsing import ARGUMENTS, CHROMIUM

MOST_BYTES = 150_000


def take(address: str) -> bytes:
    """Return the screenshot with as many colours as fit."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        page.goto(address, wait_until="networkidle", timeout=120_000)
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        browser.close()
    for colours in (256, 128, 64, 32):
        file = io.BytesIO()
        shot.quantize(colours, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() <= MOST_BYTES:
            return file.getvalue()
    raise SystemExit(f"picture: more than {MOST_BYTES:,} bytes with 32 colours")


def main() -> None:
    port = free_port()
    command = [sys.executable, "-m", "service", "--host", "127.0.0.1", "--port", str(port)]
    with server(command, port, "/health/ready"):
        Path("docs/page.png").write_bytes(take(f"http://127.0.0.1:{port}"))


if __name__ == "__main__":
    main()
