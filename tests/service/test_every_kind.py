"""Every kind of page on the published evidence, on desktops and phones, light and dark."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.service.browsing import EVERYTHING, IN_A_BROWSER, OF_COLOURS_AND_TARGETS, found_in, open_page
from tests.service.running import Running
from tests.service.test_pages import KINDS

pytestmark = IN_A_BROWSER
PHONE = {"width": 390, "height": 844}
CUT_OFF = """() => [...document.querySelectorAll(".scroll:has(> .claims, > .printed, > .leaderboard)")]
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.getAttribute("aria-label"))"""
COVERED = """() => [...document.querySelectorAll("dt, .stamp")]
    .filter(term => term.nextElementSibling && [...term.children].some(
        child => child.getBoundingClientRect().right > term.nextElementSibling.getBoundingClientRect().left
            && child.getBoundingClientRect().bottom > term.nextElementSibling.getBoundingClientRect().top
            && child.getBoundingClientRect().top < term.nextElementSibling.getBoundingClientRect().bottom))
    .map(term => term.textContent)"""
"""Terms of a list that overlap their descriptions."""


@pytest.fixture(scope="module")
def visitor(browser: Browser, published_service: Running) -> Iterator[Page]:
    with open_page(browser, published_service.address) as page:
        yield page


def visit(page: Page, path: str) -> None:
    page.goto(path)
    if "sample" in path:
        page.locator("#answers .card").first.wait_for()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_page_is_accessible_and_fits_all_screens(visitor: Page, kind: str) -> None:
    """Axe finds nothing, folded or unfolded, with targets of 24 pixels; nothing is cut off, covered or off-screen."""
    visitor.emulate_media(color_scheme="light", reduced_motion="reduce")
    visitor.set_viewport_size({"width": 1280, "height": 900})
    visit(visitor, KINDS[kind])
    assert visitor.evaluate(CUT_OFF) == [] and visitor.evaluate(COVERED) == []
    visitor.locator("details").evaluate_all("all => all.forEach(item => { item.open = true })")
    assert found_in(visitor, EVERYTHING) == []
    visitor.emulate_media(color_scheme="dark", reduced_motion="reduce")
    visitor.set_viewport_size(PHONE)
    assert visitor.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert visitor.evaluate(CUT_OFF) == [] and visitor.evaluate(COVERED) == []
    assert found_in(visitor, OF_COLOURS_AND_TARGETS) == []


def test_paper_page_fits_three_phone_screens(
    visitor: Page,
) -> None:
    visitor.set_viewport_size(PHONE)
    visitor.goto("/papers/dac")
    contents = visitor.get_by_role("navigation", name="On this page")
    box = contents.bounding_box()
    assert box and box["y"] < 3 * PHONE["height"]
    assert contents.evaluate("list => list.scrollWidth <= list.clientWidth"), "all of them are visible"
    assert visitor.evaluate("document.documentElement.scrollHeight") < 14_500
    folded = visitor.locator("#place-2 details")
    assert folded.locator("summary").inner_text() == "32 numbers of the paper, none tested yet"
    folded.locator("summary").click()
    assert folded.get_by_role("link", name="13.42 %").is_visible()
