"""A user's own tables, declared in parameters alone: read, checked, and packed with standardised columns.

Also the arrays of an npz file: rows or images, and their targets, of both splits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stages.datasets.labels import GREATEST, check_rounding, encode_masks, encode_targets
from stages.datasets.manifest import (
    DatasetError,
    Manifest,
    check_classes,
    check_response,
    check_shared,
    find_reader,
    find_shared,
)
from stages.datasets.packed import ImageSet, PackedInfo, Split, TableSet
from stages.datasets.prepare_table import STAND_IN_ROWS, pack_table, split_rows
from stages.datasets.shards import SPLITS, choose_splits, refuse_duplicates, split_of
from stages.params.experiment import DatasetSource
from stages.params.schema import nearest
from stages.texts import UnreadableText, decode, encoding_of, plain

_ROWS, _TARGETS = "x|images?|data|features", "y|labels?|targets?|masks?"
Arrays = dict[Split, tuple[np.ndarray, np.ndarray]]


def read_arrays(folder: Path, names: tuple[str, ...]) -> tuple[Arrays, str]:
    """Return rows and targets of each split, from arrays called like `x_train` and `y_train`, or `train_images`.

    Also a note on arrays of a validation split, which are left out.

    Raises:
        DatasetError: the file is damaged, or lacks an array; or one isn't of numbers, or differs in length from its
            targets.
    """
    (name, *more), found = names, Arrays()
    if more:
        raise DatasetError(f"{folder}: {len(names)} files; the arrays of a data set are in one npz")
    path = folder / name
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DatasetError(f"{path}: is one array, as numpy.save writes; save the arrays with numpy.savez")
        with content as file:
            for split in ("train", "test"):
                (x, rows), (y, targets) = (_find(file, kind, split, path) for kind in (_ROWS, _TARGETS))
                if len(rows) != len(targets):
                    raise DatasetError(f"{path}: {x} has {len(rows):,} rows and {y} {len(targets):,}")
                found[split] = rows, targets
            spare = [
                key for key in file.files if _pattern(f"{_ROWS}|{_TARGETS}", "val(?:id(?:ation)?)?").fullmatch(key)
            ]
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001  (numpy and zipfile read damaged headers without a check)
        raise DatasetError(
            f"{path}: not an npz file of plain arrays ({error}); write it with `numpy.savez`, without objects"
        ) from None
    return found, f"arrays left out: {', '.join(spare)}" if spare else ""


def _find(file: Any, kind: str, split: str, path: Path) -> tuple[str, np.ndarray]:
    """Name and content of the one array of a kind and a split."""
    one = f"{kind[0]}_{split}"
    keys = [key for key in file.files if _pattern(kind, split).fullmatch(key)]
    if len(keys) != 1:
        has = " and ".join(keys) or f"no array like {one}; it has {', '.join(file.files)}"
        raise DatasetError(f"{path}: has {has}; expected one array, called like {one}")
    array = file[keys[0]]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or not array.ndim:
        has = f"{array.dtype} {[*array.shape]}" if isinstance(array, np.ndarray) else "no array"
        raise DatasetError(f"{path}: {keys[0]} is {has}; expected an array of numbers; classes are numbers from 0")
    return keys[0], array


def _pattern(kind: str, split: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{split})_(?:{kind})|(?:{kind})_(?:{split})")


def read_image_arrays(folder: Path, names: tuple[str, ...], source: DatasetSource) -> tuple[dict[Split, ImageSet], str]:
    """Return images and labels of each split, and a note on arrays that are left out.

    Raises:
        DatasetError: as `read_arrays`; or images aren't uint8, or labels aren't as the task needs them.
    """
    found, note = read_arrays(folder, names)
    splits: dict[Split, ImageSet] = {}
    for split, (images, labels) in found.items():
        where = f"{folder / names[0]}, {split}"
        if images.dtype != np.uint8:
            raise DatasetError(f"{where}: images are {images.dtype}; expected uint8")
        if images.ndim == 3:
            images = images[:, None]
        elif images.shape[1:] != source.shape and images.shape[1:] == (*source.shape[1:], source.shape[0]):
            images = images.transpose(0, 3, 1, 2)
        if source.task == "segmentation":
            labels = encode_masks(labels, source, where)
        elif source.task is not None:
            labels = encode_targets(labels, source, (), where)
        else:
            labels = one_of_each_row(labels, where)
            for row in np.flatnonzero((labels != np.rint(labels)) | ~(abs(labels) < 1 << 31))[:1]:
                raise DatasetError(
                    f"{where}: the class of row {row} is {labels[row]}; expected a whole number from 0, or declare "
                    "`task: regression`"
                )
            labels = labels.astype(np.int64)
        splits[split] = ImageSet(images, labels)
    return splits, note


def one_of_each_row(targets: np.ndarray, where: str) -> np.ndarray:
    """Return targets [N] or [N, 1] as [N].

    Raises:
        DatasetError: they have another shape.
    """
    if targets.size != len(targets):
        raise DatasetError(
            f"{where}: targets are {[*targets.shape]}; expected one number for each row, or declare a `task`"
        )
    return targets.reshape(-1)


_MOST_CATEGORIES = 50
_DRAWN = "test rows drawn once for all"
_KINDS = {
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "numbers"),
    **dict.fromkeys(("string", "categorical", "mixed-integer", "date", "datetime", "datetime64"), "text"),
    **dict.fromkeys(("time", "timedelta", "timedelta64"), "text"),
    "boolean": "truth values",
    "empty": "",
}
"""Kind of a column's content, by pandas' name for its cells."""
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NUMBER = re.compile(rf"{_PLAIN.pattern}|[-+]?\d+,\d+(?:[eE][-+]?\d+)?|[-+]?\d{{1,3}}(?:[,.' ]\d{{3}})+(?:[.,]\d+)?")


def decode_file(content: bytes, path: Path) -> str:
    """Decode a file's content as `stages.texts.decode` does.

    Raises:
        DatasetError: it is in another encoding than UTF-8 or UTF-16 with a byte-order mark.
    """
    try:
        return decode(content, path)
    except UnreadableText as error:
        raise DatasetError(str(error)) from None


def _read_raw(path: Path, size: int = -1) -> bytes:
    """Read the first bytes of a file, or all, unpacked if its name ends as that of a compressed one."""
    import fsspec  # takes a third of a second

    with fsspec.open(str(path), "rb", compression="infer") as file:
        content: bytes = file.read(size)
        return content


def read_csv(path: Path, separator: str | None, **options: Any) -> Any:
    """Read a CSV file by pandas, with the `options` of its `read_csv`.

    Raises:
        DatasetError: two columns have the same name, a row has more fields than the header, or it isn't text.
    """
    import pandas as pd  # takes half a second

    engine: Any = "python" if separator and len(separator) > 1 and separator != r"\s+" else "c"
    layout: dict[str, Any] = {"sep": separator or ",", "engine": engine}
    try:
        start = _read_raw(path, 4096)
        layout["encoding"] = encoding_of(start)
        if layout["encoding"] != "utf-16" and b"\0" in start:
            decode_file(start, path)
        # pandas takes surplus fields of the first row for row names, and renames columns that are called the same.
        header = pd.read_csv(path, header=None, nrows=2, dtype=str, keep_default_na=False, **layout).iloc[0]
        refuse_duplicates([name for name in header if name], path)
        return pd.read_csv(path, **layout, **options)
    except UnicodeDecodeError:
        decode_file(_read_raw(path), path)
        raise
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        hint = f"; quote fields that have the separator {layout['sep']!r}, or declare another `separator`"
        raise DatasetError(f"{path}: {str(error).strip()}{hint if ' fields in line ' in str(error) else ''}") from None


def read_frame(path: Path, source: DatasetSource, reader: str, texts: Collection[str] = ()) -> Any:
    """Read the table in a file, without the columns to ignore.

    In a CSV file columns of text, and `texts`, are as they are written, so that NA and null are texts, too; an empty
    cell is missing.  Among numbers and truth values, NA is missing.

    Raises:
        DatasetError: it can't be read, has no rows, or lacks a column that is declared.
    """
    import pandas as pd  # takes half a second

    def read_by_separator(path: Path) -> Any:
        frame = read_csv(path, source.separator)
        guessed = {name: frame[name].dropna().astype(str) for name in frame.select_dtypes(exclude=["number", "bool"])}
        whole = [name for name, cells in guessed.items() if len(cells) and cells.str.fullmatch(_PLAIN.pattern).all()]
        frame = frame.astype(dict.fromkeys({*whole} - {*texts}, np.float64))  # pandas reads no integers from 2^64
        others = {*guessed} - {*whole} | {*texts} & {*frame.columns}
        if others:
            written = read_csv(path, source.separator, dtype=str, keep_default_na=False, na_values=[""])
            for name in others:
                is_gap = frame[name].isna() & (pd.api.types.infer_dtype(frame[name], skipna=True) == "boolean")
                frame[name] = written[name].mask(is_gap)
        return frame

    known: dict[str, Any] = {"csv": read_by_separator, "parquet": pd.read_parquet}
    read = find_reader(path.parent.name, reader, known | dict.fromkeys(("npz", "sgemm"), pd.read_csv))
    try:
        frame = read(path)
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001  (damaged files raise any, and so do users' functions)
        why = str(error) or type(error).__name__
        raise DatasetError(f"{path}: the reader {reader} can't read it ({why})") from None
    if not isinstance(frame, pd.DataFrame):
        raise DatasetError(f"{path}: the reader {reader} returns {type(frame).__name__}; expected a DataFrame")
    frame.columns = [*map(str, frame.columns)]
    refuse_duplicates(frame.columns, path)
    for column in (*targets_of(source), *source.ignore):
        if column not in frame:
            hint = nearest(str(column), map(str, frame.columns))
            raise DatasetError(f"{path}: has no column {column!r}{hint} (separator: {source.separator or ','!r})")
    if frame.empty:
        raise DatasetError(f"{path}: has no rows below the names of its columns")
    return frame.drop(columns=[*source.ignore])


def targets_of(source: DatasetSource) -> tuple[str, ...]:
    return (source.target,) if isinstance(source.target, str) else source.target or ()


def prepare_own_table(
    source: DatasetSource, manifest: Manifest, folder: Path, target: Path, *, is_listed: bool
) -> PackedInfo:
    """Write the packed table of CSV, Parquet or npz files, or of placeholder rows, into `target`.

    `is_listed`: params.yaml lists the files one by one, so their order means something.
    """
    counts: dict[Split, int] = {"train": source.train, "test": source.test}
    note = ""
    if manifest.source == "embedded":
        counts = STAND_IN_ROWS
        random = np.random.RandomState(0)
        features = random.standard_normal((sum(counts.values()), *source.shape))
        columns, targets = tuple(f"column {number}" for number in range(source.shape[0])), features.sum(1)
        if source.task is not None:
            targets = (targets[:, None] > np.linspace(-1, 1, source.classes)).astype(np.float64)
        rows = split_rows(counts)
    else:
        frames, wanted, spare = (_frames_of_arrays if source.reader == "npz" else _frames_of_files)(source, folder)
        columns, features, targets, kept = _join(frames, wanted, source, folder)
        rows, note = _divide(kept, counts, is_listed=is_listed)
        note = note or spare
        found = {split: len(part) for split, part in rows.items()}
        if found != counts:
            raise DatasetError(
                f"{manifest.dataset}: {' and '.join(f'{n:,}' for n in found.values() if n) or 0} rows; params.yaml "
                f"declares {source.train:,} for training and {source.test:,} for testing"
            )
        check_response(targets, source, manifest.dataset)
        check_rounding(targets, manifest.dataset)
        if source.task is not None:
            names = targets_of(source) or tuple(map(str, range(source.classes)))
            for split, part in rows.items():
                check_classes(targets[part].astype(np.int64), names, f"{manifest.dataset}, {split}")
    if features.shape[1:] != source.shape:
        raise DatasetError(
            f"{manifest.dataset}: {len(columns)} columns ({', '.join(columns)}); params.yaml declares {source.shape}"
        )
    mean, std = _statistics(features[rows["train"]])
    scaled = np.nan_to_num((features - mean) / std).astype(np.float32)  # a missing value becomes the mean
    splits = {split: TableSet(scaled[part], targets[part].astype(np.float32)) for split, part in rows.items()}
    shared = find_shared(*(np.column_stack([part.features, part.targets]) for part in splits.values()))
    if note == _DRAWN and shared:
        note += f"; {len(shared):,} of them are also training rows"
    elif manifest.source != "embedded":
        check_shared(shared, source.shared_images or 0, manifest.dataset, "row")
    scale = tuple(mean.tolist()), tuple(std.tolist())
    return pack_table(source, manifest, splits, columns, *scale, note or None, target, len(shared))


def _statistics(features: np.ndarray) -> np.ndarray:
    """Means and standard deviations [2, D] of columns without missing values; 1 if one is constant but for rounding."""
    found = []
    for column in features.T:
        known = column[~np.isnan(column)].tolist()
        n = len(known) or 1
        # fsum rounds once, so the numbers are the same on every machine.
        mean = math.fsum(known) / n
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / n)
        is_noise = std <= 4 * np.finfo(np.float64).eps * max(map(abs, known), default=0)
        found.append((mean, 1.0 if is_noise else std))
    return np.array(found).T


def _divide(
    kept: Mapping[str, np.ndarray], counts: Mapping[Split, int], *, is_listed: bool
) -> tuple[dict[Split, np.ndarray], str]:
    """Row numbers of each split, and a note: by the splits that the files' names have, or their order, else drawn.

    `kept`: of each file, the rows that aren't dropped, bool; row numbers are among these.
    """
    files, is_kept = [*kept], np.concatenate([*kept.values()])
    sizes = {file: int(rows.sum()) for file, rows in kept.items()}
    words = {file: split_of(file) for file in files}
    first, last = files[0], files[-1]
    is_ordered = is_listed and len(files) == 2 and "" in words.values() and words[first] in ("", "train")
    if is_ordered and words[last] in ("", *SPLITS[1:]):
        parts: dict[Split, list[str]] = {"train": [first], "test": [last]}
        note = f"training rows from {first}, test rows from {last}"
    else:
        parts, note = choose_splits(words, "rows", sizes)
    if parts:
        ends = dict(zip(files, np.cumsum([*sizes.values()]), strict=True))
        blocks = {file: np.arange(end - sizes[file], end) for file, end in ends.items()}
        return {split: np.concatenate([blocks[file] for file in part]) for split, part in parts.items()}, note
    if sum(sizes.values()) != sum(counts.values()):  # for an error with the right number
        return {"train": np.arange(sum(sizes.values())), "test": np.arange(0)}, _DRAWN
    return split_rows(counts, is_kept), _DRAWN


Frames = tuple[dict[str, Any], list[str], str]
"""The table of each file, or split, by its name; the names of the targets; a note on what is left out."""


def _frames_of_arrays(source: DatasetSource, folder: Path) -> Frames:
    import pandas as pd  # takes half a second

    arrays, note = read_arrays(folder, tuple(file.name for file in source.files))
    frames, wanted = dict[str, Any](), list[str]()
    for split, (rows, targets) in arrays.items():
        where = f"{folder / source.files[0].name}, {split}"
        targets = one_of_each_row(targets, where) if source.task is None else targets
        targets = targets[:, None] if targets.ndim == 1 else targets
        if (rows.ndim, targets.ndim) != (2, 2):
            shapes = f"rows are {[*rows.shape]} and targets {[*targets.shape]}"
            raise DatasetError(f"{where}: {shapes}; expected [rows, columns] of both")
        wanted = ["target"] if source.task is None else [f"label {number}" for number in range(targets.shape[1])]
        columns = [f"column {number}" for number in range(rows.shape[1])]
        frames[f"{source.files[0].name}/{split}"] = pd.DataFrame(rows, columns=columns).join(
            pd.DataFrame(targets, columns=wanted)
        )
    return frames, wanted, note


def _frames_of_files(source: DatasetSource, folder: Path) -> Frames:
    wanted = [*targets_of(source)]
    if not wanted:
        raise DatasetError(f"{folder.name}: which column is the target?  Declare `target` in params.yaml")
    names = [file.name for file in source.files]
    frames = {name: read_frame(folder / name, source, source.reader) for name in names}
    if any({*frame.columns} != {*frames[names[0]].columns} for frame in frames.values()):
        raise DatasetError(f"{folder}: its files have different columns")
    texts = [{*frame.select_dtypes(exclude=["number", "bool"])} for frame in frames.values()]
    if source.reader == "csv" and any(found != texts[0] for found in texts):  # a file's cells may all look like numbers
        every = set().union(*texts)
        frames = {name: read_frame(folder / name, source, source.reader, every) for name in names}
    return frames, wanted, ""


def _texts_in(frames: Mapping[str, Any], folder: Path) -> list[str]:
    """Names of the columns that have text; the others have numbers or truth values.

    Raises:
        DatasetError: a column has something else, or text in one file and numbers in another.
    """
    from pandas.api.types import infer_dtype

    texts = list[str]()
    for column in next(iter(frames.values())):
        kinds: dict[str, str] = {}
        for name, frame in frames.items():
            found, dtype = infer_dtype(frame[column], skipna=True), frame[column].dtype
            if dtype == "category" or (found, dtype) == ("boolean", object):  # truth values with gaps
                found = "categorical"
            if found not in _KINDS:
                raise DatasetError(
                    f"{folder / name}: column {column!r} has {found} values; expected numbers or text; leave it out "
                    "with `ignore`"
                )
            kinds[_KINDS[found]] = name
        if {"text", "numbers"} <= {*kinds}:
            raise DatasetError(
                f"{folder}: column {column!r} has text in {kinds['text']} and numbers in {kinds['numbers']}; store one "
                "type, or leave it out with `ignore`"
            )
        texts += [column] if "text" in kinds else []
    return texts


def _join(
    frames: Mapping[str, Any], wanted: list[str], source: DatasetSource, folder: Path
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Names and values of the columns, and the targets, of the rows that aren't dropped; which these are, by file.

    Text becomes a column per value.
    """
    import pandas as pd  # takes half a second

    texts = _texts_in(frames, folder)
    kept, blocks, targets = dict[str, np.ndarray](), [], []
    for name, frame in frames.items():
        path, gaps = folder / name, frame.isna()
        if gaps.any(axis=None) and source.missing == "refuse":
            named = ", ".join(f"{name} ({count:,})" for name, count in gaps.sum().items() if count)
            raise DatasetError(f"{path}: missing values in {named}; declare `missing: drop` or `mean` in params.yaml")
        for column in {*wanted} & {*texts}:
            first = frame[column].dropna().iloc[0]
            raise DatasetError(f"{path}: the target {column!r} has {first!r}; expected numbers, with a decimal point")
        numbers = frame.drop(columns=texts).apply(lambda cells: cells.astype(np.float64))
        for column in frame.select_dtypes("integer"):
            is_large = numbers[column].abs().max() >= 2**53
            if is_large and numbers[column].nunique() < frame[column].nunique():
                raise DatasetError(
                    f"{path}: column {column!r} has whole numbers beyond 2^53, which float64 can't tell apart; "
                    "subtract a constant, or leave the column out with `ignore`"
                )
        for row, place in np.argwhere(numbers.abs().to_numpy() > GREATEST)[:1]:
            raise DatasetError(
                f"{path}: row {row} of column {numbers.columns[place]!r} is {numbers.iloc[row, place]}; expected a "
                f"finite number of float32, at most {GREATEST:.2g}"
            )
        kept[name] = ~(gaps if source.missing == "drop" else gaps[wanted]).any(axis=1).to_numpy()
        values = numbers[wanted].fillna(0).to_numpy()
        values = values[:, 0] if source.task is None else encode_targets(values, source, targets_of(source), str(path))
        blocks.append(numbers.join(frame[texts])[kept[name]])
        targets.append(values[kept[name]])
    whole = pd.concat(blocks, ignore_index=True).drop(columns=wanted)
    dummies = [whole.drop(columns=texts)]
    for name in texts:
        cells = whole[name].astype(str).where(whole[name].notna())
        _refuse_numbers(cells.dropna().unique(), f"{folder}: column {name!r}")
        refuse_alike(cells.dropna().unique(), f"{folder}: column {name!r}")
        if (count := cells.nunique()) > _MOST_CATEGORIES:
            raise DatasetError(f"{folder}: column {name!r} has {count:,} different texts; leave it out with `ignore`")
        found = pd.get_dummies(cells, prefix=name, prefix_sep="=", dtype=np.float64)
        dummies.append(found.where(cells.notna(), np.nan))
    values = pd.concat(dummies, axis=1)
    return tuple(map(str, values.columns)), values.to_numpy(np.float64), np.concatenate(targets), kept


def refuse_alike(texts: Iterable[str], where: str) -> None:
    """Check that different texts also look different."""
    spelled: dict[str, str] = {}
    for text in texts:
        if (other := spelled.setdefault(plain(text), text)) != text:
            raise DatasetError(f"{where} has {other!a} and {text!a}, which look the same; write one of them")


def _refuse_numbers(texts: Iterable[str], where: str) -> None:
    """Check that different texts aren't numbers in another spelling, perhaps with signs for missing ones."""
    stripped = [text.strip() for text in texts]
    odd = [text for text in stripped if not _PLAIN.fullmatch(text)]
    numbers = [text for text in stripped if _NUMBER.fullmatch(text.removesuffix("%").strip())]
    if odd and numbers and all(text in numbers or not any(map(str.isalnum, text)) for text in odd):
        raise DatasetError(
            f"{where} has numbers, except for {odd[0]!r}; write numbers with a decimal point alone, leave missing ones "
            "empty, or leave the column out with `ignore`"
        )
