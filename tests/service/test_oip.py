"""The Open Inference Protocol, by hand and with the released client."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from fastapi.testclient import TestClient
from PIL import Image
from tritonclient.utils import InferenceServerException

from service.database.queries import ServedCheckpoint, list_checkpoints
from stages.checkpoint.predictor import load_predictor
from stages.results import open_results
from tests.service.conftest import png
from tests.service.running import Running

MODEL = "ninformer-cifar100.vit"
MNIST = "ninformer-mnist.vit"


@pytest.fixture(scope="module")
def remote(service: Running) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(f"{service.host}:{service.port}", network_timeout=60, connection_timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="module")
def served_checkpoints(root: Path) -> dict[str, ServedCheckpoint]:
    with open_results(str(root / "data" / "results.db"))() as session:
        return {served_checkpoint.id: served_checkpoint for served_checkpoint in list_checkpoints(session)}


def images(count: int, shape: tuple[int, ...] = (3, 32, 32)) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


def infer_input(pixels: np.ndarray, *, is_binary: bool) -> triton.InferInput:
    tensor = triton.InferInput("image", list(pixels.shape), "UINT8")
    tensor.set_data_from_numpy(pixels, binary_data=is_binary)
    return tensor


def test_client_finds_a_live_and_ready_server(remote: triton.InferenceServerClient) -> None:
    assert remote.is_server_live() and remote.is_server_ready()
    assert remote.get_server_metadata()["name"] == "claimcheck"
    assert remote.is_model_ready(MODEL) and remote.is_model_ready(MNIST, "2")
    assert not remote.is_model_ready("resnet.50")


def test_client_reads_names_shapes_and_versions(remote: triton.InferenceServerClient) -> None:
    assert remote.get_model_metadata(MNIST) == {
        "name": MNIST,
        "versions": ["0", "1", "2"],
        "platform": "pytorch",
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 1, 28, 28]}],
        "outputs": [
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]},
            {"name": "classes", "datatype": "INT64", "shape": [-1]},
        ],
    }
    assert remote.get_model_metadata(MNIST, "1")["versions"] == ["0", "1", "2"]


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("count", [1, 5, 70])
def test_client_gets_the_predictors_answer(
    remote: triton.InferenceServerClient,
    root: Path,
    served_checkpoints: dict[str, ServedCheckpoint],
    count: int,
    is_binary: bool,
) -> None:
    pixels = images(count)
    predictor = load_predictor(root / served_checkpoints[f"{MODEL}.0"].path)
    expected = predictor.probabilities(pixels)
    wanted = [
        triton.InferRequestedOutput("classes", binary_data=is_binary),
        triton.InferRequestedOutput("probabilities", binary_data=is_binary),
    ]
    result = remote.infer(MODEL, [infer_input(pixels, is_binary=is_binary)], outputs=wanted, request_id="seven")
    np.testing.assert_allclose(result.as_numpy("probabilities"), expected, rtol=0, atol=1e-5)
    assert result.as_numpy("probabilities").dtype == np.float32
    assert result.as_numpy("classes").tolist() == expected.argmax(1).tolist()
    answer = result.get_response()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("seven", MODEL, "0")
    assert answer["parameters"]["run_key"] == served_checkpoints[f"{MODEL}.0"].run_key


def test_client_without_named_outputs_gets_all_as_bytes(remote: triton.InferenceServerClient) -> None:
    result = remote.infer(MNIST, [infer_input(images(2, (1, 28, 28)), is_binary=True)], model_version="1")
    assert result.as_numpy("probabilities").shape == (2, 10)
    assert result.as_numpy("classes").shape == (2,)
    assert result.get_response()["model_version"] == "1"


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [("resnet.50", "", "unknown model 'resnet.50'"), (MODEL, "9", "unknown version '9'; known: 0")],
)
def test_client_gets_an_explanation_of_errors(
    remote: triton.InferenceServerClient, model: str, version: str, words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words):
        remote.infer(model, [infer_input(images(1), is_binary=True)], model_version=version)


def test_unsupported_features_are_explained_to_the_client(remote: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="/api/v1/checkpoints lists the models"):
        remote.get_model_repository_index()
    with pytest.raises(InferenceServerException, match=r"expected 'image', UINT8 \[N, 3, 32, 32\]; got shape"):
        remote.infer(MODEL, [infer_input(images(1, (1, 28, 28)), is_binary=True)])
    likeliest = triton.InferRequestedOutput("classes", class_count=3)
    with pytest.raises(InferenceServerException, match="class_count"):
        remote.infer(MODEL, [infer_input(images(1), is_binary=True)], outputs=[likeliest])


def test_nested_list_is_accepted_as_a_tensor(client: TestClient) -> None:
    pixels = images(1, (1, 28, 28))
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 28, 28]}
    flat = client.post(f"/v2/models/{MNIST}/infer", json={"inputs": [tensor | {"data": pixels.ravel().tolist()}]})
    nested = client.post(f"/v2/models/{MNIST}/infer", json={"inputs": [tensor | {"data": pixels.tolist()}]})
    assert flat.json() == nested.json()
    probabilities, classes = flat.json()["outputs"]
    assert sum(probabilities["data"]) == pytest.approx(1)
    assert classes["data"] == [int(np.argmax(probabilities["data"]))]


def test_oip_and_predict_give_the_same_answer(client: TestClient) -> None:
    """One image, sent as a PNG and as a tensor."""
    content = png(11)
    pixels = np.asarray(Image.open(io.BytesIO(content))).transpose(2, 0, 1)[None]
    top = client.post(f"/predict?checkpoint={MODEL}.0&top_k=1", files={"file": content}).json()["images"][0]["answers"]
    tensor = {"name": "image", "datatype": "UINT8", "shape": list(pixels.shape), "data": pixels.ravel().tolist()}
    probabilities, classes = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert classes["data"] == [top[0]["top"][0]["index"]]
    assert max(probabilities["data"]) == pytest.approx(top[0]["top"][0]["probability"], abs=1e-6)
