"""Requests and answers of the Open Inference Protocol v2: JSON, and tensors as raw bytes behind the JSON.

A request has one tensor `image`, UINT8 [N, C, H, W]; an answer has `probabilities`, FP32 [N, K], and `classes`, INT64
[N], the likeliest class of each image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

INPUT = "image"
OUTPUTS = {"probabilities": ("FP32", "<f4"), "classes": ("INT64", "<i8")}


class TensorError(ValueError):
    """A request that the protocol or the model doesn't allow; the message says what was expected and what came."""


@dataclass(frozen=True)
class InferRequest:
    """`images` uint8 [N, C, H, W]; `outputs` maps a name to whether its tensor is wanted as raw bytes."""

    identity: str | None
    images: np.ndarray
    outputs: Mapping[str, bool]


def read_request(body: bytes, header_length: str | None, shape: tuple[int, int, int], max_images: int) -> InferRequest:
    """The request in `body`, whose first `header_length` bytes (all of them where None) are JSON.

    Raises:
        TensorError: the protocol or the model doesn't allow the request.
    """
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or int(header_length[:12]) > len(body):
            raise TensorError(f"Inference-Header-Content-Length is {header_length[:40]!r} of {len(body)} bytes")
        length = int(header_length)
    request = _object(_json(body[:length]), "the request")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise TensorError(f"expected one input, {INPUT!r}")
    images = _image(_object(inputs[0], "an input"), body[length:], shape, max_images)
    identity = request.get("id")
    if "id" in request and not isinstance(identity, str):
        raise TensorError("id is a string")
    return InferRequest(identity, images, _wanted(request))


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise TensorError("the request is not JSON; raw tensors need Inference-Header-Content-Length") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TensorError(f"{what} is not a JSON object")
    return value


def _image(tensor: dict[str, Any], raw: bytes, shape: tuple[int, int, int], max_images: int) -> np.ndarray:
    wanted = f"{INPUT!r}, UINT8 [N, {', '.join(str(size) for size in shape)}]"
    found = tensor.get("shape")
    if tensor.get("name") != INPUT or tensor.get("datatype") != "UINT8":
        raise TensorError(
            f"expected {wanted}; got {str(tensor.get('name'))[:40]!r}, {str(tensor.get('datatype'))[:40]}"
        )
    if not isinstance(found, list) or len(found) != 4 or tuple(found[1:]) != shape or not _is_count(found[0]):
        raise TensorError(f"expected {wanted}; got shape {str(found)[:80]}")
    if found[0] > max_images:
        raise TensorError(f"{found[0]} images; one request takes at most {max_images}")
    size = found[0] * shape[0] * shape[1] * shape[2]
    binary = _object(tensor.get("parameters", {}), "parameters").get("binary_data_size")
    if binary is not None:
        if binary != size or len(raw) != size or "data" in tensor:
            raise TensorError(f"binary_data_size is {str(binary)[:40]} with {len(raw)} raw bytes; {found} has {size}")
        values = np.frombuffer(raw, dtype=np.uint8)
    elif raw:
        raise TensorError("raw bytes came, but no input has a binary_data_size")
    else:
        values = _integers(tensor.get("data"), size)
    return values.reshape(found)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _integers(data: Any, size: int) -> np.ndarray:
    try:
        values = np.asarray(data).reshape(-1)
    except (ValueError, OverflowError):
        raise TensorError("data is ragged") from None
    if len(values) != size or values.dtype.kind not in "iu" or values.min() < 0 or values.max() > 255:
        raise TensorError(f"data needs {size} whole numbers from 0 to 255")
    return values.astype(np.uint8)


def _wanted(request: Mapping[str, Any]) -> dict[str, bool]:
    by_default = _object(request.get("parameters", {}), "parameters").get("binary_data_output") is True
    outputs = request.get("outputs", [])
    if not isinstance(outputs, list):
        raise TensorError("outputs is a list")
    if not outputs:
        return dict.fromkeys(OUTPUTS, by_default)
    wanted = {}
    for item in outputs:
        output = _object(item, "an output")
        name = output.get("name")
        if name not in OUTPUTS:
            raise TensorError(f"no output {str(name)[:40]!r}; known: {', '.join(OUTPUTS)}")
        parameters = _object(output.get("parameters", {}), "parameters")
        wanted[name] = parameters.get("binary_data", by_default) is True
    return wanted


def write_answer(probabilities: np.ndarray, request: InferRequest, head: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON if raw tensors follow it.  `head`: the fields of the answer beside them."""
    arrays = {"probabilities": probabilities, "classes": probabilities.argmax(axis=1)}
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, is_binary in request.outputs.items():
        datatype, kind = OUTPUTS[name]
        array = np.ascontiguousarray(arrays[name], dtype=kind)
        described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if is_binary:
            raw.append(array.tobytes())
            outputs.append(described | {"parameters": {"binary_data_size": len(raw[-1])}})
        else:
            outputs.append(described | {"data": array.reshape(-1).tolist()})
    identity: Mapping[str, Any] = {} if request.identity is None else {"id": request.identity}
    text = json.dumps({**head, **identity, "outputs": outputs}).encode()
    return b"".join([text, *raw]), len(text) if raw else None


def describe_tensors(shape: Sequence[int], classes: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Inputs and outputs of a model, as its metadata lists them; −1 stands for the number of images."""
    inputs = [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *shape]}]
    shapes = {"probabilities": [-1, classes], "classes": [-1]}
    return inputs, [
        {"name": name, "datatype": datatype, "shape": shapes[name]} for name, (datatype, _) in OUTPUTS.items()
    ]
