"""The page in a real Chromium, with a real server."""

import re

import pytest
from playwright.sync_api import Page

from tests.service.browsing import EVERYTHING, IN_A_BROWSER, OF_COLOURS, found_in
from tests.service.results_factory import LONG_TITLE

pytestmark = IN_A_BROWSER
UNALIGNED = """table => {
    const middle = item => { const { left, right } = item.getBoundingClientRect(); return (left + right) / 2; };
    const ticks = [...table.querySelectorAll("tfoot text")].filter(text => text.getBoundingClientRect().width);
    const edge = table.closest(".scroll").getBoundingClientRect().right;
    return [
        ...ticks.filter(tick => tick.getBoundingClientRect().right > edge).map(tick => tick.textContent),
        ...[...table.querySelectorAll("tbody .plot-cell")].filter(cell => {
            const height = item => item.getBoundingClientRect().height;
            const lines = [...cell.querySelectorAll(".grid-line")].filter(height);
            return lines.length !== ticks.length || lines.some((line, at) =>
                Math.abs(middle(line) - middle(ticks[at])) > 1 || height(line) < height(cell) - 2);
        }).map(cell => cell.parentElement.textContent),
    ];
}"""
"""Ticks that are cut off, and rows whose line is broken or not above the ticks."""
OVERFLOWING = "items => items.filter(item => item.scrollWidth > item.clientWidth).map(item => item.textContent)"


@pytest.mark.parametrize("path", ["/?dataset=mnist", "/?dataset=mnist&metric=inference_time"])
def test_phone_shows_the_verdict_with_the_number(page: Page, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(path)
    assert page.locator(".scroll:has(> .rows)").evaluate_all(OVERFLOWING) == []
    assert page.locator(".comparison .verdict").count() == 4
    for row in page.locator(".comparison tbody tr").all():
        number, verdict = (row.locator(f"[data-label={label}]").bounding_box() for label in ("Ours", "Verdict"))
        assert number and verdict and 0 <= verdict["y"] - number["y"] < 120
    assert found_in(page, EVERYTHING) == []
    assert page.locator(".comparison").first.evaluate(UNALIGNED) == []
    for width in (360, 1440):
        page.set_viewport_size({"width": width, "height": 740})
        page.goto("/leaderboard?dataset=mnist")
        assert page.locator(".board").evaluate(UNALIGNED) == []


def test_phone_wraps_long_titles_and_shades_scrollable_tables(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto("/")
    for title in ("SGEMM GPU kernel performance", "OpenWebText, first 900 MB"):
        page.locator(".picker strong").first.evaluate("(strong, title) => strong.textContent = title", title)
        assert page.locator(".picker a").evaluate_all(OVERFLOWING) == []
    page.goto("/?dataset=mnist")
    page.get_by_text("What it cost").first.click()
    assert page.get_by_role("region", name="Cost").evaluate_all(OVERFLOWING) == []
    page.goto(page.locator(".runs a").first.get_attribute("href") or "")
    page.get_by_text("Curves as a table").click()
    curves = page.get_by_role("region", name="Curves")
    assert curves.evaluate("box => box.scrollWidth > box.clientWidth")
    assert curves.evaluate("box => getComputedStyle(box).backgroundAttachment") == "local, local, scroll, scroll"


MISPLACED = """() => [...document.querySelectorAll(".plane")].flatMap(plane => {
    const box = item => item.getBoundingClientRect(), field = box(plane.querySelector(".field"));
    const ticks = [...plane.querySelectorAll(".x-axis text:not(.minor)")].map(text => box(text));
    const names = [...plane.querySelectorAll("text"), ...plane.parentElement.querySelectorAll("li")]
        .filter(text => box(text).width).map(text => ({ text: text.textContent, ...box(text).toJSON() }));
    const crosses = (one, other) => one.left < other.right && other.left < one.right
        && one.top < other.bottom - 3 && other.top < one.bottom - 3;
    return [
        ...ticks.filter(at => (at.left + at.right) / 2 < field.left - 1 || (at.left + at.right) / 2 > field.right + 1),
        ...names.filter(one => one.left < 0 || one.right > innerWidth),
        ...names.filter((one, at) => names.slice(at + 1).some(other => crosses(one, other))),
    ];
})"""
"""Ticks outside a chart's area, and texts that are cut off or overlap."""


@pytest.mark.parametrize("path", ["/experiments/ninformer-cifar100?cost=parameters", "/experiments/ninformer-mnist"])
def test_charts_have_ticks_below_and_no_overlapping_texts(page: Page, path: str) -> None:
    page.goto(path)
    for width in (1280, 700, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator(".plane").count() == 2 and page.evaluate(MISPLACED) == []
        if "cifar100" in path:
            names = page.locator(f".plane text:text-is('{LONG_TITLE}'), .plane + ul li:text-is('{LONG_TITLE}')")
            assert names.locator("visible=true").count() == 2, "fits at every width"


def test_chart_shows_the_values_under_the_pointer(page: Page) -> None:
    page.goto("/experiments/ninformer-mnist")
    box = page.locator("#bands .field").bounding_box()
    assert box is not None
    title = page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).querySelector('title').textContent",
        [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2],
    )
    models = [line.partition(", epoch ")[0] for line in title.split("\n")]
    assert models == ["ViT", "MLP-Mixer", "LocalViT", "NiNformer"]
    assert re.fullmatch(r"ViT, epoch \d+: [\d.]+ % \([\d.]+ to [\d.]+ %\)", title.split("\n")[0])


def test_axe_detects_poor_contrast_in_dark_mode(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    page.locator(".lead").evaluate("lead => { lead.style.color = 'rgb(34, 34, 34)' }")
    assert found_in(page, OF_COLOURS) == [("color-contrast", [".lead"])]


def test_two_specs_are_compared_by_keyboard_at_a_shareable_address(page: Page) -> None:
    page.goto("/experiments/ninformer-mnist")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_label("Left").select_option("mlp-mixer")
    page.get_by_label("Values").select_option("all")
    page.get_by_label("Values").press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**left=mlp-mixer**#spec-title")
    assert "everything=true" in page.url and page.get_by_label("Left").input_value() == "mlp-mixer"
    page.wait_for_function("document.getElementById('spec-title').getBoundingClientRect().top < innerHeight")
    assert page.get_by_role("row", name="protocol.batch_size").count() == 1


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_result_and_link_to_the_models_are_on_the_first_screen(page: Page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto("/?dataset=mnist")
    for place in (page.locator("[data-label=Ours]").first, page.get_by_role("link", name="Try the models")):
        box = place.bounding_box()
        assert box and box["y"] + box["height"] < height
    page.get_by_role("link", name="Try the models").click()
    page.wait_for_function("document.getElementById('try-title').getBoundingClientRect().top < innerHeight")
