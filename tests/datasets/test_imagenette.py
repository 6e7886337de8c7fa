from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stages.datasets import imagenette, imagewoof
from stages.datasets.packed import read_images
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import DatasetError
from stages.params.experiment import load_params
from tests.datasets.archives import Entries, write_tar
from tests.datasets.test_pictures import jpeg, stripes

READERS = [imagenette, imagewoof]


def picture(reader: ModuleType, split: str, label: int, name: str = "ILSVRC2012_val_00000293") -> str:
    return f"{reader.ARCHIVE.removesuffix('.tgz')}/{split}/{reader.WNIDS[label]}/{name}.JPEG"


def entries(reader: ModuleType) -> Entries:
    """Two training pictures and a test picture beside other files that such archives hold."""
    root = reader.ARCHIVE.removesuffix(".tgz")
    return [
        (picture(reader, "train", 9, "n03888257_3-x"), jpeg(stripes(160, 213))),
        (f"{root}/noisy_labels.csv", b"path,noisy_labels_0\n"),
        (f"{root}/train/.DS_Store", b"left by a file manager"),
        (picture(reader, "val", 4), jpeg(stripes(160, 160)[:, :, 0])),
        (picture(reader, "train", 0), jpeg(stripes(200, 160))),
    ]


@pytest.mark.parametrize("reader", READERS)
def test_folder_is_the_class(tmp_path: Path, reader: ModuleType) -> None:
    write_tar(tmp_path / reader.ARCHIVE, entries(reader))
    train, test = (reader.read_split(tmp_path, split) for split in ("train", "test"))
    assert (train.images.shape, train.labels.tolist()) == ((2, 3, 80, 80), [9, 0])
    assert (test.images.shape, test.labels.tolist()) == ((1, 3, 80, 80), [4])


FIRST = picture(imagenette, "train", 0)
FAULTS: dict[str, tuple[Entries, type[Exception], str]] = {
    "other class": (
        [(FIRST, b""), (picture(imagewoof, "train", 0), b"")],
        DatasetError,
        f"{imagewoof.WNIDS[0]}.*belongs to no class",
    ),
    "no class": ([("imagenette2-160/train/stray.JPEG", b"")], DatasetError, "stray.JPEG: a picture that belongs to no"),
    "other split": (
        [("imagenette2-160/test/n01440764/a.JPEG", b"")],
        DatasetError,
        "a.JPEG: a picture that belongs to",
    ),
    "other format": (
        [("imagenette2-160/train/n01440764/a.png", b"")],
        DatasetError,
        "a.png: a picture that belongs to",
    ),
    "no picture": ([("imagenette2-160/noisy_labels.csv", b"")], DatasetError, "has no labelled picture"),
    "damaged": ([(FIRST, b"x")], DatasetError, "00000293.JPEG: not a whole JPEG picture"),
    "twice": ([(FIRST, b"x"), (FIRST, b"x")], DatasetError, "00000293.JPEG: comes twice"),
    "slip": ([(f"imagenette2-160/../../{FIRST}", b"x")], DatasetError, "leads out of the archive"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_archive_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    members, error, message = FAULTS[fault]
    write_tar(tmp_path / imagenette.ARCHIVE, members)
    with pytest.raises(error, match=message):
        imagenette.read_split(tmp_path, "train")


def test_real_sample_lying_unpacked_becomes_a_subset(tmp_path: Path, sample_mirror: Path) -> None:
    source = load_params().datasets["imagenette"]
    manifest = fetch_dataset("imagenette", source, tmp_path, sample_mirror, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("subset", "mirror")
    assert (info.train_images, info.test_images, info.shape) == (60, 30, (3, 80, 80))
    labels = [read_images(tmp_path / "packed", split).labels for split in ("train", "test")]  # type: ignore[arg-type]
    assert [np.bincount(part).tolist() for part in labels] == [[6] * 10, [3] * 10]
