"""Two walks that people take, in a real Chromium: wide, and on a phone in the dark."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page

from tests.service.browsing import IN_A_BROWSER, OF_COLOURS, found_in, open_page
from tests.service.running import Running

pytestmark = IN_A_BROWSER
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(params=["wide", "phone in the dark"])
def walker(request: pytest.FixtureRequest, browser: Browser, service: Running) -> Iterator[Page]:
    """A page on the front page; wherever the walk ends, it fits the screen and its colours can be read."""
    with open_page(browser, service.address) as page:
        is_dark = "dark" in request.param
        page.set_viewport_size(PHONE if "phone" in request.param else WIDE)
        page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")
        page.goto("/")
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
        assert found_in(page, OF_COLOURS) == []


def click(link: Locator) -> int:
    link.first.click()
    return 1


def test_a_reviewer_comes_from_the_front_page_to_the_evidence_as_csv_in_four_clicks(walker: Page) -> None:
    clicks = click(walker.get_by_role("link", name="NiNformer"))
    clicks += click(walker.get_by_role("link", name="97.12 %"))
    assert "The paper says" in walker.locator(".tiles").first.inner_text()
    clicks += click(walker.get_by_role("link", name="NiNformer, Tables 2 and 3, MNIST"))
    link = walker.get_by_role("link", name="CSV").first
    answer = walker.request.get(link.get_attribute("href") or "")  # the fourth click; a browser saves or shows the file
    rows = list(csv.DictReader(io.StringIO(answer.text())))
    assert clicks == 3 and rows and {"arm", "epoch", "mean"} <= rows[0].keys()


def test_an_engineer_comes_from_the_leaderboard_to_a_model_and_tries_it(walker: Page, tmp_path: Path) -> None:
    click(walker.get_by_role("navigation", name="Site").get_by_role("link", name="Models"))
    walker.evaluate("window.isSame = true")
    walker.get_by_label("Data set").select_option("cifar100")
    walker.get_by_role("heading", name="CIFAR-100").wait_for()
    assert walker.evaluate("window.isSame"), "filters need no reload"
    row = walker.get_by_role("row", name="NiNformer").first
    assert "33.14 %" in row.inner_text()
    row.get_by_role("link", name="NiNformer").first.click()
    walker.get_by_role("heading", name="NiNformer").first.wait_for()
    walker.go_back()
    row.get_by_role("link", name="try it").click()
    walker.get_by_role("checkbox", checked=True).wait_for()
    assert walker.get_by_role("checkbox", checked=True).count() == 1
    walker.locator("[name=sample]").first.check()
    walker.locator("#answers .card").wait_for()
    assert walker.locator("#answers .card h5").all_inner_texts() == ["NiNformer"]
    assert "Link to this answer" in walker.locator(".share").inner_text()


def test_a_metric_is_switched_without_a_reload_and_back(walker: Page) -> None:
    click(walker.get_by_role("navigation", name="Site").get_by_role("link", name="Compare"))
    walker.evaluate("window.isSame = true")
    walker.get_by_role("navigation", name="Metric").get_by_role("link", name="Test loss").click()
    walker.get_by_role("columnheader", name="Test loss").first.wait_for()
    assert "metric=loss" in walker.url and walker.evaluate("window.isSame")
    walker.go_back()
    walker.get_by_role("columnheader", name="Test accuracy").first.wait_for()
    assert "metric" not in walker.url and walker.evaluate("window.isSame")


def test_models_of_two_experiments_are_chosen_and_drawn_over_each_other(walker: Page) -> None:
    walker.goto("/leaderboard?dataset=mnist")
    for name in ("ViT", "NiNformer"):
        walker.get_by_role("checkbox", name=f"Choose {name}, NiNformer, Tables 2 and 3, MNIST").check()
    click(walker.get_by_role("button", name="Draw the learning curves"))
    walker.locator("#overlay canvas").wait_for()
    walker.get_by_label("A model").select_option("ninformer-cifar100.ninformer")
    click(walker.get_by_role("button", name="Add"))
    walker.locator("#overlay canvas").wait_for()
    links = walker.get_by_role("region", name="Chosen models and runs").get_by_role("rowheader").all_inner_texts()
    assert sorted(text.partition(" (")[0] for text in links) == ["NiNformer", "NiNformer", "ViT"]
    assert walker.url.count("line=") >= 3, "the address can be sent"
    click(walker.get_by_role("link", name="Leave out ViT (ninformer-mnist)"))
    walker.locator("#overlay canvas").wait_for()
    with walker.expect_download() as download:
        walker.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert {row["model"] for row in rows} == {"NiNformer (ninformer-mnist)", "NiNformer (ninformer-cifar100)"}
