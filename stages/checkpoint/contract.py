"""Read a checkpoint file and the input contract in its header, without torch or a network."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stages.faults import Mistake
from stages.run import ModelSpec, RunSpec, TaskName

METADATA_KEY = "claimcheck"
_MAX_HEADER_BYTES = 1 << 20


class CheckpointError(Mistake, ValueError):
    """The file isn't one of our checkpoints, or not the requested one."""


@dataclass(frozen=True, kw_only=True)
class InputContract:
    """The inputs that a network expects and the meaning of its outputs.

    Images are uint8 of `shape` [C, H, W], normalised by `mean` and `std` per channel.
    Tables and texts are used as packed: rows of `shape` [D] whose columns are `classes`, windows of [T] tokens.
    `kind` is that of the data, or the task if the network has one of its own, `other` if that is another package's.
    """

    model: ModelSpec
    shape: tuple[Any, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    run_key: str
    dataset: str
    data_digest: str
    kind: Literal["images", "table", "text", "other"] | TaskName = "images"

    @classmethod
    def of_run(cls, spec: RunSpec, info: Any) -> InputContract:
        """Return the contract of a run's weights; `info` describes the packed data."""
        return cls(
            kind="other" if spec.task_class else spec.task or info.kind,
            model=spec.model,
            mean=spec.protocol.mean,
            std=spec.protocol.std,
            run_key=spec.run_key,
            data_digest=spec.data_digest,
            dataset=info.dataset,
            shape=info.shape,
            classes=info.classes,
        )


def read_checkpoint(weights: Path, *, expected_sha256: str | None = None) -> tuple[bytes, InputContract, str]:
    """Read a checkpoint file: its bytes, contract and sha256.

    Raises:
        CheckpointError: no such file, a digest other than `expected_sha256`, not safetensors, or no contract of ours.
    """
    try:
        content = weights.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{weights.name}: can't be read ({error.strerror})") from None
    digest = hashlib.sha256(content).hexdigest()
    if expected_sha256 is not None and digest != expected_sha256:
        raise CheckpointError(f"{weights.name}: expected sha256 {expected_sha256[:12]}…, got {digest[:12]}…")
    return content, read_contract(content, weights.name), digest


def read_contract(content: bytes, name: str) -> InputContract:
    """Read the contract in a checkpoint's header.

    Raises:
        CheckpointError: the bytes are not safetensors, or the header holds no contract of ours.
    """
    header = _read_header(content, name)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, Mapping) or METADATA_KEY not in metadata:
        raise CheckpointError(f"{name}: a safetensors file without our contract in its header")
    try:
        fields: dict[str, Any] = json.loads(metadata[METADATA_KEY])
        model = ModelSpec(**fields.pop("model"))
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        return InputContract(model=model, **fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name}: contract in the header can't be read: {error}") from None


def _read_header(content: bytes, name: str) -> dict[str, Any]:
    size = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    if not 2 <= size <= min(_MAX_HEADER_BYTES, len(content) - 8):
        raise CheckpointError(f"{name}: not a safetensors file")
    try:
        header = json.loads(content[8 : 8 + size])
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise CheckpointError(f"{name}: not a safetensors file") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{name}: not a safetensors file")
    return header
