"""Sample test images from the packed set, or an explanation that they are missing."""

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from httpx import Response
from PIL import Image

from service.database.samples import NoSample, Samples
from service.settings import Settings
from stages.datasets.packed import read_images, read_info
from tests.project import REPOSITORY
from tests.service.conftest import png, reading


def test_samples_are_packed_test_images_of_different_classes(client: TestClient, root: Path) -> None:
    folder = root / "data" / "processed" / "cifar100"
    packed, classes = read_images(folder, "test"), read_info(folder).classes
    listed = client.get("/api/v1/datasets/cifar100/samples").json()
    assert len({sample["true_class"] for sample in listed}) == len(listed) == 12
    for sample in listed:
        assert sample["true_class"] == classes[packed.labels[sample["position"]]]
        assert sample["provenance"] == "embedded"
        answer = client.get(sample["address"])
        assert answer.headers["content-type"] == "image/png"
        pixels = np.asarray(Image.open(io.BytesIO(answer.content)))
        assert np.array_equal(pixels.transpose(2, 0, 1), packed.images[sample["position"]])


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("cifar100/samples/16", 404, "sample 16: cifar100 has 16 test images here"),
        ("cifar100/samples/-1", 422, "greater than or equal to 0"),
        ("cifar10/samples", 404, "`dvc repro preprocess@cifar10` packs them"),
        ("..%2Fcifar100/samples", 404, ""),
        ("nothing/samples", 404, "nothing"),
    ],
)
def test_missing_samples_are_explained(client: TestClient, path: str, status: int, detail: str) -> None:
    answer = client.get(f"/api/v1/datasets/{path}")
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


def test_only_placeholder_images_for_real_models_carry_a_warning(
    client: TestClient, settings: Settings, root: Path, tmp_path: Path
) -> None:
    html = client.get("/?dataset=cifar100").text
    assert "Or choose placeholder images" in html and "says nothing about them" in html
    own = shutil.copytree(root, tmp_path / "root")
    info = own / "data" / "processed" / "cifar100" / "dataset.json"
    info.write_text(info.read_text(encoding="utf-8").replace('"embedded"', '"full"', 1), encoding="utf-8")
    with reading(settings.model_copy(update={"root": own})) as served:
        html = served.get("/?dataset=cifar100").text
    assert "Or choose test images of CIFAR-100" in html and 'class="warning"' not in html
    assert re.search(r'<img src="/api/v1/datasets/cifar100/samples/\d+" alt="digits-\d\d"', html)


def test_page_without_samples_omits_them(client: TestClient) -> None:
    assert 'name="sample"' in client.get("/?dataset=cifar100").text
    assert 'name="sample"' not in client.get("/?dataset=cifar10").text
    named = "/?dataset=cifar10&sample=3&checkpoint=ninformer-cifar10.ninformer.0"
    assert "test image of CIFAR-10, but its images are not on this machine" in client.get(named).text


VIT = "ninformer-cifar100.vit.0"


def ask(client: TestClient, *samples: str, accept: str = "application/json") -> Response:
    """Send the form like a browser without JavaScript, which adds an empty file if none is chosen."""
    fields = [("checkpoint", VIT), *(("sample", sample) for sample in samples)]
    parts = [f'name="{name}"\r\n\r\n{value}' for name, value in fields]
    parts.append('name="file"; filename=""\r\nContent-Type: application/octet-stream\r\n\r\n')
    body = "".join(f"--edge\r\nContent-Disposition: form-data; {part}\r\n" for part in parts) + "--edge--\r\n"
    kind = "multipart/form-data; boundary=edge"
    return client.post("/predict", content=body.encode(), headers={"content-type": kind, "accept": accept})


def test_named_sample_gets_the_same_answer_as_its_upload(client: TestClient) -> None:
    (answered,) = ask(client, "cifar100/5").json()["images"]
    png = client.get("/api/v1/datasets/cifar100/samples/5").content
    (uploaded,) = client.post(f"/predict?checkpoint={VIT}", files={"file": png}).json()["images"]
    assert answered["answers"] == uploaded["answers"]
    assert (answered["file"], uploaded["sample"]) == ("cifar100-5.png", None)
    listed = client.get("/api/v1/datasets/cifar100/samples").json()
    named = {item["position"]: item for item in listed}
    for index in named:
        (image,) = ask(client, f"cifar100/{index}").json()["images"]
        assert image["sample"] == named[index]


def test_files_are_answered_before_samples(client: TestClient) -> None:
    fields = [("checkpoint", (None, VIT)), ("sample", (None, "cifar100/5")), ("file", ("own.png", png()))]
    images = client.post("/predict", files=fields).json()["images"]
    assert [(image["file"], bool(image["sample"])) for image in images] == [
        ("own.png", False),
        ("cifar100-5.png", True),
    ]


@pytest.mark.parametrize(
    ("samples", "status", "detail"),
    [
        ([], 422, "no image; send a file as file=, or name a test image by sample="),
        (["7"], 422, "sample is '7'; expected <data set>/<position>, as mnist/7"),
        (["cifar100/99999"], 404, "sample 99999: cifar100 has 16 test images here"),
        (["nothing/0"], 404, "the images of nothing are not here"),
        (["cifar100/0"] * 5, 413, "5 images; one request takes at most 4"),
    ],
)
def test_invalid_sample_is_explained(client: TestClient, samples: list[str], status: int, detail: str) -> None:
    answer = ask(client, *samples)
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


def test_link_to_a_sample_selects_it_and_the_models_without_javascript(client: TestClient) -> None:
    html = client.get(f"/?dataset=cifar100&sample=5&checkpoint={VIT}&checkpoint=gone.since.0").text
    assert re.findall(r'name="sample" value="([^"]+)" checked', html) == ["cifar100/5"]
    assert re.findall(r'name="checkpoint" value="([^"]+)" checked', html) == [VIT]
    page = ask(client, "cifar100/5", accept="text/html").text
    assert "a placeholder image, made as" in page and '<img src="/api/v1/datasets/cifar100/samples/5"' in page


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A root with only the samples in git."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "samples").symlink_to(REPOSITORY / "data" / "samples")
    return tmp_path


def test_fresh_clone_has_a_real_image_of_each_digit(clone: Path) -> None:
    samples = Samples(clone, "mnist")
    chosen = samples.chosen()
    assert [item.true_class for item in chosen] == list("0123456789")
    assert {item.provenance for item in chosen} == {"subset"}
    image = Image.open(io.BytesIO(samples.png(chosen[7].position)))
    assert image.size == (28, 28) and np.asarray(image).max() > 200
    assert 61 in samples and 60 not in samples
    with pytest.raises(NoSample, match="sample 60: mnist has 10 test images here"):
        samples.describe(60)


@pytest.mark.parametrize(("provenance", "are_few"), [("embedded", True), ("full", False)])
def test_samples_in_git_rank_between_the_whole_set_and_placeholders(
    clone: Path, provenance: str, are_few: bool
) -> None:
    packed = clone / "data" / "processed" / "mnist"
    shutil.copytree(REPOSITORY / "data" / "samples" / "mnist", packed)
    info = packed / "dataset.json"
    info.write_text(info.read_text(encoding="utf-8").replace('"subset"', f'"{provenance}"'), encoding="utf-8")
    samples = Samples(clone, "mnist")
    assert samples.info.provenance == ("subset" if are_few else "full")
    assert (61 in samples, 5 in samples) == (are_few, not are_few), "positions refer to the set in use"
