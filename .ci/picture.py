"""Take the documentation's pictures (`make picture`, NAMES="judge": only these), in as many colours as fit.

`page` is the service's first screen.  Each tutorial's picture shows what its commands lead to; they run in a temporary
folder.  `add-a-paper` trains ten models on MNIST for that, from `CLAIMCHECK_MIRROR` or the official hosts, and
`contribute` ten more: five minutes each on two free cores.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Page, sync_playwright

from benchmarks.server import free_port, server
from tests.doc_examples import read_examples
from tests.service.browsing import ARGUMENTS, CHROMIUM
from tests.test_reported import BASE, results

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 100_000
LAB, EXPERIMENT, CLAIM = "uni-oslo", "toy-mnist", "toy.table1.order"
Take = Callable[[Page, Path], bytes]


def run(folder: Path, *words: str) -> str:
    """Run a command of a tutorial in `folder`, with our code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "stages.cli", *words[1:]] if words[0] == "claimcheck" else words
    variables = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "service", "--host", "127.0.0.1", "--port", str(port)]
    with chdir(folder), server(command, port, "/health/ready", PYTHONPATH=str(ROOT)):
        yield f"http://127.0.0.1:{port}"


def first_screen(page: Page, _: Path) -> bytes:
    page.set_viewport_size({"width": 1440, "height": 900})
    with serving(ROOT) as address:
        page.goto(address, wait_until="networkidle")
        return page.screenshot()


def judged_table(page: Page, folder: Path) -> bytes:
    """Take the report on the page's claims, with the results of the tests."""
    (claims,) = (block.text for block in read_examples(ROOT / "docs" / "judge.md") if block.language == "text")
    (folder / "claims.csv").write_text(claims, encoding="utf-8")
    results(vit=BASE).to_csv(folder / "results.csv", index=False)
    run(folder, "claimcheck", "judge", "claims.csv", "results.csv", "--html", "report.html")
    page.set_viewport_size({"width": 1100, "height": 400})
    page.goto((folder / "report.html").as_uri())
    return page.screenshot(full_page=True)


@cache
def trained_project(root: Path) -> Path:
    """Return a project below `root` with the toy paper, committed and then trained as printed."""
    folder = root / "ours"
    run(root, "git", "init", "-q", str(folder))
    run(folder, "claimcheck", "init")
    run(folder, "git", "add", "--all")
    run(folder, "git", "-c", "user.name=toy", "-c", "user.email=toy@localhost", "commit", "-qm", "Add the toy paper")
    train_as_printed(folder)
    return folder


def train_as_printed(folder: Path) -> None:
    run(folder, "claimcheck", "profile", "paper")
    run(folder, "claimcheck", "repro")


def added_paper(page: Page, root: Path) -> bytes:
    """Take the comparison of the toy paper's numbers with ours."""
    page.set_viewport_size({"width": 1440, "height": 620})
    with serving(trained_project(root)) as address:
        page.goto(f"{address}/compare?paper=toy", wait_until="networkidle")
        return page.screenshot()


def contributed_claim(page: Page, root: Path) -> bytes:
    """Take a claim's page down to its lines by lab; a second clone trained with its lab's seeds and contributed."""
    ours, theirs = trained_project(root), root / "theirs"
    run(root, "git", "clone", "-q", str(ours), str(theirs))
    contribute = ("claimcheck", "contribute", EXPERIMENT, "--lab", LAB)
    seeds = run(theirs, *contribute, "--seeds").partition(": ")[2].strip()
    params = theirs / "params" / f"{EXPERIMENT}.yaml"
    params.write_text(
        re.sub(r"seeds: \[.*?\]", f"seeds: {seeds}", params.read_text(encoding="utf-8")), encoding="utf-8"
    )
    train_as_printed(theirs)
    run(theirs, *contribute)
    run(ours, "claimcheck", "accept", str(theirs / f"{LAB}.zip"), "--from", LAB)
    run(ours, sys.executable, "-m", "stages.record")
    with serving(ours) as address:
        page.goto(f"{address}/claims/{CLAIM}", wait_until="networkidle")
        box = page.locator("section:has(> #labs-title)").bounding_box()
        assert box is not None, "the claim has results of a lab"
        clip: FloatRect = {"x": 0, "y": 0, "width": 1200, "height": box["y"] + box["height"]}
        return page.screenshot(full_page=True, clip=clip)


PICTURES: Mapping[str, Take] = {
    "page": first_screen,
    "judge": judged_table,
    "add-a-paper": added_paper,
    "contribute": contributed_claim,
}


def reduce_colours(shot: bytes) -> bytes:
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    for colours in (256, 128, 64, 32):
        file = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() <= MOST_BYTES:
            return file.getvalue()
    raise SystemExit(f"picture: more than {MOST_BYTES:,} bytes with 32 colours")


def main(*names: str) -> None:
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="claimcheck-") as folder:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for name in names or PICTURES:
            page = browser.new_page(viewport={"width": 1200, "height": 700}, color_scheme="light")
            page.set_default_timeout(120_000)
            shot = PICTURES[name](page, Path(folder))
            (ROOT / "docs" / f"{name}.png").write_bytes(reduce_colours(shot))
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
