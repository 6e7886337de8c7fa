"""Requests and answers of the Open Inference Protocol v2: JSON, and tensors as raw bytes after the JSON.

A request has one tensor `image`, UINT8 [N, C, H, W].  The tensors of an answer depend on what the model learned:

images        `probabilities`, FP32 [N, K], and `classes`, INT64 [N], the likeliest class of each image
multi-label   `probabilities`, FP32 [N, K], and `labels`, BOOL [N, K], those of at least 0.5
regression    `numbers`, FP32 [N, K]
segmentation  `mask`, UINT8 [N, H, W], the class of each pixel
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

INPUT = "image"
OUTPUTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "images": {"probabilities": ("FP32", "<f4"), "classes": ("INT64", "<i8")},
    "multi-label": {"probabilities": ("FP32", "<f4"), "labels": ("BOOL", "?")},
    "regression": {"numbers": ("FP32", "<f4")},
    "segmentation": {"mask": ("UINT8", "u1")},
}
MAX_OUTPUTS_BYTES = 64 * 1024  # of the part that is read, as JSON

_Level = Annotated[int, Meta(ge=0, le=255)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Id = Annotated[str, Meta(max_length=1024)]  # it is returned
_FLAT, _NESTED = list[_Level], list[list[list[list[_Level]]]]
_OPENS_TWICE = re.compile(rb"\s*\[\s*\[")
Value = TypeVar("Value")


class _TensorParameters(Struct):
    binary_data_size: int | UnsetType = UNSET
    shared_memory_region: Raw | UnsetType = UNSET


class _Tensor(Struct):
    name: str
    datatype: str
    shape: tuple[_Count, _Count, _Count, _Count]
    data: Raw | UnsetType = UNSET  # parsed once its maximal size is known
    parameters: _TensorParameters | UnsetType = UNSET


class _OutputParameters(Struct):
    binary_data: bool | UnsetType = UNSET
    classification: Raw | UnsetType = UNSET  # Triton's `class_count`
    shared_memory_region: Raw | UnsetType = UNSET


class _Output(Struct):
    name: str
    parameters: _OutputParameters | UnsetType = UNSET


class _RequestParameters(Struct):
    binary_data_output: bool | UnsetType = UNSET


class _Request(Struct):
    inputs: tuple[_Tensor]
    id: _Id | UnsetType = UNSET
    outputs: Raw | UnsetType = UNSET
    parameters: _RequestParameters | UnsetType = UNSET


class TensorError(ValueError):
    """A request that the protocol or the model doesn't allow; the message has the expected and the received value."""


@dataclass(frozen=True)
class InferRequest:
    """`images` are uint8 [N, C, H, W]; `outputs` of the `kind` are requested, as raw bytes if their value is true."""

    identity: str | None
    images: np.ndarray
    kind: str
    outputs: Mapping[str, bool]


def read_request(
    body: bytes, header_length: str | None, shape: tuple[int, int, int], max_images: int, kind: str = "images"
) -> InferRequest:
    """Parse the request in `body`, whose first `header_length` bytes (None: all) are JSON.

    The body and the maximal number of images limit the work: unneeded JSON is skipped, and numbers are parsed only if
    their count fits the shape.

    Raises:
        TensorError: the protocol or the model doesn't allow the request.
    """
    length = len(body)
    if header_length is not None:
        if not re.fullmatch(r"[0-9]{1,12}", header_length) or int(header_length) > len(body):
            raise TensorError(f"Inference-Header-Content-Length is {header_length[:40]!r} of {len(body)} bytes")
        length = int(header_length)
    request = _parsed(body[:length], _Request, "the request")
    images = _image(request.inputs[0], body[length:], shape, max_images)
    by_default = False if request.parameters is UNSET else request.parameters.binary_data_output is True
    identity = None if request.id is UNSET else request.id
    return InferRequest(identity, images, kind, _wanted(request.outputs, by_default, OUTPUTS[kind]))


def _parsed(text: bytes, kind: type[Value], what: str) -> Value:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise TensorError(f"{what}: {error}"[:300]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TensorError(f"{what} is not JSON; raw tensors need Inference-Header-Content-Length") from None


def _image(tensor: _Tensor, raw: bytes, shape: tuple[int, int, int], max_images: int) -> np.ndarray:
    wanted = f"{INPUT!r}, UINT8 [N, {', '.join(str(size) for size in shape)}]"
    if tensor.name != INPUT or tensor.datatype != "UINT8":
        raise TensorError(f"expected {wanted}; got {tensor.name[:40]!r}, {tensor.datatype[:40]}")
    if tensor.shape[1:] != shape:
        raise TensorError(f"expected {wanted}; got shape {list(tensor.shape)}")
    count = tensor.shape[0]
    if count > max_images:
        raise TensorError(f"{count} images; one request takes at most {max_images}")
    size = count * shape[0] * shape[1] * shape[2]
    parameters = _TensorParameters() if tensor.parameters is UNSET else tensor.parameters
    if parameters.shared_memory_region is not UNSET:
        raise TensorError("shared memory isn't supported; send the tensor as data, or as raw bytes after the JSON")
    binary = parameters.binary_data_size
    if binary is not UNSET:
        if binary != size or len(raw) != size or tensor.data is not UNSET:
            came = f"binary_data_size is {str(binary)[:40]} with {len(raw)} raw bytes"
            raise TensorError(f"{came}; {list(tensor.shape)} has {size}")
        values = np.frombuffer(raw, dtype=np.uint8)
    elif raw:
        raise TensorError("there are raw bytes, but no input has a binary_data_size")
    else:
        values = _levels(b"" if tensor.data is UNSET else bytes(tensor.data), tensor.shape)
    return values.reshape(tensor.shape)


def _levels(data: bytes, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return the numbers of a list, flat or nested like `shape`. Commas and brackets are counted before parsing."""
    images, channels, height, width = shape
    size, rows = images * channels * height * width, images * channels * height
    lists = 1 + images + images * channels + rows
    try:
        if data.count(b",") == size - 1 and not _OPENS_TWICE.match(data):
            values = bytes(msgspec.json.decode(data, type=_FLAT))
        elif data.count(b",") == size - 1 and data.count(b"[") == lists:
            nested = msgspec.json.decode(data, type=_NESTED)
            found = [row for image in nested for channel in image for row in channel]
            by_image = {(len(image), len(channel)) for image in nested for channel in image}
            is_regular = len(nested) == images and by_image == {(channels, height)} and len(found) == rows
            values = b"".join(bytes(row) for row in found if is_regular and len(row) == width)
        else:
            values = b""
    except msgspec.DecodeError:
        values = b""
    if len(values) != size:
        raise TensorError(
            f"data needs {size} whole numbers from 0 to 255, in one list or in lists as the shape {list(shape)} says"
        )
    return np.frombuffer(values, dtype=np.uint8)


def _wanted(given: Raw | UnsetType, by_default: bool, known: Collection[str]) -> dict[str, bool]:
    if given is UNSET:
        return dict.fromkeys(known, by_default)
    if len(text := bytes(given)) > MAX_OUTPUTS_BYTES:
        raise TensorError(f"outputs take {len(text)} bytes; at most {MAX_OUTPUTS_BYTES}")
    wanted = {}
    for output in _parsed(text, list[_Output], "outputs"):
        if output.name not in known:
            raise TensorError(f"no output {output.name[:40]!r}; known: {', '.join(known)}")
        parameters = _OutputParameters() if output.parameters is UNSET else output.parameters
        if parameters.classification is not UNSET or parameters.shared_memory_region is not UNSET:
            raise TensorError("class_count and shared memory aren't supported; /predict?top_k= names classes")
        binary = parameters.binary_data
        wanted[output.name] = by_default if binary is UNSET else binary
    return wanted or dict.fromkeys(known, by_default)


def write_answer(answer: np.ndarray, request: InferRequest, head: Mapping[str, Any]) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON if raw tensors follow. `head` has the answer's other fields.

    `answer` is what `Predictor.predict` returns.
    """
    read: dict[str, Callable[[], np.ndarray]] = {
        "classes": lambda: answer.argmax(axis=1),
        "labels": lambda: answer >= 0.5,
    }
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, is_binary in request.outputs.items():
        datatype, kind = OUTPUTS[request.kind][name]
        array = np.ascontiguousarray(read.get(name, lambda: answer)(), dtype=kind)
        described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if is_binary:
            raw.append(array.tobytes())
            outputs.append(described | {"parameters": {"binary_data_size": len(raw[-1])}})
        else:
            outputs.append(described | {"data": array.reshape(-1).tolist()})
    identity: Mapping[str, Any] = {} if request.identity is None else {"id": request.identity}
    text = msgspec.json.encode({**head, **identity, "outputs": outputs})
    return b"".join([text, *raw]), len(text) if raw else None


def describe_tensors(
    shape: Sequence[int], classes: int, kind: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return inputs and outputs of a model for its metadata; −1 is the number of images."""
    inputs = [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *shape]}]
    shapes = {"classes": [-1], "mask": [-1, *shape[1:]]}
    return inputs, [
        {"name": name, "datatype": datatype, "shape": shapes.get(name, [-1, classes])}
        for name, (datatype, _) in OUTPUTS[kind].items()
    ]
