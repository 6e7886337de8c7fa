"""A user's own data whose labels aren't one class: each way to declare them, and each mistake in them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from stages.datasets.labels import check_mask_size
from stages.datasets.manifest import DatasetError, Manifest
from stages.datasets.packed import digest_packed, read_images, read_table
from stages.datasets.prepare import count_rows, prepare
from stages.params.experiment import DatasetSource, ParamsError, load_params
from tests.datasets.test_own import pack, source_of
from tests.datasets.workplace import write_params

TRAIN, TEST = 21, 9
NAMES = ("red", "green", "blue")
DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 256, (TRAIN + TEST, 8, 8, 3), dtype=np.uint8)
LABELS = np.stack([np.arange(TRAIN + TEST) % 2, np.arange(TRAIN + TEST) % 3 == 0, np.arange(TRAIN + TEST) % 5 > 1], 1)
LABELS = LABELS.astype(float)
FORMS = {
    "multi-label": ("images.npz", "folder", "rows.csv", "rows.parquet", "rows.npz"),
    "regression": ("images.npz", "folder"),
}
"""The ways to declare the labels of each task, as `write` names them."""
CASES = [(task, form) for task, forms in FORMS.items() for form in forms]


def declared(form: str, task: str, **fields: Any) -> DatasetSource:
    is_table, reader = form.startswith("rows"), "folder" if form == "folder" else form.partition(".")[2]
    plain: dict[str, Any] = {"kind": "table", "shape": (2,)} if is_table else {}
    if is_table and reader != "npz":
        plain["target"] = NAMES
    if form == "folder":
        plain["labels"] = "pets/labels.csv"
    files = "pets/" if form == "folder" else form
    return dataclasses.replace(source_of(files, reader=reader, task=task), **plain | fields)


def write(root: Path, form: str, values: np.ndarray, names: tuple[str, ...] = NAMES) -> None:
    """Write images or rows with these values as `form` does; a picture's green gives its number."""
    folder = root / "downloads/pets"
    folder.mkdir(parents=True)
    features = np.stack([np.arange(len(values)), np.arange(len(values)) ** 2], axis=1).astype(float)
    cut = min(TRAIN, len(values))
    if form.endswith("npz"):
        x = IMAGES[: len(values)] if form.startswith("images") else features
        arrays = {"x_train": x[:cut], "x_test": x[cut:], "y_train": values[:cut], "y_test": values[cut:]}
        np.savez(folder / form, **arrays)
    elif form == "folder":
        (folder / "pets").mkdir()
        for number, image in enumerate(IMAGES):
            path = folder / f"pets/{'train' if number < TRAIN else 'test'}/{number:02d}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(image).save(path)
        table = pd.DataFrame(values, columns=list(names))
        table.insert(0, "file", [f"{number:02d}.png" for number in range(len(values))])
        table.to_csv(folder / "pets/labels.csv", index=False)
    else:
        table = pd.DataFrame(features, columns=["a", "b"]).join(pd.DataFrame(values, columns=list(names)))
        table.to_csv(folder / form, index=False) if form.endswith("csv") else table.to_parquet(folder / form)


def packed_labels(root: Path, form: str) -> np.ndarray:
    """All labels of the packed set, those of rows in the order of their numbers."""
    if not form.startswith("rows"):
        return np.concatenate([read_images(root / "packed", split).labels for split in ("train", "test")])  # type: ignore[arg-type]
    parts = [read_table(root / "packed", split) for split in ("train", "test")]  # type: ignore[arg-type]
    order = np.concatenate([part.features[:, 0] for part in parts]).argsort()
    return np.concatenate([part.targets for part in parts])[order]


@pytest.mark.parametrize(("task", "form"), CASES)
def test_labels_are_packed_with_their_rows(tmp_path: Path, task: str, form: str) -> None:
    values = LABELS if task == "multi-label" else LABELS / 3
    write(tmp_path, form, values)
    info = pack(tmp_path, declared(form, task))
    assert (info.train_images, info.test_images) == (TRAIN, TEST)
    labels = packed_labels(tmp_path, form)
    assert ((labels.view(np.float64) if task == "regression" else labels) == values).all()
    assert digest_packed(tmp_path / "packed", info) == info.digest
    assert info.kind == "table" or info.classes == (NAMES if form == "folder" else ("0", "1", "2"))


Change = Callable[[np.ndarray], np.ndarray]


def with_value(value: float) -> Change:
    def change(values: np.ndarray) -> np.ndarray:
        values[4, 1] = value
        return values

    return change


def without_label(split: slice) -> Change:
    def change(values: np.ndarray) -> np.ndarray:
        values[split, 1] = 0
        return values

    return change


MISTAKES: dict[str, tuple[Change, dict[str, Any], dict[str, str]]] = {
    "neither 0 nor 1": (with_value(2), {}, {"multi-label": r"row \d+ of label (1|green) is 2\.0; expected 0 or 1"}),
    "missing": (
        with_value(np.nan),
        {},
        dict.fromkeys(FORMS, r"row 4 of label (1|green) is nan|missing values in (green|label 1)"),
    ),
    "infinite": (
        with_value(np.inf),
        {},
        dict.fromkeys(FORMS, r"row 4 of (label (1|green)|column '(green|label 1)') is inf; expected"),
    ),
    "too large": (
        with_value(1e300),
        {},
        {
            "multi-label": r"row 4 of (label (1|green)|column '(green|label 1)') is 1e\+300; expected",
            "regression": r"row 4 of label (1|green) is 1e\+300; expected a finite number of float32",
        },
    ),
    "another number": (lambda values: values, {"classes": 4}, dict.fromkeys(FORMS, r"(30|21), 3\).*classes: 4")),
    "label of no row": (without_label(slice(None)), {}, {"multi-label": r"no row has the label (1|green)"}),
    "one column": (lambda values: values[:, :1], {"target": "red"}, dict.fromkeys(FORMS, r"(30|21), 1\).*classes: 3")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(("task", "form"), CASES)
def test_each_mistake_in_labels_is_named_in_each_form(tmp_path: Path, task: str, form: str, mistake: str) -> None:
    change, fields, words = MISTAKES[mistake]
    values = change(LABELS.copy())
    write(tmp_path, form, values, NAMES[: values.shape[1]])
    source = declared(form, task, **fields)
    if task not in words:
        assert pack(tmp_path, source).train_images == TRAIN, "no mistake in this task"
        return
    with pytest.raises(DatasetError, match=words[task]) as error:
        pack(tmp_path, source)
    assert "\n" not in str(error.value) and not (tmp_path / "packed").exists()


FILES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "picture without a row": (lambda table: table[1:], r"has no row for 1 pictures: pets/train/00\.png"),
    "row without a picture": (lambda table: table.replace("00.png", "99.png"), "'99.png' names 0 pictures"),
    "two rows of a picture": (lambda table: table.replace("00.png", "01.png"), "or the same one as an earlier row"),
    "no labels": (lambda table: table[["file"]], r"labels are \(30, 0\)"),
    "words": (
        lambda table: table.astype({"red": str}).replace("1.0", "yes"),
        "row 1 of label red is yes; expected 0 or 1",
    ),
}


@pytest.mark.parametrize("mistake", FILES)
def test_each_mistake_in_the_table_of_labels_is_named(tmp_path: Path, mistake: str) -> None:
    change, words = FILES[mistake]
    write(tmp_path, "folder", LABELS)
    path = tmp_path / "downloads/pets/pets/labels.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, declared("folder", "multi-label"))


def test_pictures_of_rare_labels_are_drawn_into_both_splits(tmp_path: Path) -> None:
    write(tmp_path, "folder", np.stack([np.ones(30), np.arange(30) < 3, np.arange(30) > 26], axis=1))
    folder = tmp_path / "downloads/pets/pets"
    for path in [*folder.glob("*/*.png")]:
        path.rename(folder / path.name)
    info = pack(tmp_path, declared("folder", "multi-label"))
    assert info.split_note == "test pictures drawn once, of each class in proportion"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "multi-label", "reader": "mnist"}, "task is 'multi-label'; expected of own tables"),
        ({"task": "multi-label", "kind": "text"}, "task is 'multi-label'; expected of own tables"),
        ({"task": "multi-label", "classes": 0, "reader": "npz"}, "classes is 0; expected the number of labels"),
        ({"task": "multi-label", "reader": "folder"}, "labels is None; expected the table"),
        ({"task": "multi-label", "reader": "npz", "train_per_class": 3}, "leave out the numbers per class"),
        ({"task": "multi-label", "reader": "npz", "labels": "a.csv"}, "labels is 'a.csv'; only a folder"),
        ({"labels": "a.csv"}, "labels is 'a.csv'; only a folder"),
        ({"kind": "table", "reader": "csv", "target": ("a", "b")}, "expected one column, or a task"),
        ({"task": "multi-label", "kind": "table", "reader": "csv", "target": ("a", "a", "b")}, "expected 3 columns"),
        ({"task": "regression", "kind": "table", "reader": "csv"}, "tables are regression without it; leave it out"),
        (
            {"task": "segmentation", "kind": "table", "reader": "npz"},
            "task is 'segmentation'; segmentation needs images",
        ),
        ({"task": "segmentation", "reader": "npz", "classes": 255}, "classes is 255; expected 2 to 254"),
        ({"task": "segmentation", "labels": "a.csv"}, "labels is 'a.csv'; only a folder"),
        ({"task": "multilabel"}, "task is 'multilabel'; input should be 'multi-label'"),
    ],
)
def test_fields_that_do_not_fit_a_task_are_named(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    write_params(tmp_path, "smoke", pets=dataclasses.replace(source_of("x"), **fields))
    with pytest.raises(ParamsError, match=rf"datasets\.pets\.{words}|datasets\.pets\.\w+ is .*{words}"):
        load_params(tmp_path)


@pytest.mark.parametrize(("task", "form"), [("multi-label", "rows.csv"), *((task, "folder") for task in FORMS)])
def test_placeholder_data_have_labels_as_declared(tmp_path: Path, task: str, form: str) -> None:
    source = declared(form, task)
    info = prepare(source, Manifest(dataset="pets", source="embedded"), tmp_path, tmp_path / "packed")
    labels = packed_labels(tmp_path, form)
    counts = count_rows("pets", source, is_stand_in=True)
    assert labels.shape == (counts.train + counts.test, 3) and info.provenance == "embedded"
    assert task == "regression" or {*labels.flat} == {0, 1}


MASKS = IMAGES[..., 1].astype(np.int64) % 3
MASKS[0, 0, 0] = 255


def write_masks(root: Path, form: str, masks: np.ndarray) -> None:
    folder = root / "downloads/pets"
    (folder / "pets").mkdir(parents=True)
    if form == "images.npz":
        x_train, x_test, y_train, y_test = IMAGES[:TRAIN], IMAGES[TRAIN:], masks[:TRAIN], masks[TRAIN:]
        np.savez(folder / form, x_train=x_train, x_test=x_test, train_masks=y_train, test_masks=y_test)
        return
    for number, mask in enumerate(masks):
        split = "train" if number < TRAIN else "test"
        for kind, ending, pixels in (("images", "bmp", IMAGES[number]), ("masks", "png", mask.astype(np.uint8))):
            path = folder / f"pets/{split}/{kind}/{number:02d}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels)
            if number % 2 and kind == "masks":
                picture = picture.convert("P")
            picture.save(path)


def segmentation(form: str, **fields: Any) -> DatasetSource:
    return dataclasses.replace(declared(form, "segmentation"), labels=None, **fields)


@pytest.mark.parametrize("form", ["images.npz", "folder"])
def test_masks_are_packed_with_their_images(tmp_path: Path, form: str) -> None:
    write_masks(tmp_path, form, MASKS)
    info = pack(tmp_path, segmentation(form))
    rows = [read_images(tmp_path / "packed", split) for split in ("train", "test")]  # type: ignore[arg-type]
    packed = np.concatenate([part.labels for part in rows]).view(np.uint8).reshape(30, 8, 8)
    assert (packed == (MASKS + 1) % 256).all() and info.classes == ("0", "1", "2")
    assert (np.concatenate([part.images for part in rows]) == IMAGES.transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("form", ["images.npz", "folder"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda masks: np.where(masks == 2, 3, masks), "mask \\d+ has 3; expected 0 to 2, or 255"),
        (lambda masks: np.where(masks == 2, 255, masks), "no pixel of class 2; pixels of 255 are ignored"),
        (lambda masks: masks[:-1], "1 of images/ and masks/ have no counterpart|x_test has 9 rows and test_masks 8"),
    ],
)
def test_each_mistake_in_masks_is_named(tmp_path: Path, form: str, change: Change, words: str) -> None:
    write_masks(tmp_path, form, change(MASKS))
    if form == "folder" and len(change(MASKS)) < len(MASKS):
        next((tmp_path / "downloads/pets/pets/train/masks").iterdir()).unlink()
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, segmentation(form))


def test_masks_of_another_type_or_shape_are_refused(tmp_path: Path) -> None:
    for number, masks in enumerate((MASKS.astype(float), MASKS[:, :4], MASKS[..., None])):
        write_masks(tmp_path / str(number), "images.npz", masks)
        with pytest.raises(DatasetError, match=r"masks are \w+ \[.*\]; expected integers \[N, 8, 8\]"):
            pack(tmp_path / str(number), segmentation("images.npz"))
    write_masks(tmp_path / "colours", "folder", MASKS)
    folder = tmp_path / "colours/downloads/pets/pets"
    Image.fromarray(IMAGES[0]).save(folder / "train/masks/00.png")
    with pytest.raises(DatasetError, match=r"masks/00\.png: has mode RGB; a mask is grey or has a palette"):
        pack(tmp_path / "colours", segmentation("folder"))
    write(tmp_path / "plain", "folder", LABELS)
    with pytest.raises(DatasetError, match="no picture is in a folder called images"):
        pack(tmp_path / "plain", segmentation("folder"))


def test_large_masks_are_scaled_without_mixing_classes(tmp_path: Path) -> None:
    write_masks(tmp_path, "folder", MASKS)
    for path in (tmp_path / "downloads/pets/pets").rglob("*.*"):
        Image.open(path).resize((24, 20), Image.Resampling.NEAREST).save(path)
    pack(tmp_path, segmentation("folder"))
    packed = read_images(tmp_path / "packed", "train").labels.view(np.uint8)
    assert {*packed.flat} <= {0, 1, 2, 3}


@settings(max_examples=200)
@given(wide=st.integers(1, 900), high=st.integers(1, 900), scale=st.floats(0.05, 20))
def test_mask_may_be_scaled_and_nothing_else(wide: int, high: int, scale: float) -> None:
    def check(width: int, height: int) -> None:
        check_mask_size((width, height), (wide, high), "masks/a.png")

    check(wide, high)
    check(wide * 3, high * 3)
    width, height = max(round(wide * scale), 1), max(round(high * scale), 1)
    if (width == wide) == (height == high) and min(wide, high) * scale >= 0.5:  # or the smaller side isn't rounded
        check(width, height)
    for other in ((high, wide), (wide + 1, high), (wide, max(high // 2, 1)), (2 * wide + 3, high)):
        if other[0] * high != other[1] * wide:
            with pytest.raises(DatasetError, match=rf"{other[0]} x {other[1]} pixels; its picture has {wide} x {high}"):
                check(*other)


@pytest.mark.parametrize("kind", ["tif", "webp"])
def test_mask_of_other_proportions_than_its_picture_is_refused(tmp_path: Path, kind: str) -> None:
    write_masks(tmp_path, "folder", MASKS)
    folder = tmp_path / "downloads/pets/pets/train"
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # stored on its side
    Image.fromarray(IMAGES[0]).resize((16, 8)).save(folder / f"images/00.{kind}", exif=exif)
    (folder / "images/00.bmp").unlink()
    mask = Image.open(folder / "masks/00.png")
    mask.resize((8, 16), Image.Resampling.NEAREST).save(folder / "masks/00.png")
    pack(tmp_path, segmentation("folder"))
    for size in ((16, 8), (8, 8), (8, 15)):
        mask.resize(size, Image.Resampling.NEAREST).save(folder / "masks/00.png")
        with pytest.raises(DatasetError, match=rf"masks/00\.png: {size[0]} x {size[1]} pixels; its picture has 8 x 16"):
            pack(tmp_path, segmentation("folder"), accept=True)


@pytest.mark.parametrize("mode", ["1", "L", "P", "palette of colours"])
def test_masks_are_grey_or_have_a_palette_of_any_colours(tmp_path: Path, mode: str) -> None:
    masks = MASKS % 2
    write_masks(tmp_path, "folder", masks)
    for path in (tmp_path / "downloads/pets/pets").glob("*/masks/*.png"):
        picture = Image.fromarray(np.asarray(Image.open(path), dtype=np.uint8))
        if mode == "1":
            picture = picture.point(lambda value: 255 * value, "1")
        elif mode != "L":
            picture = picture.convert("P")
            picture.putpalette([200, 10, 10, 10, 200, 10] if mode != "P" else [0, 0, 0, 1, 1, 1])
        picture.save(path)
    pack(tmp_path, segmentation("folder", classes=2))
    rows = [read_images(tmp_path / "packed", split).labels for split in ("train", "test")]  # type: ignore[arg-type]
    assert (np.concatenate(rows).view(np.uint8).reshape(30, 8, 8) == masks + 1).all()


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_broken_picture_or_mask_leaves_out_both(tmp_path: Path, kind: str) -> None:
    write_masks(tmp_path, "folder", MASKS)
    next((tmp_path / f"downloads/pets/pets/train/{kind}").glob("03.*")).write_bytes(b"none")
    with pytest.raises(DatasetError, match=rf"{kind}/03\.\w+: not a complete picture"):
        pack(tmp_path, segmentation("folder"))
    info = pack(tmp_path, segmentation("folder", broken="skip"))
    assert (info.train_images, info.test_images) == (TRAIN - 1, TEST)
