"""A checkpoint answers like the saved network; invalid checkpoints are refused with a reason."""

import dataclasses
import hashlib
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from stages.checkpoint.contract import CheckpointError, InputContract
from stages.checkpoint.predictor import Predictor, dump_checkpoint, load_predictor
from stages.papers import build_model
from stages.run import ModelSpec

MODEL = ModelSpec(
    path="stages.papers.ninformer.local_vit:LocalViT",
    arguments={
        "image_size": 8,
        "in_channels": 3,
        "num_classes": 4,
        "patch_size": 4,
        "dim": 16,
        "depth": 1,
        "num_heads": 2,
        "channels": 16,
        "dropout": 0.5,
    },
)
CONTRACT = InputContract(
    model=MODEL,
    shape=(3, 8, 8),
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.3, 0.4),
    classes=("a", "b", "c", "d"),
    run_key="k" * 64,
    dataset="toy",
    data_digest="d" * 64,
)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    model = build_model(MODEL)
    model(torch.randn(16, 3, 8, 8))  # move running statistics away from their initial values
    return model.eval()


@pytest.fixture
def content(network: nn.Module) -> bytes:
    return dump_checkpoint(network, CONTRACT)


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_predictor_answers_like_the_network(
    tmp_path: Path, network: nn.Module, content: bytes, images: np.ndarray
) -> None:
    predictor = load_predictor(write(tmp_path / "w.safetensors", content))
    assert predictor.contract == CONTRACT
    assert predictor.weights_sha256 == hashlib.sha256(content).hexdigest()
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in (CONTRACT.mean, CONTRACT.std))
    inputs = torch.from_numpy((images / 255 - mean) / std).float()
    expected = network(inputs).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(predictor.probabilities(images), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["images", "multi-label", "regression", "segmentation"])
def test_prediction_is_in_the_terms_of_the_task(kind: Any, images: np.ndarray) -> None:
    """Numbers that aren't finite are visible or refused."""
    layers = [nn.Conv2d(3, 4, 1)] if kind == "segmentation" else [nn.Flatten(), nn.Linear(192, 4)]
    network = nn.Sequential(*layers)
    predictor = Predictor(network, dataclasses.replace(CONTRACT, kind=kind), torch.device("cpu"), "")
    outputs = network(predictor.inputs(torch.from_numpy(images))).detach().numpy().astype(np.float64)
    exponents = np.exp(outputs)
    expected = {
        "images": exponents / exponents.sum(1, keepdims=True),
        "multi-label": exponents / (1 + exponents),
        "regression": outputs,
        "segmentation": outputs.argmax(1),
    }
    found = predictor.predict(images, batch_size=2)
    assert found.dtype == (np.uint8 if kind == "segmentation" else np.float32)
    np.testing.assert_allclose(found, expected[kind], atol=1e-5)
    nn.init.constant_(layers[-1].bias, torch.nan)  # type: ignore[arg-type]
    if kind == "segmentation":
        with pytest.raises(ValueError, match="returned NaN or infinity"):
            predictor.predict(images)
    else:
        assert np.isnan(predictor.predict(images)).all()
    rows = dataclasses.replace(predictor, contract=dataclasses.replace(predictor.contract, shape=(5,)))
    with pytest.raises(CheckpointError, match=r"data \[5\]; expected images"):
        rows.predict(images)


def test_reading_skips_random_initialisation(tmp_path: Path, content: bytes) -> None:
    """A network's own initialisation is slower than reading the file, which replaces all of it."""
    before = torch.random.get_rng_state()
    load_predictor(write(tmp_path / "w.safetensors", content))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_same_network_gives_the_same_bytes(network: nn.Module, content: bytes) -> None:
    assert dump_checkpoint(network, CONTRACT) == content


@pytest.mark.parametrize(
    "images",
    [np.zeros((1, 3, 8, 9), np.uint8), np.zeros((3, 8, 8), np.uint8), np.zeros((1, 3, 8, 8), np.float32)],
    ids=["size", "rank", "type"],
)
def test_images_of_wrong_shape_or_type_are_refused(tmp_path: Path, content: bytes, images: np.ndarray) -> None:
    predictor = load_predictor(write(tmp_path / "w.safetensors", content))
    with pytest.raises(CheckpointError, match=r"takes torch\.uint8 \[N, 3, 8, 8\]"):
        predictor.probabilities(images)


class Payload:
    """Unpickling this leaves a trace."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("unpickled"),)  # type: ignore[return-value]


def with_contract(content: bytes, **changes: object) -> bytes:
    tensors = safetensors.torch.load(content)
    fields = json.loads(json.dumps({**vars(CONTRACT), "model": vars(MODEL)})) | changes
    return safetensors.torch.save(tensors, metadata={"claimcheck": json.dumps(fields)})


HOSTILE = {
    "pickle called safetensors": (lambda content: pickle.dumps(Payload()), "not a safetensors file"),
    "empty": (lambda content: b"", "not a safetensors file"),
    "zip": (lambda content: b"PK\x03\x04" + bytes(200), "not a safetensors file"),
    "huge header": (lambda content: struct.pack("<Q", 100_000_000) + b"{" * 2_000_000, "not a safetensors file"),
    "list header": (lambda content: struct.pack("<Q", 4) + b"[1] ", "not a safetensors file"),
    "no metadata": (lambda content: struct.pack("<Q", 8) + b'{"a": 1}', "without our contract"),
    "truncated header": (lambda content: content[:40], "not a safetensors file"),
    "truncated tensors": (lambda content: content[:-10], "weights don't fit"),
    "header longer than the file": (lambda content: struct.pack("<Q", 1 << 60) + content[8:], "not a safetensors"),
    "no contract": (lambda content: safetensors.torch.save(safetensors.torch.load(content)), "without our contract"),
    "foreign class": (
        lambda content: with_contract(content, model={"path": "os:system", "arguments": {"command": "touch x"}}),
        "model path is 'os:system'",
    ),
    "foreign name": (
        lambda content: with_contract(content, model={"path": "stages.papers.dac.mlp:nn", "arguments": {}}),
        "model path is",
    ),
    "missing argument": (
        lambda content: with_contract(content, model={"path": MODEL.path, "arguments": {}}),
        "missing argument",
    ),
    "half a contract": (
        lambda content: safetensors.torch.save(safetensors.torch.load(content), metadata={"claimcheck": "{"}),
        "can't be read",
    ),
    "unknown contract field": (lambda content: with_contract(content, extra=1), "can't be read"),
    "another architecture": (
        lambda content: with_contract(content, model={"path": MODEL.path, "arguments": {**MODEL.arguments, "dim": 32}}),
        "weights don't fit",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, content: bytes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, reason = HOSTILE[name]
    path = write(tmp_path / "w.safetensors", spoil(content))
    with pytest.raises(CheckpointError, match=reason):
        load_predictor(path)
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"], "no code was executed"


def test_missing_checkpoint_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lost\.safetensors: can't be read"):
        load_predictor(tmp_path / "lost.safetensors")
