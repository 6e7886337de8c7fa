"""A user's own data, declared in params alone: pictures, arrays and tables, from files to the packed set."""

import dataclasses
import hashlib
import io
import os
import random
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from stages.datasets.archive import decode_own
from stages.datasets.manifest import ChecksumMismatch, DatasetError, Manifest
from stages.datasets.mirror import copy_to_mirror
from stages.datasets.packed import PackedInfo, read_images, read_info, read_table
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.images import decode_image
from stages.params.experiment import DatasetSource, SourceFile
from tests.datasets.tiny import declare
from tests.object_server import ObjectServer

PETS = {"cat": (200, 30, 30), "dog": (30, 200, 30), "eel": (30, 30, 200)}


def picture(colour: tuple[int, ...], kind: str = "PNG", size: tuple[int, int] = (12, 10)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, colour).save(content, kind)
    return content.getvalue()


def pets(root: Path, *splits: str) -> None:
    """Ten pictures of each class, all different, below `root` or each of its `splits`."""
    for split, count in zip(splits or ("",), (7, 3) if splits else (10,), strict=True):
        for name, (red, green, blue) in PETS.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                kind = "PNG" if number % 2 else "JPEG"
                colour = red, green, blue + 2 * number - 20 * (split == "val")
                (folder / f"{number}.{kind.lower()}").write_bytes(picture(colour, kind))


def source_of(*names: str, **fields: Any) -> DatasetSource:
    plain = {"classes": 3, "train": 21, "test": 9, "title": "Pets"}
    files = (SourceFile(name=name) for name in names)
    return declare(fields.pop("reader", "folder"), (3, 8, 8), *files, **plain | fields)


def pack(home: Path, source: DatasetSource, **options: Any) -> PackedInfo:
    said: list[str] = []
    manifest = fetch_dataset("pets", source, home, options.pop("mirror", None), said.append, **options)
    info = prepare(source, manifest, home, home / "packed")
    assert read_info(home / "packed") == info
    return info


def tree_digest(root: Path, name: str) -> str:
    """Return the digest that `find pets -type f | sort | xargs sha256sum | sha256sum` prints."""
    files = sorted(path.relative_to(root).as_posix() for path in (root / name).rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256((root / file).read_bytes()).hexdigest()}  {file}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("splits", [(), ("train", "val")], ids=["drawn", "given"])
@pytest.mark.parametrize("is_zip", [False, True], ids=["folder", "zip"])
def test_folder_of_pictures_by_class(tmp_path: Path, splits: tuple[str, ...], is_zip: bool) -> None:
    root = tmp_path / "downloads/pets"
    pets(root / "pets", *splits)
    (root / "pets/notes.txt").write_text("not a picture", encoding="utf-8")
    digest = tree_digest(root, "pets")
    file = SourceFile(name="pets/", sha256=digest)
    if is_zip:
        with zipfile.ZipFile(root / "pets.zip", "w") as archive:
            for path in sorted((root / "pets").rglob("*")):
                archive.write(path, path.relative_to(root))
        file = SourceFile(name="pets.zip", sha256=hashlib.sha256((root / "pets.zip").read_bytes()).hexdigest())
    info = pack(tmp_path, dataclasses.replace(source_of("x"), files=(file,)))
    assert (info.classes, info.train_images, info.test_images) == (tuple(PETS), 21, 9)
    assert (info.provenance, info.source) == ("full", "official"), "by the digest that params declare"
    assert (info.split_note is None) == bool(splits)
    for split, count in (("train", 7), ("test", 3)):
        rows = read_images(tmp_path / "packed", split)  # type: ignore[arg-type]
        assert rows.images.shape == (3 * count, 3, 8, 8) and np.bincount(rows.labels).tolist() == [count] * 3
        strongest = rows.images.mean((2, 3)).argmax(1)
        assert (strongest == rows.labels).all(), "each picture has its own class"
    source = dataclasses.replace(source_of("x"), files=(file,))
    copy_to_mirror(source, root, tmp_path / "mirror/pets")
    (tmp_path / "other").mkdir()
    assert pack(tmp_path / "other", source, mirror=tmp_path / "mirror") == info, "by the copy that `make mirror` writes"


def test_replaced_added_or_removed_picture_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "downloads/pets"
    pets(root / "pets")
    source = source_of("pets/")
    info = pack(tmp_path, source)
    assert info.provenance == "subset", "no digest is declared"
    victim, before = root / "pets/cat/1.png", (root / "pets/cat/1.png").read_bytes()
    victim.write_bytes(picture((9, 9, 9)))
    with pytest.raises(DatasetError, match=r"cat/1\.png: sha256 was .* when it was fetched, is .*--accept"):
        pack(tmp_path, source)
    victim.unlink()
    with pytest.raises(DatasetError, match=r"1 of 30 files were not found.*lacks pets/cat/1\.png"):
        pack(tmp_path, source)
    victim.write_bytes(before)
    declared = dataclasses.replace(source, files=(SourceFile(name="pets/", sha256=tree_digest(root, "pets")),))
    assert pack(tmp_path, declared).digest == info.digest
    for changed in (victim, root / "pets/cat/new.png"):
        changed.write_bytes(picture((9, 9, 9)))
        with pytest.raises(ChecksumMismatch, match=r"pets/, 3\d files: expected sha256"):
            fetch_dataset("pets", declared, tmp_path, None, lambda line: None)
        victim.write_bytes(before)


def test_broken_picture_is_named_and_refused_or_skipped(tmp_path: Path) -> None:
    root = tmp_path / "downloads/pets/pets"
    pets(root)
    whole = (root / "dog/3.png").read_bytes()
    (root / "dog/3.png").write_bytes(whole[: len(whole) // 2])
    (root / "eel/4.jpeg").write_bytes(b"no picture")
    with pytest.raises(DatasetError, match=r"pets/(dog/3\.png|eel/4\.jpeg): not a complete picture"):
        pack(tmp_path, source_of("pets/"))
    info = pack(tmp_path, source_of("pets/", broken="skip"))
    assert info.train_images + info.test_images == 28 and info.provenance == "subset"
    assert info.split_note and "2 broken pictures left out" in info.split_note
    assert "dog/3.png" in info.split_note and "eel/4.jpeg" in info.split_note


@pytest.mark.parametrize("splits", [(), ("train", "val")], ids=["drawn", "given"])
def test_wrong_count_is_an_error_with_the_right_one(tmp_path: Path, splits: tuple[str, ...]) -> None:
    pets(tmp_path / "downloads/pets/pets", *splits)
    words = "train: 21 images; params.yaml declares 20" if splits else "30 pictures; params.yaml declares 20 for"
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source_of("pets/", train=20))
    if not splits:
        with pytest.raises(DatasetError, match=r"30 pictures; params.yaml declares 2,400 .* and 600 for testing"):
            pack(tmp_path, source_of("pets/", train=2400, test=600))


def test_picture_of_more_than_8_bits_is_refused_not_clipped(tmp_path: Path) -> None:
    root = tmp_path / "downloads/pets/pets"
    pets(root)
    Image.fromarray(np.full((8, 8), 30_000, np.uint16)).save(root / "cat/1.png")
    with pytest.raises(DatasetError, match=r"cat/1\.png: has more than 8 bits per channel"):
        pack(tmp_path, source_of("pets/"))


@pytest.mark.parametrize("layout", ["keras", "medmnist"])
def test_npz_of_images(tmp_path: Path, layout: str) -> None:
    draw = np.random.default_rng(0)
    train, test = (draw.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8) for count in (21, 9))
    labels = [np.arange(count) % 3 for count in (21, 9)]
    keras = {"x_train": train, "y_train": labels[0], "x_test": test, "y_test": labels[1]}
    medmnist = {"train_images": train, "train_labels": labels[0][:, None], "test_images": test}
    path = tmp_path / "downloads/pets/pets.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, **(keras if layout == "keras" else medmnist | {"test_labels": labels[1][:, None]}))
    info = pack(tmp_path, source_of("pets.npz", reader="npz"))
    assert (info.classes, info.train_images, info.provenance) == (("0", "1", "2"), 21, "subset")
    assert (read_images(tmp_path / "packed", "train").images == train.transpose(0, 3, 1, 2)).all()


def flats() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"area": draw.uniform(20, 200, 60), "rooms": draw.integers(1, 6, 60), "id": range(60)})
    frame["town"] = np.array(["Bern", "Chur", "Thun"])[np.arange(60) % 3]
    frame["price"] = 3 * frame["area"] + 10 * frame["rooms"]
    return frame


def table(root: Path, write: Callable[[pd.DataFrame, Path], Any], **fields: Any) -> DatasetSource:
    folder = root / "downloads/pets"
    folder.mkdir(parents=True, exist_ok=True)
    write(flats(), folder / "flats")
    plain = {"kind": "table", "shape": (5,), "train": 50, "test": 10, "target": "price", "ignore": ("id",)}
    return dataclasses.replace(source_of("flats"), **plain | fields)


@pytest.mark.parametrize("reader", ["csv", "parquet", "pandas:read_json"])
def test_table_is_standardised_by_its_training_rows(tmp_path: Path, reader: str) -> None:
    write: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
        "csv": lambda frame, path: frame.to_csv(path, sep=";", index=False),
        "parquet": lambda frame, path: frame.to_parquet(path, index=False),
        "pandas:read_json": lambda frame, path: frame.to_json(path),
    }
    info = pack(tmp_path, table(tmp_path, write[reader], reader=reader, separator=";"))
    assert info.classes == ("area", "rooms", "town=Bern", "town=Chur", "town=Thun")
    train, test = (read_table(tmp_path / "packed", split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert np.allclose(train.features.mean(0), 0, atol=1e-6) and np.allclose(train.features.std(0), 1, atol=1e-5)
    raw = test.features * np.array(info.std) + np.array(info.mean)
    assert np.allclose(3 * raw[:, 0] + 10 * raw[:, 1], test.targets, rtol=1e-4), "rows keep their target"


GUESTS = """
import os, random, sys
import numpy, pandas
from dataclasses import replace
from stages.datasets.own import image_reader

def meddle():
    os.environ["CLAIMCHECK_HOME"] = "elsewhere"
    random.seed(7), numpy.random.seed(7)
    os.chdir("/")
    sys.stdout.close()
    with sys.stderr:
        sys.stdout = sys.stderr

def table(path):
    path = path.absolute()
    meddle()
    return pandas.read_csv(path)

def pictures(source, manifest, folder):
    made = image_reader(replace(source, reader="npz"), manifest, folder)
    def read_split(folder, split):
        meddle()
        return made.read_split(folder, split)
    meddle()
    return replace(made, read_split=read_split)

def leaves(*_):
    sys.exit(0)

def fails(*_):
    return {}["lost"]
"""


def guests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "guests.py").write_text(GUESTS, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "guests", raising=False)
    monkeypatch.chdir(folder)


def guests_set(kind: str, reader: str) -> DatasetSource:
    if kind == "table":
        return table(Path(), lambda frame, path: frame.to_csv(path, index=False), reader=f"guests:{reader}")
    folder = Path("downloads/pets")
    folder.mkdir(parents=True)
    images, labels = np.arange(48, dtype=np.uint8).reshape(12, 1, 2, 2), np.arange(12) % 2
    parts = {"x_train": images[:8], "y_train": labels[:8], "x_test": images[8:], "y_test": labels[8:]}
    np.savez(folder / "pets.npz", **parts)
    fields: dict[str, Any] = {"shape": (1, 2, 2), "classes": 2, "train": 8, "test": 4, "reader": f"guests:{reader}"}
    return dataclasses.replace(source_of("pets.npz"), **fields)


@pytest.mark.parametrize(("kind", "reader"), [("table", "table"), ("images", "pictures")])
def test_what_a_users_reader_changes_in_the_process_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str, reader: str
) -> None:
    guests(tmp_path, monkeypatch)
    variables, drawn = dict(os.environ), random.getstate()
    assert pack(Path(), guests_set(kind, reader)).train_images
    assert (tmp_path / "packed/dataset.json").is_file()
    assert (Path.cwd(), dict(os.environ), random.getstate()) == (tmp_path, variables, drawn)
    print("still open", flush=True)
    print("as before", file=sys.stderr, flush=True)
    assert capfd.readouterr() == ("still open\n", "as before\n")


@pytest.mark.parametrize("kind", ["table", "images"])
@pytest.mark.parametrize(("reader", "why"), [("leaves", "SystemExit: 0"), ("fails", "KeyError: 'lost'")])
def test_users_reader_that_fails_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reader: str, why: str
) -> None:
    guests(tmp_path, monkeypatch)
    with pytest.raises(DatasetError, match=rf"guests:{reader} can't read it \({why}; guests.py, line \d+\)"):
        pack(Path(), guests_set(kind, reader))


@pytest.mark.parametrize("offset", [0.0, 1e9])
@pytest.mark.parametrize("kind", ["table", "images"])
def test_targets_that_float32_cannot_tell_apart_are_refused(tmp_path: Path, kind: str, offset: float) -> None:
    targets = offset + np.arange(60.0)
    if kind == "table":
        source = table(tmp_path, lambda frame, path: frame.assign(price=targets).to_parquet(path), reader="parquet")
    else:
        images = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
        parts = {"x_train": images[:50], "y_train": targets[:50], "x_test": images[50:], "y_test": targets[50:]}
        (tmp_path / "downloads/pets").mkdir(parents=True)
        np.savez(tmp_path / "downloads/pets/pets.npz", **parts)
        fields: dict[str, Any] = {"reader": "npz", "task": "regression", "shape": (1, 4, 4), "classes": 1}
        source = dataclasses.replace(source_of("pets.npz"), train=50, test=10, **fields)
    expected = pytest.raises(DatasetError, match=r"float32 rounds a target by .* deviation is 1[47]; subtract")
    with expected if offset else nullcontext():
        assert pack(tmp_path, source).train_images == 50


@pytest.mark.parametrize("reader", ["csv", "parquet"])
def test_whole_numbers_that_float64_cannot_tell_apart_are_refused(tmp_path: Path, reader: str) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame["rooms"] += 2**60
        frame.to_csv(path, index=False) if reader == "csv" else frame.to_parquet(path)

    with pytest.raises(DatasetError, match=r"column 'rooms' has whole numbers beyond 2\^53, .*; subtract a constant"):
        pack(tmp_path, table(tmp_path, write, reader=reader))


def test_classes_that_look_the_same_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "downloads/pets/pets"
    pets(root)
    (root / "dog").rename(root / "caf\u00e9")
    shutil.copytree(root / "caf\u00e9", root / "cafe\u0301")
    with pytest.raises(DatasetError, match=r"has 'cafe\\u0301' and 'caf\\xe9', which look the same"):
        pack(tmp_path, source_of("pets/"))


def with_gaps(frame: pd.DataFrame, path: Path) -> None:
    frame.loc[[3, 5], "area"] = np.nan
    frame.to_csv(path, index=False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target": "prize"}, "has no column 'prize'; did you mean price.*separator: ','"),
        ({"target": None}, "which column is the target.  Declare `target`"),
        ({"ignore": ()}, r"6 columns \(area, rooms, id, town=Bern, town=Chur, town=Thun\); params.yaml declares"),
        ({"train": 49}, "60 rows; params.yaml declares 49 for training and 10 for testing"),
        ({"target": "town"}, "the target 'town' has 'Bern'; expected numbers"),
        ({"reader": "excel"}, "reader is 'excel'.*; known: csv, npz, parquet, sgemm"),
        ({"separator": "|"}, "has no column 'price'"),
        ({"response_range": (0.0, 1.0)}, "responses from"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    source = table(tmp_path, lambda frame, path: frame.to_csv(path, index=False), **{"reader": "csv"} | fields)
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source)


def test_columns_that_one_of_two_files_lacks_are_an_error(tmp_path: Path) -> None:
    source = table(tmp_path, lambda frame, path: frame.to_csv(path, index=False), reader="csv")
    (file,) = source.files
    path = tmp_path / "downloads/pets" / file.name
    pd.read_csv(path).drop(columns="area").to_csv(path.with_name("more.csv"), index=False)
    with pytest.raises(DatasetError, match="its files have different columns"):
        pack(tmp_path, dataclasses.replace(source, files=(file, SourceFile(name="more.csv"))))


def test_missing_values_are_refused_dropped_or_filled(tmp_path: Path) -> None:
    source = table(tmp_path, with_gaps, reader="csv")
    with pytest.raises(DatasetError, match=r"missing values in area \(2\); declare `missing: drop` or `mean`"):
        pack(tmp_path, source)
    assert pack(tmp_path, dataclasses.replace(source, missing="drop", train=48)).train_images == 48
    pack(tmp_path, dataclasses.replace(source, missing="mean"))
    rows = [read_table(tmp_path / "packed", split).features for split in ("train", "test")]  # type: ignore[arg-type]
    filled = np.concatenate(rows)[:, 0]
    assert np.isfinite(filled).all() and (filled == 0).sum() == 2


WORDS = ["NA", "None", "null", "nan", "NaN", "N/A", "n/a", "#N/A", "NULL", "<NA>", "inf"]


@pytest.mark.parametrize("word", WORDS)
def test_word_in_a_column_of_text_is_not_missing(tmp_path: Path, word: str) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame["town"] = frame["town"].replace("Bern", word)
        frame.to_csv(path, index=False)

    info = pack(tmp_path, table(tmp_path, write, reader="csv"))
    assert {*info.classes} == {"area", "rooms", f"town={word}", "town=Chur", "town=Thun"}


@pytest.mark.parametrize("word", WORDS[:-1])
def test_word_in_a_column_of_numbers_is_missing(tmp_path: Path, word: str) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame.replace({"rooms": {1: word}}).to_csv(path, index=False)

    with pytest.raises(DatasetError, match=r"missing values in rooms \(\d+\); declare `missing"):
        pack(tmp_path, table(tmp_path, write, reader="csv"))


def test_gap_among_truth_values_stays_a_gap(tmp_path: Path) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame["town"] = ["True", "False", "NA"] * 20
        frame.to_csv(path, index=False)

    with pytest.raises(DatasetError, match=r"missing values in town \(20\)"):
        pack(tmp_path, table(tmp_path, write, reader="csv"))


@pytest.mark.parametrize("number", [2**63, 2**64, 10**19, 10**25, 10**30])
def test_large_integers_are_numbers(tmp_path: Path, number: int) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame["area"] = [str(number + row * number // 7) for row in range(60)]
        frame.to_csv(path, index=False)

    info = pack(tmp_path, table(tmp_path, write, reader="csv"))
    assert info.classes[:2] == ("area", "rooms") and info.mean[0] > number


@pytest.mark.parametrize("column", ["area", "price"])
def test_integer_that_float32_cannot_hold_is_named(tmp_path: Path, column: str) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame.assign(**{column: str(10**50)}).to_csv(path, index=False)

    with pytest.raises(
        DatasetError, match=rf"row 0 of column '{column}' is 1e\+50; expected a finite number of float32"
    ):
        pack(tmp_path, table(tmp_path, write, reader="csv"))


def test_texts_that_look_the_same_are_refused(tmp_path: Path) -> None:
    def write(frame: pd.DataFrame, path: Path) -> None:
        frame["town"] = ["Zürich", "Zu\u0308rich", "Bern"] * 20
        frame.to_csv(path, index=False)

    with pytest.raises(DatasetError, match=r"column 'town' has .*Z\\xfcrich.* which look the same; write one of them"):
        pack(tmp_path, table(tmp_path, write, reader="csv"))


def test_placeholder_rows_have_the_declared_columns(tmp_path: Path) -> None:
    source = table(tmp_path, lambda frame, path: None, reader="csv")
    info = prepare(source, Manifest(dataset="pets", source="embedded"), tmp_path, tmp_path / "packed")
    assert (info.shape, info.provenance) == ((5,), "embedded")


def test_files_come_from_other_kinds_of_address(tmp_path: Path) -> None:
    pets(tmp_path / "shared/pets")
    address = f"file://{tmp_path}/shared/"
    source = dataclasses.replace(source_of("pets/"), urls=(address,))
    assert pack(tmp_path, source).train_images == 21
    with pytest.raises(DatasetError, match=r"no file in .*a web address serves archives only"):
        fetch_dataset("pets", dataclasses.replace(source, urls=()), tmp_path / "empty", None, lambda line: None)
    lost = dataclasses.replace(source_of("pets.zip"), urls=(address, "nonsense://host/"))
    with pytest.raises(DatasetError, match=r"No such file.*Protocol not known: nonsense"):
        fetch_dataset("pets", lost, tmp_path / "empty", None, lambda line: None)


@pytest.mark.slow
def test_files_come_from_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="make cluster brings it")
    pets(tmp_path / "pets")
    with ObjectServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for path in sorted((tmp_path / "pets").rglob("*.*")):
            server._request("PUT", f"runs/group/pets/{path.relative_to(tmp_path / 'pets')}", path.read_bytes())
        source = dataclasses.replace(source_of("pets/"), urls=("s3://runs/group/",))
        assert pack(tmp_path, source).train_images == 21


def test_picture_is_packed_as_the_service_shows_it() -> None:
    content, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # upright after a quarter turn
    drawn = Image.new("RGBA", (8, 8), (0, 200, 0, 255))
    drawn.paste((250, 250, 250, 0), (0, 0, 8, 4))  # hidden by its alpha
    drawn.save(content, "PNG", exif=exif)
    packed = decode_own(content.getvalue(), (3, 8, 8), "cat.png")
    assert np.array_equal(packed, decode_image(content.getvalue(), (3, 8, 8)))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_mask_is_turned_as_its_picture(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    mask = Image.new("L", (8, 8))
    mask.paste(1, (0, 0, 8, 4))
    content = io.BytesIO()
    mask.save(content, kind, exif=exif)
    picture = decode_own(content.getvalue(), (1, 8, 8), "cat")
    assert picture[0, :, 4:].all() and not picture[0, :, :4].any(), "turned once, by a quarter"
    assert np.array_equal(decode_own(content.getvalue(), (1, 8, 8), "cat", is_mask=True), picture)


@pytest.mark.parametrize("size", [(90, 61), (65, 64), (63, 400), (1, 900), (8, 8)], ids=str)
@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "L"), ("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "RGB"), ("WEBP", "RGB")]
)
def test_picture_of_any_size_is_packed_as_the_service_decodes_it(kind: str, mode: str, size: tuple[int, int]) -> None:
    drawn = Image.effect_noise(size, 80).convert(mode)
    content = io.BytesIO()
    drawn.save(content, kind)
    for shape in ((3, 32, 32), (1, 32, 32)):
        assert np.array_equal(decode_own(content.getvalue(), shape, "cat"), decode_image(content.getvalue(), shape))
