"""The `Predictor` that `evaluate` and the service share, so that a probability means the same in both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stages.checkpoint.contract import METADATA_KEY, CheckpointError, InputContract, read_checkpoint
from stages.ops.normalize import Normalization
from stages.papers import build_model
from stages.run import canonical_json


@dataclass(frozen=True)
class Predictor:
    """A network in evaluation mode and its contract."""

    network: nn.Module
    contract: InputContract
    device: torch.device
    weights_sha256: str

    def probabilities(self, images: np.ndarray | Tensor, *, batch_size: int = 256) -> np.ndarray:
        """Return class probabilities, float32 [N, K], of uint8 images [N, C, H, W].

        Raises:
            CheckpointError: this isn't an image classifier, or as for `predict`.
        """
        if self.contract.kind != "images":
            raise CheckpointError(f"this checkpoint is for {self.contract.kind} data; it has no classes of images")
        return self.predict(images, batch_size=batch_size)

    def predict(self, images: np.ndarray | Tensor, *, batch_size: int = 256) -> np.ndarray:
        """Return what the network says about uint8 images [N, C, H, W], by the contract's kind.

        images        probabilities of the classes, float32 [N, K]
        multi-label   probability of each label, float32 [N, K]
        regression    numbers in the units of the targets, float32 [N, K]
        segmentation  class of each pixel, uint8 [N, H, W]

        Raises:
            CheckpointError: it doesn't take images, or type or shape differ from the contract's.
            ValueError: a segmentation isn't finite.
        """
        if self.contract.kind not in _READ or len(self.contract.shape) != 3:
            shape = list(self.contract.shape)
            raise CheckpointError(
                f"this checkpoint is for {self.contract.kind} data {shape}; expected images [C, H, W]"
            )
        tensor = torch.as_tensor(images)
        if tensor.dtype != torch.uint8 or tensor.ndim != 4 or tuple(tensor.shape[1:]) != self.contract.shape:
            expected = ", ".join(str(size) for size in self.contract.shape)
            raise CheckpointError(
                f"images are {tensor.dtype} {list(tensor.shape)}; this checkpoint takes torch.uint8 [N, {expected}]"
            )
        read = _READ[self.contract.kind]
        with torch.inference_mode():
            parts = [read(self.network(self.inputs(batch)).float()).cpu().numpy() for batch in tensor.split(batch_size)]
        return np.concatenate(parts)

    def inputs(self, images: Tensor) -> Tensor:
        """Convert uint8 images [N, C, H, W] to the network's input, on its device."""
        contract = self.contract
        return Normalization(contract.mean, contract.std, contract.shape, self.device)(images.to(self.device))


def _classes_of_pixels(logits: Tensor) -> Tensor:
    if not logits.isfinite().all():
        raise ValueError("the network returned NaN or infinity")  # a class can't show it
    return logits.argmax(dim=1).to(torch.uint8)


_READ: Mapping[str, Callable[[Tensor], Tensor]] = {
    "images": lambda logits: logits.softmax(dim=1),
    "multi-label": Tensor.sigmoid,
    "regression": lambda numbers: numbers,
    "segmentation": _classes_of_pixels,
}
"""Convert a network's outputs, by the contract's kind."""


class _Undrawn(TorchFunctionMode):
    """Leaves new parameters uninitialised, for a network of ours, whose values are all loaded next.

    Other packages' code may draw until a value is acceptable, as `nn.init.trunc_normal_` does, and would never end.
    Building on the meta device instead would separate tied weights.
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
    """Serialise a checkpoint: all parameters and buffers, and the contract in the header.

    Floating-point tensors are stored as `dtype`; `load_predictor` computes in float32, whatever the stored type.
    """
    tensors = {
        name: value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype).contiguous()
        for name, value in network.state_dict().items()
    }
    for name, value in reversed(tensors.items()):
        if any(other is not value and other.data_ptr() == value.data_ptr() for other in tensors.values()):
            tensors[name] = value.clone()  # tied weights: the file holds each
    return safetensors.torch.save(tensors, metadata={METADATA_KEY: canonical_json(dataclasses.asdict(contract))})


def load_predictor(weights: Path, *, device: str = "cpu", expected_sha256: str | None = None) -> Predictor:
    """Read a checkpoint file and build its network.

    Raises:
        CheckpointError: as for `read_checkpoint`, or the weights don't fit the contract's model.
    """
    content, contract, digest = read_checkpoint(weights, expected_sha256=expected_sha256)
    try:
        with nullcontext() if contract.model.is_imported else _Undrawn():
            network = build_model(contract.model)
        tensors = safetensors.torch.load(content)
        del content  # file, tensors and network together would take three times the weights' memory
        network.load_state_dict(tensors)
    except (RuntimeError, TypeError, ValueError, safetensors.SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{weights.name}: weights don't fit {contract.model.path}: {reason}") from None
    if torch.device(device).type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32 means float32, as in training
    return Predictor(network.eval().to(device), contract, torch.device(device), digest)
