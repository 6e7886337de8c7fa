"""Damaged files of users: each reader reads them correctly, or names the file and the fault."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from stages.datasets.manifest import DatasetError
from stages.datasets.packed import read_table
from stages.datasets.prepare import prepare
from stages.datasets.shards import split_of
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import DatasetSource, ParamsError, SourceFile, load_params
from tests.datasets.archives import write_zip
from tests.datasets.test_own import pack, picture, source_of
from tests.datasets.test_shards import write_tar
from tests.datasets.test_splits import FORMS, Parts, as_folder, as_npz, content_of, packed
from tests.datasets.workplace import REPOSITORY, write_params

PARTS = {"train": list(range(6)), "test": list(range(6, 9))}
TABLE: dict[str, Any] = {"kind": "table", "reader": "csv", "target": "price", "shape": (2,), "train": 8, "test": 2}


def as_zip(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    members = [(f"{part}/{one % 3}/{one}.png", content_of(one)) for part, numbers in parts.items() for one in numbers]
    write_zip(root / "pets.zip", members)
    return source_of("pets.zip")


def as_table_of(kind: str) -> Callable[[Path, Parts, set[int]], DatasetSource]:
    def write(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
        root.mkdir(parents=True, exist_ok=True)
        for part, numbers in parts.items():
            frame = pd.DataFrame({"row": numbers, "word": ["ab"[one % 2] for one in numbers], "target": numbers})
            frame.to_parquet(root / f"{part}.parquet") if kind == "parquet" else frame.to_csv(root / f"{part}.csv")
        files = [f"{part}.{kind}" for part in parts]
        return dataclasses.replace(source_of(*files, reader=kind), kind="table", shape=(4,), target="target")

    return write


def as_rows(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
    root.mkdir(parents=True, exist_ok=True)
    arrays = {f"x_{part}": np.stack([numbers, np.square(numbers)], 1) / 3 for part, numbers in parts.items()}
    np.savez(root / "pets.npz", **arrays, **{f"y_{part}": np.array(numbers) / 7 for part, numbers in parts.items()})
    return dataclasses.replace(source_of("pets.npz", reader="npz"), kind="table", shape=(2,))


def as_text_of(kind: str) -> Callable[[Path, Parts, set[int]], DatasetSource]:
    def write(root: Path, parts: Parts, broken: set[int]) -> DatasetSource:
        root.mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame({"body": [f"document {number}" for number in range(30)]})
        path = root / f"pets.{kind}"
        if kind == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        elif kind == "text":
            path.write_text("\n".join(frame["body"]), encoding="utf-8")
        else:
            frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        column = None if kind == "text" else "body"
        return dataclasses.replace(source_of(path.name, reader=kind), kind="text", shape=(4,), text=column)

    return write


WRITERS: dict[str, Callable[[Path, Parts, set[int]], DatasetSource]] = {
    **FORMS,
    "zip": as_zip,
    "npz of images": as_npz,
    "npz of rows": as_rows,
    **{f"{kind} of rows": as_table_of(kind) for kind in ("csv", "parquet")},
    **{f"{kind} of text": as_text_of(kind) for kind in ("text", "csv", "jsonl", "parquet")},
}


def damage(content: bytes, kind: str, place: float, length: int) -> bytes:
    start = int(place * len(content))
    end = start + length
    return {
        "cut": content[:start],
        "flipped": content[:start] + bytes(byte ^ 0xA5 for byte in content[start:end]) + content[end:],
        "zeroed": content[:start] + bytes(len(content[start:end])) + content[end:],
        "lost": content[:start] + content[end:],
        "twice": content[:end] + content[start:],
        "renamed picture": picture((9, 9, 9)),
        "renamed text": b"body,target\n1,2\n" * (length + 1),
        "renamed array": array_file(),
        "empty": b"",
    }[kind]


def array_file() -> bytes:
    content = io.BytesIO()
    np.save(content, np.arange(3))
    return content.getvalue()


DAMAGES = ("cut", "flipped", "zeroed", "lost", "twice", "renamed picture", "renamed text", "renamed array", "empty")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", WRITERS)
def test_damaged_file_is_an_error_in_one_line_or_read_as_declared(tmp_path: Path, form: str) -> None:
    whole = tmp_path / "whole"
    source = dataclasses.replace(WRITERS[form](whole, PARTS, set()), train=6, test=3)
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())

    @settings(max_examples=12, deadline=None)
    @given(st.sampled_from(names), st.sampled_from(DAMAGES), st.floats(0, 1), st.integers(1, 40), st.booleans())
    def check(name: Path, kind: str, place: float, length: int, skips: bool) -> None:
        with tempfile.TemporaryDirectory() as home:
            root = Path(home) / "downloads/pets"
            shutil.copytree(whole, root)
            (root / name).write_bytes(damage((root / name).read_bytes(), kind, place, length))
            outcome = outcome_in(Path(home), dataclasses.replace(source, broken="skip" if skips else "refuse"))
            assert "\n" not in outcome

    check()


def outcome_in(home: Path, source: DatasetSource) -> str:
    """Return the error of a set, or "" if it is packed as declared, except for broken pictures that are skipped."""
    try:
        manifest = fetch_dataset("pets", source, home, None, lambda line: None)
        info = prepare(source, manifest, home, home / "packed")
    except DatasetError as error:
        return str(error)
    is_whole = (info.train_images, info.test_images) == (source.train, source.test)
    return "" if is_whole or "broken pictures left out" in (info.split_note or "") else f"not as declared:\n{info}"


WORDS = {
    "train": ("train_set", "training_set", "pets-train", "train2017", "images_train", "pets-train.zip", "TrainSet"),
    "test": ("test_set", "testing/b", "seg_test", "pets-test.tar", "imagesTest", "test/train2017/../test"),
    "val": ("val2017", "images_val", "train/val/a", "test/val/a"),  # the innermost folder decides
    "dev": ("dev", "pets.dev-00000-of-00001.parquet"),
    "holdout": ("holdout",),
    "": ("", "pets", "contest/latest", "trainer", "devices", "valley"),
    "test and train": ("train_test.zip",),
}


@pytest.mark.parametrize(("split", "path"), [(split, path) for split, paths in WORDS.items() for path in paths])
def test_word_of_a_split_is_found_in_any_spelling(split: str, path: str) -> None:
    assert split_of(path) == split


@pytest.mark.parametrize("form", FORMS)
def test_published_split_is_kept_in_any_spelling(tmp_path: Path, form: str) -> None:
    parts = {"train_set": PARTS["train"], "dev2": PARTS["test"]}
    source = dataclasses.replace(FORMS[form](tmp_path / "downloads/pets", parts, set()), train=6, test=3)
    assert pack(tmp_path, source).split_note is None
    assert packed(tmp_path, source) == PARTS


@pytest.mark.parametrize("second", ["query", "test"])
@pytest.mark.parametrize("form", FORMS)
def test_unknown_split_next_to_known_ones_is_an_error_that_names_all(tmp_path: Path, form: str, second: str) -> None:
    parts = {"train": [0, 1, 2], second: [3, 4, 5], "gallery": [6, 7, 8]}
    source = FORMS[form](tmp_path / "downloads/pets", parts, set())
    with pytest.raises(DatasetError, match=r"splits in the names: .*train \(3 \w+, as .*train.*; expected train in"):
        pack(tmp_path, source)


@pytest.mark.parametrize("form", ["webdataset", "folder", "huggingface", "npz"])
@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_fewer_pictures_than_declared_are_an_error(tmp_path: Path, form: str, broken: Any) -> None:
    source = (FORMS | {"npz": as_npz})[form](tmp_path / "downloads/pets", PARTS, set())
    with pytest.raises(DatasetError, match="train: 6 images; params"):
        pack(tmp_path, dataclasses.replace(source, broken="refuse" if form == "npz" else broken, train=7, test=3))


def test_splits_below_the_classes_are_refused(tmp_path: Path) -> None:
    for name in ("cat/train/1", "dog/train/2", "cat/test/3", "dog/test/4"):
        path = tmp_path / f"downloads/pets/pets/{name}.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(content_of(int(name[-1])))
    with pytest.raises(DatasetError, match="folders of its pictures are test, train, which are splits, not classes"):
        pack(tmp_path, source_of("pets/", classes=2, train=2, test=2))


def write(home: Path, name: str, content: str | bytes | pa.Table | dict[str, np.ndarray]) -> None:
    path = home / "downloads/pets" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        parquet.write_table(content, path)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def lines(header: str, row: str, count: int = 10) -> str:
    """Return CSV with a header and rows, in which `N` is replaced by the row's number."""
    return "\n".join([header, *(row.replace("N", str(number)) for number in range(count))]) + "\n"


def table(name: str, **fields: Any) -> DatasetSource:
    return dataclasses.replace(source_of(name), **TABLE | fields)


def of_labels(home: Path, header: str, row: str) -> DatasetSource:
    for number in range(10):
        write(home, f"pets/{number}.png", content_of(number))
    write(home, "pets/labels.csv", lines(header, row))
    return source_of("pets/", task="regression", labels="pets/labels.csv", classes=1, train=8, test=2)


def of_table(home: Path, header: str, row: str) -> DatasetSource:
    write(home, "a.csv", lines(header, row))
    return table("a.csv", target=header.split(",")[-1], shape=(1,))


def of_text(home: Path, header: str, row: str) -> DatasetSource:
    write(home, "a.csv", lines(header, row))
    return dataclasses.replace(
        source_of("a.csv", reader="csv"), kind="text", shape=(4,), text=header.split(",")[-1], train=18, test=2
    )


@pytest.mark.parametrize("kind", [of_labels, of_table, of_text])
@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (
            "file,w",
            "N.png,N,9",
            r"a?\.csv: .*Expected 2 fields in line 2, saw 3; quote fields that have the separator ','",
        ),
        ("file,w", "N.png,N,", "Expected 2 fields in line 2, saw 3"),
        ("file,w", 'N.png,N\n1.png,"2",3', "Expected 2 fields in line 3, saw 3"),
        ("w,file,w", "N.png,N,N", "has several columns called 'w'; rename them"),
    ],
)
def test_surplus_field_or_repeated_column_is_an_error(
    tmp_path: Path, kind: Callable[[Path, str, str], DatasetSource], header: str, row: str, words: str
) -> None:
    source = kind(tmp_path, header, row)
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source)


@pytest.mark.parametrize("kind", ["table", "text", "huggingface"])
def test_repeated_column_of_a_parquet_file_is_an_error(tmp_path: Path, kind: str) -> None:
    columns = [pa.array([content_of(one) for one in range(3)]), pa.array(["a", "b", "c"]), pa.array(["c", "d", "e"])]
    write(tmp_path, "a.parquet", pa.Table.from_arrays(columns, names=["image", "label", "label"]))
    fields: dict[str, dict[str, Any]] = {
        "table": {"kind": "table", "target": "label"},
        "text": {"kind": "text", "text": "label", "shape": (4,)},
        "huggingface": {},
    }
    source = source_of("a.parquet", reader="huggingface" if kind == "huggingface" else "parquet")
    with pytest.raises(
        DatasetError,
        match=r"a\.parquet: .*(several columns called 'label'|Multiple matches for FieldRef\.Name\(label\))",
    ):
        pack(tmp_path, dataclasses.replace(source, **fields[kind]))


X, Y = np.arange(40.0).reshape(20, 2), np.arange(20.0)
IMAGES = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)


def arrays(x: np.ndarray, y: np.ndarray, test_y: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return twelve rows for training, and the others for testing."""
    return {"x_train": x[:12], "y_train": y[:12], "x_test": x[12:], "y_test": y[12:] if test_y is None else test_y}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (arrays(X, Y, Y[13:]), "x_test has 8 rows and y_test 7"),
        (arrays(X[:, 0], Y), r"rows are \[12\] and targets \[12, 1\]; expected \[rows, columns\]"),
        (arrays(X[:, :, None], Y), r"rows are \[12, 2, 1\] and"),
        (arrays(X, X), r"targets are \[12, 2\]; expected one number for each row"),
        (arrays(X + 1j, Y), r"x_train is complex128 \[12, 2\]; expected an array of numbers"),
        (arrays(X, Y.astype(str)), r"y_train is <U\d+ \[12\]; expected an array of numbers"),
        (arrays(X, Y) | {"y_test": np.array(3.0)}, r"y_test is float64 \[\]; expected an array"),
        (arrays(X, np.where(Y == 3, np.inf, Y)), r"a\.npz/train: row 3 of column 'target' is inf; expected a finite"),
        (arrays(np.where(X == 5, 1e300, X), Y), r"a\.npz/train: row 2 of column 'column 1' is 1e\+300; expected"),
        (arrays(X, np.where(Y == 13, np.nan, Y)), r"a\.npz/test: missing values in target \(1\); declare"),
        (arrays(X[:0], Y[:0]), "pets: 0 rows; params.yaml declares 12"),
        (array_file(), r"a\.npz: is one array, as numpy\.save writes"),
    ],
)
def test_each_mistake_in_arrays_of_rows_is_named(tmp_path: Path, content: Any, words: str) -> None:
    write(tmp_path, "a.npz", content)
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, table("a.npz", reader="npz", target=None, train=12, test=8))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (Y % 3 + 0.7, r"the class of row 0 is 0\.7; expected a whole number from 0, or declare `task: regression`"),
        (np.where(Y == 3, np.nan, Y % 3), "the class of row 3 is nan"),
        (np.where(Y == 3, 1e300, Y % 3), r"the class of row 3 is 1e\+300"),
        (np.eye(3)[Y.astype(int) % 3], r"targets are \[12, 3\]; expected one number for each row"),
        (np.array(["cat", "dog"])[Y.astype(int) % 2], r"y_train is <U3 \[12\]; .*classes are numbers from 0"),
    ],
)
def test_each_mistake_in_classes_of_arrays_is_named(tmp_path: Path, labels: np.ndarray, words: str) -> None:
    write(tmp_path, "a.npz", arrays(IMAGES, labels))
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source_of("a.npz", reader="npz", train=12, test=8))


@pytest.mark.parametrize("kind", [float, np.uint8, bool])
def test_whole_classes_of_any_type_are_read(tmp_path: Path, kind: Any) -> None:
    write(tmp_path, "a.npz", arrays(IMAGES, (Y % 2).astype(kind)))
    pack(tmp_path, source_of("a.npz", reader="npz", classes=2, train=12, test=8))


@pytest.mark.parametrize("reader", ["csv", "npz"])
def test_rows_of_missing_values_are_dropped_from_every_kind_of_table(tmp_path: Path, reader: str) -> None:
    x = np.where((X == 6) | (X == 31), np.nan, X)
    write(tmp_path, "a.npz", arrays(x, Y))
    for split, part in (("train", slice(12)), ("test", slice(12, 20))):
        pd.DataFrame(x[part]).assign(price=Y[part]).to_csv(tmp_path / f"downloads/pets/{split}.csv", index=False)
    source = table("a.npz", reader="npz", target=None, train=11, test=7, missing="drop")
    if reader == "csv":
        files = (SourceFile(name="train.csv"), SourceFile(name="test.csv"))
        source = dataclasses.replace(source, reader="csv", target="price", files=files)
    pack(tmp_path, source)
    assert packed(tmp_path, source) == {"train": [*range(3), *range(4, 12)], "test": [*range(12, 15), *range(16, 20)]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lines("a,b,price", "N,0,N").replace("\n3,", "\ninf,"), r"a\.csv: row 3 of column 'a' is inf; expected a fin"),
        (lines("a,b,price", "N,0,N").replace(",3\n", ",3e39\n"), r"a\.csv: row 3 of column 'price' is 3e\+39; expect"),
        (lines("a;b;price", "N,5;0;N"), "Expected 1 fields in line 2, saw 2; .*declare another `separator`"),
        (lines("a,b,price", '"N,5",0,N'), r"column 'a' has numbers, except for '0,5'; write numbers with a decimal"),
        (lines("a,b,price", '"1,00N",0,N'), "column 'a' has numbers, except for '1,000'"),
        (lines("a,b,price", "N%,0,N"), "column 'a' has numbers, except for '0%'"),
        (lines("a,b,price", "N,0,N").replace("\n3,", "\n?,"), r"'a' has numbers, except for '\?'; .*leave missing"),
        (
            lines("a,b,price", '0,0,"N,5"'),
            r"a\.csv: the target 'price' has '0,5'; expected numbers, with",
        ),
        ("a,b,price\n", r"a\.csv: has no rows below the names of its columns"),
        ("", r"a\.csv: No columns"),
    ],
)
def test_each_mistake_in_numbers_of_a_table_is_named(tmp_path: Path, content: str, words: str) -> None:
    write(tmp_path, "a.csv", content)
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, table("a.csv"))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([b"\xff"] * 10, "has bytes values; expected numbers or text"),
        ([[1, 2]] * 10, "has mixed values; expected"),
        ([{"x": 1}] * 10, "has mixed values; expected"),
    ],
)
def test_column_of_neither_numbers_nor_text_is_named(tmp_path: Path, cells: list[Any], words: str) -> None:
    write(tmp_path, "a.parquet", pa.table({"a": cells, "price": range(10)}))
    with pytest.raises(DatasetError, match=rf"a\.parquet: column 'a' {words}"):
        pack(tmp_path, table("a.parquet", reader="parquet"))


def test_decimals_of_a_parquet_file_are_numbers(tmp_path: Path) -> None:
    cells = [Decimal(number) / 4 for number in range(10)]
    write(tmp_path, "a.parquet", pa.table({"a": cells, "price": cells}))
    assert pack(tmp_path, table("a.parquet", reader="parquet", shape=(1,))).classes == ("a",)
    assert np.isin(read_table(tmp_path / "packed", "train").targets * 4, range(10)).all()


def two_files(home: Path, train: Any, test: Any, kind: str = "csv", **fields: Any) -> DatasetSource:
    write(home, f"train.{kind}", train)
    write(home, f"test.{kind}", test)
    files = (SourceFile(name=f"train.{kind}"), SourceFile(name=f"test.{kind}"))
    return table("a", reader=kind, files=files, **{"train": 6, "test": 3, "missing": "mean"} | fields)


def test_text_is_the_same_category_in_every_file(tmp_path: Path) -> None:
    train = "c,price\n1,10\n2,11\nx,12\n1,13\n2,14\nx,15\n"
    source = two_files(tmp_path, train, "c,price\n1,0\n2,1\n,2\n", shape=(3,))
    assert pack(tmp_path, source).classes == ("c=1", "c=2", "c=x")
    known, _, missing = read_table(tmp_path / "packed", "test").features
    assert known[0] > 0 > known[1] and (missing == 0).all(), "the mean of the training rows"
    tables = [pa.table({"c": cells, "price": range(len(cells))}) for cells in (["1", "2"] * 3, [1, 2, 3])]
    source = two_files(tmp_path, *tables, kind="parquet", shape=(3,))
    with pytest.raises(DatasetError, match=r"'c' has text in train\.parquet and numbers in test\.parquet; store one"):
        pack(tmp_path, source)


@pytest.mark.parametrize(("value", "count"), [(0.1, 3), (0.7, 7), (123.456, 49), (0.0, 3), (-7.1, 6)])
def test_constant_column_is_not_scaled_by_rounding_noise(tmp_path: Path, value: float, count: int) -> None:
    train, test = lines("a,price", f"{value},N", count), lines("a,price", f"{value + 0.5},N", 3)
    source = two_files(tmp_path, train, test, shape=(1,))
    info = pack(tmp_path, dataclasses.replace(source, train=count))
    assert info.std == (1.0,)
    assert read_table(tmp_path / "packed", "test").features == pytest.approx(0.5)


def test_rows_that_published_splits_share_are_counted_and_refused(tmp_path: Path) -> None:
    source = two_files(tmp_path, lines("a,b,price", "N,0,N", 6), lines("a,b,price", "N,0,N", 3))
    with pytest.raises(DatasetError, match=r"3 test rows are in the training set, too.*declare .*`shared_images`"):
        pack(tmp_path, source)
    assert pack(tmp_path, dataclasses.replace(source, shared_images=3)).shared_test_images == 3
    write(tmp_path, "a.csv", lines("a,b,price", "1,0,1"))
    info = pack(tmp_path, table("a.csv"))
    assert info.shared_test_images == 2 and info.split_note and "2 of them are also training rows" in info.split_note


@pytest.mark.parametrize("reader", ["huggingface", "webdataset"])
@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            [[0, 1], [1, 0]] * 5,
            "every picture has every label; .*declare their names as `target`",
        ),
        ([[0, 1], [1, 1]] * 5, "a label is twice in .*; a list has the names or numbers"),
        ([["a", "a"], ["b"]] * 5, "a label is twice in"),
    ],
)
def test_lists_with_0_or_1_for_each_label_are_refused(
    tmp_path: Path, reader: str, cells: list[Any], words: str
) -> None:
    images = [content_of(number) for number in range(10)]
    write(tmp_path, "a.parquet", pa.table({"image": images, "label": cells}))
    members = [(f"{number}.png", image) for number, image in enumerate(images)]
    members += [(f"{number}.json", json.dumps({"label": cell}).encode()) for number, cell in enumerate(cells)]
    write_tar(tmp_path / "downloads/pets/a.tar", *sorted(members))
    name = "a.parquet" if reader == "huggingface" else "a.tar"
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source_of(name, reader=reader, task="multi-label", classes=2, train=8, test=2))


def test_skipped_pictures_have_the_same_description_in_every_run(tmp_path: Path) -> None:
    source = dataclasses.replace(as_folder(tmp_path / "downloads/pets", PARTS, {0}), broken="skip", train=6, test=3)
    notes = {pack(tmp_path, source).split_note for _ in range(2)}
    described = "pets/train/class0/00.png: not a complete picture (of no known format)"
    assert notes == {f"1 broken pictures left out: {described}"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**TABLE, "ignore": ("price",)}, r"ignore is \('price',\); the target can't be left out"),
        ({**TABLE, "shape": (3, 8, 8)}, "shape is .*; expected the number of columns alone"),
        ({"shape": (8,)}, "shape is .*; expected channels, height and width"),
        ({"shape": (4, 8, 8)}, "shape is .*; expected 1 or 3 channels, and a side twice"),
        ({"shape": (3, 8, 16)}, "shape is .*; expected 1 or 3 channels"),
        ({"shape": (3, 0, 0)}, "shape is .*; expected numbers above 0"),
        ({"train": 0}, "train is 0; expected at least 1"),
        ({"test": 0}, "test is 0; expected at least 1"),
    ],
)
def test_declarations_that_no_file_can_match_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    write_params(tmp_path, "smoke", pets=dataclasses.replace(source_of("x"), **fields))
    with pytest.raises(ParamsError, match=rf"datasets\.pets\.{words}"):
        load_params(tmp_path)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "../train-{0..9}.tar"])
def test_names_of_files_outside_of_the_data_sets_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a path below the data set's folder"):
        SourceFile(name=name)


def test_documented_command_prints_the_digest_that_fetch_prints(tmp_path: Path) -> None:
    for name in ("a b.png", "ä'\".png", "z/1.png", "Z/1.png", ".DS_Store", ".hidden/1.png"):
        write(tmp_path, f"pictures/{name}", name)
    said: list[str] = []
    fetch_dataset("pets", source_of("pictures/"), tmp_path, None, said.append)
    (command,) = re.findall(r"`(find pictures .*?)`", (REPOSITORY / "docs/data.md").read_text(encoding="utf-8"))
    done = subprocess.run(
        command, shell=True, cwd=tmp_path / "downloads/pets", capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] in said[-1] and not done.stderr


def test_empty_cell_is_not_a_document_with_missing_drop(tmp_path: Path) -> None:
    source = dataclasses.replace(of_text(tmp_path, "id,body", "N,text N"), missing="drop", train=61, test=7)
    write(tmp_path, "a.csv", lines("id,body", "N,text N").replace("text 3", ""))
    pack(tmp_path, dataclasses.replace(source, train=63, test=7))


@pytest.mark.parametrize("what", ["a folder", "nothing"])
def test_link_in_a_folder_of_pictures_is_an_error(tmp_path: Path, what: str) -> None:
    source = as_folder(tmp_path / "downloads/pets", PARTS, set())
    (tmp_path / "a folder").mkdir()
    (tmp_path / "downloads/pets/pets/linked.png").symlink_to(tmp_path / what)
    with pytest.raises(DatasetError, match=rf"linked\.png: a link to {what}; put the files there"):
        pack(tmp_path, source)


def test_missing_picture_can_be_accepted(tmp_path: Path) -> None:
    source = dataclasses.replace(as_folder(tmp_path / "downloads/pets", PARTS, set()), train=6, test=3)
    pack(tmp_path, source)
    (tmp_path / "downloads/pets/pets/train/class0/00.png").unlink()
    with pytest.raises(DatasetError, match=r"lacks pets/train/class0/00\.png.* `claimcheck stage fetch pets --accept`"):
        pack(tmp_path, source)
    pack(tmp_path, dataclasses.replace(source, train=5), accept=True)
