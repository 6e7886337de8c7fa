"""Accumulated gradients, averaged weights and float16: what they compute, how they resume, where they are refused."""

import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stages.checkpoint.predictor import load_predictor
from stages.datasets.packed import ImageSet
from stages.params.experiment import ParamsError, plan_runs
from stages.run import OptimizerSpec, Protocol, RunSpec, SplitSpec
from stages.runs.fingerprint import OPTIONS, code_today
from stages.runs.store import FolderScratch, RunStore
from stages.scheduling.groups import is_worth_stacking
from stages.scheduling.planning import add_up, plan_costs
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Outcome, TrainingState, TrainingStopped, measure, seeded_model
from stages.training.options import with_options
from stages.training.session import Session
from stages.worker import Job, train_run
from tests.doc_examples import read_examples
from tests.packed_table import pack_images
from tests.project import REPOSITORY, make_spec
from tests.test_imported import params_with
from tests.training.test_loop import (
    REPLICATE,
    assert_same_weights,
    build_local_vit,
    build_vit,
    build_vit_without_dropout,
    make_protocol,
)
from tests.training.test_loop import train as train_plainly

DRAW = torch.Generator().manual_seed(0)
IMAGES = LabelledImages(
    torch.randint(0, 256, (30, 1, 8, 8), generator=DRAW, dtype=torch.uint8), torch.randint(0, 4, (30,), generator=DRAW)
)
SGD = OptimizerSpec(name="sgd", lr=0.1, momentum=0.9)
CLIPPED = OptimizerSpec(
    name="imported", address="torch.optim:SGD", arguments={"fused": True}, lr=0.1, clip_norm=0.1
)  # fused optimisers would unscale gradients themselves, after clipping


def spec_of(protocol: Protocol) -> RunSpec:
    return make_spec(protocol=protocol, seed=REPLICATE.seed)


def train(
    protocol: Protocol, build: Callable[[], nn.Module] = build_vit, state: TrainingState | None = None, **calls: Any
) -> tuple[nn.Module, Outcome]:
    model, task = seeded_model(build, REPLICATE), ImageClassification(IMAGES, protocol)
    session = with_options(Session(spec_of(protocol), model, task, lambda model: measure(model, task)), 1)
    nothing: dict[str, Any] = {"save": lambda _: None, "progress": lambda _: None, "should_stop": lambda: False}
    return model, session.train(state=state, **nothing | calls)


@settings(deadline=None, max_examples=8)
@given(parts=st.integers(2, 12), batch=st.integers(4, 12))
def test_accumulated_parts_equal_the_whole_batch(parts: int, batch: int) -> None:
    protocol = make_protocol(optimizer=SGD, batch_size=batch, epochs=1)
    whole, expected = train_plainly(IMAGES, protocol, build_vit_without_dropout)
    summed, outcome = train(dataclasses.replace(protocol, accumulate=parts), build_vit_without_dropout)
    for one, other in zip(summed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert outcome.history[0]["train_loss"] == pytest.approx(expected.history[0]["train_loss"], rel=1e-5)
    assert outcome.samples == expected.samples


def test_averaged_weights_are_evaluated_and_kept() -> None:
    split = SplitSpec(kind="fraction", fraction=0.2, seed=1)
    protocol = make_protocol(optimizer=SGD, steps_per_epoch=1, epochs=4, split=split)
    after: list[dict[str, torch.Tensor]] = []

    def keep(state: TrainingState) -> None:
        after.append({name: value.clone() for name, value in (state.model or {}).items()})

    last, _ = train_plainly(IMAGES, protocol, build_local_vit, save=keep)
    expected = after[0]
    for weights in after[1:]:
        expected = {name: expected[name] * 0.75 + weights[name] * 0.25 for name in weights}
    averaged, outcome = train(dataclasses.replace(protocol, ema=0.75), build_local_vit)
    learned, buffers = dict(averaged.named_parameters()), dict(last.named_buffers())
    for name, value in averaged.state_dict().items():
        torch.testing.assert_close(value, expected[name] if name in learned else buffers[name])
    shown = measure(averaged, ImageClassification(IMAGES, protocol))
    assert {name: outcome.history[-1][name] for name in shown} == shown, "the average is observed"
    assert outcome.history[0]["val_loss"] != outcome.history[-1]["val_loss"]


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (build_local_vit, {"ema": 0.9, "accumulate": 3}),
        (build_vit, {"precision": "float16", "ema": 0.5, "optimizer": CLIPPED, "std": (0.003,)}),
        (build_vit, {"ema": 0.9, "optimizer": OptimizerSpec(name="kfac", lr=0.01, damping=0.003, rest="adam")}),
    ],
    ids=["batch-norm", "float16", "k-fac"],
)
@pytest.mark.parametrize("stop_after", [0, 4, 6])
def test_options_resume_as_if_never_stopped(
    build: Callable[[], nn.Module], options: dict[str, Any], stop_after: int
) -> None:
    protocol = make_protocol(**{"epochs": 2, "optimizer": SGD} | options)
    uninterrupted, expected = train(protocol, build)
    saved, steps = io.BytesIO(), [0]

    def save(state: TrainingState) -> None:
        saved.seek(0)
        torch.save(vars(state), saved)

    def count(_: object) -> None:
        steps[0] += 1

    with pytest.raises(TrainingStopped):
        train(protocol, build, save=save, progress=count, should_stop=lambda: steps[0] >= stop_after)
    torch.manual_seed(99)
    saved.seek(0)
    resumed, outcome = train(protocol, build, TrainingState(**torch.load(saved, weights_only=True)))
    assert_same_weights(uninterrupted, resumed)
    assert outcome.history == expected.history


def test_float16_clips_gradients_of_the_unscaled_loss() -> None:
    """A step of SGD on clipped gradients is as long as its rate times their norm, whatever the scale."""
    protocol = make_protocol(optimizer=CLIPPED, precision="float16", epochs=1, steps_per_epoch=1)
    half, _ = train(protocol)
    full, _ = train_plainly(IMAGES, dataclasses.replace(protocol, precision="float32"))
    assert distance(seeded_model(build_vit, REPLICATE), half) == pytest.approx(0.1 * 0.1, rel=1e-3)
    assert 0 < distance(half, full) < 0.001, "half precision rounds, and steps like single"


def test_float16_skips_a_step_that_overflows() -> None:
    saved: list[Any] = []
    protocol = make_protocol(optimizer=SGD, precision="float16", epochs=1, steps_per_epoch=1, std=(1e-4,))
    model, outcome = train(protocol, save=lambda state: saved.append(state.optimizer))
    assert outcome.divergence is None and distance(seeded_model(build_vit, REPLICATE), model) == 0
    assert saved[-1]["scaler"]["scale"] == 2.0**15, "half of the first scale"


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return float(sum((left.detach() - right.detach()).square().sum() for left, right in pairs)) ** 0.5


def test_training_with_options_is_published_and_keyed(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    train_set, test_set = (
        ImageSet(draw.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8), np.arange(count) % 2) for count in (12, 4)
    )
    info = pack_images(tmp_path / "noise", "noise", train_set, test_set, "ab")
    arguments = {"image_size": 8, "in_channels": 1, "num_classes": 2, "patch_size": 4, "dim": 8, "depth": 1}
    arguments |= {"num_heads": 1, "mlp_dim": 8, "dropout": 0.1}
    protocol = make_protocol(batch_size=4, epochs=2, accumulate=2, ema=0.9, precision="float16")
    spec = make_spec("stages.papers.ninformer.vit:ViT", arguments, protocol, digest=info.digest)
    spec = dataclasses.replace(spec, code=code_today(spec.to_dict()) or {})
    assert OPTIONS in spec.code and RunSpec.from_dict(spec.to_dict()).run_key == spec.run_key
    plain = dataclasses.replace(protocol, accumulate=None, ema=None, precision="float32")
    assert OPTIONS not in (code_today(dataclasses.replace(spec, protocol=plain).to_dict()) or {})
    job = Job(spec=spec, data=tmp_path / "noise", device="cpu")
    done = train_run(job, FolderScratch(tmp_path / "work"))
    published = RunStore(tmp_path / "store").publish(spec.run_key, done.outcomes[spec.run_key])
    assert load_predictor(published / "weights.safetensors").probabilities(test_set.images).shape == (4, 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"accumulate": 1}, "accumulate is 1; expected at least 2"),
        ({"ema": 1.0}, "ema is 1.0; expected above 0 and below 1"),
        ({"precision": "float17"}, "precision"),
        (
            {"accumulate": 2, "optimizer": {"name": "kfac", "lr": 0.1}},
            "accumulate is used with kfac, which takes the curvature",
        ),
        ({"precision": "float16", "optimizer": {"name": "cg_fac", "lr": 0.1}}, "float16 is used with cg_fac"),
        ({"recipe": {"label_smoothing": 0.1, "class_weights": [0, *[1] * 9]}}, "one has a class weight of 0"),
    ],
)
def test_options_that_cannot_hold_are_refused(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=words):
        params_with(tmp_path, {"name": "ViT", "patch_size": 4}, fields)


def test_documented_options_are_accepted(tmp_path: Path) -> None:
    page = read_examples(REPOSITORY / "docs/add-a-paper.md")
    (shown,) = (block.text for block in page if "accumulate:" in block.text)
    params = params_with(tmp_path, {"name": "torchvision.models:resnet18"}, yaml.safe_load(shown)["protocol"])
    protocol = params.experiments["own"].printed
    assert protocol.accumulate and protocol.ema and protocol.precision == "float16" and protocol.schedule.address


def test_profile_that_contradicts_an_optimiser_is_refused_by_its_training(tmp_path: Path) -> None:
    params = params_with(tmp_path, {"name": "torchvision.models:resnet18"}, {"optimizer": {"name": "kfac", "lr": 0.1}})
    profile = dataclasses.replace(params.profile, overrides={"precision": "float16"})
    (run,) = plan_runs(params.experiments["own"], profile, params.datasets["cifar10"])
    with pytest.raises(ValueError, match="float16 is used with kfac"):
        with_options(Session(run.spec, nn.Linear(1, 1), None, None), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"ema": 0.9}, {"precision": "float16"}])
def test_options_train_on_one_device_and_unstacked(options: dict[str, Any]) -> None:
    session = Session(spec_of(make_protocol(**options)), nn.Linear(1, 1), None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="can't be shared among devices"):
        with_options(session, 2)
    plain = Protocol(optimizer=OptimizerSpec(name="adam", lr=0.1), batch_size=1, epochs=100)
    spec = make_spec("stages.papers.dac.mlp:MLP", {"width": 8}, plain)
    assert is_worth_stacking(spec, 1000)
    assert not is_worth_stacking(dataclasses.replace(spec, protocol=dataclasses.replace(plain, **options)), 1000)


def test_plan_prices_parts_as_steps_and_float16_as_bfloat16(tmp_path: Path) -> None:
    def plan(flops: int, **fields: Any) -> Mapping[str, float]:
        params = params_with(tmp_path, {"name": "torchvision.models:resnet18"}, {"epochs": 2} | fields)
        costs = plan_costs(params, params.profile, ["own"], lambda model, shape, text: flops)
        return add_up(costs.values(), params.rates).seconds

    assert plan(10**12, precision="float16") == plan(10**12, precision="bfloat16") != plan(10**12)
    assert plan(1, accumulate=4)["cuda"] > 3 * plan(1)["cuda"]
