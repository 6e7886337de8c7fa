"""Small trained models into git: `data/models/<experiment>.<arm>.<replicate>.safetensors`, each with its evidence line.

Weights are rounded to half the size, so that they fit; what the rounded model scores on the same test set is measured
and written beside them, never assumed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import torch

from stages.checkpoint import dump_checkpoint, load_predictor
from stages.datasets.packed import read_images
from stages.evaluation.metrics import accuracy
from stages.evidence import EvidenceLine, Release, read_lines, write_lines
from stages.publishing import PublishError
from stages.store import write_atomically

MAX_FILE_BYTES = 6_000_000
MAX_TOTAL_BYTES = 25_000_000


def release(experiment: str, arms: list[str], root: Path) -> list[Path]:
    """Write the published runs of `arms` to `data/models/` and their measured accuracy into the evidence.

    Raises:
        PublishError: an arm has no evidence or its weights are not here, or the models get too large for git.
    """
    data = root / "data"
    path = data / "evidence" / f"{experiment}.jsonl"
    lines = read_lines(path, EvidenceLine)
    known = {line.result.arm for line in lines}
    if unknown := [arm for arm in arms if arm not in known]:
        raise PublishError(f"{path} has no evidence of {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    written = []
    for index, line in enumerate(lines):
        if line.result.arm in arms and line.result.weights_sha256 is not None:
            content, released = _rounded(line, data)
            result = line.result
            target = data / "models" / f"{result.experiment}.{result.arm}.{result.replicate}.safetensors"
            _refuse_too_large(target, content)
            write_atomically(target, content)
            lines[index] = dataclasses.replace(line, release=released)
            written.append(target)
    write_atomically(path, write_lines(lines))
    return written


def _rounded(line: EvidenceLine, data: Path) -> tuple[bytes, Release]:
    result = line.result
    weights = data / "runs" / result.experiment / result.run_key / "weights.safetensors"
    if not weights.is_file():
        raise PublishError(f"{weights}: no such file; a model is released where its run lies")
    original = load_predictor(weights, expected_sha256=result.weights_sha256)
    content = dump_checkpoint(original.network, original.contract, dtype=torch.float16)
    staged = data / "models" / f".{result.run_key}.staged"
    write_atomically(staged, content)
    try:
        rounded = load_predictor(staged)
    finally:
        staged.unlink()
    test_set = read_images(data / "processed" / result.data.dataset, "test")
    before, after = original.probabilities(test_set.images), rounded.probabilities(test_set.images)
    return content, Release(
        sha256=hashlib.sha256(content).hexdigest(),
        dtype="float16",
        accuracy=accuracy(after, test_set.labels),
        same_class=float((before.argmax(1) == after.argmax(1)).mean()),
        n=len(test_set),
    )


def _refuse_too_large(target: Path, content: bytes) -> None:
    others = sum(path.stat().st_size for path in target.parent.glob("*.safetensors") if path != target)
    if len(content) > MAX_FILE_BYTES or others + len(content) > MAX_TOTAL_BYTES:
        raise PublishError(
            f"{target.name} has {len(content):,} bytes beside {others:,} of other models; "
            f"git takes at most {MAX_FILE_BYTES:,} each and {MAX_TOTAL_BYTES:,} together"
        )
