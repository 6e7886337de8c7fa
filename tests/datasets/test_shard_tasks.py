"""Labels, numbers and masks in shards, written by the packages that define their formats."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from stages.datasets.manifest import DatasetError
from stages.datasets.packed import PackedInfo, read_images
from stages.params.experiment import DatasetSource, ParamsError, load_params
from tests.datasets.test_other_tasks import IMAGES, LABELS, MASKS, NAMES, TEST, TRAIN
from tests.datasets.test_own import pack, source_of
from tests.datasets.test_shards import PICTURE, pack_parquet, write_tar
from tests.datasets.workplace import write_params

PARTS = {"train": slice(0, TRAIN), "test": slice(TRAIN, TRAIN + TEST)}
NUMBERS = LABELS / 3 + np.arange(len(LABELS))[:, None]
SETS = [[index for index in range(3) if row[index]] for row in LABELS]


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def column(task: str, names: bool) -> dict[str, list[Any]]:
    """Return the column or columns of targets by name; several if there are `names`."""
    if task == "segmentation":
        return {"annotation": [{"bytes": png(mask.astype(np.uint8)), "path": None} for mask in MASKS]}
    if task == "regression" and names:
        return {name: NUMBERS[:, index].tolist() for index, name in enumerate(NAMES)}
    if task == "regression":
        return {"numbers": NUMBERS.tolist()}
    return {"found": [[NAMES[index] for index in row] for row in SETS] if names else SETS}


def features(task: str, names: bool) -> dict[str, Any]:
    import datasets  # two seconds

    if task == "segmentation":
        return {"annotation": datasets.Image()}
    if task == "regression" and names:
        return {name: datasets.Value("float64") for name in NAMES}
    if task == "regression":
        return {"numbers": datasets.Sequence(datasets.Value("float64"))}
    kind = datasets.Value("string") if names else datasets.ClassLabel(names=list(NAMES))
    return {"found": datasets.Sequence(kind)}


def write_rows(root: Path, task: str, names: bool, *, is_saved: bool) -> DatasetSource:
    import datasets

    datasets.disable_progress_bars()
    every = {"image": [{"bytes": png(image), "path": None} for image in IMAGES], **column(task, names)}
    kinds = datasets.Features({"image": datasets.Image(), **features(task, names)})
    root.mkdir(parents=True, exist_ok=True)
    made = {
        split: datasets.Dataset.from_dict({name: cells[part] for name, cells in every.items()}, features=kinds)
        for split, part in PARTS.items()
    }
    if is_saved:
        datasets.DatasetDict(made).save_to_disk(root / "pets")
        return source_of("pets/", reader="huggingface", task=task)
    for split, table in made.items():
        table.to_parquet(root / f"{split}.parquet")
    return source_of("train.parquet", "test.parquet", reader="huggingface", task=task)


def write_samples(root: Path, task: str, names: bool) -> DatasetSource:
    from webdataset import ShardWriter

    root.mkdir(parents=True, exist_ok=True)
    cells = column(task, names)
    for split, part in PARTS.items():
        with ShardWriter(str(root / f"{split}-%d.tar"), verbose=0) as shards:
            for number in range(len(IMAGES))[part]:
                sample: dict[str, Any] = {"__key__": f"{number:04d}", "png": png(IMAGES[number])}
                if task == "segmentation":
                    sample["mask.png" if names else "seg.png"] = cells["annotation"][number]["bytes"]
                elif len(cells) > 1:
                    sample["json"] = {name: values[number] for name, values in cells.items()}
                else:
                    sample["json"] = {"label": next(iter(cells.values()))[number], "id": number}
                shards.write(sample)
    return source_of("train-0.tar", "test-0.tar", reader="webdataset", task=task)


FORMS: dict[str, Callable[[Path, str, bool], DatasetSource]] = {
    "saved": lambda root, task, names: write_rows(root, task, names, is_saved=True),
    "hub": lambda root, task, names: write_rows(root, task, names, is_saved=False),
    "webdataset": write_samples,
}
EXPECTED = {"multi-label": LABELS.astype(np.int64), "regression": NUMBERS, "segmentation": (MASKS + 1) % 256}


def labels_of(home: Path, task: str) -> np.ndarray:
    labels = np.concatenate([read_images(home / "packed", split).labels for split in ("train", "test")])  # type: ignore[arg-type]
    if task == "regression":
        return labels.view(np.float64)
    return labels.view(np.uint8).reshape(-1, 8, 8) if task == "segmentation" else labels


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("task", EXPECTED)
@pytest.mark.parametrize("names", [False, True])
def test_targets_are_packed_with_their_pictures(tmp_path: Path, form: str, task: str, names: bool) -> None:
    """Targets are lists or names of labels, several columns of numbers, or files of masks."""
    source = FORMS[form](tmp_path / "downloads/pets", task, names)
    if task == "regression" and names:
        source = DatasetSource(**vars(source) | {"target": NAMES})
    info: PackedInfo = pack(tmp_path, source)
    expected, order = EXPECTED[task], [0, 1, 2]
    has_names = names or form != "webdataset" if task == "multi-label" else names and task == "regression"
    if task == "multi-label" and names:
        order = [NAMES.index(name) for name in sorted(NAMES)]
    assert info.classes == (tuple(NAMES[index] for index in order) if has_names else ("0", "1", "2"))
    assert (labels_of(tmp_path, task) == (expected if task == "segmentation" else expected[:, order])).all()
    images = np.concatenate([read_images(tmp_path / "packed", split).images for split in PARTS])  # type: ignore[arg-type]
    assert (images == IMAGES.transpose(0, 3, 1, 2)).all() and (info.train_images, info.test_images) == (TRAIN, TEST)


MASK = png(MASKS[1].astype(np.uint8))
WIDE = png(np.zeros((8, 9), np.uint8))
ONE_ROW: dict[str, Any] = {"train": 1, "test": 0}


@pytest.mark.parametrize(
    ("task", "columns", "fields", "words"),
    [
        ("multi-label", {"label": [3]}, {}, r"row 00000000: its labels are 3; expected a list of names, or of numbers"),
        ("multi-label", {"label": [None]}, {}, "its labels are None; expected a list"),
        ("multi-label", {"label": [["a", ""]]}, {}, "its class is ''"),
        ("multi-label", {"label": [["a", "b"]]}, {}, r"labels are \(1, 2\) \(a, b\); params.yaml declares classes: 3"),
        (
            "multi-label",
            {"a": [0], "b": [1], "c": [2]},
            {"target": ("a", "b", "c")},
            "of label c is 2; expected 0 or 1",
        ),
        (
            "multi-label",
            {"hair": [[1]], "eyes": [[0]]},
            {},
            "hair and eyes may have the labels; declare one as `target`",
        ),
        ("multi-label", {"other": [1]}, {}, "has no column 'label'.*declare the column of the labels as `target`"),
        ("regression", {"age": [float("nan")]}, {"classes": 1}, "label 0 is nan; expected a finite number"),
        ("regression", {"age": [1.0]}, {}, r"labels are \(1, 1\); params.yaml declares classes: 3"),
        ("regression", {"age": [1.0], "size": [2.0]}, {}, "age and size may have the numbers"),
        ("regression", {"age": [1.0]}, {"target": ("age", "size", "x")}, "has no column 'size'"),
        ("segmentation", {"mask": [b""]}, {}, "row 00000000, mask: has no bytes"),
        ("segmentation", {"mask": [WIDE]}, {}, "mask: 9 x 8 pixels; its picture has 8 x 8"),
        ("segmentation", {"mask": [PICTURE]}, {}, "mask: has mode RGB; a mask is grey"),
        ("segmentation", {"front": [MASK], "back": [MASK]}, {}, "front and back may have the mask"),
        ("segmentation", {"label": [0]}, {}, "has no column 'mask'.*declare the column of the mask"),
    ],
)
def test_unsuitable_targets_of_a_row_are_named(
    tmp_path: Path, task: str, columns: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(DatasetError, match=words):
        pack_parquet(tmp_path, {"image": pa.array([PICTURE]), **columns}, task=task, **ONE_ROW | fields)


@pytest.mark.parametrize(
    ("task", "members", "words"),
    [
        (
            "multi-label",
            {"a.cls": b"1"},
            r"a: has \.png, \.cls; expected the labels next to it in the archive, in \.json",
        ),
        ("multi-label", {"a.json": b'{"label": "x"}'}, "a: its labels are 'x'; expected a list"),
        (
            "multi-label",
            {"a.json": b'{"label": [], "labels": []}'},
            "label and labels may have the labels; leave out one",
        ),
        ("regression", {"a.json": b'{"label": "x"}'}, r"labels are \(1, 1\)"),
        ("regression", {"a.json": b'{"label": ["x", 1, 2]}'}, "label 0 is x; expected a finite number"),
        (
            "segmentation",
            {"a.json": b"{}"},
            r"a: has \.png; expected the mask next to it in the archive, in \.seg\.png or",
        ),
        ("segmentation", {"a.seg.png": MASK, "a.mask.png": MASK}, r"\.seg\.png and \.mask\.png may have the mask"),
        ("segmentation", {"a.seg.png": WIDE}, "a, mask: 9 x 8 pixels; its picture has 8 x 8"),
        ("segmentation", {"a.seg.png": b"none"}, "a, mask: not a complete picture"),
    ],
)
def test_unsuitable_targets_of_a_sample_are_named(
    tmp_path: Path, task: str, members: dict[str, bytes], words: str
) -> None:
    write_tar(tmp_path / "downloads/pets/pets.tar", ("a.png", PICTURE), *members.items())
    with pytest.raises(DatasetError, match=words):
        pack(tmp_path, source_of("pets.tar", reader="webdataset", task=task, **ONE_ROW))


def test_mask_is_named_by_any_column_next_to_an_image(tmp_path: Path) -> None:
    masks, images = ([png(one.astype(np.uint8)) for one in rows] for rows in (MASKS, IMAGES))
    for number, columns in enumerate(({"pixel_values": images, "label": masks}, {"image": images, "drawn": masks})):
        assert pack_parquet(tmp_path / str(number), columns, task="segmentation").train_images == TRAIN
    columns = {"image": images, "front": masks, "back": masks}
    pack_parquet(tmp_path / "declared", columns, task="segmentation", target="back")


@pytest.mark.parametrize("form", ["List", "former list"])
def test_lists_that_the_features_describe_are_the_labels(tmp_path: Path, form: str) -> None:
    """Lists of other things, such as embeddings and tokens, aren't taken."""
    kind = {"_type": "ClassLabel", "names": list(NAMES)}
    feature = [kind] if form == "former list" else {"feature": kind, "_type": "List"}
    columns = {"image": [png(image) for image in IMAGES], "vector": [[0.5]] * 30, "tokens": [[1]] * 30, "found": SETS}
    info = pack_parquet(
        tmp_path, columns, json.dumps({"info": {"features": {"found": feature}}}).encode(), task="multi-label"
    )
    assert info.classes == NAMES and labels_of(tmp_path, "multi-label").sum() == LABELS.sum()


@pytest.mark.parametrize("reader", ["huggingface", "webdataset"])
def test_tasks_of_shards_can_be_declared(tmp_path: Path, reader: str) -> None:
    for task in EXPECTED:
        write_params(tmp_path, "smoke", pets=source_of("x", reader=reader, task=task))
        assert load_params(tmp_path).datasets["pets"].task == task
    write_params(tmp_path, "smoke", pets=source_of("x", reader=reader, task="segmentation", target=("a", "b", "c")))
    with pytest.raises(ParamsError, match="expected one column, or a task that has several"):
        load_params(tmp_path)


def test_labels_of_a_sample_come_from_the_declared_names(tmp_path: Path) -> None:
    samples: list[tuple[str, bytes]] = []
    for number, image in enumerate(IMAGES):
        fields = dict(zip(NAMES, map(int, LABELS[number]), strict=True))
        samples += [(f"{number:02d}.png", png(image)), (f"{number:02d}.json", json.dumps(fields).encode())]
    write_tar(tmp_path / "downloads/pets/pets.tar", *samples)
    info = pack(tmp_path, source_of("pets.tar", reader="webdataset", task="multi-label", target=NAMES))
    assert info.classes == NAMES and labels_of(tmp_path, "multi-label").sum() == LABELS.sum()
