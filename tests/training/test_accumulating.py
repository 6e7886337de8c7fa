"""Batches computed in parts: gradient and loss are the whole batch's, for every task and loss."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from stages.run import Protocol, RecipeSpec
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task, _Training, measure
from stages.training.options import OptionsTraining
from stages.training.recipe import RecipeTask, learned
from stages.training.session import Session
from stages.training.tables import Regression, TableRows
from stages.training.tasks import Segmentation, task_named
from stages.training.tokens import NextToken, TokenWindows
from tests.project import make_spec
from tests.training.test_loop import REPLICATE, make_protocol

ROWS, SIDE, CLASSES = 12, 4, 3
RARE = RecipeSpec(class_weights=(0.0, 1.0, 5.0))
SMOOTH = RecipeSpec(class_weights=(0.5, 1.0, 5.0), label_smoothing=0.1)
MIXED = dataclasses.replace(SMOOTH, mix=({"name": "MixUp", "alpha": 0.5},))


def images(labels: Tensor, protocol: Protocol) -> ImageClassification:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (ROWS, 1, SIDE, SIDE), dtype=torch.uint8, generator=draw)
    return ImageClassification(LabelledImages(pixels, labels), protocol)


def classes(recipe: RecipeSpec | None = None) -> Callable[[Protocol], Task]:
    def make(protocol: Protocol) -> Task:
        plain = images(torch.tensor([0] * 5 + [1, 2, 1, 2, 2, 0, 0]), protocol)
        return trained(plain, recipe)

    return make


def trained(plain: Task, recipe: RecipeSpec | None) -> Task:
    return RecipeTask(learned(plain), recipe, CLASSES, torch.arange(ROWS)) if recipe else plain


def numbers(task: str, recipe: RecipeSpec | None = None) -> Callable[[Protocol], Task]:
    def make(protocol: Protocol) -> Task:
        draw = torch.Generator().manual_seed(1)
        labels = torch.randint(0, 2, (ROWS, CLASSES), generator=draw)
        if task == "regression":
            labels = torch.randn(ROWS, CLASSES, dtype=torch.float64, generator=draw).view(torch.int64)
        return trained(task_named(task, images(labels, protocol)), recipe)

    return make


def masks(recipe: RecipeSpec | None = None) -> Callable[[Protocol], Task]:
    """Masks in which one pixel more counts in each row, from none to nearly all."""

    def make(protocol: Protocol) -> Task:
        raised = 1 + torch.arange(ROWS * SIDE**2).view(ROWS, -1) % CLASSES
        raised *= torch.arange(SIDE**2) < torch.arange(ROWS).unsqueeze(1)
        return trained(task_named("segmentation", images(raised.byte().view(torch.int64), protocol)), recipe)

    return make


def table(protocol: Protocol) -> Task:
    draw = torch.Generator().manual_seed(2)
    return Regression(TableRows(torch.randn(ROWS, 2, generator=draw), torch.randn(ROWS, generator=draw)))


def text(protocol: Protocol) -> Task:
    return NextToken(TokenWindows((torch.arange(ROWS * 5 + 1) ** 2 % 7).to(torch.uint16), 5), protocol)


class RowsAlike(nn.CrossEntropyLoss):
    """A mean over rows."""


class RowsWeighted(nn.Module):
    """A mean over rows, weighted by class with a constant that isn't saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([0.1, 1.0, 5.0]), persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, labels, self.get_buffer("weight"))


class Counting(nn.BatchNorm1d):
    """A loss with a state."""


def foreign(loss: type[nn.Module], **arguments: Any) -> RecipeSpec:
    return RecipeSpec(loss={"name": f"{__name__}:{loss.__name__}", **arguments})


BALANCED = RecipeSpec(class_weights="balanced")
PIXELS = nn.Conv2d(1, CLASSES, 3, padding=1)
FLAT = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5), nn.Tanh(), nn.Linear(5, CLASSES))
TASKS: dict[str, tuple[Callable[[Protocol], Task], nn.Module]] = {
    "classes": (classes(), FLAT),
    "weighted classes": (classes(RARE), FLAT),
    "smooth classes": (classes(SMOOTH), FLAT),
    "balanced classes": (classes(BALANCED), FLAT),
    "mixed classes": (classes(MIXED), FLAT),
    "foreign loss": (classes(foreign(RowsAlike)), FLAT),
    "multi-label": (numbers("multi-label"), FLAT),
    "weighted labels": (numbers("multi-label", BALANCED), FLAT),
    "mixed labels": (numbers("multi-label", dataclasses.replace(BALANCED, mix=MIXED.mix)), FLAT),
    "regression": (numbers("regression"), FLAT),
    "mixed numbers": (numbers("regression", RecipeSpec(mix=MIXED.mix)), FLAT),
    "foreign loss of numbers": (numbers("regression", RecipeSpec(loss={"name": "torch.nn:HuberLoss"})), FLAT),
    "segmentation": (masks(), PIXELS),
    "weighted pixels": (masks(RARE), PIXELS),
    "smooth pixels": (masks(SMOOTH), PIXELS),
    "balanced pixels": (masks(BALANCED), PIXELS),
    "moved pixels": (
        masks(dataclasses.replace(SMOOTH, transforms=({"name": "RandomRotation", "degrees": 90},))),
        PIXELS,
    ),
    "table": (table, nn.Linear(2, 1)),
    "text": (text, nn.Embedding(7, 7)),
}
NOTHING: Any = {"save": lambda _: None, "progress": lambda _: None, "should_stop": lambda: False}


def gradient(task: Task, model: nn.Module, protocol: Protocol, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of the batch `rows`, and the task's sums over it."""
    if protocol.has_options:
        session = Session(make_spec(protocol=protocol, seed=REPLICATE.seed), model, task, None)
        training: _Training = OptionsTraining(session, **NOTHING)
    else:
        training = _Training(model, task, protocol, REPLICATE, observe=None, **NOTHING)
    sums = training._gradients(*task.training_batch(rows, torch.Generator().manual_seed(3)))
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}, sums


@pytest.mark.parametrize("name", TASKS)
@settings(deadline=None, max_examples=15)
@given(parts=st.integers(2, 5), rows=st.lists(st.integers(0, ROWS - 1), min_size=2, max_size=9))
def test_parts_of_a_batch_add_up_to_its_gradient(name: str, parts: int, rows: list[int]) -> None:
    make, model = TASKS[name]
    protocol = make_protocol(batch_size=8, epochs=1)
    whole, loss = gradient(make(protocol), model, protocol, torch.tensor(rows))
    divided = dataclasses.replace(protocol, accumulate=parts)
    added, sums = gradient(make(divided), model, divided, torch.tensor(rows))
    for key, value in whole.items():
        torch.testing.assert_close(added[key], value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(sums, loss, rtol=1e-4, atol=1e-6)
    assert all(torch.isfinite(value).all() for value in added.values())


def test_loss_of_a_plugin_that_does_not_add_up_is_refused() -> None:
    protocol = make_protocol(batch_size=8, epochs=1, recipe=foreign(RowsWeighted), accumulate=2)
    task = classes(foreign(RowsWeighted))(protocol)
    with pytest.raises(ValueError, match=r"the loss is .* for its parts.*a mean over rows.*leave out accumulate"):
        gradient(task, FLAT, protocol, torch.arange(ROWS))
    rows = torch.arange(8) % 5
    gradient(task, FLAT, protocol, rows)  # all of one class, so their mean is over rows


def test_constants_of_a_loss_are_on_the_device_of_the_data_and_state_is_refused() -> None:
    data = images(torch.zeros(ROWS, dtype=torch.int64), make_protocol()).data
    plain = ImageClassification(LabelledImages(data.images.to("meta"), data.labels.to("meta")), make_protocol())
    task = RecipeTask(learned(plain), foreign(RowsWeighted), CLASSES, torch.arange(ROWS))
    logits, labels = torch.zeros(4, CLASSES, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    assert task.loss(logits, labels).device.type == "meta"
    with pytest.raises(ValueError, match=r"Counting has parameters or buffers.*persistent=False"):
        RecipeTask(learned(plain), foreign(Counting, num_features=3), CLASSES, torch.arange(ROWS))


@pytest.mark.parametrize("batch_size", [1, 3, 12])
def test_measured_loss_of_a_segmentation_is_a_mean_over_all_pixels(batch_size: int) -> None:
    """The batches have any size."""
    task, model = masks()(make_protocol(batch_size=batch_size)), nn.Conv2d(1, CLASSES, 1)
    assert isinstance(task, Segmentation)
    for rows in (torch.arange(ROWS), torch.tensor([1, 11, 4, 0])):
        ((inputs, targets),) = images(task.images.data.labels, task.images.protocol).plain_batches(rows, ROWS)
        with torch.no_grad():
            expected = nn.functional.cross_entropy(model(inputs), task.read(targets), ignore_index=-1)
        assert measure(model, task, rows)["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert measure(model, task, torch.tensor([0]))["loss"] == 0, "no pixel counts"
