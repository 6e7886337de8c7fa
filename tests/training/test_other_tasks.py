"""Trainings for several labels or numbers per row, from the packed set to the scores of the checkpoint."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    jaccard_score,
    mean_absolute_error,
    root_mean_squared_error,
)
from torch import nn

from stages.checkpoint.contract import CheckpointError
from stages.checkpoint.predictor import Predictor, load_predictor
from stages.datasets.labels import encode_masks
from stages.datasets.packed import ImageSet, PackedInfo
from stages.evaluation.scores import _of_labels, score
from stages.params.experiment import DatasetSource, ParamsError, SourceFile, load_params
from stages.run import (
    AugmentationSpec,
    ModelSpec,
    OptimizerSpec,
    Protocol,
    RecipeSpec,
    RunSpec,
    SplitSpec,
)
from stages.runs.equivalence import path_of
from stages.runs.fingerprint import imported_modules_of
from stages.runs.store import RunStore
from stages.scheduling.groups import is_worth_stacking
from stages.training.images import ImageClassification, LabelledImages
from stages.training.recipe import RecipeTask, learned
from stages.training.session import Session
from stages.training.tasks import TASKS, Segmentation, task_named, with_task
from stages.worker import Job, train_run
from tests.packed_table import pack_images
from tests.project import EXPERIMENT, edit, make_project, make_spec

PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01),
    batch_size=20,
    epochs=8,
    mean=(0.5,),
    std=(0.25,),
    split=SplitSpec(kind="fraction", fraction=0.2),
)
NAMED: Any = {"title": "", "reader": "npz", "train": 0, "test": 0, "licence": "", "homepage": "", "urls": ()}
NAMED |= {"files": (SourceFile(name="x"),)}
VIT = {"image_size": 8, "in_channels": 1, "patch_size": 4, "dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
SPEC = make_spec("stages.papers.ninformer.vit:ViT", VIT | {"num_classes": 3, "dropout": 0.0}, PROTOCOL)


CONVOLUTION = {"address": "torch.nn:Conv2d", "arguments": {"out_channels": 3, "kernel_size": 1}, "in_channels": 1}


def targets_of(images: np.ndarray, task: str) -> np.ndarray:
    """Which of three stripes are bright, how bright they are, or how bright each pixel is, in three classes."""
    if task == "segmentation":
        return images[:, 0] // 86
    brightness = images[:, 0, :, :6].reshape(len(images), 8, 3, 2).mean((1, 3)) / 255
    return (brightness > 0.5).astype(np.int64) if task == "multi-label" else brightness


def images(count: int, seed: int) -> np.ndarray:
    """Four stripes of random brightness, each two pixels wide: uint8 [N, 1, 8, 8]."""
    stripes = np.random.default_rng(seed).integers(0, 256, (count, 1, 1, 4), dtype=np.uint8)
    return np.ascontiguousarray(np.broadcast_to(np.repeat(stripes, 2, axis=-1), (count, 1, 8, 8)))


def pack_task(folder: Path, task: str) -> tuple[RunSpec, ImageSet, PackedInfo]:
    """Training of a task, its test set, and the description of the packed set in `folder`."""
    sets = []
    for count, seed in ((100, 0), (30, 1)):
        x = images(count, seed)
        labels = targets_of(x, task)
        if task == "segmentation":
            labels[:, 0] = 255
            labels = encode_masks(labels, DatasetSource(classes=3, shape=(1, 8, 8), **NAMED), "here")
        sets.append(ImageSet(x, labels if labels.dtype == np.int64 else labels.view(np.int64)))
    info = pack_images(folder, folder.name, *sets, ["left", "middle", "right"])
    spec = dataclasses.replace(SPEC, task=task, data_digest=info.digest)
    if task == "segmentation":
        model = ModelSpec(path="stages.papers.imported.model:ImportedModel", arguments=CONVOLUTION)
        augmentation = AugmentationSpec(crop_padding=1, horizontal_flip=True)
        spec = dataclasses.replace(spec, model=model, protocol=dataclasses.replace(PROTOCOL, augmentation=augmentation))
    return spec, sets[1], info


def train_task(spec: RunSpec, root: Path) -> tuple[Path, list[dict[str, float]]]:
    """Folder of the outcome on the packed set in `root`, and the epochs."""
    store = RunStore(root / "store")
    outcome = train_run(Job(spec=spec, data=root / "parts", device="cpu"), store.scratch)
    folder = store.publish(spec.run_key, outcome.outcomes[spec.run_key])
    return folder, [json.loads(row) for row in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(params=list(TASKS))
def trained(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[str, Predictor, ImageSet, PackedInfo, list[dict[str, float]]]:
    """Task, predictor, test set, its description and the epochs."""
    spec, test, info = pack_task(tmp_path / "parts", request.param)
    folder, rows = train_task(spec, tmp_path)
    return request.param, load_predictor(folder / "weights.safetensors"), test, info, rows


RECIPES = {
    "multi-label": RecipeSpec(class_weights="balanced", mix=({"name": "MixUp", "alpha": 0.2},)),
    "regression": RecipeSpec(loss={"name": "torch.nn:HuberLoss"}, transforms=({"name": "RandomErasing"},)),
    "segmentation": RecipeSpec(
        class_weights="balanced", label_smoothing=0.01, transforms=({"name": "RandomRotation", "degrees": 10},)
    ),
}


@pytest.mark.parametrize("task", RECIPES)
def test_task_trains_by_a_recipe_and_in_parts(tmp_path: Path, task: str) -> None:
    spec, _, _ = pack_task(tmp_path / "parts", task)
    protocol = dataclasses.replace(spec.protocol, recipe=RECIPES[task], accumulate=3, epochs=3)
    other = dataclasses.replace(spec, protocol=protocol)
    modules = {"stages.training.recipe", "stages.training.options", "stages.training.tasks"}
    assert modules <= {*imported_modules_of(other.to_dict())} and RunSpec.from_dict(other.to_dict()) == other
    _, rows = train_task(other, tmp_path)
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]


def test_checkpoint_is_scored_as_scikit_learn_does(trained: Any) -> None:
    task, predictor, test, info, rows = trained
    assert rows[-1]["test_loss"] < rows[0]["test_loss"] and "val_loss" in rows[0]
    values = {
        row.metric: row for row in score(predictor, test, info, dataclasses.replace(SPEC, task=task), rows, 7).metrics
    }
    with torch.inference_mode():
        outputs = predictor.network(predictor.inputs(torch.from_numpy(test.images))).numpy()
    targets = targets_of(test.images, task)
    if task == "segmentation":
        true, found = targets[:, 1:].reshape(-1), outputs.argmax(1)[:, 1:].reshape(-1)
        expected = {
            "pixel_accuracy": (true == found).mean(),
            "mean_iou": jaccard_score(true, found, average="macro", labels=np.union1d(true, found)),
        }
        loss = "loss"
    elif task == "multi-label":
        expected = {
            "mean_average_precision": average_precision_score(targets, outputs, average="macro"),
            "macro_f1": f1_score(targets, outputs >= 0, average="macro"),
            "exact_match": ((outputs >= 0) == targets).all(1).mean(),
        }
        loss = "loss"
    else:
        expected = {
            "rmse": root_mean_squared_error(targets.reshape(-1), outputs.reshape(-1)),
            "mae": mean_absolute_error(targets, outputs),
            "selected_mse": min(rows, key=lambda row: row["val_loss"])["test_loss"],
        }
        loss = "mse"
    assert {name: values[name].value for name in expected} == pytest.approx(expected, rel=1e-5)
    assert values[loss].value == pytest.approx(rows[-1]["test_loss"], rel=1e-5)
    assert {row.n for row in values.values() if row.split == "test"} == {30}
    assert values["flops_per_image"].value == 7
    with pytest.raises(CheckpointError, match=f"is for {task} data; it has no classes of images"):
        predictor.probabilities(test.images)


def test_label_of_no_row_has_no_average_precision() -> None:
    labels, logits = np.array([[1, 0], [0, 0]]), np.array([[2.0, -1.0], [-3.0, 4.0]])
    found = {row.metric: row.value for row in _of_labels(0.5, logits, labels)}
    assert found == {"loss": 0.5, "mean_average_precision": 1.0, "macro_f1": 0.5, "exact_match": 0.5}
    assert "mean_average_precision" not in {row.metric for row in _of_labels(0.5, logits, labels * 0)}


def test_masks_are_cropped_and_flipped_with_their_images_and_padding_does_not_count() -> None:
    classes = torch.randint(3, (6, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = LabelledImages(classes.unsqueeze(1) * 80 + 40, (classes + 1).reshape(6, 64).view(torch.int64))
    augmentation = AugmentationSpec(crop_padding=2, horizontal_flip=True)
    protocol = dataclasses.replace(PROTOCOL, augmentation=augmentation, mean=(0.0,), std=(1 / 255,))
    task = Segmentation(ImageClassification(data, protocol))
    inputs, targets = task.training_batch(torch.arange(6), torch.Generator().manual_seed(1))
    assert (targets == -1).any() and not torch.equal(targets, classes.long())
    assert torch.equal(inputs[:, 0].round().long(), torch.where(targets < 0, 0, targets * 80 + 40))
    (_, plain), *rest = task.plain_batches(torch.arange(6), 256)
    assert torch.equal(plain, classes.long()) and not rest
    nothing = torch.full_like(plain, -1)
    assert float(task.loss(torch.zeros(6, 3, 8, 8), nothing)) == 0


def test_batches_of_a_segmentation_are_not_shared_among_devices() -> None:
    session = Session(dataclasses.replace(SPEC, task="segmentation"), nn.Identity(), None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="loss counts pixels, so devices can't share it; name one device"):
        with_task(session, Path(), None, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 8, 8), (4, 3, 8, 4), (4, 3, 4, 8)])
def test_logits_of_another_shape_than_masks_are_refused(shape: tuple[int, ...]) -> None:
    data = LabelledImages(
        torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.full((4, 64), 3, dtype=torch.uint8).view(torch.int64)
    )
    task = Segmentation(ImageClassification(data, PROTOCOL))
    _, targets = next(task.plain_batches(torch.arange(4), 4))
    with pytest.raises(ValueError, match=r"the network returns .*; its task needs \[4, 3, 8, 8\]"):
        task.loss(torch.zeros(shape), targets)


@pytest.mark.parametrize("task", ["multi-label", "regression"])
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2, 1)])
def test_outputs_of_another_shape_are_refused_not_broadcast(task: str, shape: tuple[int, ...]) -> None:
    data = LabelledImages(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.int64))
    found = task_named(task, ImageClassification(data, PROTOCOL))
    _, targets = next(found.plain_batches(torch.arange(4), 4))
    with pytest.raises(ValueError, match=r"the network returns .*; its task needs \[4, 2\]"):
        found.loss(torch.zeros(shape), targets)


def test_task_is_in_the_run_key_and_in_what_is_proven_equal_and_never_stacked() -> None:
    mlp = ModelSpec(path="stages.papers.dac.mlp:MLP", arguments={"in_features": 3, "depth": 2, "width": 16})
    long = dataclasses.replace(SPEC, model=mlp, protocol=dataclasses.replace(PROTOCOL, epochs=10_000))
    assert is_worth_stacking(long, 100)
    for task in TASKS:
        spec = dataclasses.replace(long, task=task)
        assert not is_worth_stacking(spec, 100)
        assert spec.run_key != long.run_key and path_of(spec.to_dict()) != path_of(long.to_dict())
        assert RunSpec.from_dict(spec.to_dict()) == spec
        assert "stages.training.tasks" in imported_modules_of(spec.to_dict())
    assert imported_modules_of(long.to_dict()) == () and "task" not in long.to_dict()


@pytest.mark.parametrize("place", ["protocol", "arm", "profile"])
def test_recipe_that_a_task_has_no_meaning_for_is_refused(tmp_path: Path, place: str) -> None:
    project = make_project(tmp_path)
    recipe = {"label_smoothing": 0.1, "class_weights": "balanced"}

    def declare(index: dict[str, Any]) -> None:
        index["datasets"]["mnist"] |= {"reader": "npz", "task": "multi-label", "classes": 3}
        if place == "profile":
            index["profiles"]["paper"]["overrides"] = {"recipe": recipe}

    def change(experiment: dict[str, Any]) -> None:
        if place == "protocol":
            experiment["protocol"]["recipe"] = recipe
        elif place == "arm":
            experiment["arms"]["vit"]["protocol"] = {"recipe": recipe}

    edit(project / "params.yaml", declare)
    if place != "profile":
        load_params(project)
    edit(project / f"params/{EXPERIMENT}.yaml", change)
    with pytest.raises(
        ParamsError, match=rf"{EXPERIMENT}\.yaml: protocol\.recipe\.label_smoothing is set, but .* one class"
    ):
        load_params(project)


@pytest.mark.parametrize(
    ("task", "recipe", "words"),
    [
        ("regression", {"class_weights": "balanced"}, "class_weights is set, but .* numbers have no classes"),
        ("regression", {"label_smoothing": 0.1}, "label_smoothing is set, but .* one class of several"),
        ("regression", {"mix": [{"name": "CutMix"}]}, "mix is set, but .* only MixUp"),
        ("multi-label", {"mix": [{"name": "MixUp"}, {"name": "CutMix"}]}, "mix is set, but .* only MixUp"),
        ("segmentation", {"mix": [{"name": "MixUp"}]}, "mix is set, but .* mixed pictures have no mask"),
        ("segmentation", {"loss": {"name": "torch.nn:CrossEntropyLoss"}}, "loss is set, but .* which pixels count"),
        ("segmentation", {"transforms": [{"name": "torch.nn:Identity"}]}, "transforms is set, but .* move masks"),
        ("segmentation", {"class_weights": [1, 2]}, "class_weights has 2 values, not 3"),
        ("segmentation", {"class_weights": [1, 2, 3], "label_smoothing": 0.1}, None),
        ("segmentation", {"transforms": [{"name": "RandomAffine", "degrees": 9}]}, None),
        ("multi-label", {"class_weights": "balanced", "mix": [{"name": "MixUp"}]}, None),
        ("multi-label", {"loss": {"name": "torch.nn:MultiLabelSoftMarginLoss"}}, None),
        ("regression", {"mix": [{"name": "MixUp"}], "transforms": [{"name": "RandAugment"}]}, None),
    ],
)
def test_recipe_is_read_if_it_is_defined_for_the_task(
    tmp_path: Path, task: str, recipe: dict[str, Any], words: str | None
) -> None:
    project = make_project(tmp_path)
    fields = {"reader": "npz", "task": task, "classes": 3}
    edit(project / "params.yaml", lambda index: index["datasets"]["mnist"].update(fields))
    edit(project / f"params/{EXPERIMENT}.yaml", lambda experiment: experiment["protocol"].update(recipe=recipe))
    if words is None:
        load_params(project)
        return
    with pytest.raises(ParamsError, match=rf"protocol\.recipe\.{words}"):
        load_params(project)


def segmentation_of_values(transform: str, **arguments: Any) -> RecipeTask:
    """Masks that say the value of each pixel of their images: 10 where it is of the first class, 20, 30."""
    draw = torch.Generator().manual_seed(0)
    raised = torch.randint(1, 4, (6, 8, 8), dtype=torch.uint8, generator=draw)
    data = LabelledImages(10 * raised.unsqueeze(1), raised.reshape(6, -1).view(torch.int64))
    augmentation = AugmentationSpec(crop_padding=2, horizontal_flip=True)
    protocol = dataclasses.replace(PROTOCOL, augmentation=augmentation, mean=(0.0,), std=(1 / 255,))
    recipe = RecipeSpec(transforms=({"name": transform, **arguments},))
    return RecipeTask(learned(Segmentation(ImageClassification(data, protocol))), recipe, 3, torch.arange(6))


@pytest.mark.parametrize(
    ("transform", "arguments"),
    [
        ("RandomHorizontalFlip", {}),
        ("RandomRotation", {"degrees": 180}),
        ("RandomResizedCrop", {"size": 8, "interpolation": 0}),
        ("RandomAffine", {"degrees": 30, "translate": [0.5, 0.5], "shear": 20}),
        ("RandomPerspective", {"p": 1.0, "interpolation": 0}),
        ("ElasticTransform", {"interpolation": 0, "sigma": 1.0}),
    ],
)
def test_transforms_move_masks_with_their_images_and_new_corners_do_not_count(
    transform: str, arguments: dict[str, Any]
) -> None:
    task = segmentation_of_values(transform, **arguments)
    inputs, targets = task.training_batch(torch.arange(6), torch.Generator().manual_seed(1))
    assert torch.equal(inputs[:, 0].round().long(), 10 * (targets + 1)) and targets.max() == 2
    plain = segmentation_of_values("Identity").training_batch(torch.arange(6), torch.Generator().manual_seed(1))
    assert not torch.equal(targets, plain[1]), "something moved"


def test_transform_that_cannot_move_masks_or_changes_sizes_is_named() -> None:
    with pytest.raises(ValueError, match=r"recipe\.transforms make images \[1, 6, 6\]; expected \[1, 8, 8\]"):
        segmentation_of_values("Resize", size=6).training_batch(torch.arange(6), torch.Generator())
    with pytest.raises(ValueError, match=r"recipe\.transforms: RandAugment can't move masks"):
        segmentation_of_values("RandAugment").training_batch(torch.arange(6), torch.Generator())


def test_weights_of_labels_and_pixels_are_those_of_pytorch() -> None:
    labels = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 0, 1]])
    data = LabelledImages(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), labels)
    plain = learned(task_named("multi-label", ImageClassification(data, PROTOCOL)))
    assert plain.classes == 3 and plain.balanced(torch.arange(4), 3).tolist() == [1, 3, 0]
    task = RecipeTask(plain, RecipeSpec(class_weights=(1, 3, 2)), 3, torch.arange(4))
    outputs = torch.randn(4, 3)
    expected = nn.functional.binary_cross_entropy_with_logits(
        outputs, labels.float(), pos_weight=torch.tensor([1.0, 3.0, 2.0])
    )
    assert torch.allclose(task.loss(outputs, labels.float()), expected)
    pixels = segmentation_of_values("Identity")
    recipe = RecipeSpec(class_weights="balanced", label_smoothing=0.1)
    task = RecipeTask(pixels.plain, recipe, 3, torch.arange(6))
    (_, targets) = next(task.plain_batches(torch.arange(6), 6))
    targets[0] = -1
    counts = pixels.plain.images.data.labels.view(torch.uint8).flatten().bincount()[1:]
    logits, weights = torch.randn(6, 3, 8, 8), 6 * 64 / (3 * counts)
    expected = nn.functional.cross_entropy(logits, targets, weights, ignore_index=-1, label_smoothing=0.1)
    assert torch.allclose(task.loss(logits, targets), expected)
    with torch.no_grad():
        plainly = nn.functional.cross_entropy(logits, targets, ignore_index=-1)
        assert torch.allclose(task.loss(logits, targets), plainly), "what is measured has no recipe"
