"""Labelled pictures in shards: Arrow and Parquet files of Hugging Face's `datasets`, and WebDataset's tar files.

pyarrow reads both layouts of Hugging Face: what `save_to_disk` writes and what the hub serves; the features are in the
schema.  The package `datasets` would copy everything into a cache, and the package `webdataset` reads tar files without
limits, so neither is needed.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stages.datasets.archive import ALWAYS_ALLOWED_BYTES, MAX_RATIO, PICTURES, walk
from stages.datasets.manifest import DatasetError
from stages.datasets.packed import Split
from stages.params.experiment import DatasetSource
from stages.params.schema import nearest


class Picture(NamedTuple):
    """A picture that isn't read yet.

    `label`: the number of its class, 0 if classes have only names, and the name.  `split`: the one that its file's path
    names, as `split_of` returns it.  `value`: its labels or numbers, if a task has them.  `is_mask`: it has classes of
    pixels.
    """

    name: str
    label: tuple[int, str]
    split: str
    value: Any = None
    is_mask: bool = False


Pictures = Iterator[tuple[Picture, Callable[[], bytes]]]
"""Pictures, each with what reads its content."""


SPLITS = ("train", "test", "holdout", "val", "valid", "validation", "dev")
"""Names of splits: of training rows, then of test rows, the first of which wins."""
_SPLIT_OF = {name: name for name in SPLITS} | {"training": "train", "testing": "test"}
_SPLIT_OF |= {"trainset": "train", "testset": "test"}
_SPLIT = re.compile(rf"(?<![a-z])(?:{'|'.join(_SPLIT_OF)})(?![a-z])")
_ROWS = 32  # at a time, because a small Parquet file may unpack to long rows, and an Arrow file be one batch
_SAMPLE = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
_PARTS, _MASKS = (*PICTURES, ".cls", ".json"), (".seg.png", ".mask.png")
_TARGETS = {None: "the class", "multi-label": "the labels", "regression": "the numbers", "segmentation": "the mask"}
"""Names of what a task learns from each picture."""
_NAMED = ("label", "labels")
_NAMED_MASKS = ("mask", "masks", *_NAMED)


def read_huggingface(folder: Path, files: Sequence[str], source: DatasetSource) -> Pictures:
    """Yield the rows of Arrow and Parquet files; `source.target` names what is learned if it isn't obvious.

    Without it, a column called label or labels has the classes, or the only one that the features describe so.  For a
    task it has lists of labels, numbers or lists of them, or masks, which may also be called mask.

    Raises:
        DatasetError: a file can't be read or unpacks to too much, or lacks a column of pictures or of their targets.
    """
    first: list[str] | None = None
    names: list[str] = []

    def choose(schema: Any, path: Path) -> list[str]:
        columns, names[:] = _columns(schema, source, path)
        return columns

    for file in files:
        if not is_table(file):
            continue
        row = 0
        for columns in read_columns(folder / file, choose):
            first = [*names] if first is None else first
            if names != first:
                raise DatasetError(f"{folder / file}: has the classes {names}; an earlier file has {first}")
            for image, *cells in zip(*columns, strict=True):
                name = f"{file}, row {row:08d}"  # names are sorted
                cell = cells[0] if isinstance(source.target, str | None) else cells
                yield _picture(name, cell, names, split_of(file), source), partial(_content, image, name)
                if source.task == "segmentation":
                    yield _mask_of(name, split_of(file)), partial(_content, cell, f"{name}, mask")
                row += 1


def refuse_duplicates(columns: Iterable[Any], path: Path) -> None:
    """Check that the columns of a table have different names.

    Raises:
        DatasetError: two have the same one.
    """
    if twice := [name for name, count in Counter(map(str, columns)).items() if count > 1]:
        raise DatasetError(f"{path}: has several columns called {twice[0]!r}; rename them, or leave all but one out")


def is_table(file: str) -> bool:
    """Return True for a file of rows: `map` of the package `datasets` leaves others, in its cache."""
    return file.endswith((".arrow", ".parquet")) and not PurePosixPath(file).name.startswith("cache-")


def _picture(name: str, cell: Any, names: Sequence[str], split: str, source: DatasetSource) -> Picture:
    """The picture with its class, or with what the task learns, from its cell or cells."""
    if source.task is None:
        return Picture(name, _class(cell, names, name), split)
    if source.task == "segmentation":
        return Picture(name, (0, ""), split)
    if source.task == "multi-label" and not isinstance(source.target, tuple):
        if not isinstance(cell, list):
            raise DatasetError(f"{name}: its labels are {cell!r}; expected a list of names, or of numbers from 0")
        return Picture(name, (0, ""), split, [_class(label, names, name) for label in cell])
    return Picture(name, (0, ""), split, cell if isinstance(cell, list) else [cell])


def _mask_of(name: str, split: str) -> Picture:
    return Picture(f"{name}, mask", (0, ""), split, is_mask=True)


def read_columns(path: Path, choose: Callable[[Any, Path], list[str]]) -> Iterator[list[list[Any]]]:
    """Yield the columns that `choose` picks from the schema of an Arrow or Parquet file, some rows at a time.

    Raises:
        DatasetError: the file can't be read, or unpacks to too much.
    """
    import pyarrow as pa  # takes a fifth of a second
    from pyarrow import ipc, parquet

    try:
        if path.suffix != ".arrow":
            file = parquet.ParquetFile(path)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            _check_size(path, sum(group.total_byte_size for group in groups))
            refuse_duplicates(file.schema_arrow.names, path)
            columns = choose(file.schema_arrow, path)
            batches = file.iter_batches(_ROWS, columns=columns)
        else:
            content = pa.memory_map(str(path))
            if not all(_is_plain(message) for message in ipc.MessageReader.open_stream(content)):
                raise DatasetError(f"{path}: is compressed, unlike what `save_to_disk` writes; save it as Parquet")
            content.seek(0)
            batches = ipc.open_stream(content)
            refuse_duplicates(batches.schema.names, path)
            columns = choose(batches.schema, path)
        unpacked_bytes = 0
        for batch in batches:
            batch.validate(full=True)
            unpacked_bytes += batch.nbytes
            _check_size(path, unpacked_bytes)
            for start in range(0, batch.num_rows, _ROWS):
                rows = batch.slice(start, _ROWS)
                yield [rows.column(name).to_pylist() for name in columns]
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001  (a damaged file raises more than pyarrow's own errors)
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


def _columns(schema: Any, source: DatasetSource, path: Path) -> tuple[list[str], list[str]]:
    """Names of the column of pictures and of those of their targets; names of the classes if the schema has them."""
    what, targets = _TARGETS[source.task], [source.target] if isinstance(source.target, str) else source.target
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        # a list of one feature is the former form of a feature of lists
        features = {name: {"feature": one[0]} if isinstance(one, list) else one for name, one in features.items()}
        kinds = {name: features[name].get("_type") if name in features else None for name in schema.names}
        pictures = [name for name in schema.names if kinds[name] in ("Image", None) and _has_bytes(schema.field(name))]
        types = {name: str(schema.field(name).type) for name in schema.names}
        floats = [name for name in schema.names if re.search("float|double", types[name])]
        lists = [name for name in schema.names if "list<" in types[name] and name not in floats]
        described = [name for name in lists if "names" in features.get(name, {}).get("feature", ())]
        suitable = {
            None: [name for name in schema.names if kinds[name] == "ClassLabel"],
            "multi-label": described or lists,
            "regression": [name for name in floats if "list<" not in types[name]] or floats,
            "segmentation": [name for name in pictures if name != "image"],
        }[source.task]
        known = suitable if source.task == "segmentation" else schema.names
        usual = _NAMED_MASKS if source.task == "segmentation" else _NAMED
        named = [name for name in usual if name in known] or suitable
        targets = targets or named or usual[:1]
        one = features.get(targets[0], {}) if len(targets) == 1 else {}
        names = [str(name) for name in one.get("feature", one).get("names") or ()]
    except (ValueError, AttributeError, TypeError) as error:
        raise DatasetError(f"{path}: the features in its schema can't be read ({error})") from None
    if source.target is None and len(targets) > 1:
        raise DatasetError(f"{path}: {' and '.join(targets)} may have {what}; declare one as `target` in params.yaml")
    pictures = [name for name in pictures if name not in targets]
    if len(pictures) != 1 and "image" not in pictures:
        raise DatasetError(
            f"{path}: expected one column of pictures, or one called image; it has {', '.join(schema.names)}"
        )
    for target in targets:
        if target not in schema.names:
            hint = nearest(target, schema.names)
            raise DatasetError(
                f"{path}: has no column {target!r}{hint}; declare the column of {what} as `target` in params.yaml"
            )
    return ["image" if "image" in pictures else pictures[0], *targets], names


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

    `source.target` is another name for `label`.  For a task `key.json` has a list of labels, or numbers; masks are in
    `key.seg.png` or `key.mask.png`.

    Raises:
        DatasetError: a file can't be read or is malicious, or a sample has no class.
    """
    wanted = (*PICTURES, *_MASKS) if source.task == "segmentation" else _PARTS
    for file in files:
        if not file.endswith((".tar", ".tgz", ".tar.gz")):
            continue
        samples = ((match, member) for member in walk(folder / file) if (match := _SAMPLE.fullmatch(member.name)))
        for key, sample in groupby(samples, lambda pair: pair[0][1]):
            parts = {kind: member.read() for match, member in sample if (kind := f".{match[2].lower()}") in wanted}
            if parts:
                name = f"{file}, {key}"
                cell = _label_in(parts, source, name)
                yield _picture(name, cell, [], split_of(file), source), partial(_picture_in, parts, name)
                if source.task == "segmentation":
                    yield _mask_of(name, split_of(file)), partial(bytes, cell)


def _label_in(parts: Mapping[str, bytes], source: DatasetSource, where: str) -> Any:
    """The class, labels, numbers or mask of a sample."""
    target, endings, found = source.target, ".cls or .json", list[str]()
    if source.task is not None:
        endings = " or ".join(_MASKS) if source.task == "segmentation" else ".json"
    try:
        if source.task == "segmentation" and (found := [kind for kind in _MASKS if kind in parts]):
            cell: Any = parts[found[0]]
        elif ".cls" in parts and target is None and source.task is None:
            text = parts[".cls"].decode().strip()
            cell = int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text
        elif ".json" in parts:
            fields = dict(json.loads(parts[".json"]).items())
            found = [name for name in _NAMED if name in fields] if target is None else []
            names = target or (found or [*_NAMED])[0]
            cell = fields.get(names) if isinstance(names, str) else [fields.get(name) for name in names]
        else:
            needed = f"{_TARGETS[source.task]} next to it in the archive, in {endings}"
            raise DatasetError(f"{where}: has {', '.join(parts)}; expected {needed}")
    except (ValueError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{where}: its class can't be read ({error})") from None
    if len(found) > 1:
        raise DatasetError(f"{where}: {' and '.join(found)} may have {_TARGETS[source.task]}; leave out one")
    return cell


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


def split_of(path: str) -> str:
    """Return the split that the innermost name of a path has as a word, as in train-000.tar; empty if none has one.

    If one name has the words of several splits, as train_and_test.zip, these are "test and train", which isn't a split.
    """
    for part in reversed(PurePosixPath(path).parts):
        words = _SPLIT.findall(re.sub("(?<=[a-z])(?=[A-Z])", "_", part).lower())
        if found := {_SPLIT_OF[word] for word in words}:
            return " and ".join(sorted(found))
    return ""


def choose_splits(splits: Mapping[str, str], what: str, sizes: Mapping[str, int]) -> tuple[dict[Split, list[str]], str]:
    """Return the names of each split, nothing if all names are alike; and a note on those that are left out.

    `splits`: what `split_of` returns for each name.  The test set is the first of `SPLITS` after `train` that occurs;
    the others are left out.  `sizes`: how much is in each name, for the note, in `what`.

    Raises:
        DatasetError: names differ, but not all of them have a split, or only training or only test sets occur.
    """
    of: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name, split in splits.items():
        of.setdefault(split, []).append(name)
    of = {split: names for split, names in of.items() if names}
    if len(of) < 2:
        return {}, ""
    train, *tests = SPLITS
    counts = {split: sum(sizes[name] for name in names) for split, names in of.items()}
    used = [split for split in tests if split in of]
    if not used or {*of} != {train, *used}:
        found = [f"{split or 'none'} ({counts[split]:,} {what}, as {names[0]})" for split, names in of.items()]
        raise DatasetError(
            f"splits in the names: {', '.join(found)}; expected train in some and test or val in all others; "
            "rename files or folders after one split, or leave them out"
        )
    test, *spare = used
    notes = [f"{counts[one]:,} {what} of {one} left out, because {test} is the test set" for one in spare]
    return {"train": of[train], "test": of[test]}, "; ".join(notes)


READERS: Mapping[str, Callable[[Path, Sequence[str], DatasetSource], Pictures]] = {
    "huggingface": read_huggingface,
    "webdataset": read_webdataset,
}
