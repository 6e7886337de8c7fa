"""User journeys in a real Chromium: on a wide screen, and on a phone in dark mode."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.service.browsing import IN_A_BROWSER, OF_COLOURS, found_in, open_page
from tests.service.running import Running

pytestmark = IN_A_BROWSER
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(params=["wide", "phone in the dark"])
def walker(request: pytest.FixtureRequest, browser: Browser, service: Running) -> Iterator[Page]:
    """The front page; after the test, the current page must fit the screen and have readable colours."""
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


@pytest.fixture
def asker(browser: Browser, published_service: Running) -> Iterator[Page]:
    """The front page of the published evidence on a phone with folded menus; each step has ten seconds."""
    with open_page(browser, published_service.address) as page:
        page.set_viewport_size(PHONE)
        page.emulate_media(reduced_motion="reduce")
        page.set_default_timeout(10_000)
        page.goto("/")
        yield page


QUESTIONS = {
    "reviewer: does NiNformer beat ViT?": ([], r"Does NiNformer beat ViT\?\s+(Yes|No|Not known yet|In part)"),
    "reviewer: does one model beat another here?": (["Answer"], r"NiNformer.* ViT.* CIFAR-10"),
    "reviewer: which numbers are wrong?": ([re.compile(r"\d fail$")], r"1\.31 pp[\s\S]*our training says the opposite"),
    "reviewer: how sure is DAC's gain?": (["DAC", "At equal width"], r"9\d\.\d+ % interval [\d.]+ to [\d.]+ nats"),
    "engineer: what is best on CIFAR-100?": (["Compare", "CIFAR-100"], r"CIFAR-100: which model is best\?\s+\w+"),
    "engineer: what does a model cost?": (["Models", "NiNformer"], r"Parameters\s+2\.58 M[\s\S]*Peak memory"),
    "engineer: how do I load its weights?": (["Models", "NiNformer"], r"load_predictor\("),
    "engineer: how do I judge my own results?": (["API", "judge your own results"], r"claimcheck judge claims\.csv"),
    "student: what does a verdict mean?": (["Method"], r"holds[\s\S]*fails[\s\S]*open[\s\S]*not tested"),
    "student: may I try a model?": (["Models", "try it"], r"Ask the models"),
    "operator: how do I run it for others?": (["API", "run the service"], r"CLAIMCHECK_KEYS"),
    "operator: what does a metric mean?": (["API", "monitor it"], r"claimcheck_queue_seconds"),
}


def test_metric_is_switched_without_a_reload_and_back(walker: Page) -> None:
    click(walker.get_by_role("navigation", name="Site").get_by_role("link", name="Compare"))
    walker.wait_for_url("**/compare*")  # else the old page may be marked
    walker.evaluate("window.isSame = true")
    walker.get_by_role("navigation", name="Metric").get_by_role("link", name="Test loss").click()
    walker.locator("nav a[aria-current]", has_text="Test loss").wait_for()
    assert "metric=loss" in walker.url and walker.evaluate("window.isSame")
    walker.go_back()
    walker.locator("nav a[aria-current]", has_text="As each paper prints it").wait_for()
    assert "metric" not in walker.url and walker.evaluate("window.isSame")


@pytest.mark.parametrize(("clicks", "answer"), QUESTIONS.values(), ids=QUESTIONS)
def test_question_is_answered_within_two_clicks(asker: Page, clicks: list[str | re.Pattern[str]], answer: str) -> None:
    assert len(clicks) <= 2
    begun = time.monotonic()
    for name in clicks:
        role = "button" if name == "Answer" else "link"
        asker.get_by_role(role, name=name, exact=name in ("API", "CIFAR-100", "Models", "NiNformer")).first.click()
    expect(asker.locator("body")).to_contain_text(re.compile(answer), use_inner_text=True)
    assert time.monotonic() - begun < 10


def test_models_of_two_experiments_are_drawn_in_one_chart(walker: Page) -> None:
    walker.goto("/leaderboard?dataset=mnist")
    for name in ("ViT", "NiNformer"):
        walker.get_by_role("checkbox", name=f"Choose {name}, NiNformer, Tables 2 and 3, MNIST").check()
    click(walker.get_by_role("button", name="Draw the learning curves"))
    walker.locator("#overlay svg.field").wait_for()
    walker.get_by_label("A model").select_option("ninformer-cifar100.ninformer")
    click(walker.get_by_role("button", name="Add"))
    walker.locator("#overlay svg.field").wait_for()
    links = walker.get_by_role("region", name="Chosen models and runs").get_by_role("rowheader").all_inner_texts()
    assert sorted(text.partition(" (")[0] for text in links) == ["NiNformer", "NiNformer", "ViT"]
    assert walker.url.count("line=") >= 3, "the address is shareable"
    click(walker.get_by_role("link", name="Leave out ViT (ninformer-mnist)"))
    walker.locator("#overlay svg.field").wait_for()
    ends = walker.locator("#overlay svg.ends text").all_text_contents()
    assert {*ends} == {"NiNformer (ninformer-mnist)", "NiNformer (ninformer-cifar100)"}
