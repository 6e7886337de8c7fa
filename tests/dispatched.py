"""Record the operators that a training dispatches and check whether CUDA supports them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Names of operators in the database of PyTorch's tests; other operators that it lacks use the entry of `to`.
LISTED_AS = {
    "convolution": "conv2d",
    "convolution_backward": "backward conv2d",
    "embedding_dense_backward": "backward embedding",
    "native_batch_norm_backward": "backward native_batch_norm",
    "nll_loss_forward": "nll_loss",
    "threshold_backward": "backward threshold",
}
# CPU operators that PyTorch substitutes for CUDA's.
IN_PLACE_OF = {
    f"aten::_scaled_dot_product_flash_attention_for_cpu{part}": f"aten::_scaled_dot_product_efficient_attention{part}"
    for part in ("", "_backward")
}
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


@dataclass(frozen=True)
class Call:
    """An operator and the dtypes of its input tensors, or of its outputs if it has no inputs."""

    operator: OpOverload
    dtypes: tuple[str, ...]


class Dispatched(TorchDispatchMode):
    """Record every operator called in this block; `copies` lists copies from the CPU to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: set[Call] = set()
        self.copies: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        read, made = ([one for one in tree_leaves(tree) if isinstance(one, Tensor)] for tree in ([args, kwargs], out))
        if func.namespace == "aten":
            self.calls.add(Call(func, tuple(str(one.dtype).removeprefix("torch.") for one in read or made)))
        if {one.device.type for one in made} - {"cpu"} and any(one.device.type == "cpu" and one.ndim for one in read):
            self.copies.append(func.name())
        return out


@cache
def dtypes_on_cuda() -> dict[str, set[str]]:
    """Supported dtypes by operator on an H100 (tests/golden/make_cuda_dtypes.py)."""
    content = json.loads(Path(__file__).with_name("golden").joinpath("cuda_dtypes.json").read_text(encoding="utf-8"))
    return {name: {*dtypes.split()} for dtypes, names in content["operators"].items() for name in names.split(", ")}


def lacking(calls: set[Call]) -> list[str]:
    """List the calls that CUDA would reject, each with the reason."""
    return sorted(f"{call.operator.name()}: {reason}" for call in calls if (reason := _reason(call)) is not None)


def _reason(call: Call) -> str | None:
    if torch.version.cuda is not None and not _has_kernel(IN_PLACE_OF.get(name := call.operator.name(), name)):
        return "no kernel for CUDA"
    if call.operator.is_view or not call.dtypes:
        return None  # reads no values
    taken = _taken(call.operator.name().removeprefix("aten::").partition(".")[0])
    unlisted = {*call.dtypes} - dtypes_on_cuda()["to"]
    if call.dtypes[0] not in taken or unlisted:
        return f"CUDA's kernel takes no {', '.join(sorted(unlisted)) or call.dtypes[0]}"
    return None


def _has_kernel(name: str) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CUDA", *COMPOSITE))


def _taken(name: str) -> set[str]:
    """Return the dtypes that the first argument may have."""
    listed, plain = dtypes_on_cuda(), name.strip("_")
    stem = plain.removesuffix("_data").removesuffix("_backward")
    names = (LISTED_AS.get(name, name), plain, f"backward {stem}" if stem != plain else plain, "to")
    return next(listed[one] for one in names if one in listed)
