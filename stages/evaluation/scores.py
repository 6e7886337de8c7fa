"""Scores of a trained network on the test set of its kind of data."""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor, nn

from stages.checkpoint.predictor import Predictor
from stages.datasets.packed import ImageSet, PackedInfo, TokenSet
from stages.evaluation.cost import count_parameters
from stages.papers import Observations, Observed, build_model, find_observations
from stages.params.callables import isolated
from stages.params.metrics import OwnMetric, predictions_come_first
from stages.params.stage_inputs import origin_of
from stages.run import ModelSpec, Replicate, RunSpec, canonical_json
from stages.runs.evidence import Layers, Measurement, Moment, pack_confusion, pack_correct
from stages.training.kinds import RowSet, make_task
from stages.training.loop import Task, measure, seeded_model
from stages.training.tasks import OtherTask, task_learned

CALIBRATION_BINS = 15
"""Guo et al. 2017, section 5."""

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""Where float32 underflows: a probability below it counts as this much in a logarithm, so a loss stays finite."""


def correctness(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether each image's most probable class is the true one, bool [n]; ties go to the lowest class."""
    _check(probabilities, labels)
    return probabilities.argmax(axis=1) == labels


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose most probable class is the true one, in [0, 1]."""
    return float(correctness(probabilities, labels).mean())


def cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean of -ln p(true class) in nats, summed in float64; probabilities clipped below at `SMALLEST_PROBABILITY`."""
    _check(probabilities, labels)
    of_true_class = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(of_true_class.clip(min=SMALLEST_PROBABILITY)).mean() + 0.0)  # + 0.0: never minus zero


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = CALIBRATION_BINS) -> float:
    """Σ_m |B_m| / n · |acc(B_m) - conf(B_m)|, in [0, 1]  (Guo et al. 2017, eq. 3).

    B_m holds the images whose confidence, their largest probability, lies in ((m - 1) / bins, m / bins].
    """
    correct = correctness(probabilities, labels)
    confidence = probabilities.max(axis=1).astype(np.float64)
    bin_of = np.digitize(confidence, np.linspace(0, 1, bins + 1)[1:-1], right=True)
    surplus = np.bincount(bin_of, weights=confidence - correct, minlength=bins)  # |B_m| · (conf - acc)
    return float(np.abs(surplus).sum() / len(labels))


def confusion_matrix(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts of images, true class by most probable class.  int64 [K, K]."""
    _check(probabilities, labels)
    classes = probabilities.shape[1]
    cells = labels.astype(np.int64) * classes + probabilities.argmax(axis=1)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def macro_f1(confusion: np.ndarray) -> float:
    """Mean over the classes of 2 TP / (2 TP + FP + FN), 0 for a class that neither occurs nor is predicted."""
    correct, sums = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    return float((2 * correct / np.maximum(sums, 1)).mean())


def auroc(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Area under the curve of each class against the others, averaged; None unless every class has an image.

    Computed from ranks, as the share of pairs of an image of the class and another image in which the first has the
    higher probability; a tie counts half.
    """
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    if (counts == 0).any() or (counts == len(labels)).any():
        return None
    ranks = scipy.stats.rankdata(probabilities, axis=0)
    of_class = np.array([ranks[labels == index, index].sum() for index in range(len(counts))])
    return float(((of_class - counts * (counts + 1) / 2) / (counts * (len(labels) - counts))).mean())


def _check(probabilities: np.ndarray, labels: np.ndarray) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        raise ValueError(
            f"probabilities have shape {list(probabilities.shape)} and labels {list(labels.shape)}; "
            "expected [n, K] and [n] with at least one image"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= probabilities.shape[1]:
        raise ValueError(
            f"labels are {labels.dtype} from {labels.min()} to {labels.max()}; "
            f"expected integers from 0 to {probabilities.shape[1] - 1}"
        )
    is_distribution = (probabilities >= 0).all(axis=1) & np.isclose(probabilities.sum(axis=1), 1, rtol=0, atol=1e-3)
    if not is_distribution.all():
        row = int(np.flatnonzero(~is_distribution)[0])
        raise ValueError(f"row {row} of the probabilities is {probabilities[row]}; expected values >= 0 that sum to 1")


def cut_info(info: PackedInfo, test_rows: int | None) -> PackedInfo:
    """Return the packed set's info if only `test_rows` test rows are scored; a text's rows are windows of tokens."""
    kept = info.test_images
    if test_rows is not None:
        kept = min(kept, test_rows * info.shape[0] + 1 if info.kind == "text" else test_rows)
    if kept == info.test_images:
        return info
    return dataclasses.replace(
        info,
        test_images=kept,
        excluded_test_images=info.excluded_test_images + info.test_images - kept,
        provenance="subset" if info.provenance == "full" else info.provenance,
    )


def cut_rows(rows: RowSet, kept: int) -> RowSet:
    """Return the first `kept` tokens of a text, or rows evenly spread over a set, which may be ordered by class."""
    if kept >= len(rows):
        return rows
    chosen = np.arange(kept) if isinstance(rows, TokenSet) else np.linspace(0, len(rows) - 1, kept).astype(int)
    return type(rows)(*(getattr(rows, field.name)[chosen] for field in dataclasses.fields(rows)))


_SAMPLES = {"images": "image", "table": "row", "text": "token"}
_LARGEST_EXPONENT = math.log(sys.float_info.max)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Metrics of a run; for images also which test images were classified correctly, and the predicted classes.

    `failed`: by metric of the user's own that has no number, the reason.
    """

    metrics: tuple[Measurement, ...] = ()
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    correct: str | None = None
    confusion: str | None = None


def score(
    predictor: Predictor,
    test_set: RowSet,
    info: PackedInfo,
    spec: RunSpec,
    history: Sequence[Mapping[str, Any]],
    flops: int,
    own: Mapping[str, OwnMetric] | None = None,
) -> Scores:
    """Score the `predictor` of a run on the test split; `history` are its epochs, `flops` those of one row.

    `own`: metrics of the user's own.
    """
    own = own or {}
    parameters = Measurement(metric="parameters", split="none", value=count_parameters(predictor.network))
    kind, parts = spec.task or info.kind, info.shape[0] if info.kind == "text" else 1
    per_sample = flops if info.kind == "images" else flops / parts
    cost = Measurement(metric=f"flops_per_{_SAMPLES[info.kind]}", split="none", value=per_sample)
    if kind == "images" and isinstance(test_set, ImageSet):
        return _score_images(predictor, test_set, history, (parameters, cost), own)
    task = task_learned(spec, make_task(test_set, info, spec.protocol, predictor.device))
    loss = measure(predictor.network, task)["loss"]
    if kind == "text":
        measured = _of_text(loss, len(task) * parts)
    elif kind == "segmentation":
        measured = _of_masks(loss, predictor.network, task)
    elif kind == "multi-label":
        measured = _of_labels(loss, *_outputs(predictor.network, task))
    elif spec.task_class is not None:
        numbers, targets = _outputs(predictor.network, task)
        measured = [Measurement(metric="loss", split="test", value=loss, n=len(task))]
        measured += _of_numbers(float(((numbers.astype(np.float64) - targets) ** 2).mean()), numbers, targets)
    else:
        measured = _of_table(loss, info, history)
        if kind == "regression":
            measured += _of_numbers(loss, *_outputs(predictor.network, task))
    found, failed = measure_own(own, _rows(kind, predictor.network, task) if own else {}, measured, len(task))
    return Scores(metrics=(*measured, *found, parameters, cost), failed=failed)


def _rows(kind: str, network: nn.Module, task: Task) -> dict[str, np.ndarray]:
    """Return what is true and predicted of all rows, for metrics of the user's own.

    multi-label   labels int64 [N, K], `probabilities` float32 [N, K]
    segmentation  classes int64 of all pixels that count
    numbers       float32 [N, K], or [N] if K is 1
    """
    if kind == "segmentation":
        with torch.inference_mode():
            batches = task.plain_batches(torch.arange(len(task), device=task.device), 256)
            pairs = [
                (_say(network, task, inputs).argmax(1)[targets >= 0], targets[targets >= 0])
                for inputs, targets in batches
            ]
        predicted, true = (torch.cat(part).cpu().numpy() for part in zip(*pairs, strict=True))
        return {"true": true, "predictions": predicted}
    outputs, targets = _outputs(network, task)
    if kind == "multi-label":
        probabilities = torch.from_numpy(outputs).sigmoid().numpy()
        predicted = (outputs >= 0).astype(np.int64)
        return {"true": targets.astype(np.int64), "predictions": predicted, "probabilities": probabilities}
    shape = (len(targets), -1) if targets.size > len(targets) else len(targets)
    return {"true": targets.reshape(shape), "predictions": outputs.reshape(shape)}


def _outputs(network: nn.Module, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return what is said of all rows, and their targets.

    Raises:
        ValueError: another package's task reads outputs in another shape than its targets.
    """
    with torch.inference_mode():
        batches = task.plain_batches(torch.arange(len(task), device=task.device), 256)
        pairs = [(_say(network, task, inputs).float().cpu(), targets.cpu()) for inputs, targets in batches]
    outputs, targets = (torch.cat(part).numpy() for part in zip(*pairs, strict=True))
    if isinstance(task, OtherTask) and outputs.shape != targets.shape:
        name, shapes = type(task).__name__, f"{[*outputs.shape]}; its targets are {[*targets.shape]}"
        raise ValueError(f"{name}.predict returns {shapes}")
    return outputs, targets


def _say(network: nn.Module, task: Task, inputs: Tensor) -> Tensor:
    """Return what the network says of the targets, as the task reads it."""
    outputs: Tensor = network(inputs)
    return task.predict(outputs) if isinstance(task, OtherTask) else outputs


def _of_labels(loss: float, logits: np.ndarray, labels: np.ndarray) -> list[Measurement]:
    """Metrics of logits and labels [n, K]; a label is predicted if its probability is at least 1/2.

    Average precision covers the labels that at least one row has, because it isn't defined for others.
    """
    from sklearn.metrics import average_precision_score, f1_score  # takes a second

    present, predicted = labels.any(axis=0), logits >= 0
    precision = [average_precision_score(labels[:, one], logits[:, one]) for one in np.flatnonzero(present)]
    f1 = [f1_score(labels[:, one], predicted[:, one], zero_division=0) for one in range(labels.shape[1])]
    values = {
        "loss": loss,
        **({"mean_average_precision": float(np.mean(precision))} if precision else {}),
        "macro_f1": float(np.mean(f1)),
        "exact_match": float((predicted == labels).all(axis=1).mean()),
    }
    return [Measurement(metric=name, split="test", value=value, n=len(labels)) for name, value in values.items()]


def _of_table(loss: float, info: PackedInfo, history: Sequence[Mapping[str, Any]]) -> list[Measurement]:
    """Mean squared error, in squared units of the target, and its natural logarithm, which the DAC paper compares.

    Both are for the last epoch's weights, and for the epoch with the lowest validation error if the curves have both.
    """
    errors = {"": loss}
    watched = [row for row in history if "val_loss" in row and "test_loss" in row]
    if watched:
        errors["selected_"] = float(min(watched, key=lambda row: row["val_loss"])["test_loss"])
    n = info.test_images
    return [
        Measurement(metric=f"{epoch}{metric}", split="test", value=value, n=n)
        for epoch, error in errors.items()
        for metric, value in (("mse", error), ("log_mse", math.log(error)))
    ]


def _of_masks(loss: float, network: nn.Module, task: Task) -> list[Measurement]:
    """Share of the counted pixels that are right; intersection over union, averaged over the classes.

    A class that neither occurs nor is predicted is left out of the average.
    """
    confusion: Tensor | int = 0
    with torch.inference_mode():
        for inputs, targets in task.plain_batches(torch.arange(len(task), device=task.device), 256):
            logits, counts = _say(network, task, inputs), targets >= 0
            classes = logits.shape[1]
            cells = targets[counts] * classes + logits.argmax(1)[counts]
            confusion += cells.bincount(minlength=classes**2).reshape(classes, classes).cpu()
    assert isinstance(confusion, Tensor), "a test set has images"
    confusion = confusion.double()
    right, union = confusion.diag(), confusion.sum(0) + confusion.sum(1) - confusion.diag()
    values = {
        "loss": loss,
        "pixel_accuracy": float(right.sum() / confusion.sum()),
        "mean_iou": float((right / union)[union > 0].mean()),
    }
    return [Measurement(metric=name, split="test", value=value, n=len(task)) for name, value in values.items()]


def _of_numbers(loss: float, outputs: np.ndarray, targets: np.ndarray) -> list[Measurement]:
    """Root of the mean squared error `loss`, and mean absolute error, in units of the targets [n, K]."""
    values = {"rmse": math.sqrt(loss), "mae": float(np.abs(outputs.astype(np.float64) - targets).mean())}
    return [Measurement(metric=name, split="test", value=value, n=len(targets)) for name, value in values.items()]


def _of_text(loss: float, tokens: int) -> list[Measurement]:
    """Cross entropy in nats per token over `tokens` of the held-out text, which papers call their validation loss."""
    values = {"loss": loss, "validation_loss": loss}
    if loss < _LARGEST_EXPONENT:
        values["perplexity"] = math.exp(loss)
    return [Measurement(metric=name, split="test", value=value, n=tokens) for name, value in values.items()]


def _score_images(
    predictor: Predictor,
    test_set: ImageSet,
    history: Sequence[Mapping[str, Any]],
    of_the_model: tuple[Measurement, ...],
    own: Mapping[str, OwnMetric],
) -> Scores:
    labels, n = test_set.labels, len(test_set)
    probabilities = predictor.probabilities(test_set.images)
    calibration = expected_calibration_error(probabilities, labels)
    confusion, area = confusion_matrix(probabilities, labels), auroc(probabilities, labels)
    metrics = [
        Measurement(metric="accuracy", split="test", value=accuracy(probabilities, labels), n=n),
        Measurement(metric="loss", split="test", value=cross_entropy(probabilities, labels), n=n),
        Measurement(metric="calibration_error", split="test", value=calibration, n=n),
        Measurement(metric="macro_f1", split="test", value=macro_f1(confusion), n=n),
        *([Measurement(metric="auroc", split="test", value=area, n=n)] if area is not None else []),
        *of_the_model,
    ]
    observed = [row["test_accuracy"] for row in history if "test_accuracy" in row]
    if observed:
        metrics.append(Measurement(metric="best_epoch_accuracy", split="test", value=max(observed), n=n))
    rows = {"true": labels, "predictions": probabilities.argmax(axis=1), "probabilities": probabilities}
    found, failed = measure_own(own, rows | {"positive": probabilities[:, -1]}, metrics, n)
    return Scores(
        metrics=(*metrics, *found),
        failed=failed,
        correct=pack_correct(correctness(probabilities, labels)),
        confusion=pack_confusion(confusion),
    )


IMAGES = 8
"""Number of test images that are observed, the first ones, unless the paper's module has its own `IMAGES`: transition
matrices are diagonalised, one an image and head."""
DIGITS = 7
"""Significant ones: as many as weights in single precision give."""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """Observations inside a network, for its result line; empty if its paper names none."""

    metrics: tuple[Measurement, ...] = ()
    layers: Mapping[Moment, Layers] | None = None


class Observer:
    """Observes networks on one test set; networks with the same initial weights share their untrained observation."""

    def __init__(self, test_set: RowSet) -> None:
        self.test_set = test_set if isinstance(test_set, ImageSet) else None
        self.untrained: dict[str, Observed] = {}

    def observe(self, predictor: Predictor, replicate: Replicate) -> Inside:
        """Observe an image network that its paper studies; `replicate` determined its initial weights.

        Raises:
            TypeError: the paper's module rejects a model that it claims to cover.
        """
        model = predictor.contract.model
        is_classifier = predictor.contract.kind == "images"
        observations = find_observations(model) if is_classifier else None
        if observations is None or self.test_set is None:
            return Inside()
        number = getattr(observations, "IMAGES", IMAGES)
        images = predictor.inputs(torch.from_numpy(self.test_set.images[:number]))
        labels = torch.from_numpy(self.test_set.labels[:number]).long().to(images.device)
        trained = _look(observations, predictor.network, images, labels)
        split, n = ("test", trained.images) if trained.images else ("none", None)
        numbers = {name: _rounded(value) for name, value in trained.numbers.items()}
        return Inside(
            metrics=tuple(
                Measurement(metric=name, split=split, value=value, n=n)  # type: ignore[arg-type]  # one of two literals
                for name, value in numbers.items()
                if value is not None
            ),
            layers={
                "start": _layers(self._untrained(observations, model, replicate, images, labels)),
                "trained": _layers(trained),
            }
            if trained.layers
            else None,
        )

    def _untrained(
        self, observations: Observations, model: ModelSpec, replicate: Replicate, images: Tensor, labels: Tensor
    ) -> Observed:
        key = canonical_json([model.path, dict(model.arguments), replicate.seed, replicate.fold])
        if key not in self.untrained:
            network = seeded_model(lambda: build_model(model), replicate)
            self.untrained[key] = _look(observations, network.eval().to(images.device), images, labels)
        return self.untrained[key]


def _look(observations: Observations, network: nn.Module, images: Tensor, labels: Tensor) -> Observed:
    observe: Callable[..., Observed] = observations.observe
    wanted = {"labels": labels} if "labels" in inspect.signature(observe).parameters else {}
    with torch.no_grad():
        return observe(network, images, **wanted)


def _layers(observed: Observed) -> Layers:
    return {
        name: tuple(tuple(_rounded(value) for value in heads) for heads in blocks)
        for name, blocks in observed.layers.items()
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def measure_own(
    metrics: Mapping[str, OwnMetric], rows: Mapping[str, np.ndarray], measured: list[Measurement], n: int
) -> tuple[list[Measurement], dict[str, str]]:
    """Return the metrics' numbers of the rows, and by metric why there is none.

    `rows` has the `true` ones and those that a metric `takes`.  `measured`: other numbers of the same run, whose names
    are taken.  `n`: the number of test samples.
    """
    found, faults, taken = list[Measurement](), dict[str, str](), {row.metric for row in measured}
    for name, metric in metrics.items():
        try:
            if name in taken:
                raise ValueError("evaluation has a metric of this name; choose another")
            with isolated():
                value = _number(_call(metric, rows["true"].copy(), rows[metric.takes].copy()))
            if not metric.holds(value):
                raise ValueError(f"it is {value:g}, outside of its range {list(metric.range)}")
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code may raise anything)
            reason = next(iter(str(error).splitlines()), "")
            faults[name] = reason if isinstance(error, ValueError) and reason else f"{type(error).__name__}: {reason}"
            continue
        found.append(Measurement(metric=name, split="test", value=value, n=n, by=origin_of(metric)))
    return found, faults


def _call(metric: OwnMetric, true: np.ndarray, predicted: np.ndarray) -> Any:
    """Call a metric: scikit-learn's get arrays, those of torch tensors, a class of torchmetrics its `update`.

    Raises:
        ValueError: there is no such callable, or its parameters don't show which one gets what is true.
    """
    module, _, name = metric.address.partition(":")
    call: Any = getattr(import_module(module), name)
    if not callable(call):
        raise ValueError(f"{metric.address} can't be called")
    made: Any = call(**metric.arguments) if inspect.isclass(call) else None
    is_first = predictions_come_first([*inspect.signature(call if made is None else made.update).parameters])
    if made is None and not is_first:
        return call(true, predicted, **metric.arguments)
    tensors = [torch.from_numpy(each) for each in ((true, predicted) if is_first is False else (predicted, true))]
    if made is None:
        return call(*tensors, **metric.arguments)
    made.update(*tensors)
    return made.compute()


def _number(value: Any) -> float:
    """Return the one finite number that a metric gives.

    Raises:
        ValueError: it gives something else.
    """
    if np.ma.is_masked(value):
        raise ValueError("it is masked; it may be undefined on these rows")
    found = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    if found.size != 1 or not np.issubdtype(found.dtype, np.number) or np.iscomplexobj(found):
        given = f"an array of shape {list(found.shape)}" if found.size > 1 else repr(value)[:60]
        raise ValueError(f"it gives {given}; expected one number, such as a mean over the classes")
    if not math.isfinite(number := float(found.item()) + 0.0):  # never minus zero
        raise ValueError(f"it is {number}; it may be undefined on these rows")
    return number
