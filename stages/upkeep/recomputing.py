"""Recomputes the metrics of a recorded result from its weights and the test data, and compares."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from stages.checkpoint.predictor import load_predictor
from stages.datasets.packed import ImageSet, read_images, read_info
from stages.evaluation.flops import FlopCounts
from stages.evaluation.scores import Observer, Scores, correctness, cut_rows, score
from stages.run import RunSpec
from stages.runs.evidence import ResultLine, unpack_correct
from stages.training.kinds import read_rows

_OTHER_MACHINE = 1e-3
"""Relative difference of a loss, and share of test images whose class may be another one, between two machines."""
_ROUNDED = 0.01
"""Share of test images whose class may be another one by weights that were rounded to 11 bits."""
SPOTS = 256
"""Test images that `spot_check` predicts: whole test sets take minutes a model on a small machine."""


def recompute(weights: Path, packed: Path, line: ResultLine) -> Scores:
    """The metrics that `evaluate` computes from the weights, the packed set's test split and the curves of `line`.

    Raises:
        CheckpointError: the weights can't be loaded.
        PackedDataError: the test data can't be read.
    """
    whole, spec = read_info(packed), RunSpec.from_dict(dict(line.spec))
    rows = read_rows(packed, whole, "test")
    info = dataclasses.replace(whole, test_images=line.data.test_images)
    flops = FlopCounts().count(spec.model, info.shape, info.vocabulary)
    curves = [{name: value for name, value in asdict(row).items() if value is not None} for row in line.curves]
    test_set = cut_rows(rows, info.test_images)
    return score(load_predictor(weights), test_set, info, spec.protocol, curves, flops)


def spot_check(weights: Path, packed: Path, line: ResultLine) -> Iterator[str]:
    """Differences from `line` in which images the weights, as trained or rounded, get right: of `SPOTS`, evenly spread.

    A table has no bitmap and is quick: all its rows are predicted.

    Raises:
        CheckpointError: the weights can't be loaded, or aren't a classifier of these images.
        PackedDataError: the test data can't be read.
    """
    if line.correct is None:
        yield from compare(line, recompute(weights, packed, line))
        return
    n = line.data.test_images
    test_set = cut_rows(read_images(packed, "test"), n)
    assert isinstance(test_set, ImageSet), "a part of images is images"
    chosen = np.linspace(0, n - 1, min(n, SPOTS)).astype(int)
    found = correctness(load_predictor(weights).probabilities(test_set.images[chosen]), test_set.labels[chosen])
    differing = int(np.sum(found != unpack_correct(line.correct, n)[chosen]))
    if differing > max(_ROUNDED * len(chosen), 1):
        yield _in_words(differing, len(chosen))


def compare(line: ResultLine, scores: Scores) -> Iterator[str]:
    """Differences between the metrics of `line` and those of its weights as trained."""
    n = line.data.test_images
    recorded = {(row.metric, row.split): row.value for row in line.metrics}
    for row in scores.metrics:
        if (value := recorded.get((row.metric, row.split))) is None:
            continue
        share = row.metric in ("accuracy", "calibration_error")
        slack = max(_OTHER_MACHINE, 1.5 / n) if share else 1e-12
        if not math.isclose(value, row.value, rel_tol=0 if row.split == "none" else _OTHER_MACHINE, abs_tol=slack):
            yield f"{row.metric} is recorded as {value:.10g}, the weights give {row.value:.10g}"
    yield from _compare_images(line, scores, _OTHER_MACHINE)


def look_again(weights: Path, packed: Path, line: ResultLine) -> Iterator[str]:
    """Differences between the observations in `line` and those of its weights as trained.

    Raises:
        CheckpointError: the weights can't be loaded.
        PackedDataError: the test data can't be read.
    """
    recorded = {(row.metric, row.split): row.value for row in line.metrics}
    test_set = cut_rows(read_rows(packed, read_info(packed), "test"), line.data.test_images)
    replicate = RunSpec.from_dict(dict(line.spec)).replicate
    for row in Observer(test_set).observe(load_predictor(weights), replicate).metrics:
        value = recorded.get((row.metric, row.split))
        slack = 1.5 / row.n if row.n and row.metric.startswith("accuracy") else 1e-6
        if value is not None and not math.isclose(value, row.value, rel_tol=_OTHER_MACHINE, abs_tol=slack):
            yield f"{row.metric} is recorded as {value:.7g}, the weights give {row.value:.7g}"


def compare_released(line: ResultLine, scores: Scores, accuracy: float) -> Iterator[str]:
    """Differences for a released model whose rounded weights scored `accuracy`: in that, its size and right images."""
    found = {row.metric: row.value for row in scores.metrics}
    if abs(found["accuracy"] - accuracy) > max(_OTHER_MACHINE, 1.5 / line.data.test_images):
        yield f"accuracy is recorded as {accuracy:.10g}, the released weights give {found['accuracy']:.10g}"
    for row in line.metrics:
        if row.split == "none" and found.get(row.metric, row.value) != row.value:
            yield f"{row.metric} is recorded as {row.value:.10g}, the released model has {found[row.metric]:.10g}"
    yield from _compare_images(line, scores, _ROUNDED)


def _compare_images(line: ResultLine, scores: Scores, share: float) -> Iterator[str]:
    if line.correct is None or scores.correct is None:
        return
    n = line.data.test_images
    differing = int(np.sum(unpack_correct(line.correct, n) != unpack_correct(scores.correct, n)))
    if differing > max(share * n, 1):
        yield _in_words(differing, n)


def _in_words(differing: int, n: int) -> str:
    return f"{differing:,} of {n:,} images are right in the bitmap and wrong by the weights, or the other way round"
