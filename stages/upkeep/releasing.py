"""Releases small trained models: `data/models/<experiment>.<arm>.<replicate>.safetensors`, each with its evidence line.

Weights are rounded to half the size to be small enough for git; the rounded model's scores on the same test set are
measured and written with it, never assumed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from stages.checkpoint.predictor import dump_checkpoint, load_predictor
from stages.datasets.packed import ImageSet, read_images
from stages.evaluation.scores import accuracy, cut_rows
from stages.params.schema import nearest
from stages.runs.evidence import EvidenceLine, Release, read_lines, write_lines
from stages.runs.store import write_atomically
from stages.upkeep.publishing import PublishError

MAX_FILE_BYTES = 6_000_000
MAX_TOTAL_BYTES = 25_000_000


def release(experiment: str, arms: list[str], root: Path) -> list[Path]:
    """Write the newest published run of each of `arms` to `data/models/`, and its scores into its evidence line.

    A model that was released stays as it is if its run is not here.

    Raises:
        PublishError: an arm has no evidence, its weights are missing here, or the models get too large for git.
    """
    data = root / "data"
    path = data / "evidence" / f"{experiment}.jsonl"
    lines = read_lines(path, EvidenceLine)
    known = {line.result.arm for line in lines}
    if unknown := [arm for arm in arms if arm not in known]:
        raise PublishError(f"{path} has no evidence of {unknown[0]}{nearest(unknown[0], sorted(known))}")
    newest: dict[tuple[str, int], int] = {}
    for index, line in enumerate(lines):
        cell = line.result.arm, line.result.replicate
        if line.result.arm in arms and line.result.weights_sha256 is not None:
            best = newest.get(cell)
            if best is None or lines[best].origin.published <= line.origin.published:
                newest[cell] = index
    contents = {}
    for index in newest.values():
        content, released = _rounded(lines[index], data)
        contents[_target(lines[index], data)] = content
        lines[index] = dataclasses.replace(lines[index], release=released)
    _refuse_too_large(data / "models", contents)
    for target, content in contents.items():
        write_atomically(target, content)
    for index, line in enumerate(lines):
        if line.release is not None and _target(line, data) in contents and index not in newest.values():
            lines[index] = dataclasses.replace(line, release=None)
    write_atomically(path, write_lines(lines))
    return list(contents)


def _target(line: EvidenceLine, data: Path) -> Path:
    result = line.result
    return data / "models" / f"{result.experiment}.{result.arm}.{result.replicate}.safetensors"


def _rounded(line: EvidenceLine, data: Path) -> tuple[bytes, Release]:
    result = line.result
    weights = data / "runs" / result.experiment / result.run_key / "weights.safetensors"
    target = _target(line, data)
    if not weights.is_file():
        content = target.read_bytes() if target.is_file() else b""
        if line.release is not None and hashlib.sha256(content).hexdigest() == line.release.sha256:
            return content, line.release  # as it was released
        raise PublishError(f"{weights}: no such file; a model is released where its run lies")
    original = load_predictor(weights, expected_sha256=result.weights_sha256)
    content = dump_checkpoint(original.network, original.contract, dtype=torch.float16)
    staged = data / "models" / f".{result.run_key}.staged"
    write_atomically(staged, content)
    try:
        rounded = load_predictor(staged)
    finally:
        staged.unlink()
    test_set = cut_rows(read_images(data / "processed" / result.data.dataset, "test"), result.data.test_images)
    assert isinstance(test_set, ImageSet), "a part of images is images"
    before, after = original.probabilities(test_set.images), rounded.probabilities(test_set.images)
    return content, Release(
        sha256=hashlib.sha256(content).hexdigest(),
        dtype="float16",
        accuracy=accuracy(after, test_set.labels),
        same_class=float((before.argmax(1) == after.argmax(1)).mean()),
        n=len(test_set),
    )


def _refuse_too_large(folder: Path, contents: Mapping[Path, bytes]) -> None:
    others = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path not in contents)
    total = others + sum(len(content) for content in contents.values())
    for target, content in contents.items():
        if len(content) > MAX_FILE_BYTES:
            raise PublishError(
                f"{target.name} has {len(content):,} bytes; git takes at most {MAX_FILE_BYTES:,} a model"
            )
    if total > MAX_TOTAL_BYTES:
        raise PublishError(f"{folder} would hold {total:,} bytes of models; git takes at most {MAX_TOTAL_BYTES:,}")
