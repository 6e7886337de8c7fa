"""Checkpoints: weights as safetensors whose header carries the input contract, and the `Predictor` that reads them.

`evaluate` and the service predict through the same `Predictor`, so a probability means the same in both.  Nothing here
reads a pickle, whatever the file is called.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stages.ops.normalize import normalize
from stages.papers import build_model
from stages.run import ModelSpec, canonical_json

_METADATA_KEY = "claimcheck"
_MAX_HEADER_BYTES = 1 << 20


class CheckpointError(ValueError):
    """A file that is no checkpoint of ours, or not the one that was asked for."""


@dataclass(frozen=True, kw_only=True)
class InputContract:
    """What a network expects and what its answers mean.

    Images are uint8 of `shape` [C, H, W], normalised by `mean` and `std` per channel.
    Tables and texts come as they are packed: rows of `shape` [D] whose columns are `classes`, windows of [T] tokens.
    """

    model: ModelSpec
    shape: tuple[Any, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    run_key: str
    dataset: str
    data_digest: str
    kind: Literal["images", "table", "text"] = "images"


@dataclass(frozen=True)
class Predictor:
    """A network in evaluation mode and its contract."""

    network: nn.Module
    contract: InputContract
    device: torch.device
    weights_sha256: str

    def probabilities(self, images: np.ndarray | Tensor, *, batch_size: int = 256) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W].

        Raises:
            CheckpointError: this is no classifier of images, or they have another type or shape than the contract's.
        """
        if self.contract.kind != "images":
            raise CheckpointError(f"this checkpoint answers to a {self.contract.kind}, not to images")
        tensor = torch.as_tensor(images)
        if tensor.dtype != torch.uint8 or tensor.ndim != 4 or tuple(tensor.shape[1:]) != self.contract.shape:
            expected = ", ".join(str(size) for size in self.contract.shape)
            raise CheckpointError(
                f"images are {tensor.dtype} {list(tensor.shape)}; this checkpoint takes torch.uint8 [N, {expected}]"
            )
        parts = [np.zeros((0, len(self.contract.classes)), dtype=np.float32)]
        with torch.inference_mode():
            for batch in tensor.split(batch_size):
                inputs = normalize(batch.to(self.device), self.contract.mean, self.contract.std)
                parts.append(self.network(inputs).float().softmax(dim=1).cpu().numpy())
        return np.concatenate(parts)


class _Undrawn(TorchFunctionMode):
    """New parameters stay as memory has them: for a network whose numbers are all loaded next.

    Built on the meta device instead, tied weights would come apart.
    """

    _DRAWS = frozenset(
        [nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, Tensor.uniform_, Tensor.normal_, torch.randn]
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func not in self._DRAWS:
            return func(*args, **keywords)
        if func is torch.randn:
            return torch.empty(*args, **keywords)
        return args[0] if args else keywords["tensor"]


def dump_checkpoint(network: nn.Module, contract: InputContract, *, dtype: torch.dtype = torch.float32) -> bytes:
    """The bytes of a checkpoint file: all parameters and buffers, and the contract in the header.

    Floating tensors are stored as `dtype`; `load_predictor` computes in float32 whatever they were stored as.
    """
    tensors = {
        name: value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype).contiguous()
        for name, value in network.state_dict().items()
    }
    return safetensors.torch.save(tensors, metadata={_METADATA_KEY: canonical_json(dataclasses.asdict(contract))})


def read_checkpoint(weights: Path, *, expected_sha256: str | None = None) -> tuple[bytes, InputContract, str]:
    """A checkpoint file's bytes, contract and sha256.

    Raises:
        CheckpointError: no such file, another digest than `expected_sha256`, not safetensors, or without our contract.
    """
    try:
        content = weights.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{weights.name}: can't be read ({error.strerror})") from None
    digest = hashlib.sha256(content).hexdigest()
    if expected_sha256 is not None and digest != expected_sha256:
        raise CheckpointError(f"{weights.name}: expected sha256 {expected_sha256[:12]}…, got {digest[:12]}…")
    return content, read_contract(content, weights.name), digest


def load_predictor(weights: Path, *, device: str = "cpu", expected_sha256: str | None = None) -> Predictor:
    """Read a checkpoint file and build its network.

    Raises:
        CheckpointError: as `read_checkpoint`, or weights that don't fit the contract's model.
    """
    content, contract, digest = read_checkpoint(weights, expected_sha256=expected_sha256)
    try:
        with _Undrawn():
            network = build_model(contract.model)
        network.load_state_dict(safetensors.torch.load(content))
    except (RuntimeError, TypeError, ValueError, safetensors.SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{weights.name}: weights don't fit {contract.model.path}: {reason}") from None
    if torch.device(device).type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32 means float32, as in training
    return Predictor(network.eval().to(device), contract, torch.device(device), digest)


def read_contract(content: bytes, name: str) -> InputContract:
    """The contract in a checkpoint's header.

    Raises:
        CheckpointError: the bytes are not safetensors, or the header holds no contract of ours.
    """
    header = _read_header(content, name)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, Mapping) or _METADATA_KEY not in metadata:
        raise CheckpointError(f"{name}: a safetensors file without our contract in its header")
    try:
        fields: dict[str, Any] = json.loads(metadata[_METADATA_KEY])
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
