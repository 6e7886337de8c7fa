"""The worker trains networks with fast dropout, and publishes what the plain network reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stages.checkpoint.predictor import load_predictor
from stages.datasets.packed import ImageSet, PackedInfo, digest_images, write_packed
from stages.ops.fast import cpp, dropout
from stages.papers.ninformer import MLPMixer
from stages.run import ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec
from stages.runs.store import FolderScratch, RunStore
from stages.training.canary import STEPS
from stages.worker import Job, train_run


def pack_noise(folder: Path) -> PackedInfo:
    """Twelve images of 16 x 16 to train with and four to test."""
    draw = np.random.default_rng(0)
    train, test = (
        ImageSet(images=draw.integers(0, 256, (count, 3, 16, 16), dtype=np.uint8), labels=np.arange(count) % 2)
        for count in (12, 4)
    )
    info = PackedInfo(
        dataset="noise",
        provenance="embedded",
        digest=digest_images(train, test, ("a", "b")),
        classes=("a", "b"),
        shape=(3, 16, 16),
        train_images=12,
        test_images=4,
        test_rows=None,
        excluded_test_images=0,
        source="embedded",
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )
    write_packed(folder, {"train": train, "test": test}, info)
    return info


@pytest.mark.skipif(cpp.load_library(dropout._SOURCE) is None, reason="no C++ compiler here")
def test_worker_drops_out_in_cpp_and_publishes_the_plain_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    assert dropout._draws_alike(torch.float32)
    taken: list[str] = []
    real = dropout.call
    monkeypatch.setattr(dropout, "call", lambda at, name, *rest: (taken.append(name), real(at, name, *rest)))
    info = pack_noise(tmp_path / "noise")
    sizes = {"image_size": 16, "in_channels": 3, "num_classes": 2, "patch_size": 8, "dim": 8, "depth": 1}
    arguments = sizes | {"token_dim": 4, "channel_dim": 4, "dropout": 0.5}
    spec = RunSpec(
        model=ModelSpec(path="stages.papers.ninformer.mlp_mixer:MLPMixer", arguments=arguments),
        protocol=Protocol(
            optimizer=OptimizerSpec(name="adam", lr=0.001), batch_size=4, epochs=2, mean=info.mean, std=info.std
        ),
        data_digest=info.digest,
        replicate=Replicate(seed=0),
        code={},
    )
    trained = train_run(Job(spec=spec, data=tmp_path / "noise", device="cpu"), FolderScratch(tmp_path / "work"))
    published = RunStore(tmp_path / "store").publish(spec.run_key, trained.outcomes[spec.run_key])
    layers = sum(type(layer) is nn.Dropout for layer in MLPMixer(**arguments).modules())
    # Each layer twice in each of three steps of two epochs, and in each of the canary's; none in evaluation.
    assert layers and taken.count("dropout_forward") == layers * 2 * (3 * 2 + STEPS) and "dropout_backward" in taken
    network = load_predictor(published / "weights.safetensors").network
    assert type(network) is MLPMixer and not any(isinstance(layer, dropout.Dropout) for layer in network.modules())
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == tmp_path / "compiled", "by processor"
