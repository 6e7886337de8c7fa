"""The page as people see it: a real server, a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, sync_playwright

from tests.service.conftest import keys_file, png
from tests.service.results_factory import LONG_TITLE
from tests.service.running import Running, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt install chromium)"),
]


@pytest.fixture(scope="module")
def address(service: Running) -> str:
    return service.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """Fails its test on any message in the console and any request to another host."""
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    messages: list[str] = []
    strangers: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if "status of 422" not in message.text:  # Chromium reports every refused upload, which a test provokes
            messages.append(f"{message.type}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: strangers.append(request.url) if not is_ours(request.url, address) else None)
    yield page
    context.close()
    assert not messages, messages
    assert not strangers, strangers


def is_ours(url: str, address: str) -> bool:
    return url.startswith((address, "data:", f"blob:{address}"))


def test_a_reviewer_picks_a_data_set_and_walks_down_to_a_run(page: Page) -> None:
    page.goto("/")
    page.get_by_role("navigation", name="Data sets").get_by_role("link", name="CIFAR-100").click()
    row = page.get_by_role("row", name="NiNformer").first
    assert "53.78 %" in row.inner_text() and "33.14 %" in row.inner_text()
    page.locator(".plot canvas").first.wait_for()
    row.locator(".runs a").click()
    page.locator(".plot canvas").first.wait_for()
    assert page.get_by_role("heading", level=1).inner_text().startswith("NiNformer")
    assert "quick" in page.get_by_role("row", name="profile").inner_text()


def test_a_reviewer_walks_from_a_paper_to_a_claim(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="NiNformer").first.click()
    page.get_by_role("navigation", name="Verdicts").get_by_role("link", name="contradicted").click()
    page.get_by_role("link", name="ViT: inference time").first.click()
    assert "contradicted" in page.locator(".fidelity").inner_text()
    assert "113.3" in page.get_by_role("row", name="times_peak").inner_text()


def test_a_dropped_image_is_answered_by_every_arm_side_by_side(page: Page) -> None:
    page.goto("/?dataset=cifar100")
    page.evaluate(
        """bytes => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "drop.png", {type: "image/png"}));
            document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true}));
        }""",
        list(png()),
    )
    cards = page.locator("#answers .card")
    cards.first.wait_for()
    assert cards.locator("h5").all_inner_texts() == ["ViT", LONG_TITLE, "LocalViT", "NiNformer"]
    assert "the paper says 53.8 %" in cards.last.inner_text()
    assert cards.last.locator(".top li").count() == 5
    assert page.locator("#answers img").evaluate("image => image.complete && image.naturalWidth") == 32


def test_several_images_are_answered_in_a_grid_that_fits_a_phone(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/?dataset=cifar100")
    files = [tmp_path / f"{name}.png" for name in ("one", "two")]
    for number, file in enumerate(files):
        file.write_bytes(png(number))
    page.set_input_files("#file", files)
    grid = page.locator("#answers .grid-of-answers tbody tr")
    grid.first.wait_for()
    assert grid.locator("th").all_inner_texts() == ["one.png", "two.png"]
    for row, image in zip(grid.all(), page.locator("#answers article").all(), strict=True):
        likeliest = image.locator(".top li:first-child .name").all_inner_texts()
        told = [text.split("\n")[0] for text in row.locator("td").all_inner_texts()]
        assert told[:-1] == likeliest
        assert any(word in told[-1] for word in ("say", "differ"))
    assert page.locator("#answers .grid-of-answers img").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_sample_is_answered_without_an_image_of_ones_own(page: Page) -> None:
    page.goto("/?dataset=cifar100")
    samples = page.get_by_role("group", name="Test images to try").get_by_role("button")
    assert samples.count() == 12
    samples.nth(3).click()
    page.locator("#answers .card").first.wait_for()
    truth = samples.nth(3).get_attribute("data-truth")
    assert page.locator("#answers .file").all_inner_texts() == [f"{truth}.png"]
    assert page.locator("#answers .truth").inner_text() == f"a placeholder image, made as {truth}"
    assert page.locator("#answers .card .badge").count() == 0, "models of real data are not judged by placeholders"
    samples.nth(4).evaluate("button => { delete button.dataset.placeholder }")
    samples.nth(4).click()
    page.get_by_text(f"true class: {samples.nth(4).get_attribute('data-truth')}").wait_for()
    assert set(page.locator("#answers .card .badge").all_inner_texts()) <= {"right", "wrong"}
    assert page.locator("#answers .card .badge").count() == 4
    assert page.locator("#answers img").evaluate("image => image.complete && image.naturalWidth") == 32


def test_an_answer_never_stands_under_another_picture(page: Page, tmp_path: Path) -> None:
    for name, seed in (("first.png", 1), ("second.png", 2)):
        (tmp_path / name).write_bytes(png(seed))
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.goto("/?dataset=cifar100")
    page.route("**/predict", hold_the_first)
    page.set_input_files("#file", tmp_path / "first.png")
    page.wait_for_timeout(100)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/predict")):
        page.set_input_files("#file", tmp_path / "second.png")
    page.get_by_role("heading", name="second.png").wait_for()
    assert page.locator("#answers .file").all_inner_texts() == ["second.png"]
    assert page.locator("#status").inner_text() == ""


def test_a_file_that_is_no_image_is_explained(page: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("not an image")
    page.goto("/?dataset=cifar100")
    page.route("**/predict", lambda route: route.continue_())
    with page.expect_response("**/predict") as answer:
        page.set_input_files("#file", tmp_path / "notes.png")
    assert answer.value.status == 422
    page.get_by_text("notes.png: the file is not a PNG, JPEG or WebP image").wait_for()


def test_a_form_without_a_model_says_so_in_words_of_the_page(page: Page, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png())
    page.goto("/?dataset=cifar100")
    for box in page.get_by_role("checkbox").all():
        box.uncheck()
    page.on("request", lambda request: pytest.fail(f"asked {request.url}"))
    page.set_input_files("#file", tmp_path / "image.png")
    page.get_by_text("Choose at least one model.").wait_for()


@pytest.mark.parametrize(
    "path",
    ["/", "/papers/ninformer", "/claims/ninformer.table3.mnist.vit", "/?dataset=cifar100", "/docs", "run", "/claims"],
)
def test_a_phone_scrolls_only_downwards(page: Page, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto("/?dataset=mnist" if path == "run" else path)
    if path == "run":
        page.goto(page.locator(".runs a").first.get_attribute("href") or "")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


OVERFLOWING = "items => items.filter(item => item.scrollWidth > item.clientWidth).map(item => item.textContent)"


@pytest.mark.parametrize("path", ["/?dataset=mnist", "/?dataset=mnist&metric=inference_time"])
def test_a_phone_shows_the_verdict_beside_the_number(page: Page, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(path)
    assert page.locator(".scroll:has(> .rows)").evaluate_all(OVERFLOWING) == []
    assert page.locator(".rows .verdict").count() == 4
    for row in page.locator(".rows tbody tr").all():
        number, verdict = (row.locator(f"[data-label={label}]").bounding_box() for label in ("Ours", "Verdict"))
        assert number and verdict and 0 <= verdict["y"] - number["y"] < 100
    assert found_in(page, EVERYTHING) == []


def test_a_phone_keeps_long_titles_on_their_cards_and_shades_the_side_of_a_table_that_goes_on(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto("/")
    for title in ("SGEMM GPU kernel performance", "OpenWebText, first 900 MB"):
        page.locator(".picker strong").first.evaluate("(strong, title) => strong.textContent = title", title)
        assert page.locator(".picker a").evaluate_all(OVERFLOWING) == []
    page.goto("/?dataset=mnist")
    page.get_by_text("What it cost").first.click()
    cost = page.get_by_role("region", name="Cost").first
    assert cost.evaluate("box => box.scrollWidth > box.clientWidth")
    assert cost.evaluate("box => getComputedStyle(box).backgroundAttachment") == "local, local, scroll, scroll"


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
@pytest.mark.parametrize("path", ["/experiments/ninformer-cifar100?cost=parameters", "/?dataset=cifar100"])
def test_a_long_name_of_a_model_is_whole_where_there_is_room_and_cut_where_there_is_none(
    page: Page, path: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(RECORD_CANVAS_TEXT)
    page.goto(path)
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


KINDS = (
    *("/", "/?dataset=mnist", "/?dataset=cifar10", "/papers/ninformer", "/claims/ninformer.table2.mnist.vit"),
    *("/experiments/ninformer-mnist", "/docs", "run", "/claims?q=vit", "/method", "/leaderboard"),
)
EVERYTHING = {"rules": {"target-size": {"enabled": True}}}  # which asks for 24 pixels, or as much room around
OF_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}


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


@pytest.mark.parametrize("path", KINDS)
def test_axe_finds_nothing(page: Page, path: str) -> None:
    """In light mode everything, in dark mode everything that depends on colours."""
    page.goto("/?dataset=mnist" if path == "run" else path)
    if path == "run":
        page.goto(page.locator(".runs a").first.get_attribute("href") or "")
    assert found_in(page, EVERYTHING) == []
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")  # otherwise colours are on their way for a while
    assert found_in(page, OF_COLOURS) == []


def test_axe_finds_text_without_contrast_in_the_dark(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    page.locator(".lead").evaluate("lead => { lead.style.color = 'rgb(34, 34, 34)' }")
    assert found_in(page, OF_COLOURS) == [("color-contrast", [".lead"])]


def found_in(page: Page, options: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Violations that axe finds, each with its first place."""
    found = Axe().run(page, options=options).response["violations"]
    return [(item["id"], item["nodes"][0]["target"]) for item in found]


def test_a_key_is_asked_for_and_sent_and_never_shown(browser: Browser, root: Path, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png())
    with running(root, tmp_path, CLAIMCHECK_KEYS=str(keys_file(tmp_path, all="right"))) as service:
        page = browser.new_context(base_url=service.address).new_page()
        page.set_default_timeout(60_000)
        page.goto("/?dataset=cifar100")
        page.get_by_label("API key").fill("wrong")
        page.set_input_files("#file", tmp_path / "image.png")
        page.get_by_text("this key is unknown").wait_for()
        page.get_by_label("API key").fill("right")
        with page.expect_request("**/predict") as asked:
            page.get_by_role("button", name="Ask").click()
        page.locator("#answers .card").first.wait_for()
        assert asked.value.headers["authorization"] == "Bearer right"
        assert "right" not in asked.value.url + page.url and b"right\r\n" not in (asked.value.post_data_buffer or b"")
        page.reload()
        assert page.get_by_label("API key").input_value() == "right", "kept for this tab"
        page.context.close()


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


@pytest.mark.parametrize("width", [1280, 390])
def test_the_result_and_the_way_to_try_a_model_are_on_the_first_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/?dataset=mnist")
    for place in (page.get_by_role("row", name="ViT").first, page.get_by_role("link", name="Try the models")):
        box = place.bounding_box()
        assert box and box["y"] + box["height"] < 900
    page.get_by_role("link", name="Try the models").click()
    page.wait_for_function("document.getElementById('try-title').getBoundingClientRect().top < innerHeight")


def test_a_chart_in_what_is_folded_away_is_drawn_once_it_is_opened(page: Page) -> None:
    page.goto("/?dataset=cifar10")
    folded = page.locator("details.folded")
    assert folded.get_attribute("open") is not None, "nothing else is there"
    page.locator(".folded canvas").first.wait_for()
    page.locator(".folded > summary").click()
    page.locator(".folded .plot").first.evaluate("plot => plot.replaceChildren()")
    page.locator(".folded > summary").click()
    page.locator(".folded canvas").first.wait_for()
    assert page.locator(".folded canvas").first.evaluate("canvas => canvas.width") > 0
