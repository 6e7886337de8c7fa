from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stages.datasets import tinyimagenet, tinyimagenet32
from stages.datasets.archive import decode_square
from stages.datasets.packed import read_images
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import DatasetError
from stages.params.experiment import load_params
from tests.datasets.archives import Entries, write_zip
from tests.datasets.test_pictures import jpeg, stripes

ROOT = "tiny-imagenet-200"
FISH, WORM = tinyimagenet.WNIDS[0], tinyimagenet.WNIDS[199]
TRAIN = f"{ROOT}/train/{WORM}/images/{WORM}_3.JPEG"
GREY = f"{ROOT}/train/{FISH}/images/{FISH}_17.JPEG"
VAL = f"{ROOT}/val/images/val_0.JPEG"


def entries(**changes: bytes | None) -> Entries:
    """Two training pictures, one validation picture and an unlabelled one, in the official layout."""
    members: dict[str, bytes | None] = {
        "wnids": "\n".join(reversed(tinyimagenet.WNIDS)).encode(),
        "train": jpeg(stripes(64, 64)),
        "boxes": b"anything",
        "grey": jpeg(stripes(64, 64)[:, :, 0]),
        "val": jpeg(stripes(64, 64) // 2),
        "annotations": f"val_0.JPEG\t{WORM}\t0\t0\t62\t62\n".encode(),
        "unlabelled": jpeg(stripes(64, 64)),
    }
    names = {
        "wnids": f"{ROOT}/wnids.txt",
        "train": TRAIN,
        "boxes": f"{ROOT}/train/{WORM}/{WORM}_boxes.txt",
        "grey": GREY,
        "val": VAL,
        "annotations": f"{ROOT}/val/val_annotations.txt",
        "unlabelled": f"{ROOT}/test/images/test_0.JPEG",
    }
    return [(names.get(key, key), content) for key, content in (members | changes).items() if content is not None]


def test_folder_and_annotation_give_the_class(tmp_path: Path) -> None:
    write_zip(tmp_path / tinyimagenet.ARCHIVE, entries())
    train, test = (tinyimagenet.read_split(tmp_path, split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert (train.images.shape, train.labels.tolist()) == ((2, 3, 64, 64), [199, 0])
    assert (test.images.shape, test.labels.tolist()) == ((1, 3, 64, 64), [199])
    np.testing.assert_array_equal(train.images[0], decode_square(jpeg(stripes(64, 64)), 64, "here"))


def test_smaller_version_is_the_same_pictures_shrunk(tmp_path: Path) -> None:
    write_zip(tmp_path / tinyimagenet.ARCHIVE, entries())
    large, small = (reader.read_split(tmp_path, "train") for reader in (tinyimagenet, tinyimagenet32))
    assert small.images.shape == (2, 3, 32, 32)
    assert small.labels.tolist() == large.labels.tolist()
    means = large.images.reshape(2, 3, 32, 2, 32, 2).mean((3, 5))
    # Bilinear with antialiasing weighs four pixels in a direction; on ramps that is the mean of the middle two.
    assert abs(small.images[:, :, 1:-1, 1:-1] - means[:, :, 1:-1, 1:-1]).max() < 4


FAULTS: dict[str, tuple[dict[str, bytes | None], type[Exception], str]] = {
    "no class list": ({"wnids": None}, DatasetError, "wnids.txt: missing, or not the 200 classes"),
    "other class list": ({"wnids": b"n01443537\n"}, DatasetError, "wnids.txt: missing, or not the 200 classes"),
    "no annotations": ({"annotations": None}, DatasetError, "val_0.JPEG: a picture that belongs to no class"),
    "missing picture": ({"val": None}, DatasetError, "val_0.JPEG: .*names it, but it isn't there"),
    "unknown class": ({"annotations": b"val_0.JPEG\tn00000000\t0"}, DatasetError, "names no class of Tiny ImageNet"),
    "no columns": ({"annotations": b"val_0.JPEG"}, DatasetError, "'val_0.JPEG' names no class"),
    "annotated twice": (
        {"annotations": f"val_0.JPEG\t{WORM}\nval_0.JPEG\t{FISH}".encode()},
        DatasetError,
        "val_0.JPEG comes twice",
    ),
    "extra class": (
        {f"{ROOT}/train/n00000000/images/n00000000_0.JPEG": b""},
        DatasetError,
        "n00000000_0.JPEG: a picture that belongs to no class",
    ),
    "picture in another class's folder": (
        {f"{ROOT}/train/{FISH}/images/{WORM}_4.JPEG": b""},
        DatasetError,
        f"{WORM}_4.JPEG: a picture that belongs to no class",
    ),
    "extra picture": ({f"{ROOT}/val/images/val_1.JPEG": b""}, DatasetError, "val_1.JPEG: a picture that belongs"),
    "damaged picture": ({"train": b"not a picture"}, DatasetError, f"{TRAIN}: not a whole JPEG"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_archive_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    changes, error, message = FAULTS[fault]
    write_zip(tmp_path / tinyimagenet.ARCHIVE, entries(**changes))
    with pytest.raises(error, match=message):
        tinyimagenet.read_split(tmp_path, "train")


@pytest.mark.parametrize("dataset", ["tinyimagenet", "tinyimagenet32"])
def test_real_sample_becomes_a_subset(tmp_path: Path, sample_mirror: Path, dataset: str) -> None:
    source = load_params().datasets[dataset]
    manifest = fetch_dataset(dataset, source, tmp_path, sample_mirror, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("subset", "mirror")
    assert (info.train_images, info.test_images, info.shared_test_images) == (600, 400, 0)
    assert info.shape == source.shape
    train = read_images(tmp_path / "packed", "train")
    assert np.bincount(train.labels).tolist() == [3] * 200
    # ImageNet's published mean and deviation, of other sizes of these pictures.
    np.testing.assert_allclose(info.mean, (0.485, 0.456, 0.406), atol=0.03)
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["tinyimagenet"]
