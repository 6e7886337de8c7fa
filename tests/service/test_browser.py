"""The page as people see it: a real server, a real Chromium."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.service.browsing import EVERYTHING, IN_A_BROWSER, OF_COLOURS, found_in
from tests.service.results_factory import LONG_TITLE

pytestmark = IN_A_BROWSER
KINDS = (
    *("/", "/?dataset=mnist", "/?dataset=cifar10", "/papers/ninformer", "/claims/ninformer.table2.mnist.vit"),
    *("/experiments/ninformer-mnist", "/docs", "run", "/claims?q=vit", "/method", "/leaderboard"),
    *("/curves", "/curves?line=ninformer-mnist.vit&line=ninformer-cifar100.ninformer", "/papers/nothing"),
    *("/claims/ninformer.table3.mnist.vit?cited=0123456789ab", "/?dataset=cifar100&sample=3"),
)
"""An address of each kind of page."""


OVERFLOWING = "items => items.filter(item => item.scrollWidth > item.clientWidth).map(item => item.textContent)"


@pytest.mark.parametrize("path", ["/?dataset=mnist", "/?dataset=mnist&metric=inference_time"])
def test_a_phone_shows_the_verdict_beside_the_number(page: Page, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(path)
    assert page.locator(".scroll:has(> .rows)").evaluate_all(OVERFLOWING) == []
    assert page.locator(".comparison .verdict").count() == 4
    for row in page.locator(".comparison tbody tr").all():
        number, verdict = (row.locator(f"[data-label={label}]").bounding_box() for label in ("Ours", "Verdict"))
        assert number and verdict and 0 <= verdict["y"] - number["y"] < 120
    assert found_in(page, EVERYTHING) == []


def test_a_phone_keeps_long_titles_on_their_cards_and_shades_the_side_of_a_table_that_goes_on(page: Page) -> None:
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


RECORD_CANVAS_TEXT = """
    window.drawn = new Map(); // canvas -> texts of its last drawing
    const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.clearRect = function (...place) {
        window.drawn.set(this.canvas, []);
        return clearRect.apply(this, place);
    };
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const { a, b, e } = this.getTransform();
        const part = { left: 1, center: 0.5 }[this.textAlign] ?? 0;
        const end = a * (x + part * this.measureText(text).width) + e;
        window.drawn.get(this.canvas)?.push({ text, beyond: b ? 0 : (end - this.canvas.width) / devicePixelRatio });
        return fillText.call(this, text, x, y);
    };
"""


@pytest.mark.parametrize("width", [1280, 360])
def test_a_long_name_of_a_model_is_whole_where_there_is_room_and_cut_where_there_is_none(
    new_page: Page, width: int
) -> None:
    page = new_page
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(RECORD_CANVAS_TEXT)
    page.goto("/experiments/ninformer-cifar100?cost=parameters")
    charts = page.locator("script[data-chart]").count()
    page.locator(".plot canvas").nth(charts - 1).wait_for()
    for _ in range(40):  # a chart is laid out again once it knows how wide its labels are
        drawn = page.evaluate("[...window.drawn.values()].flat()")
        beyond = [one for one in drawn if one["beyond"] > 1]
        names = [one["text"] for one in drawn if one["text"].startswith(LONG_TITLE[:12])]
        if len(names) >= charts and not beyond:
            break
        page.wait_for_timeout(250)
    assert len(names) >= charts > 0
    assert not beyond
    assert all(name == LONG_TITLE if width == 1280 else name.endswith("…") for name in names)


def test_a_chart_tells_what_is_under_the_pointer(page: Page) -> None:
    page.goto("/experiments/ninformer-mnist")
    box = page.locator("#bands canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    told = dict(row.split("\t") for row in tooltip.inner_text().split("\n"))
    assert set(told) == {"model", "epoch", "Test accuracy (%)", "lowest", "highest", "replicates"}
    assert told["model"] in ("ViT", "MLP-Mixer", "LocalViT", "NiNformer") and told["replicates"] == "3"
    assert 0 < float(told["lowest"]) <= float(told["Test accuracy (%)"]) <= 100


def test_a_chart_is_saved_as_drawing_picture_and_numbers(page: Page) -> None:
    page.goto("/experiments/ninformer-mnist?arm=vit&arm=ninformer")
    figure = page.locator("figure:has(#bands)")
    found = {}
    for kind in ("SVG", "PNG", "CSV"):
        with page.expect_download() as download:
            figure.get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == f"experiments-ninformer-mnist-bands.{kind.lower()}"
        found[kind] = Path(download.value.path()).read_bytes()
    assert found["SVG"].startswith(b"<svg") and b"NiNformer" in found["SVG"]
    assert found["PNG"].startswith(b"\x89PNG")
    header, *rows = found["CSV"].decode().splitlines()
    assert header == "epoch,high,low,mean,model,replicates" and len(rows) == 200


def test_axe_finds_text_without_contrast_in_the_dark(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    page.locator(".lead").evaluate("lead => { lead.style.color = 'rgb(34, 34, 34)' }")
    assert found_in(page, OF_COLOURS) == [("color-contrast", [".lead"])]


def test_a_reviewer_compares_two_specs_by_keyboard_and_can_send_the_address(page: Page) -> None:
    page.goto("/experiments/ninformer-mnist")
    page.locator("#bands canvas").wait_for()
    page.locator("#cost canvas").wait_for()
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
def test_the_result_and_the_way_to_try_a_model_are_on_the_first_screen(page: Page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto("/?dataset=mnist")
    for place in (page.locator("[data-label=Ours]").first, page.get_by_role("link", name="Try the models")):
        box = place.bounding_box()
        assert box and box["y"] + box["height"] < height
    page.get_by_role("link", name="Try the models").click()
    page.wait_for_function("document.getElementById('try-title').getBoundingClientRect().top < innerHeight")
