"""The training loop is repeatable, resumes at any step, never uses the test set, and reports divergence."""

import copy
import io
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.transforms import functional as vision

from stages.papers.ninformer import LocalViT, ViT
from stages.run import AugmentationSpec, EarlyStopSpec, OptimizerSpec, Protocol, Replicate, ScheduleSpec, SplitSpec
from stages.training import loop
from stages.training.images import BatchAugmenter, ImageClassification, LabelledImages
from stages.training.loop import (
    Outcome,
    TrainingState,
    TrainingStopped,
    fit,
    measure,
    seeded_model,
)
from stages.training.protocol import build_optimizer, learning_rate, split_indices, training_rows

REPLICATE = Replicate(seed=3)
SIZES = {"image_size": 8, "in_channels": 1, "num_classes": 4, "patch_size": 4, "dim": 16, "depth": 1, "num_heads": 2}
build_vit = partial(ViT, **SIZES, mlp_dim=16, dropout=0.5)
build_vit_without_dropout = partial(ViT, **SIZES, mlp_dim=16, dropout=0.0)
build_local_vit = partial(LocalViT, **SIZES, channels=16, dropout=0.5)


def make_protocol(**changes: Any) -> Protocol:
    fields: dict[str, Any] = {
        "optimizer": OptimizerSpec(name="adam", lr=1e-3),
        "batch_size": 8,
        "epochs": 3,
        "mean": (0.5,),
        "std": (0.5,),
        "augmentation": AugmentationSpec(crop_padding=2, horizontal_flip=True),
    }
    return Protocol(**fields | changes)


@pytest.fixture(scope="module")
def images() -> LabelledImages:
    generator = torch.Generator().manual_seed(0)
    return LabelledImages(
        torch.randint(0, 256, (30, 1, 8, 8), generator=generator, dtype=torch.uint8),
        torch.randint(0, 4, (30,), generator=generator),
    )


def train(
    images: LabelledImages, protocol: Protocol, build: Callable[[], nn.Module] = build_vit, **options: Any
) -> tuple[nn.Module, Outcome]:
    model = seeded_model(build, REPLICATE)
    return model, fit(model, ImageClassification(images, protocol), protocol, REPLICATE, **options)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, left), (_, right) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(left, right), name


def test_different_seeds_give_different_weights(images: LabelledImages) -> None:
    one, _ = train(images, make_protocol())
    model = seeded_model(build_vit, Replicate(seed=4))
    fit(model, ImageClassification(images, make_protocol()), make_protocol(), Replicate(seed=4))
    assert not torch.equal(one.head.weight, model.head.weight)


OURS = {"lr": 0.01, "momentum": 0.9, "damping": 0.003, "layers": ("*attention*",), "rest": "adam"}


@pytest.mark.parametrize(
    ("build", "optimizer"),
    [
        (build_vit, OptimizerSpec(name="adam", lr=1e-3)),
        (build_local_vit, OptimizerSpec(name="adam", lr=1e-3)),
        (build_vit, OptimizerSpec(name="cg_fac", **OURS)),
        (build_vit, OptimizerSpec(name="kfac", **OURS)),
    ],
    ids=["dropout", "batch-norm", "cg-fac", "k-fac"],
)
@pytest.mark.parametrize("stop_after", [0, 1, 4, 6, 10])
def test_run_stopped_anywhere_and_resumed_equals_an_uninterrupted_run(
    images: LabelledImages, build: Callable[[], nn.Module], optimizer: OptimizerSpec, stop_after: int
) -> None:
    protocol = make_protocol(optimizer=optimizer, schedule=ScheduleSpec(name="cosine"))
    uninterrupted, expected = train(images, protocol, build)
    assert expected.divergence is None
    saved: list[bytes] = []

    def save(state: TrainingState) -> None:
        buffer = io.BytesIO()
        torch.save(vars(state), buffer)
        saved.append(buffer.getvalue())

    steps = 0

    def should_stop() -> bool:
        return steps >= stop_after

    def count(_: object) -> None:
        nonlocal steps
        steps += 1

    with pytest.raises(TrainingStopped):
        train(images, protocol, build, save=save, should_stop=should_stop, progress=count)
    torch.manual_seed(99)  # a new process may have drawn other numbers before
    state = TrainingState(**torch.load(io.BytesIO(saved[-1]), weights_only=True))
    resumed, outcome = train(images, protocol, build, state=state)
    assert_same_weights(uninterrupted, resumed)
    assert outcome.history == expected.history


def test_state_is_saved_once_a_minute_within_an_epoch(images: LabelledImages, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may die without warning, which loses everything since the last saved state."""
    now, saved = [0.0], list[tuple[int, int]]()

    def take_25_seconds() -> bool:
        now[0] += 25
        return False

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    train(
        images,
        make_protocol(batch_size=2, epochs=1),
        should_stop=take_25_seconds,
        save=lambda state: saved.append((state.epoch, state.step_in_epoch)),
    )
    assert saved == [(0, 3), (0, 6), (0, 9), (0, 12), (1, 0)]


def test_observer_does_not_change_weights(images: LabelledImages) -> None:
    plain, _ = train(images, make_protocol(), build_local_vit)
    protocol = make_protocol()

    def observe(model: nn.Module) -> dict[str, float]:
        return {f"test_{name}": value for name, value in measure(model, ImageClassification(images, protocol)).items()}

    observed, outcome = train(images, protocol, build_local_vit, observe=observe)
    assert_same_weights(plain, observed)
    assert [set(row) >= {"test_loss", "test_accuracy"} for row in outcome.history] == [True] * 3


def test_divergence_names_the_step_and_the_last_finite_loss(images: LabelledImages) -> None:
    diverging = make_protocol(optimizer=OptimizerSpec(name="sgd", lr=1e30), batch_size=10)
    _, outcome = train(images, diverging)
    assert outcome.divergence is not None
    assert outcome.divergence["last_finite_step"] == outcome.divergence["step"] - 1
    assert 0 < outcome.divergence["last_finite_loss"] < float("inf")
    assert len(outcome.history) < 3


@pytest.mark.parametrize(
    ("changes", "samples", "steps"),
    [
        ({}, 30, 4),
        ({"train_images": 20, "steps_per_epoch": 2}, 16, 2),
        ({"split": SplitSpec(kind="fraction", fraction=0.2, seed=1)}, 24, 3),
    ],
    ids=["all-rows", "fewer-images-and-steps", "without-validation-rows"],
)
def test_epoch_trains_on_the_selected_rows(
    images: LabelledImages, changes: dict[str, Any], samples: int, steps: int
) -> None:
    _, outcome = train(images, make_protocol(**changes))
    expected = [(samples, steps * epoch, "split" in changes) for epoch in (1, 2, 3)]
    assert [(row["samples"], row["steps"], "val_accuracy" in row) for row in outcome.history] == expected


def test_measure_does_not_change_mode_or_statistics(images: LabelledImages) -> None:
    model = seeded_model(build_local_vit, REPLICATE)
    before = copy.deepcopy(model.state_dict())
    measure(model, ImageClassification(images, make_protocol()))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_divergence_right_after_resuming_keeps_the_last_finite_loss(images: LabelledImages) -> None:
    protocol = make_protocol(batch_size=10)
    saved: list[TrainingState] = []
    with pytest.raises(TrainingStopped):
        train(images, protocol, save=saved.append, should_stop=lambda: True)
    state = copy.deepcopy(saved[-1])
    assert state.model is not None
    state.model["head.bias"].fill_(float("nan"))
    _, outcome = train(images, protocol, state=state)
    assert outcome.divergence is not None
    assert outcome.divergence["last_finite_step"] == 1
    assert outcome.divergence["last_finite_loss"] == pytest.approx(saved[-1].last_loss)
    assert saved[-1].last_loss is not None and saved[-1].last_loss > 0


def test_training_stops_when_the_validation_loss_no_longer_falls(images: LabelledImages) -> None:
    protocol = make_protocol(
        epochs=9,
        optimizer=OptimizerSpec(name="sgd", lr=0.0),
        split=SplitSpec(kind="fraction", fraction=0.2, seed=1),
        early_stop=EarlyStopSpec(from_epoch=2, patience=3, min_delta=1e-4),
    )
    _, outcome = train(images, protocol, build_vit_without_dropout)
    assert len(outcome.history) == 6, "two epochs, one for comparison, and three of patience"


def test_only_kernels_decay_if_the_spec_sets_it() -> None:
    spec = OptimizerSpec(name="sgd", lr=1.0, weight_decay=0.5, decay="kernels")
    model = seeded_model(build_local_vit, REPLICATE)
    before = copy.deepcopy(dict(model.named_parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(model, spec).step()
    for name, parameter in model.named_parameters():
        decays = name.endswith("weight") and parameter.ndim >= 2
        assert torch.equal(parameter, before[name] * (0.5 if decays else 1.0)), name


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_fused_optimiser_makes_the_same_steps(name: Literal["sgd", "adam", "adamw"]) -> None:
    spec = OptimizerSpec(name=name, lr=0.01, momentum=0.9, weight_decay=0.1, decay="kernels")
    plain, fused = (seeded_model(build_local_vit, REPLICATE) for _ in range(2))
    optimizers = build_optimizer(plain, spec), build_optimizer(fused, spec, fused=True)
    assert [one.param_groups[0]["fused"] for one in optimizers] == [None, True]
    for step in range(3):
        for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(step))
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_eager_cpu_training_does_not_fuse_its_optimiser(images: LabelledImages) -> None:
    saved: list[TrainingState] = []
    train(images, make_protocol(epochs=1), save=saved.append)
    assert saved[-1].optimizer is not None
    assert [group["fused"] for group in saved[-1].optimizer["param_groups"]] == [None]


@pytest.mark.slow
def test_compiled_training_fuses_its_optimiser_and_resumes_exactly(images: LabelledImages) -> None:
    protocol = make_protocol(epochs=2, batch_size=10, compile=True)
    saved: list[TrainingState] = []

    def save(state: TrainingState) -> None:
        saved.append(copy.deepcopy(state))

    uninterrupted, outcome = train(images, protocol, build_vit_without_dropout, save=save)
    _, eager = train(images, make_protocol(epochs=2, batch_size=10), build_vit_without_dropout)
    losses, plain = ([row["train_loss"] for row in one.history] for one in (outcome, eager))
    assert losses == pytest.approx(plain, rel=1e-3)
    state = saved[0]
    assert len(saved) == 2 and state.optimizer is not None and state.optimizer["param_groups"][0]["fused"] is True
    resumed, _ = train(images, protocol, build_vit_without_dropout, state=state)
    assert_same_weights(resumed, uninterrupted)


def batch_of(images: Tensor, spec: AugmentationSpec, rows: Tensor, seed: int) -> Tensor:
    return BatchAugmenter(images, spec).batch(rows, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "spec",
    [
        AugmentationSpec(crop_padding=2, horizontal_flip=True),
        AugmentationSpec(crop_padding=3),
        AugmentationSpec(horizontal_flip=True),
        AugmentationSpec(),
    ],
    ids=["crop-and-flip", "crop", "flip", "neither"],
)
def test_batch_equals_torchvision_pad_crop_flip(spec: AugmentationSpec, channels: int) -> None:
    images = torch.randint(0, 256, (6, channels, 8, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    rows, padding = torch.tensor([5, 0, 0, 3]), spec.crop_padding
    augmented = batch_of(images, spec, rows, 7)
    generator = torch.Generator().manual_seed(7)
    top, left = torch.randint(0, 2 * padding + 1, (2, 4, 1), generator=generator).flatten(1).tolist()
    flips = [False] * 4
    if spec.horizontal_flip:
        flips = (torch.rand(4, 1, generator=generator) < 0.5).flatten().tolist()
        assert any(flips) and not all(flips), "both cases are in the batch"
    for position, row in enumerate(rows.tolist()):
        expected = vision.crop(vision.pad(images[row], [padding]), top[position], left[position], 8, 10)
        expected = vision.hflip(expected) if flips[position] else expected
        assert torch.equal(augmented[position], expected)


def test_offsets_and_flips_cover_their_range_evenly() -> None:
    images = torch.arange(16, dtype=torch.uint8).add(1).view(1, 1, 4, 4)
    spec = AugmentationSpec(crop_padding=1, horizontal_flip=True)
    batch = batch_of(images, spec, torch.zeros(9000, dtype=torch.int64), 0)
    _, counts = batch.flatten(1).unique(dim=0, return_counts=True)
    assert len(counts) == 18  # 3 x 3 offsets, flipped or not
    assert counts.min() > 400 and counts.max() < 600  # expected 500, 4.6 standard deviations


@pytest.mark.parametrize(
    ("spec", "rates"),
    [
        (ScheduleSpec(), [1, 1, 1]),
        (ScheduleSpec(name="cosine"), [1, 0.5 + 0.5 * 2**-0.5, 0.5, 0.5 - 0.5 * 2**-0.5]),
        (ScheduleSpec(name="cosine", warmup_steps=2), [0.5, 1, 1, 0.5]),
        (
            ScheduleSpec(name="steps", milestones=(0.4, 0.6, 0.8), factor=0.1),
            [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001],
        ),
    ],
    ids=["constant", "cosine", "warmup", "steps"],
)
def test_learning_rates_follow_the_schedule(spec: ScheduleSpec, rates: list[float]) -> None:
    assert [learning_rate(spec, 1.0, step, len(rates)) for step in range(len(rates))] == pytest.approx(rates)
    assert learning_rate(ScheduleSpec(name="cosine", floor=0.1), 1.0, 4, 4) == pytest.approx(0.1)


@given(n=st.integers(10, 500), folds=st.integers(2, 6), seed=st.integers(0, 9))
def test_folds_are_disjoint_and_cover_all_rows(n: int, folds: int, seed: int) -> None:
    split = SplitSpec(kind="folds", folds=folds, seed=seed)
    held_out = []
    for fold in range(folds):
        train, validation = split_indices(n, split, fold)
        assert sorted([*train.tolist(), *validation.tolist()]) == list(range(n))
        held_out += validation.tolist()
    assert sorted(held_out) == list(range(n))


@given(n=st.integers(10, 500), fraction=st.floats(0.05, 0.9))
def test_validation_fraction_is_disjoint_and_has_its_size(n: int, fraction: float) -> None:
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
def test_invalid_split_is_rejected(split: SplitSpec, fold: int | None) -> None:
    with pytest.raises(ValueError, match="expected"):
        split_indices(10, split, fold)


def test_all_replicates_train_on_the_same_subset() -> None:
    protocol = Protocol(
        optimizer=OptimizerSpec(name="adam", lr=1e-3), batch_size=4, epochs=1, mean=(0.5,), std=(0.5,), train_images=7
    )
    one, _ = training_rows(20, protocol, Replicate(seed=0))
    other, _ = training_rows(20, protocol, Replicate(seed=1))
    assert len(one) == 7
    assert torch.equal(one, other)
