"""Test images to try a model with: those of the packed set, or a clear statement that they aren't here."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from service.settings import Settings
from stages.datasets.packed import read_images, read_info
from tests.service.conftest import serving


def test_samples_are_packed_test_images_of_different_classes(client: TestClient, root: Path) -> None:
    folder = root / "data" / "processed" / "cifar100"
    packed, classes = read_images(folder, "test"), read_info(folder).classes
    listed = client.get("/api/v1/datasets/cifar100/samples").json()
    assert len({sample["true_class"] for sample in listed}) == len(listed) == 12
    for sample in listed:
        assert sample["true_class"] == classes[packed.labels[sample["index"]]]
        assert sample["provenance"] == "embedded"
        answer = client.get(sample["address"])
        assert answer.headers["content-type"] == "image/png"
        pixels = np.asarray(Image.open(io.BytesIO(answer.content)))
        assert np.array_equal(pixels.transpose(2, 0, 1), packed.images[sample["index"]])


def test_a_sample_answers_as_an_upload(client: TestClient) -> None:
    image = client.get("/api/v1/datasets/cifar100/samples/0").content
    answer = client.post("/predict?dataset=cifar100", files={"file": ("sample.png", image, "image/png")})
    assert answer.status_code == 200
    assert len(answer.json()["models"]) == 4


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("cifar100/samples/16", 404, "sample 16: cifar100 has 16 test images here"),
        ("cifar100/samples/-1", 422, "greater than or equal to 0"),
        ("cifar10/samples", 404, "`dvc repro preprocess@cifar10` packs them"),
        ("cifar10/samples/0", 404, "`dvc repro preprocess@cifar10` packs them"),
        ("..%2Fcifar100/samples", 404, ""),
        ("nothing/samples", 404, "nothing"),
    ],
)
def test_what_is_not_there_is_said(client: TestClient, path: str, status: int, detail: str) -> None:
    answer = client.get(f"/api/v1/datasets/{path}")
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


def test_placeholders_beside_models_of_real_data_bear_a_warning_and_real_images_none(
    client: TestClient, settings: Settings, root: Path, tmp_path: Path
) -> None:
    html = client.get("/?dataset=cifar100").text
    assert "Or one of these placeholders" in html and "says nothing about them" in html
    own = shutil.copytree(root, tmp_path / "root")
    info = own / "data" / "processed" / "cifar100" / "dataset.json"
    info.write_text(info.read_text().replace('"embedded"', '"full"', 1))
    with serving(settings.model_copy(update={"root": own})) as served:
        html = served.get("/?dataset=cifar100").text
    assert "Or one of CIFAR-100’s test images" in html and 'class="warning"' not in html
    assert re.search(r'data-truth="digits-\d\d"', html)


def test_the_page_goes_without_samples_where_there_are_none(client: TestClient) -> None:
    assert "data-sample" in client.get("/?dataset=cifar100").text
    assert "data-sample" not in client.get("/?dataset=cifar10").text
