"""The worker trains networks of fast layers, and publishes what the plain network reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages.checkpoint.predictor import load_predictor
from stages.datasets.packed import ImageSet, PackedInfo, digest_images, write_packed
from stages.ops import batch_norm_native, native
from stages.papers.dac import ResNetV1
from stages.papers.dac.resnet_v1 import BlockV1
from stages.run import ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec
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


@pytest.mark.skipif(native.load_library(batch_norm_native._SOURCE) is None, reason="no C++ compiler here")
def test_worker_normalises_in_one_pass_and_publishes_the_plain_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    real = batch_norm_native.call
    monkeypatch.setattr(batch_norm_native, "call", lambda at, name, *rest: (taken.append(name), real(at, name, *rest)))
    info = pack_noise(tmp_path / "noise")
    spec = RunSpec(
        model=ModelSpec(
            path="stages.papers.dac.resnet_v1:ResNetV1",
            arguments={"image_size": 16, "in_channels": 3, "num_classes": 2, "depth": 8, "width": 16},
        ),
        protocol=Protocol(
            optimizer=OptimizerSpec(name="adam", lr=0.001), batch_size=4, epochs=2, mean=info.mean, std=info.std
        ),
        data_digest=info.digest,
        replicate=Replicate(seed=0),
        code={},
    )
    published = train_run(Job(spec=spec, data=tmp_path / "noise", store=tmp_path / "store", device="cpu"))
    # Seven normalisations in three steps of two epochs; those of the evaluation are PyTorch's.
    assert taken.count("forward_float") == taken.count("backward_float") == 7 * 3 * 2
    network = load_predictor(published / "weights.safetensors").network
    assert type(network) is ResNetV1 and type(network.blocks[0]) is BlockV1
