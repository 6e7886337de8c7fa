"""A user's own rows are split by words in names, else by a draw that repairing a row hardly changes."""

import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from stages.datasets.manifest import DatasetError
from stages.datasets.packed import read_images, read_table
from stages.params.experiment import DatasetSource, SourceFile
from tests.datasets.test_own import pack, source_of
from tests.datasets.test_shards import write_tar

Parts = Mapping[str, list[int]]
BROKEN = b"no picture"


def content_of(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 2 * number, 7)).save(file, "PNG")
    return file.getvalue()


def as_folder(root: Path, parts: Parts, broken: set[int], task: str | None = None) -> DatasetSource:
    for part, numbers in parts.items():
        for number in numbers:
            is_plain = task in ("multi-label", "regression")
            folder = root / "pets" / part / ("" if is_plain else "images" if task else f"class{number % 3}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:02d}.png").write_bytes(BROKEN if number in broken else content_of(number))
            if task == "segmentation":
                masks = folder.with_name("masks")
                masks.mkdir(exist_ok=True)
                Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 3).save(masks / f"{number:02d}.png")
    labels = None
    if task in ("multi-label", "regression"):
        numbers = sorted(number for part in parts.values() for number in part)
        rows = [[f"{number:02d}.png", 1, number % 2, int(number % 5 < 3)] for number in numbers]
        pd.DataFrame(rows).to_csv(root / "pets/labels.csv", index=False)
        labels = "pets/labels.csv"
    return source_of("pets/", task=task, labels=labels)


def as_parquet(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    for part, numbers in parts.items():
        root.mkdir(parents=True, exist_ok=True)
        cells = [BROKEN if number in broken else content_of(number) for number in numbers]
        table = pa.table({"image": cells, "label": [number % 3 for number in numbers]})
        parquet.write_table(table, root / f"{part or 'all'}.parquet")
    return source_of(*(f"{part or 'all'}.parquet" for part in parts), reader="huggingface")


def as_tar(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    for part, numbers in parts.items():
        samples = []
        for number in numbers:
            content = BROKEN if number in broken else content_of(number)
            samples += [(f"{number:02d}.png", content), (f"{number:02d}.cls", str(number % 3).encode())]
        write_tar(root / f"{part or 'all'}.tar", *samples)
    return source_of(*(f"{part or 'all'}.tar" for part in parts), reader="webdataset")


def as_table(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    for part, numbers in parts.items():
        root.mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame({"row": numbers, "gap": [np.nan if one in broken else 0.0 for one in numbers]})
        frame.assign(target=frame["row"]).to_csv(root / f"{part or 'all'}.csv", index=False)
    files = [f"{part or 'all'}.csv" for part in parts]
    plain: dict[str, Any] = {"reader": "csv", "kind": "table", "shape": (2,), "target": "target", "missing": "drop"}
    return dataclasses.replace(source_of(*files), **plain)


def as_npz(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    root.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, numbers in parts.items():
        rows = np.broadcast_to(np.array(numbers)[:, None, None], (len(numbers), 8, 8)).astype(np.uint8)
        arrays |= {f"{part}_images": rows, f"{part}_labels": np.array(numbers) % 3}
    np.savez(root / "pets.npz", **arrays)
    return dataclasses.replace(source_of("pets.npz", reader="npz"), shape=(1, 8, 8))


Write = Callable[[Path, Parts, set[int]], DatasetSource]
FORMS: dict[str, Write] = {
    "folder": as_folder,
    **{
        task: lambda root, parts, broken, task=task: as_folder(root, parts, broken, task)  # type: ignore[misc]
        for task in ("multi-label", "regression", "segmentation")
    },
    "huggingface": as_parquet,
    "webdataset": as_tar,
    "table": as_table,
}


def packed(home: Path, source: DatasetSource) -> dict[str, list[int]]:
    """The numbers of the pictures or rows in each split."""
    read = {"table": lambda split: read_table(home / "packed", split).targets}
    images = lambda split: read_images(home / "packed", split).images[:, 0, 0, 0]  # noqa: E731
    return {split: sorted(map(int, read.get(source.kind, images)(split))) for split in ("train", "test")}


@pytest.mark.parametrize("form", FORMS)
def test_repaired_row_leaves_the_others_in_their_split(tmp_path: Path, form: str) -> None:
    write, everything = FORMS[form], {"": list(range(30))}
    whole = write(tmp_path / "whole/downloads/pets", everything, set())
    pack(tmp_path / "whole", whole)
    expected = packed(tmp_path / "whole", whole)
    assert len(expected["train"]) == 21 and expected["test"] != list(range(21, 30))
    for broken in ({expected["test"][0], 3}, {*expected["train"][:2]}):
        home = tmp_path / f"broken {min(broken)}"
        missing = {split: sorted({*rows} - broken) for split, rows in expected.items()}
        counts = {split: len(rows) for split, rows in missing.items()}
        source = dataclasses.replace(write(home / "downloads/pets", everything, broken), broken="skip")
        info = pack(home, dataclasses.replace(source, **counts))
        assert packed(home, source) == missing, "declared by what can be read"
        if form != "table":
            assert info.split_note and "2 broken pictures left out" in info.split_note
            pack(home, source)
            assert packed(home, source) == missing, "declared by all there are"


@pytest.mark.parametrize("form", [*FORMS, "npz"])
def test_validation_rows_next_to_test_rows_are_left_out_and_counted(tmp_path: Path, form: str) -> None:
    parts = {"test": list(range(9)), "train": list(range(9, 30)), "val": list(range(30, 36))}
    source = (FORMS | {"npz": as_npz})[form](tmp_path / "downloads/pets", parts, set())
    info = pack(tmp_path, source)
    assert packed(tmp_path, source) == {split: parts[split] for split in ("train", "test")}
    what = "rows" if form == "table" else "pictures"
    words = "arrays left out: val_images, val_labels" if form == "npz" else f"6 {what} of val left out, because test is"
    assert info.split_note and words in info.split_note


TABLES: dict[str, tuple[list[str], dict[str, list[int]]]] = {
    "alphabet": (["test.csv", "train.csv"], {"train": [1], "test": [0]}),
    "shards": (["test-0.csv", "test-1.csv", "train-0.csv", "train-1.csv"], {"train": [2, 3], "test": [0, 1]}),
    "folders": (["testing/a.csv", "training/a.csv"], {"train": [1], "test": [0]}),
    "validation": (["flats_train.csv", "flats_validation.csv"], {"train": [0], "test": [1]}),
}


def write_tables(root: Path, names: list[str]) -> tuple[list[np.ndarray], DatasetSource]:
    """Write 30 rows into files in a folder, more into later ones; return the rows of each."""
    blocks = np.split(np.arange(30), np.cumsum(np.arange(3, 3 + len(names) - 1)))
    for name, rows in zip(names, blocks, strict=True):
        path = root / "downloads/pets/tables" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame({"row": rows, "gap": 0, "target": rows}).to_csv(path, index=False)
    source = source_of("tables/", reader="csv")
    return blocks, dataclasses.replace(source, kind="table", shape=(2,), target="target")


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("is_listed", [False, True])
def test_words_in_names_of_tables_say_their_split(tmp_path: Path, case: str, is_listed: bool) -> None:
    names, parts = TABLES[case]
    blocks, source = write_tables(tmp_path, names)
    if is_listed:
        source = dataclasses.replace(source, files=tuple(SourceFile(name=f"tables/{name}") for name in names))
    expected = {split: sorted(int(row) for block in part for row in blocks[block]) for split, part in parts.items()}
    pack(tmp_path, dataclasses.replace(source, **{split: len(rows) for split, rows in expected.items()}))
    assert packed(tmp_path, source) == expected


def test_tables_without_such_words_are_drawn_unless_two_are_listed(tmp_path: Path) -> None:
    blocks, source = write_tables(tmp_path, ["a.csv", "b.csv"])
    info = pack(tmp_path, source)
    assert info.split_note == "test rows drawn once for all" and {*packed(tmp_path, source)["test"]} - {*blocks[1]}
    files = tuple(SourceFile(name=f"tables/{name}") for name in ("b.csv", "a.csv"))
    listed = dataclasses.replace(source, files=files, train=27, test=3)
    assert pack(tmp_path, listed).split_note == "training rows from tables/b.csv, test rows from tables/a.csv"
    assert packed(tmp_path, listed)["test"] == blocks[0].tolist()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["rest.csv", "train.csv"],
            r"train \(27 rows, .*none \(3 rows, as tables/rest\.csv\); expected train in",
        ),
        (["other.csv", "test.csv", "train.csv"], r"none \(3 rows, as tables/other\.csv\)"),
        (["test_train.csv", "train.csv"], r"test and train \(3 rows, as tables/test_train\.csv\).*rename files"),
    ],
)
@pytest.mark.parametrize("is_listed", [False, True])
def test_tables_of_an_unknown_split_are_named(tmp_path: Path, names: list[str], words: str, is_listed: bool) -> None:
    _, source = write_tables(tmp_path, names)
    if is_listed:
        source = dataclasses.replace(source, files=tuple(SourceFile(name=f"tables/{name}") for name in names))
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source)
