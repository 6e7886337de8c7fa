"""Every kind of page on the published evidence, as wide as a desk's and as narrow as a telephone's, light and dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.service.browsing import EVERYTHING, IN_A_BROWSER, OF_COLOURS_AND_TARGETS, found_in, open_page
from tests.service.running import Running, running

pytestmark = IN_A_BROWSER
PHONE = {"width": 390, "height": 844}
CLAIMS = {
    "supported at sizes": "dac.sgemm.crossover_low",
    "inconclusive": "dac.sgemm.depth",
    "waiting": "ninformer.table2.mnist.vit",
    "at chance": "nmn.ext.resnet18.c10.aether",
    "drawn": "dac.fig3",
    "holds by computing": "dac.eq7",
    "as read in one way": "dac.fig7b",
    "contradicted": "ninformer.table3.mnist.vit",
}
KINDS = {
    "front": "/",
    **{f"paper {name}": f"/papers/{name}" for name in ("ninformer", "dac")},
    **{f"claim {kind}": f"/claims/{claim}" for kind, claim in CLAIMS.items()},
    "claim as cited": "/claims/dac.sgemm.gain?cited=0123456789ab",
    **{f"data {name}": f"/?dataset={name}" for name in ("cifar10", "sgemm", "openwebtext")},
    "an answer": "/?dataset=mnist&sample=3",
    **{f"experiment {name}": f"/experiments/{name}" for name in ("dac-sgemm", "nmn-gpt")},
    "no runs": "/curves",
    "runs over each other": "/curves?line=ninformer-mnist.vit&line=dac-sgemm.mlp-18x5",
    "leaderboard": "/leaderboard?dataset=sgemm",
    "claims": "/claims",
    "search": "/claims?q=activation",
    "method": "/method",
    "versus": "/versus?dataset=sgemm&a=dac-mlp-141x5&b=mlp-141x5",
    "versus of shortened runs": "/versus?dataset=mnist&a=ninformer&b=vit",
    "versus without models": "/versus",
    "documentation": "/docs",
    "file": "/files/docs/operators/yat.md",
    **{f"model {name}": f"/models/{name}" for name in ("ninformer-mnist.local-vit", "dac-sgemm.mlp-141x5")},
    "not understood": "/leaderboard?sort=nothing",
}
CUT_OFF = """() => [...document.querySelectorAll(".scroll:has(> .claims, > .printed, > .leaderboard)")]
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.getAttribute("aria-label"))"""
COVERED = """() => [...document.querySelectorAll("dt, .stamp")]
    .filter(term => term.nextElementSibling && [...term.children].some(
        child => child.getBoundingClientRect().right > term.nextElementSibling.getBoundingClientRect().left
            && child.getBoundingClientRect().bottom > term.nextElementSibling.getBoundingClientRect().top
            && child.getBoundingClientRect().top < term.nextElementSibling.getBoundingClientRect().bottom))
    .map(term => term.textContent)"""
"""Names of a list that reach over what stands beside them."""


@pytest.fixture(scope="module")
def published_service(computed_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("published-log")
    with running(computed_root, folder, CLAIMCHECK_DATABASE="data/results.db") as service:
        yield service


@pytest.fixture(scope="module")
def visitor(browser: Browser, published_service: Running) -> Iterator[Page]:
    with open_page(browser, published_service.address) as page:
        yield page


def visit(page: Page, path: str) -> None:
    page.goto(path)
    if "sample" in path:
        page.locator("#answers .card").first.wait_for()


@pytest.mark.parametrize("kind", [*KINDS, "run"])
def test_a_page_of_each_kind_is_whole_on_a_desk_and_on_a_telephone_in_light_and_in_the_dark(
    visitor: Page, kind: str
) -> None:
    """Axe finds nothing, folded or not, with targets of 24 pixels; nothing is cut off, covered or beyond the side."""
    path = KINDS.get(kind) or f"/runs/{run_of(visitor)}"
    visitor.emulate_media(color_scheme="light", reduced_motion="reduce")
    visitor.set_viewport_size({"width": 1280, "height": 900})
    visit(visitor, path)
    assert visitor.evaluate(CUT_OFF) == [] and visitor.evaluate(COVERED) == []
    visitor.locator("details").evaluate_all("all => all.forEach(item => { item.open = true })")
    assert found_in(visitor, EVERYTHING) == []
    visitor.emulate_media(color_scheme="dark", reduced_motion="reduce")
    visitor.set_viewport_size(PHONE)
    assert visitor.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert visitor.evaluate(CUT_OFF) == [] and visitor.evaluate(COVERED) == []
    assert found_in(visitor, OF_COLOURS_AND_TARGETS) == []


def run_of(page: Page) -> str:
    (run,) = page.request.get("/api/v1/runs?experiment=dac-sgemm&limit=1").json()
    return str(run["run_key"])


def test_the_longest_paper_page_has_its_contents_within_three_screens_of_a_telephone_and_folds_what_waits(
    visitor: Page,
) -> None:
    visitor.set_viewport_size(PHONE)
    visitor.goto("/papers/dac")
    contents = visitor.get_by_role("navigation", name="On this page")
    box = contents.bounding_box()
    assert box and box["y"] < 3 * PHONE["height"]
    assert contents.evaluate("list => list.scrollWidth <= list.clientWidth"), "all of them are seen"
    assert visitor.evaluate("document.documentElement.scrollHeight") < 14_500
    folded = visitor.locator("#place-2 details")
    assert folded.locator("summary").inner_text() == "32 numbers of the paper, none tested yet"
    folded.locator("summary").click()
    assert folded.get_by_role("link", name="13.42 %").is_visible()
