"""Checks YAML files against schemas; every mistake is one `ParamsError` with file, path of keys, value and choices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from stages import papers_folder, yaml_reader
from stages.faults import Mistake
from stages.papers import model_paths
from stages.params.callables import ADDRESS, UnknownCallable, find_plugins, signature_of
from stages.run import IMPORTED_MODEL, STRICT

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_MOST_FILES = 100_000


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file under its official name, relative to the data set's folder, and its published digests, if there are any.

    `optional`: a mirror's part of the data set may lack it; the official host may not.  A name that ends with a slash
    is a folder, and one with a range in braces, as in `train-{000..009}.tar`, is that many files: the sha256 of either
    is that of a line `sha256  name` for each of its files, sorted by name (`fetch` prints it).
    """

    __pydantic_config__: ClassVar = STRICT
    name: str
    md5: str | None = None
    sha256: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        files = math.prod(max(int(last) - int(first) + 1, 0) for first, last in _RANGE.findall(self.name))
        if not 0 < files <= _MOST_FILES:
            raise ValueError(f"expected ranges of 1 to {_MOST_FILES:,} files, as in train-{{000..009}}.tar")
        if self.name.startswith("/") or ".." in self.name.split("/"):
            raise ValueError("expected a path below the data set's folder")

    @property
    def is_group(self) -> bool:
        return self.name.endswith("/") or _RANGE.search(self.name) is not None

    def covers(self, name: str) -> bool:
        """True for each file of the folder or the range, or the file itself."""
        return name.startswith(self.name) if self.name.endswith("/") else name in self.names

    @cached_property
    def names(self) -> frozenset[str]:
        """The files of a range, or the name itself."""
        return frozenset(_expand(self.name))


def _expand(name: str) -> Iterator[str]:
    if (found := _RANGE.search(name)) is None:
        yield name
        return
    first, last = found.groups()
    for number in range(int(first), int(last) + 1):
        yield from _expand(f"{name[: found.start()]}{number:0{len(first)}d}{name[found.end() :]}")


# (bound, whether it is itself allowed, what the number stays below)
Bounds = tuple[float, str, float]
_POSITIVE: Bounds = (0, "above", math.inf)
_NOT_NEGATIVE: Bounds = (0, "at least", math.inf)
_COUNT: Bounds = (1, "at least", math.inf)
_SHARE: Bounds = (0, "at least", 1)

PROTOCOL: Mapping[str, Bounds] = {
    "batch_size": _COUNT,
    "epochs": _COUNT,
    "train_images": _COUNT,
    "accumulate": (2, "at least", math.inf),
    "ema": (0, "above", 1),
    "steps_per_epoch": _COUNT,
    "std": _POSITIVE,
    "optimizer.lr": _POSITIVE,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.betas": _SHARE,
    "optimizer.momentum": _SHARE,
    "optimizer.damping": _POSITIVE,
    "optimizer.cg_iterations": _COUNT,
    "optimizer.cg_tolerance": _NOT_NEGATIVE,
    "optimizer.factor_decay": _SHARE,
    "optimizer.update_interval": _COUNT,
    "optimizer.kl_clip": _POSITIVE,
    "optimizer.rest_lr": _POSITIVE,
    "optimizer.clip_norm": _POSITIVE,
    "recipe.label_smoothing": _SHARE,
    "schedule.warmup_steps": _NOT_NEGATIVE,
    "schedule.floor": _NOT_NEGATIVE,
    "schedule.milestones": _SHARE,
    "schedule.factor": _POSITIVE,
    "augmentation.crop_padding": _NOT_NEGATIVE,
    "early_stop.from_epoch": _NOT_NEGATIVE,
    "early_stop.patience": _COUNT,
    "early_stop.min_delta": _NOT_NEGATIVE,
}


def out_of_range(protocol: Any) -> tuple[str, Any, str] | None:
    """Return (field, value, expectation) of the first number that doesn't allow training; None if all do."""
    for name, (least, relation, below) in PROTOCOL.items():
        value = reduce(lambda part, field: getattr(part, field, None), name.split("."), protocol)
        for number in value if isinstance(value, tuple) else (value,):
            is_low = number is not None and (number < least or (relation == "above" and number == least))
            if is_low or (number is not None and number >= below):
                upper = "" if math.isinf(below) else f" and below {below:g}"
                return name, value, f"expected {relation} {least:g}{upper}"
    return None


def check_task(source: Any, path: Path, key_path: str) -> None:
    """Check that a data set's fields fit its task.

    Raises:
        ParamsError: one doesn't.
    """
    task, is_segmentation = source.task, source.task == "segmentation"
    has_labels = source.reader == "folder" and task is not None and not is_segmentation
    is_table = source.kind == "table" and source.reader != "sgemm"
    has_pictures = source.reader in ("folder", "huggingface", "webdataset")
    is_own = is_table or has_pictures or source.reader == "npz"
    shape, is_image = source.shape, source.kind == "images"
    is_square = len(shape) == 3 and shape[0] in (1, 3) and shape[1] == shape[2]
    has_column = source.kind == "text" and source.reader in ("csv", "jsonl", "parquet", "huggingface")
    columns = source.target if isinstance(source.target, tuple) else ()
    wrong = [
        (task and (source.kind == "text" or not is_own), "task", "expected of own tables, or own images"),
        (task == "regression" and source.kind == "table", "task", "tables are regression without it; leave it out"),
        (is_segmentation and source.kind == "table", "task", "segmentation needs images"),
        (is_segmentation and not 2 <= source.classes <= 254, "classes", "expected 2 to 254"),
        (task and source.classes < 1, "classes", "expected the number of labels"),
        (source.task_class and not task, "task", "expected what the targets are: labels, numbers or masks"),
        (task and (source.train_per_class or source.test_per_class), "task", "leave out the numbers per class"),
        (has_labels and not source.labels, "labels", "expected the table with the labels of the pictures"),
        (source.labels and not has_labels, "labels", "only a folder of images with labels or numbers has one"),
        (has_column and not source.text, "text", "expected the column that has the text"),
        (source.text and not has_column, "text", "only a text in csv, jsonl, parquet or huggingface has one"),
        ({*source.ignore} & {source.target, *columns}, "ignore", "the target can't be left out"),
        (columns and (not task or is_segmentation), "target", "expected one column, or a task that has several"),
        (columns and len({*columns}) != source.classes, "target", f"expected {source.classes} columns, as `classes`"),
        (is_image and len(shape) != 3, "shape", "expected channels, height and width"),
        (is_image and has_pictures and not is_square, "shape", "expected 1 or 3 channels, and a side twice"),
        (is_table and len(shape) != 1, "shape", "expected the number of columns alone"),
        (min(shape, default=1) < 1, "shape", "expected numbers above 0"),
        *((getattr(source, split) < 1, split, "expected at least 1") for split in ("train", "test")),
    ]
    for is_wrong, field, expected in wrong:
        if is_wrong:
            raise ParamsError(f"{path}: {key_path}.{field} is {getattr(source, field)!r}; {expected}")


Schema = TypeVar("Schema")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


class ParamsError(Mistake, ValueError):
    """A params file has something that can't be run; the message names file, path, value and choices."""


def read_yaml(path: Path) -> Any:
    """Read the file's content, as `stages.yaml_reader` does.

    Raises:
        ParamsError: the file is missing, empty or can't be read, or has something to correct.
    """
    if not path.is_file():
        raise ParamsError(f"{path}: no such file; every experiment in params.yaml has its own file in params/")
    try:
        value = yaml_reader.read_yaml(path)
    except OSError as error:
        raise ParamsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ParamsError(str(error)) from None
    if value is None:
        raise ParamsError(f"{path}: the file is empty; fill it, or get a committed one by `git checkout {path}`")
    return value


def validate(schema: TypeAdapter[Schema], value: Any, path: Path, prefix: str = "") -> Schema:
    """Return `value` in the schema's type, or raise `ParamsError` for the first unknown key, else the first misfit."""
    try:
        return schema.validate_python(value, strict=None)
    except ValidationError as error:
        # A misspelt key is also missing under its right name; report the key that is there, which users can correct.
        first = min(error.errors(), key=lambda item: item["type"] not in _UNKNOWN_KEY)
        key_path = ".".join([prefix] * bool(prefix) + [str(part) for part in first["loc"]])
        if first["type"] in _UNKNOWN_KEY:
            known = _known_keys(schema, first["loc"][:-1])
            raise ParamsError(f"{path}: unknown key {key_path}{hint(str(first['loc'][-1]), known)}") from None
        if first["type"] in ("missing", "missing_keyword_only_argument"):
            raise ParamsError(f"{path}: {key_path} is missing") from None
        raise ParamsError(
            f"{path}: {key_path} is {first['input']!r}; {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None


def _known_keys(schema: TypeAdapter[Any], location: tuple[int | str, ...]) -> list[str]:
    """Keys that the schema knows at `location`, from its JSON schema."""
    document = schema.json_schema()
    node = document
    for part in (*location, None):
        while "$ref" in node or "anyOf" in node:
            node = node["anyOf"][0] if "anyOf" in node else document["$defs"][node["$ref"].split("/")[-1]]
        if part is None:
            break
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return sorted(node.get("properties", {}))


def hint(name: str, known: list[str]) -> str:
    """Return the end of a message about `name`: the closest known word and all of them."""
    if not known:
        return ""
    close = get_close_matches(name, known, n=1)
    return (f" (did you mean {close[0]}?)" if close else "") + f"; known: {', '.join(known)}"


def check_choice(name: str, known: Any, path: Path, key_path: str) -> None:
    if name not in known:
        raise ParamsError(f"{path}: {key_path} is {name!r}{hint(name, sorted(known))}")


_MANY = 30
"""Known names that a message has room for."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a line about `name`: the closest known name or, if none is close, the known ones."""
    known = list(known)
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]}?"
    more = f" and {len(known) - _MANY} more" if len(known) > _MANY else ""
    return f"; known: {', '.join(known[:_MANY])}{more}" if known else ""


def known_papers() -> list[str]:
    """Packages in the folder of papers but `imported`: the listing is the registry."""
    return sorted({path.parent.name for path in papers_folder().glob("*/__init__.py")} - {"imported"})


FROM_DATASET = ("image_size", "in_channels", "num_classes", "in_features", "context")
# The same in other packages, and what an optimiser gets from the network and its spec.
WEIGHTS = ("pretrained", "weights", "weights_backbone", "checkpoint_path", "pretrained_cfg")
GIVEN_NAMES = {*FROM_DATASET, "img_size", "in_chans", "num_channels", "num_labels", "params", "lr"}


def classes_of(paper: str) -> dict[str, str]:
    """Return the modules of a paper's models by name: classes that its package imports and lists in `__all__`."""
    modules = (known.split(":") for known in model_paths() if known.startswith(f"stages.papers.{paper}."))
    return {name: module for module, name in modules}


def model_path(paper: str, model: Mapping[str, Any], path: Path, key_path: str) -> str:
    """Return `module:Class` of an arm's model, its keywords checked against the constructor in the source.

    A name with a colon is of another package or file.
    """
    classes = classes_of(paper)
    if "name" not in model:
        known = ", ".join([*sorted(classes), "package.module:name"])
        raise ParamsError(f"{path}: {key_path}.name is missing; known: {known}")
    arguments = {key: value for key, value in model.items() if key != "name"}
    if ":" in str(model["name"]):
        check_keywords(model["name"], arguments, path, key_path)
        if loaded := [key for key in WEIGHTS if arguments.get(key)]:
            raise ParamsError(f"{path}: {key_path}.{loaded[0]} loads weights, which no run key covers; leave it out")
        return IMPORTED_MODEL
    check_choice(model["name"], classes, path, f"{key_path}.name")
    address = f"{classes[model['name']]}:{model['name']}"
    check_keywords(address, arguments, path, key_path, given=FROM_DATASET)
    return address


def address_of(kind: str, name: str, known: Iterable[str], path: Path, key_path: str) -> str:
    """Return `package.module:name` of a plugin's name; such an address stays.  `known`: names that are built in.

    Raises:
        ParamsError: there is no such plugin, it is malformed, or several distributions offer one of this name.
    """
    if ":" in name:
        if not ADDRESS.fullmatch(name):
            raise ParamsError(f"{path}: {key_path} is {name!r}; expected package.module:name")
        return name
    plugins = find_plugins(kind)
    found = [plugin for plugin in plugins if plugin.name == name]
    if not found:
        choices = [*sorted({*known, *(plugin.name for plugin in plugins)}), "package.module:name"]
        raise ParamsError(f"{path}: {key_path} is {name!r}{hint(name, choices)}")
    if len(found) > 1:
        offers = " and ".join(map(str, found))
        raise ParamsError(f"{path}: {key_path} is {name!r}, which {offers} offer; write the address of one")
    if found[0].fault:
        raise ParamsError(f"{path}: {key_path} is {name!r}, which is malformed in {found[0]}; write its address here")
    return found[0].address


_TYPES: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool, "str": str}


def check_keywords(
    address: str, arguments: Mapping[str, Any], path: Path, key_path: str, *, given: Sequence[str] | None = None
) -> None:
    """Check the keywords of a callable against its source; `given`: those that a file can't set.

    Raises:
        ParamsError: it can't be found, or a keyword is unknown, of another type, or missing.
    """
    try:
        signature = signature_of(address)
    except UnknownCallable as error:
        raise ParamsError(
            f"{path}: {key_path}.name is {address!r}: {error}{nearest(address.partition(':')[2], error.known)}"
        ) from None
    wanted = {key: kind for key, kind in signature.keywords.items() if key not in (given or ())}
    for key, value in arguments.items():
        if key in wanted:
            kind = wanted[key].kind
            is_of_kind = isinstance(value, _TYPES.get(kind, object)) and (kind == "bool" or not isinstance(value, bool))
            if kind in _TYPES and not is_of_kind:
                raise ParamsError(f"{path}: {key_path}.{key} is {value!r}; expected {kind}")
        elif not signature.is_open:
            raise ParamsError(f"{path}: unknown key {key_path}.{key}{hint(key, sorted(wanted))}")
    for key, parameter in wanted.items():
        if parameter.required and key not in arguments and (given is not None or key not in GIVEN_NAMES):
            name = address.partition(":")[2]
            raise ParamsError(f"{path}: {key_path}.{key} is missing; {name} takes {', '.join(wanted)}")
