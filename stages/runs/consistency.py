"""Finds contradictions within a result line, which states some facts twice; pure functions of lines.

`record`, `publish` and `verify` use them.  Curves and numbers derived from them are stored with eight digits.
"""

from __future__ import annotations

import binascii
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import ge, itemgetter
from typing import Any

import numpy as np

from stages.run import RunSpec, canonical_json, environment_digest, steps_per_epoch, training_counts
from stages.runs.evidence import COLUMNS, CostLine, Release, ResultLine, Trial, as_curves, unpack_correct

Columns = Mapping[str, Sequence[Any]]
_EIGHT_DIGITS = 1e-7
_OTHER_PASS = 1e-3
"""Largest relative difference of a loss between the observer's pass over the test set and that of `evaluate`."""
_OTHER_CLASS = 1e-3
"""Largest share of test images whose class differs between those two passes, at least one image.

On published lines none differs; on a GPU, sums in another order may change the class of an image near a boundary.
"""
_REPEAT = 1e-6
"""Largest relative difference of losses between two curves of one training."""
_SECONDS = 6e-5
"""An epoch's seconds are stored with four decimals."""
SHARES = (
    "accuracy",
    "calibration_error",
    "macro_f1",
    "auroc",
    "mean_average_precision",
    "exact_match",
    "mean_iou",
    "pixel_accuracy",
)
"""Metrics between 0 and 1 that the trained weights give alone."""
_SHARES = (*SHARES, "best_epoch_accuracy", "accuracy_after_inversion")
MOST_CONFUSION_BYTES = 1 << 26
_OF_ALL_IMAGES = (*_SHARES, "loss")
_OF_ALL_ROWS = ("mse", "log_mse", "selected_mse", "selected_log_mse", "rmse", "mae")
_FASTEST = {
    "cpu": {"float32": 4e11, "bfloat16": 5e12, "float16": 5e12},
    "cuda": {"float32": 1e14, "tf32": 1.5e15, "bfloat16": 3e15, "float16": 3e15},
}
"""Upper bounds in FLOP/s, by thread of a processor or by GPU: above the data sheets of AVX-512, AMX and a B200."""


def find_contradictions(line: ResultLine) -> list[str]:
    """Describe the contradictions within `line`."""
    given = as_curves(line.curves)
    curves = {name: given.column(name) for name in COLUMNS}
    return [*_check_facts(line), *_check_curves(line, curves), *_divergence(line, curves), *_metrics(line, curves)]


def find_cost_contradictions(line: ResultLine, cost: CostLine) -> list[str]:
    """Describe the contradictions between a result and its cost."""
    names = ("experiment", "arm", "replicate", "run_key", "environment_digest")
    found = [f"its cost belongs to another {name}" for name in names if getattr(line, name) != getattr(cost, name)]
    epochs, spent = len(line.curves), sum(cost.epoch_seconds)
    if len(cost.epoch_seconds) != epochs:
        found.append(f"its cost has the seconds of {len(cost.epoch_seconds)} epochs, its curves have {epochs} epochs")
    elif epochs and abs(spent - cost.train_seconds) > _SECONDS * epochs + 1e-9 * spent:
        found.append(f"train_seconds is {cost.train_seconds:.10g}, its epochs took {spent:.10g}")
    return found


def find_release_contradictions(line: ResultLine, release: Release) -> list[str]:
    """Describe the contradictions between a rounded model's scores and the share of images that kept their class."""
    found = []
    if release.n != line.data.test_images:
        found.append(f"its released model was scored on {release.n:,} of {line.data.test_images:,} test images")
    accuracy = next((row.value for row in line.metrics if row.metric == "accuracy"), None)
    if accuracy is not None and abs(accuracy - release.accuracy) > 1 - release.same_class + 1e-9:
        found.append(
            f"the accuracy of its released model is {release.accuracy:.10g}, that of the result {accuracy:.10g}, "
            f"and {release.same_class:.10g} of the images kept their class"
        )
    return found


def find_impossible_times(line: ResultLine, cost: CostLine) -> list[str]:
    """Describe the contradictions between a training's time and the most that its device can compute."""
    device, protocol = str(line.environment.get("device", "")).partition(":")[0], line.spec["protocol"]
    forward = next((row.value for row in line.metrics if row.metric.startswith("flops_per_")), 0.0)
    if device not in _FASTEST or not line.curves:
        return []
    flops = forward * line.curves[-1].steps * min(protocol["batch_size"], line.data.train_images)
    peak = _FASTEST[device].get(protocol.get("precision", "float32"), _FASTEST[device]["float32"])
    peak *= line.environment.get("data_parallel", {}).get("world_size", 1)
    peak *= line.environment.get("threads", 1) if device == "cpu" else 1
    if flops <= peak * cost.train_seconds:
        return []
    return [
        f"its training took {cost.train_seconds:.3g} s, its forward passes alone are {flops:.2g} FLOP, and "
        f"{line.environment.get('device_name', device)} computes at most {peak:.1g} a second"
    ]


def find_repeats(trials: Iterable[Trial]) -> Iterator[tuple[Trial, str]]:
    """Yield each trial that repeats an earlier one's outcome as another training, or has other data, and the reason."""
    first: dict[tuple[str, str, str], Trial] = {}
    curves = _SeenCurves()
    for trial in trials:
        line = trial.result
        weights = line.weights_sha256 and first.setdefault(("weights", line.weights_sha256, ""), trial)
        for what, earlier in (("weights", weights), ("learning curve", curves.find(trial))):
            if not earlier or earlier is trial:
                continue
            if earlier.lab != trial.lab:
                yield trial, f"it has the {what} of {earlier.name}: a repeat with the same bits isn't a second result"
            elif {**earlier.result.spec, "code": None} != {**line.spec, "code": None}:  # other code may be equivalent
                yield trial, f"it has the {what} of {earlier.name}: one training can't be two replicates"
        seeded = first.setdefault(("seed", line.name, canonical_json(line.spec["replicate"])), trial)
        if trial.lab and seeded.lab != trial.lab:
            yield trial, f"it has the seed of {seeded.name}, and only new seeds make a result of another lab"
        cell = first.setdefault((line.name, line.profile, trial.lab), trial)
        if trial.lab and cell is not trial:
            yield trial, "its lab has another result of this replicate, and could choose the better one"
        data = line.data
        earlier = first.setdefault(("data", data.dataset, data.provenance), trial)
        if earlier.result.data.digest != data.digest:
            yield trial, f"its data are {data.digest[:12]}, those of {earlier.name} {earlier.result.data.digest[:12]}"


class _SeenCurves:
    """Trials by their learning curve, which rounding changes by at most `_REPEAT`."""

    def __init__(self) -> None:
        self._by_first = dict[tuple[int, int], list[tuple[Any, Trial]]]()

    def find(self, trial: Trial) -> Trial | None:
        """Return the first trial with the same curve, and remember this one."""
        curve = np.array(as_curves(trial.result.curves).column("train_loss"), float)
        if not len(curve):
            return None
        place = round(math.log(abs(curve[0]) or 1.0) / (2 * _REPEAT)) if math.isfinite(curve[0]) else 0
        near = [pair for one in (-1, 0, 1) for pair in self._by_first.get((len(curve), place + one), ())]
        self._by_first.setdefault((len(curve), place), []).append((curve, trial))
        return next((seen for other, seen in near if np.allclose(curve, other, rtol=_REPEAT, atol=0)), None)


def compare_canaries(results: Iterable[Any]) -> list[str]:
    """Describe results (lines, or rows of the database) whose environments differ only in their canaries."""
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        environment = result.environment
        canary = environment.get("process", {}).get("canary", {})
        if re.fullmatch("[0-9a-f]{12}", canary.get("digest", "")):  # others have a reason instead
            listed = canonical_json({**environment, "process": environment["process"] | {"canary": canary["of"]}})
            labels = found.setdefault(listed, {}).setdefault(canary["digest"], [])
            labels.append(f"{result.experiment}.{result.arm}.{result.replicate}")
    faults = []
    for by_digest in found.values():
        if len(by_digest) > 1:
            differing = " but ".join(f"{digest} for {', '.join(labels)}" for digest, labels in by_digest.items())
            faults.append(
                f"CANARIES DIFFER: {differing}. Code, device, versions, variables and fast paths are the same, so "
                "something unrecorded changed the numbers. Look for an edited or reinstalled package, another "
                "processor or faulty memory, and train one of each again before you believe any of them"
            )
    return faults


def _check_facts(line: ResultLine) -> Iterator[str]:
    """Check the digests, and that the line has what its status says."""
    spec = hashlib.sha256(canonical_json(line.spec).encode()).hexdigest()
    for name, recorded, of, digest in (
        ("run_key", line.run_key, "spec", spec),
        ("environment_digest", line.environment_digest, "environment", environment_digest(line.environment)),
    ):
        if recorded != digest:
            yield f"{name} is {recorded[:12]}, the sha256 of its {of} is {digest[:12]}"
    in_spec = line.spec.get("data_digest", line.data.digest)
    if in_spec != line.data.digest:
        yield f"its data are {line.data.digest[:12]}, those of its spec {in_spec[:12]}"
    has = {
        "metrics": bool(line.metrics),
        "weights_sha256": line.weights_sha256 is not None,
        "correct": line.correct is not None,
        "confusion": line.confusion is not None,
        "observed": line.observed is not None,
        "divergence": line.divergence is not None,
    }
    if line.status == "diverged":
        wrong = [name for name, given in has.items() if given != (name == "divergence")]
    else:
        wrong = [name for name in ("metrics", "weights_sha256") if not has[name]]
        wrong += ["divergence"] * has["divergence"]
    for name in wrong:
        yield f"its status is {line.status}, and it has {name if has[name] else f'no {name}'}"


def _check_curves(line: ResultLine, curves: Columns) -> Iterator[str]:
    epochs, steps = curves["epoch"], curves["steps"]
    planned = line.spec.get("protocol", {}).get("epochs", len(epochs))
    stops_early = line.spec.get("protocol", {}).get("early_stop") is not None
    if list(epochs) != list(range(1, len(epochs) + 1)):
        yield f"its curves don't have the epochs 1 to {len(epochs)} one after the other"
    if any(map(ge, steps, steps[1:])):
        yield "the steps of its curves don't grow from epoch to epoch"
    if len(epochs) > planned or (line.status == "finished" and not stops_early and len(epochs) < planned):
        yield f"its curves have {len(epochs)} epochs, its protocol {planned}"
    for name in ("train_accuracy", "val_accuracy", "test_accuracy"):
        shares = zip(epochs, curves[name], strict=True)
        if wrong := [epoch for epoch, share in shares if share is not None and not 0 <= share <= 1]:
            yield f"{name} of epoch {wrong[0]} isn't a share between 0 and 1"


def _divergence(line: ResultLine, curves: Columns) -> Iterator[str]:
    """Check that the loss can have diverged there: in the epoch after the curves, or by the last step of them."""
    found = line.divergence
    if found is None or line.status != "diverged":
        return
    try:
        spec = RunSpec.from_dict(dict(line.spec))
    except (KeyError, TypeError, ValueError) as error:
        yield f"its spec can't be read ({error})"
        return
    rows, _ = training_counts(line.data.train_images, spec.protocol, spec.replicate)
    length = (*curves["steps"], steps_per_epoch(rows, spec.protocol))[0]  # a text's rows are longer than its tokens
    begins, ends = len(curves["epoch"]) * length, min(len(curves["epoch"]) + 1, spec.protocol.epochs) * length
    is_in_last_step = found.step == found.last_finite_step == begins > 0
    if not (is_in_last_step or begins <= found.last_finite_step < found.step <= ends):
        yield (
            f"its loss diverges at step {found.step:,} after step {found.last_finite_step:,}, "
            f"its curves end at step {begins:,}, and it plans {spec.protocol.epochs} epochs of {length:,} steps"
        )
    loss, is_own = found.last_finite_loss, spec.task is not None or spec.protocol.recipe is not None
    if (
        (loss is None) != (found.last_finite_step == 0)
        or not math.isfinite(loss or 0)
        or (not is_own and (loss or 0) < 0)
    ):
        yield f"its last finite loss is {loss}, after {found.last_finite_step:,} steps"


def _metrics(line: ResultLine, curves: Columns) -> Iterator[str]:
    places = [(row.metric, row.split) for row in line.metrics]
    for metric, split in sorted({place for place in places if places.count(place) > 1}):
        yield f"{metric} of split {split} occurs twice"
    for row in line.metrics:
        if not math.isfinite(row.value):
            yield f"{row.metric} is {row.value}"
        if row.metric in _SHARES and not 0 <= row.value <= 1:
            yield f"{row.metric} is {row.value:.10g}, not a share between 0 and 1"
    values = {row.metric: row.value for row in line.metrics if row.split == "test"}
    is_table, is_text = "mse" in values, "validation_loss" in values
    for row in line.metrics:
        whole = _OF_ALL_ROWS if is_table else () if is_text else _OF_ALL_IMAGES
        if row.metric in whole and row.n != line.data.test_images:
            yield f"{row.metric} was measured on {row.n} test samples, its data have {line.data.test_images:,}"
    if is_table:
        yield from _of_table(curves, values)
    elif is_text:
        loss, perplexity = values["validation_loss"], values.get("perplexity")
        if values.get("loss") != loss:
            yield f"loss is {values.get('loss')}, validation_loss {loss:.10g}: they should be equal"
        if perplexity is not None and not (
            perplexity > 0 and math.isclose(math.log(perplexity), loss, rel_tol=1e-9, abs_tol=1e-12)
        ):
            yield f"perplexity is {perplexity:.10g}, which doesn't match the loss {loss:.10g}"
        yield from _last_loss(curves, "loss", loss)
    elif "task" in line.spec and "loss" in values:
        yield from _last_loss(curves, "loss", values["loss"])
    elif "accuracy" in values or line.correct is not None:
        yield from _of_images(line, curves, values)
    observed = [value for value in curves["test_accuracy"] if value is not None]
    best = values.get("best_epoch_accuracy")
    if best is not None and not (observed and _near(best, max(observed))):
        gives = f"give {max(observed):.10g}" if observed else "have no test_accuracy"
        yield f"best_epoch_accuracy is {best:.10g}, its curves {gives}"
    if best is None and observed and "accuracy" in values:
        yield "its curves have test_accuracy, and it has no best_epoch_accuracy"


def _of_images(line: ResultLine, curves: Columns, values: dict[str, float]) -> Iterator[str]:
    n, accuracy = line.data.test_images, values.get("accuracy", math.nan)
    try:
        if line.correct is None:
            yield "it has an accuracy and no bitmap of correct images"
            return
        size = len(binascii.a2b_base64(line.correct, strict_mode=True))
        right = int(unpack_correct(line.correct, 8 * size).sum())
        if size != -(-n // 8) or unpack_correct(line.correct, 8 * size)[n:].any():
            yield f"its bitmap of correct images is not one of {n:,} test images"
        if not math.isclose(accuracy, right / n, abs_tol=1e-12):
            yield f"accuracy is {accuracy:.10g}, its bitmap has {right:,} correct of {n:,} images, {right / n:.10g}"
        if line.confusion is not None:
            yield from _confusion(line.confusion, n, right)
    except (ValueError, zlib.error) as error:
        yield f"its bitmap or confusion matrix can't be read ({error})"
        return
    last = next(iter(curves["test_accuracy"][-1:]), None)
    if last is not None and abs(last - accuracy) > max(_OTHER_CLASS, 1.5 / n):
        yield f"accuracy is {accuracy:.10g}, the last epoch of its curves has {last:.10g}"


def _confusion(packed: str, n: int, right: int) -> Iterator[str]:
    content = zlib.decompressobj().decompress(binascii.a2b_base64(packed, strict_mode=True), MOST_CONFUSION_BYTES)
    counts = np.frombuffer(content, dtype="<u4").astype(np.int64)
    classes = math.isqrt(len(counts))
    if classes**2 != len(counts):
        yield f"its confusion matrix has {len(counts)} cells, which isn't a square number"
        return
    total, trace = int(counts.sum()), int(counts[:: classes + 1].sum())
    if (total, trace) != (n, right):
        yield (
            f"its confusion matrix has {total:,} images, {trace:,} of them right; "
            f"its bitmap of correct images {n:,}, {right:,} of them right"
        )


def _of_table(curves: Columns, values: dict[str, float]) -> Iterator[str]:
    for prefix in ("", "selected_"):
        error, logarithm = values.get(f"{prefix}mse"), values.get(f"{prefix}log_mse")
        if (error is None) != (logarithm is None):
            yield f"it has only one of {prefix}mse and {prefix}log_mse"
        elif error is not None and logarithm is not None:
            if error <= 0:
                yield f"{prefix}mse is {error:.10g}, not a squared error"
            elif not math.isclose(logarithm, math.log(error), rel_tol=1e-9, abs_tol=1e-12):
                yield f"{prefix}log_mse is {logarithm:.10g}, the logarithm of {prefix}mse is {math.log(error):.10g}"
    root = values.get("rmse")
    if root is not None and not math.isclose(root**2, values["mse"], rel_tol=1e-9):
        yield f"rmse is {root:.10g}, its square isn't mse, {values['mse']:.10g}"
    losses = zip(curves["val_loss"], curves["test_loss"], strict=True)
    watched = [(val, test) for val, test in losses if val is not None and test is not None]
    chosen = min(watched, key=itemgetter(0))[1] if watched else None
    selected = values.get("selected_mse")
    if (chosen is None) != (selected is None):
        yield f"it has {'no ' if selected is None else ''}selected_mse, its curves {'give' if watched else 'give none'}"
    elif chosen is not None and selected is not None and not _near(selected, chosen):
        yield f"selected_mse is {selected:.10g}, its curves give {chosen:.10g}"
    yield from _last_loss(curves, "mse", values["mse"])


def _last_loss(curves: Columns, name: str, value: float) -> Iterator[str]:
    last = next(iter(curves["test_loss"][-1:]), None)
    if last is not None and not math.isclose(value, last, rel_tol=_OTHER_PASS):
        yield f"{name} is {value:.10g}, the last epoch of its curves has {last:.10g}"


def _near(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_EIGHT_DIGITS, abs_tol=1e-12)
