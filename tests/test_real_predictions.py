"""Real test images through a real server: `/predict` agrees with the predictor of `evaluate`."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from stages.checkpoint.predictor import load_predictor
from stages.datasets.image_readers import MNIST
from stages.datasets.packed import ImageSet, read_images, read_info
from stages.recording.builder import record
from tests.project import REPOSITORY
from tests.service.running import running

pytestmark = pytest.mark.slow

MODELS = REPOSITORY / "data" / "models"
COUNT, BATCH = 100, 10


def png(pixels: np.ndarray) -> bytes:
    """Encode uint8 [C, H, W] losslessly as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service of a fresh clone: evidence and released models, but no runs of this machine."""
    root = tmp_path_factory.mktemp("clone")
    (root / "data").mkdir()
    for name in ("params", "params.yaml", "data/evidence", "data/models", "data/samples", "data/claims.csv"):
        (root / name).symlink_to(REPOSITORY / name)
    record(root, str(root / "data" / "results.db"), evidence_only=True)
    with running(root, root, code=REPOSITORY) as service:
        yield service.address


def real_mnist() -> ImageSet:
    """Official test images, from a mirror or from the data next to the repository."""
    local = REPOSITORY.parent / "shared" / "data" / "mnist"
    mirror = os.environ.get("CLAIMCHECK_MIRROR")
    for folder in (Path(mirror) / "mnist" if mirror else local, local):
        if (folder / MNIST.files["test"][0]).is_file():
            return MNIST.read_split(folder, "test")
    pytest.skip("no real data: set CLAIMCHECK_MIRROR to a folder of mirrored data sets (docs/data.md)")


def ask(server: str, checkpoint: str, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (classes [N], their probabilities [N]) over HTTP, several images per request."""
    found: list[dict[str, float]] = []
    for start in range(0, len(images), BATCH):
        files = [("file", (f"{i}.png", png(images[i]))) for i in range(start, min(start + BATCH, len(images)))]
        answer = httpx.post(f"{server}/predict", params={"checkpoint": checkpoint}, files=files, timeout=60)
        assert answer.status_code == 200, answer.text
        found += [image["answers"][0]["top"][0] for image in answer.json()["images"]]
    return np.array([item["index"] for item in found]), np.array([item["probability"] for item in found])


def check(server: str, checkpoint: str, test_set: ImageSet) -> float:
    """Compare the service's answers with the predictor's; return the accuracy on these images."""
    images, labels = test_set.images[:COUNT].copy(), test_set.labels[:COUNT]
    expected = load_predictor(MODELS / f"{checkpoint}.safetensors").probabilities(images)
    classes, probabilities = ask(server, checkpoint, images)
    assert np.array_equal(classes, expected.argmax(axis=1))
    np.testing.assert_allclose(probabilities, expected.max(axis=1), atol=1e-5)
    return float((classes == labels).mean())


@pytest.mark.parametrize("arm", ["local-vit", "ninformer"])
def test_predictions_for_mnist_equal_those_of_evaluate(server: str, arm: str) -> None:
    checkpoint = f"ninformer-mnist.{arm}.0"
    accuracy = check(server, checkpoint, real_mnist())
    listed = httpx.get(f"{server}/api/v1/checkpoints/{checkpoint}").json()
    assert abs(accuracy - listed["accuracy"]) < 0.15, "100 of the 10,000 scored images"


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(900)
def test_released_model_has_its_published_accuracy() -> None:
    line = next(
        line
        for line in map(
            json.loads, (REPOSITORY / "data/evidence/ninformer-mnist.jsonl").read_text(encoding="utf-8").splitlines()
        )
        if line["result"]["arm"] == "local-vit"
    )
    test_set = real_mnist()
    predictor = load_predictor(
        MODELS / "ninformer-mnist.local-vit.0.safetensors", expected_sha256=line["release"]["sha256"]
    )
    classes = predictor.probabilities(test_set.images.copy()).argmax(axis=1)
    assert float((classes == test_set.labels).mean()) == line["release"]["accuracy"]


def test_committed_samples_are_official_test_images() -> None:
    folder, official = REPOSITORY / "data" / "samples" / "mnist", real_mnist()
    few, info = read_images(folder, "test"), read_info(folder)
    rows = list(info.test_rows or ())
    assert len(rows) == len(few) == info.test_images == 10
    assert np.array_equal(few.images, official.images[rows]) and np.array_equal(few.labels, official.labels[rows])
