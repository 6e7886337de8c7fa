"""Run specs: one text for one training, and a key that changes with everything that decides the numbers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.run import (
    AugmentationSpec,
    ModelSpec,
    OptimizerSpec,
    Protocol,
    Replicate,
    RunSpec,
    SplitSpec,
    changed_parts,
)

SPEC = RunSpec(
    model=ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"dim": 16}),
    protocol=Protocol(optimizer=OptimizerSpec(name="adam", lr=0.001), batch_size=4, epochs=2, mean=(0.5,), std=(0.5,)),
    data_digest="d" * 64,
    replicate=Replicate(seed=0),
    code={"stages.training.loop": "1234"},
)


def test_key_is_pinned() -> None:
    """If this fails, every published key changes: only a change of what a spec means may do that."""
    assert SPEC.run_key == "9b3979ccd5623ac23c7db8953d158ddd2d38c5ef86c4574ba365673ef0a4c32e"


@given(
    lr=st.floats(1e-6, 1, allow_nan=False),
    epochs=st.integers(1, 500),
    seed=st.integers(0, 99),
    fold=st.none() | st.integers(0, 4),
    folds=st.none() | st.integers(2, 5),
    images=st.none() | st.integers(1, 50000),
)
def test_spec_survives_json(
    lr: float, epochs: int, seed: int, fold: int | None, folds: int | None, images: int | None
) -> None:
    protocol = dataclasses.replace(
        SPEC.protocol,
        optimizer=OptimizerSpec(name="adamw", lr=lr),
        epochs=epochs,
        split=SplitSpec(kind="folds", folds=folds),
        train_images=images,
    )
    spec = dataclasses.replace(SPEC, protocol=protocol, replicate=Replicate(seed=seed, fold=fold))
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.run_key == spec.run_key


@pytest.mark.parametrize(
    "change",
    [
        {"data_digest": "e" * 64},
        {"replicate": Replicate(seed=1)},
        {"replicate": Replicate(seed=0, fold=0)},
        {"code": {"stages.training.loop": "1235"}},
        {"model": ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"dim": 32})},
        {"protocol": dataclasses.replace(SPEC.protocol, precision="bfloat16")},
        {"protocol": dataclasses.replace(SPEC.protocol, augmentation=AugmentationSpec(crop_padding=1))},
        {"protocol": dataclasses.replace(SPEC.protocol, train_images=10)},
    ],
    ids=["data", "seed", "fold", "code", "model", "precision", "augmentation", "cut"],
)
def test_everything_that_decides_the_numbers_is_in_the_key(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC, **change).run_key != SPEC.run_key


def test_changed_parts_name_what_changed() -> None:
    other = dataclasses.replace(
        SPEC,
        protocol=dataclasses.replace(SPEC.protocol, epochs=3, optimizer=OptimizerSpec(name="adam", lr=0.01)),
        code={"stages.training.loop": "1235"},
    )
    assert changed_parts(SPEC.to_dict(), other.to_dict()) == [
        "code of stages.training.loop",
        "protocol.epochs: 2 -> 3",
        "protocol.optimizer.lr: 0.001 -> 0.01",
    ]
    assert changed_parts(SPEC.to_dict(), SPEC.to_dict()) == []
