"""Asking models in a real Chromium: files, test images, links to answers."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.service.browsing import IN_A_BROWSER
from tests.service.conftest import keys_file, png
from tests.service.results_factory import LONG_TITLE
from tests.service.running import running

pytestmark = IN_A_BROWSER


@pytest.fixture
def page(new_page: Page) -> Page:
    """A page per test: requests that an earlier test holds back would end Playwright's process."""
    return new_page


def test_dropped_image_is_answered_by_all_arms(page: Page) -> None:
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
    (tmp_path / "broken.png").write_text("no image", encoding="utf-8")
    page.set_input_files("#file", [*files, tmp_path / "broken.png"])
    images = page.locator("#answers .image-grid article")
    images.first.wait_for()
    assert images.locator(".file").all_inner_texts() == ["one.png", "two.png", "broken.png"]
    assert page.locator("#answers article.failed .problem").inner_text().startswith("broken.png: the file is not a PNG")
    for image in images.all()[:2]:
        likeliest = image.locator(".top li:first-child .name").all_text_contents()
        assert image.locator(".likeliest b").all_inner_texts() == likeliest and len(likeliest) == 4
        assert image.locator("h4 img").count() == 1
    assert not page.locator("#progress").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def shared(page: Page) -> str:
    return page.get_by_label("Link to this answer").input_value()


def answers_in(page: Page) -> list[str]:
    page.locator("#answers .card").first.wait_for()
    return page.locator("#answers .top").all_inner_texts()


def test_link_to_a_sample_gives_everyone_the_same_answer(page: Page) -> None:
    page.goto("/?dataset=cifar100")
    page.get_by_role("checkbox").first.uncheck()
    page.locator("[name=sample]").nth(3).check()
    answered = answers_in(page)
    assert len(answered) == 3
    link = shared(page)
    assert "#try-title" in link and "&sample=" in link
    page.goto("about:blank")
    page.goto(link)
    assert answers_in(page) == answered and shared(page) == link
    assert page.locator("[name=sample]:checked").count() == 1


def test_link_contains_a_small_image_that_is_not_sent_to_a_server(page: Page, tmp_path: Path) -> None:
    (tmp_path / "own.png").write_bytes(png(3))
    page.goto("/?dataset=cifar100")
    page.set_input_files("#file", tmp_path / "own.png")
    answered = answers_in(page)
    link = shared(page)
    assert "#image=" in link and "reduced" not in page.locator(".share").inner_text()
    page.goto("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(link)
    assert answers_in(page) == answered
    assert page.locator("#answers .file").all_inner_texts() == ["shared-1.png"]
    assert not [url for url in asked if "image=" in url.partition("#")[0]]


def test_large_image_is_linked_in_fewer_pixels_with_a_note(page: Page, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(png(4, size=(300, 200)))
    page.goto("/?dataset=cifar100")
    page.set_input_files("#file", tmp_path / "large.png")
    answers_in(page)
    link = shared(page)
    assert "at 64 × 64 pixels" in page.locator(".share").inner_text() and len(link) < 20_000
    page.goto("about:blank")
    page.goto(link)
    answers_in(page)
    assert page.locator("#answers h4 img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 64


@pytest.mark.parametrize(
    "fragment",
    [
        "image=",
        "image=%",
        "image=PHN2ZyBvbmxvYWQ9YWxlcnQoMSk-",  # <svg onload=alert(1)>
        "image=" + "iVBO" + "A" * 40_000,  # starts like a PNG but is longer than any of our links
    ],
)
def test_invalid_image_link_sends_nothing_and_shows_a_message(page: Page, fragment: str) -> None:
    page.on("request", lambda request: pytest.fail(request.url) if "/predict" in request.url else None)
    page.goto(f"/?dataset=cifar100#{fragment}")
    page.get_by_text("The link holds no image that can be read here.").wait_for()
    assert page.locator("#file").evaluate("input => input.files.length") == 0


def test_answer_is_never_shown_with_another_picture(page: Page, tmp_path: Path) -> None:
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


def test_form_without_a_model_shows_a_message(page: Page, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png())
    page.goto("/?dataset=cifar100")
    for box in page.get_by_role("checkbox").all():
        box.uncheck()
    page.on("request", lambda request: pytest.fail(f"asked {request.url}"))
    page.set_input_files("#file", tmp_path / "image.png")
    page.get_by_text("Choose at least one model.").wait_for()


def test_key_is_requested_and_sent_but_never_shown(browser: Browser, root: Path, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png())
    with running(root, tmp_path, CLAIMCHECK_KEYS=str(keys_file(tmp_path, all="right"))) as service:
        page = browser.new_context(base_url=service.address).new_page()
        page.set_default_timeout(60_000)
        page.goto("/?dataset=cifar100")
        page.get_by_label("API key").fill("wrong")
        page.set_input_files("#file", tmp_path / "image.png")
        page.get_by_text("unknown API key").wait_for()
        page.get_by_label("API key").fill("right")
        with page.expect_request("**/predict") as asked:
            page.get_by_role("button", name="Ask").click()
        page.locator("#answers .card").first.wait_for()
        assert asked.value.headers["authorization"] == "Bearer right"
        assert "right" not in asked.value.url + page.url and b"right\r\n" not in (asked.value.post_data_buffer or b"")
        page.reload()
        assert page.get_by_label("API key").input_value() == "right", "kept for this tab"
        page.context.close()
