"""Splits are disjoint, cover the official training set, and depend on nothing but their own numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.run import OptimizerSpec, Protocol, Replicate, SplitSpec
from stages.training.split import split_indices, training_rows


@given(n=st.integers(10, 500), folds=st.integers(2, 6), seed=st.integers(0, 9))
def test_folds_are_disjoint_and_cover(n: int, folds: int, seed: int) -> None:
    split = SplitSpec(kind="folds", folds=folds, seed=seed)
    held_out = []
    for fold in range(folds):
        train, validation = split_indices(n, split, fold)
        assert sorted([*train.tolist(), *validation.tolist()]) == list(range(n))
        held_out += validation.tolist()
    assert sorted(held_out) == list(range(n))


@given(n=st.integers(10, 500), fraction=st.floats(0.05, 0.9))
def test_fraction_is_disjoint_and_covers(n: int, fraction: float) -> None:
    train, validation = split_indices(n, SplitSpec(kind="fraction", fraction=fraction), None)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(n))
    assert len(validation) == round(n * fraction)


@pytest.mark.parametrize(
    ("split", "fold"),
    [
        (SplitSpec(kind="fraction"), None),
        (SplitSpec(kind="fraction", fraction=1.5), None),
        (SplitSpec(kind="folds", folds=5), None),
        (SplitSpec(kind="folds", folds=5), 5),
        (SplitSpec(kind="folds", folds=1), 0),
    ],
)
def test_nonsense_is_refused(split: SplitSpec, fold: int | None) -> None:
    with pytest.raises(ValueError, match="expected"):
        split_indices(10, split, fold)


def test_all_arms_and_replicates_train_on_the_same_part() -> None:
    protocol = Protocol(
        optimizer=OptimizerSpec(name="adam", lr=1e-3), batch_size=4, epochs=1, mean=(0.5,), std=(0.5,), train_images=7
    )
    one, _ = training_rows(20, protocol, Replicate(seed=0))
    other, _ = training_rows(20, protocol, Replicate(seed=1))
    assert len(one) == 7
    assert torch.equal(one, other)
