"""Labelled pictures in shards: Arrow and Parquet files of Hugging Face's `datasets`, and WebDataset's tar files.

pyarrow reads both layouts of Hugging Face: what `save_to_disk` writes and what the hub serves; the features are in the
schema.  The package `datasets` would copy everything into a cache, and the package `webdataset` reads tar files without
limits, so neither is needed.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stages.datasets.archive import ALWAYS_ALLOWED_BYTES, MAX_RATIO, PICTURES, walk
from stages.datasets.packed import Split
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource
from stages.params.schema import nearest


class Picture(NamedTuple):
    """A picture that isn't read yet.

    `label`: the number of its class, 0 if classes have only names, and the name.  `split`: the one of `SPLITS` that its
    file names, or nothing.
    """

    name: str
    label: tuple[int, str]
    split: str


Pictures = Iterator[tuple[Picture, Callable[[], bytes]]]
"""Pictures, each with what reads its content."""


SPLITS = ("train", "test", "val", "valid", "validation")
SPLIT_OF = {name: name for name in SPLITS} | {"training": "train", "testing": "test"}
_SPLIT = re.compile(rf"(?<![a-z])(?:{'|'.join(SPLIT_OF)})(?![a-z])")
_ROWS = 32  # at a time, because a small Parquet file may unpack to long rows, and an Arrow file be one batch
_SAMPLE = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
_PARTS = (*PICTURES, ".cls", ".json")


def read_huggingface(folder: Path, files: Sequence[str], source: DatasetSource) -> Pictures:
    """Yield the rows of Arrow and Parquet files; `source.target` names the column of classes if it isn't obvious.

    Raises:
        DatasetError: a file can't be read or unpacks to too much, or lacks a column of pictures or of their classes.
    """
    assert not isinstance(source.target, tuple), "only tables and folders have several"
    first: list[str] | None = None
    for file in files:
        if not file.endswith((".arrow", ".parquet")) or PurePosixPath(file).name.startswith("cache-"):
            continue
        row = 0
        for images, labels, names in _batches(folder / file, source.target):
            first = names if first is None else first
            if names != first:
                raise DatasetError(f"{folder / file}: has the classes {names}; an earlier file has {first}")
            for image, label in zip(images, labels, strict=True):
                name = f"{file}, row {row:08d}"  # names are sorted
                yield Picture(name, _class(label, names, name), split_of(file)), partial(_content, image, name)
                row += 1


def _batches(path: Path, target: str | None) -> Iterator[tuple[list[Any], list[Any], list[str]]]:
    """Yield the pictures and classes of some rows at a time, and the names of all classes if the schema has them."""
    import pyarrow as pa  # a fifth of a second
    from pyarrow import ipc, parquet

    try:
        if path.suffix == ".parquet":
            file = parquet.ParquetFile(path)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            _check_size(path, sum(group.total_byte_size for group in groups))
            image, label, names = _columns(file.schema_arrow, target, path)
            batches = file.iter_batches(_ROWS, columns=[image, label])
        else:
            content = pa.memory_map(str(path))
            if not all(_is_plain(message) for message in ipc.MessageReader.open_stream(content)):
                raise DatasetError(f"{path}: is compressed, unlike what `save_to_disk` writes; save it as Parquet")
            content.seek(0)
            batches = ipc.open_stream(content)
            image, label, names = _columns(batches.schema, target, path)
        unpacked_bytes = 0
        for batch in batches:
            batch.validate(full=True)
            unpacked_bytes += batch.nbytes
            _check_size(path, unpacked_bytes)
            for start in range(0, batch.num_rows, _ROWS):
                rows = batch.slice(start, _ROWS)
                yield rows.column(image).to_pylist(), rows.column(label).to_pylist(), names
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        raise DatasetError(f"{path}: not a readable {path.suffix[1:]} file ({error})") from None


def _check_size(path: Path, unpacked_bytes: int) -> None:
    limit = ALWAYS_ALLOWED_BYTES + MAX_RATIO * path.stat().st_size
    if unpacked_bytes > limit:
        raise DatasetError(f"{path}: unpacks to more than {limit:,} bytes")


def _is_plain(message: Any) -> bool:
    """True if an Arrow message is a schema or an uncompressed batch: its header is in the layout of Message.fbs."""
    header = message.metadata.to_pybytes()

    def follow(table: int, slot: int) -> int:
        """Offset of the table in a slot of the table at an offset; 0 if there is none."""
        vtable = table - struct.unpack_from("<i", header, table)[0]
        (size,) = struct.unpack_from("<H", header, vtable)
        (offset,) = struct.unpack_from("<H", header, vtable + 4 + 2 * slot) if 4 + 2 * slot < size else (0,)
        return table + offset + struct.unpack_from("<I", header, table + offset)[0] if offset else 0

    batch = follow(struct.unpack_from("<I", header)[0], 2)
    return message.type == "schema" or (message.type == "record batch" and not follow(batch, 3))


def _columns(schema: Any, target: str | None, path: Path) -> tuple[str, str, list[str]]:
    """Names of the columns of pictures and of classes, and the names of the classes if the schema has them."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        kinds = {name: features[name].get("_type") if name in features else None for name in schema.names}
        pictures = [name for name in schema.names if kinds[name] in ("Image", None) and _has_bytes(schema.field(name))]
        classes = [name for name in schema.names if kinds[name] == "ClassLabel"]
        named = [name for name in ("label", "labels") if name in schema.names] or classes
        if target is None and len(named) > 1:
            raise DatasetError(
                f"{path}: {' and '.join(named)} may have the classes; declare one as `target` in params.yaml"
            )
        label = target or (named[0] if named else "label")
        names = [str(name) for name in features[label].get("names") or ()] if label in features else []
    except (ValueError, AttributeError, TypeError) as error:
        raise DatasetError(f"{path}: the features in its schema can't be read ({error})") from None
    if len(pictures) != 1 and "image" not in pictures:
        raise DatasetError(
            f"{path}: expected one column of pictures, or one called image; it has {', '.join(schema.names)}"
        )
    if label not in schema.names:
        hint = nearest(label, schema.names)
        raise DatasetError(
            f"{path}: has no column {label!r}{hint}; declare the classes' column as `target` in params.yaml"
        )
    return "image" if "image" in pictures else pictures[0], label, names


def _has_bytes(field: Any) -> bool:
    """True for a column of encoded pictures: bytes, or structs that have `bytes`."""
    kind = field.type
    if kind.num_fields and "bytes" in [kind.field(number).name for number in range(kind.num_fields)]:
        return _has_bytes(kind.field("bytes"))
    return str(kind) in ("binary", "large_binary")


def _content(cell: Any, where: str) -> bytes:
    """The bytes of a cell; it may have a path instead, which is never opened."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not content:
        raise DatasetError(f"{where}: has no bytes; embed the pictures with `datasets` before saving")
    return content


def read_webdataset(folder: Path, files: Sequence[str], source: DatasetSource) -> Pictures:
    """Yield the samples of tar files: `key.jpg` with `key.cls`, or with `key.json`, which has the class as `label`.

    `source.target` is another name for `label`.

    Raises:
        DatasetError: a file can't be read or is malicious, or a sample has no class.
    """
    assert not isinstance(source.target, tuple), "only tables and folders have several"
    for file in files:
        if not file.endswith((".tar", ".tgz", ".tar.gz")):
            continue
        samples = ((match, member) for member in walk(folder / file) if (match := _SAMPLE.fullmatch(member.name)))
        for key, sample in groupby(samples, lambda pair: pair[0][1]):
            parts = {kind: member.read() for match, member in sample if (kind := f".{match[2].lower()}") in _PARTS}
            if parts:
                name = f"{file}, {key}"
                label = _class(_label_in(parts, source.target, name), [], name)
                yield Picture(name, label, split_of(file)), partial(_picture_in, parts, name)


def _label_in(parts: Mapping[str, bytes], target: str | None, where: str) -> Any:
    try:
        if ".cls" in parts and target is None:
            text = parts[".cls"].decode().strip()
            return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text
        if ".json" in parts:
            return json.loads(parts[".json"]).get(target or "label")
    except (ValueError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{where}: its class can't be read ({error})") from None
    raise DatasetError(
        f"{where}: has {', '.join(parts)}; expected its class next to it in the archive, in .cls or .json"
    )


def _picture_in(parts: Mapping[str, bytes], where: str) -> bytes:
    pictures = [content for kind, content in parts.items() if kind in PICTURES]
    if len(pictures) != 1:
        raise DatasetError(f"{where}: has {len(pictures)} pictures; expected one")
    return pictures[0]


def _class(label: Any, names: Sequence[str], where: str) -> tuple[int, str]:
    """Number and name of a class that is given as either."""
    if type(label) is int and 0 <= label < (len(names) or label + 1):
        return label, names[label] if names else str(label)
    if isinstance(label, str) and label:
        return 0, label
    raise DatasetError(
        f"{where}: its class is {label!r}; expected a name, or a number from 0; leave out unlabelled files"
    )


def split_of(file: str) -> str:
    """Return the split that the file's name or, failing that, its folder's has as a word, as in train-000.tar.

    Raises:
        DatasetError: a name has the words of two splits.
    """
    for part in reversed(PurePosixPath(file.lower()).parts[-2:]):
        found = sorted({SPLIT_OF[word] for word in _SPLIT.findall(part)})
        if len(found) > 1:
            raise DatasetError(f"{file}: its name has {' and '.join(found)}; rename it after one split")
        if found:
            return found[0]
    return ""


def choose_splits(splits: Mapping[str, str], what: str, sizes: Mapping[str, int]) -> tuple[dict[Split, list[str]], str]:
    """Return the names of each split, nothing unless both occur; and a note on those that are in neither.

    `splits`: of each name, the one of `SPLITS` that it belongs to.  The test set is `test`, or else `val`; with both,
    `val` is left out.  `sizes`: how much is in each name, for the note, in `what`.

    Raises:
        DatasetError: both splits occur, and a name is in none.
    """
    train, *tests = SPLITS
    used = [one for one in tests if one in splits.values()]
    if not used or train not in splits.values():
        return {}, ""
    if lost := [name for name, one in splits.items() if not one]:
        raise DatasetError(
            f"{len(lost)} {what} are in no split, for example {lost[0]}; name it, or its folder, after train or test"
        )
    test, *spare = used
    of: dict[str, list[str]] = {one: [name for name in splits if splits[name] == one] for one in (train, *used)}
    counts = {one: sum(sizes[name] for name in of[one]) for one in spare}
    notes = [f"{count:,} {what} of {one} left out, because {test} is the test set" for one, count in counts.items()]
    return {"train": of[train], "test": of[test]}, "; ".join(notes)


READERS: Mapping[str, Callable[[Path, Sequence[str], DatasetSource], Pictures]] = {
    "huggingface": read_huggingface,
    "webdataset": read_webdataset,
}
