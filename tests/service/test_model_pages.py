"""Model pages: measured errors, loadable weights, and claims that use the model."""

import html
import io
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from service.database.schemas import CurvePointOut
from service.pages.charts import draw_curves
from stages.datasets.image_readers import CIFAR10
from stages.results import unpack_confusion, unpack_correct

RELEASED = ("ninformer-mnist.local-vit", "ninformer-mnist.ninformer", "dac-resnet-cifar10.dac-resnet20-v1")


def kept(database: str, name: str) -> dict[str, str]:
    experiment, _, arm = name.partition(".")
    with closing(sqlite3.connect(database)) as connection:
        query = "select kind, content from arrays join results on id = result_id where experiment = ? and arm = ?"
        return dict(connection.execute(query, (experiment, arm)).fetchall())


@pytest.mark.parametrize("name", RELEASED)
def test_page_shows_stored_answers_that_three_lines_of_code_reproduce(
    published_client: TestClient, published: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = published_client.get(f"/models/{name}").text
    arrays = kept(published, name)
    counts = unpack_confusion(arrays["confusion"], 10)
    shown = [int(cell or 0) for cell in re.findall(r'<td class="(?:hit|miss)-\d">(\d*)</td>', page)]
    assert shown == counts.ravel().tolist()

    (link,) = re.findall(r'href="(/api/v1/checkpoints/[^"]+/weights)"', page)
    (lines,) = re.findall(r'(?s)<pre[^>]*class="load"><code>(.*?)</code>', page)
    (file,) = re.findall(r'download="([^"]+)"', page)
    assert lines.count("\n") == 2
    monkeypatch.chdir(tmp_path)
    Path(file).write_bytes(published_client.get(link).content)
    found: dict[str, object] = {}
    exec(html.unescape(lines), found)
    predictor = found["model"]

    correct = unpack_correct(arrays["correct"], int(counts.sum()))
    of_tile = (
        r'(?s)<li class="(wrong|right)">.*?src="([^"]+)".*?<span>([^<]+?) ?(?:<small>taken for (\w+)</small>)?</span>'
    )
    tiles = re.findall(of_tile, page)
    assert len(tiles) == (10 if "mnist" in name else 0)
    for side, address, truth, answer in tiles:
        pixels = np.array(Image.open(io.BytesIO(published_client.get(address).content)))
        said = int(predictor.probabilities(pixels[None, None]).argmax())  # type: ignore[attr-defined]
        assert (side == "right") == correct[int(address.rpartition("/")[2])] == (str(said) == truth)
        assert answer == ("" if side == "right" else str(said))


def test_page_lists_every_claim_about_the_model_and_what_is_missing(published_client: TestClient) -> None:
    claims = published_client.get("/api/v1/claims?experiment=ninformer-cifar10&limit=1000").json()
    page = published_client.get("/models/ninformer-cifar10.local-vit").text
    about = {one["id"] for one in claims if "local-vit" in (one["arm"], one["baseline_arm"])}
    assert about and set(re.findall(r'href="/claims/([^"#?]+)"', page)) == about
    mistakes = set(re.findall(r"<b>([^<]+)</b> taken for <b>([^<]+)</b>", page))  # no data or weights here
    assert mistakes and {name.replace(" ", "_") for pair in mistakes for name in pair} <= set(CIFAR10.classes)
    assert "not released" in page and "not on this machine" in page
    many = published_client.get("/models/ninformer-cifar100.mlp-mixer").text
    assert "data:image/png;base64," in many, "a confusion matrix of 100 classes is a picture"
    untrained = published_client.get("/models/nmn-gpt.gpt2").text
    assert "has not been trained yet" in untrained and "Where it errs" not in untrained and "<svg" in untrained
    for experiment in published_client.get("/api/v1/experiments?limit=100").json():
        address = f"/models/{experiment['name']}.{experiment['arms'][-1]['name']}"
        assert published_client.get(address).status_code == 200, address
    assert published_client.get("/models/ninformer-mnist.nothing").status_code == 404
    assert published_client.get("/models/nothing.vit").status_code == 404


def test_models_of_placeholder_data_have_no_measured_errors(client: TestClient) -> None:
    page = client.get("/models/ninformer-cifar10.vit").text
    assert "placeholder data" in page and "Where it errs" not in page and "Learning curves" not in page


def test_curves_of_all_splits_share_axes_and_are_labelled() -> None:
    def points(*values: float) -> list[CurvePointOut]:
        return [
            CurvePointOut(arm="a", epoch=number, replicates=1, mean=value, low=value, high=value)
            for number, value in enumerate(values, start=1)
        ]

    found = draw_curves({"train_loss": points(2.0, 1.0), "test_loss": points(3.0, 1.5), "test_accuracy": []}, "images")
    assert [title for title, _ in found] == ["loss (nats)"]
    assert found[0][1].text == "training, epoch 2: 1 nats; test, epoch 2: 1.5 nats"
