from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.manifest import Manifest, judge_provenance, read_manifest
from stages.datasets.packed import PackedInfo, read_images, read_info
from stages.datasets.prepare import READERS, prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import ChecksumMismatch, DatasetError
from stages.params.experiment import DatasetSource
from tests.datasets.tiny import TEST, TRAIN, TinyDataset, cifar10_files, tiny_cifar10, tiny_mnist, write_mirror_json

TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"
BATCH_2 = "cifar-10-batches-bin/data_batch_2.bin"


def pack(dataset: TinyDataset, home: Path, source: DatasetSource | None = None) -> PackedInfo:
    """Fetch from the downloads and prepare under another declaration, if one is given."""
    dataset.write(home / "downloads/tiny")
    manifest = fetch_dataset("tiny", dataset.source, home, None, lambda line: None)
    return prepare(source or dataset.source, manifest, home, home / "processed/tiny")


def provenance_of(source: DatasetSource, manifest: Manifest, test: int = TEST) -> str:
    files = READERS[source.reader].FILES
    return judge_provenance(source, manifest, TRAIN, test, files=files, content_is_whole=False)


def changed_mirror(dataset: TinyDataset, mirror: Path, name: str, rows: list[int] | None) -> Manifest:
    """Fetch from a mirror in which the last byte of `name` is changed, and declared so."""
    content = bytearray(dataset.files[name])
    content[-1] ^= 1
    dataset.write(mirror / "tiny")
    (mirror / "tiny" / name).write_bytes(bytes(content))
    write_mirror_json(mirror / "tiny", dataset, inexact_test_rows=rows)
    return fetch_dataset("tiny", dataset.source, mirror, mirror, lambda line: None)


@pytest.mark.parametrize("dataset", [tiny_cifar10(), tiny_mnist()], ids=["cifar10", "mnist"])
def test_official_files_become_the_packed_set(tmp_path: Path, dataset: TinyDataset) -> None:
    info = pack(dataset, tmp_path)
    assert (info.provenance, info.source) == ("full", "official")
    assert (info.train_images, info.test_images, info.test_rows, info.excluded_test_images) == (TRAIN, TEST, None, 0)
    assert read_info(tmp_path / "processed/tiny") == info
    images = read_images(tmp_path / "processed/tiny", "train")
    assert images.images.shape == (TRAIN, *dataset.source.shape)
    assert images.labels.tolist() == [index % 10 for index in range(TRAIN)]


def test_inexact_test_row_is_left_out_and_counted(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    manifest = changed_mirror(dataset, tmp_path, TEST_BATCH, [199])
    info = prepare(dataset.source, manifest, tmp_path, tmp_path / "processed/tiny")
    assert (info.test_images, info.excluded_test_images) == (199, 1)
    assert info.test_rows == tuple(range(199))
    assert (info.provenance, info.source) == ("full", "mirror")
    pixels = np.frombuffer(dataset.files[TEST_BATCH], dtype=np.uint8).reshape(200, 3073)[:199, 1:]
    kept = read_images(tmp_path / "processed/tiny", "test")
    np.testing.assert_array_equal(kept.images.reshape(199, 3072), pixels)


def test_more_than_half_a_percent_of_inexact_test_rows_make_a_subset(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    for rows, provenance in (([199], "full"), ([198, 199], "subset")):
        manifest = changed_mirror(dataset, tmp_path / str(len(rows)), TEST_BATCH, rows)
        assert provenance_of(dataset.source, manifest, TEST - len(rows)) == provenance


def test_inexact_training_file_makes_a_subset(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    manifest = changed_mirror(dataset, tmp_path, BATCH_2, [199])
    assert prepare(dataset.source, manifest, tmp_path, tmp_path / "packed").provenance == "subset"


def test_inexact_test_file_without_its_rows_makes_a_subset(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    manifest = changed_mirror(dataset, tmp_path, TEST_BATCH, None)
    assert prepare(dataset.source, manifest, tmp_path, tmp_path / "packed").provenance == "subset"


def test_data_set_without_one_of_its_files_is_a_subset(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "downloads/tiny")
    manifest = fetch_dataset("tiny", dataset.source, tmp_path, None, lambda line: None)
    assert provenance_of(dataset.source, manifest) == "full"
    part = dataclasses.replace(manifest, files=manifest.files[:-1])
    assert provenance_of(dataset.source, part) == "subset"


def test_stand_in_is_never_taken_for_the_data_set(tmp_path: Path) -> None:
    manifest = Manifest(dataset="tiny", source="embedded")
    info = prepare(tiny_cifar10().source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("embedded", "embedded")
    assert info.classes[3] == "digits-3"
    assert (info.train_images, info.test_images) == (128, 16)


NINE = np.arange(TRAIN) % 9
CLASSES_GONE = {
    "train": (cifar10_files(train_labels=NINE), "tiny, train: no image of truck"),
    "test": (
        cifar10_files(test_labels=np.arange(TEST) % 3),
        "tiny, test: no image of cat, deer, dog, frog, horse and 2",
    ),
}


@pytest.mark.parametrize("split", CLASSES_GONE)
def test_missing_class_is_named(tmp_path: Path, split: str) -> None:
    files, message = CLASSES_GONE[split]
    with pytest.raises(DatasetError, match=message):
        pack(tiny_cifar10(files), tmp_path)
    assert not (tmp_path / "processed").exists()


def test_class_that_goes_with_the_inexact_rows_is_missed(tmp_path: Path) -> None:
    labels = np.append(np.arange(TEST - 1) % 9, 9)
    dataset = tiny_cifar10(cifar10_files(test_labels=labels))
    manifest = changed_mirror(dataset, tmp_path, TEST_BATCH, [199])
    with pytest.raises(DatasetError, match="tiny, test: no image of truck"):
        prepare(dataset.source, manifest, tmp_path, tmp_path / "packed")


def test_label_outside_the_classes_is_named(tmp_path: Path) -> None:
    labels = np.arange(TRAIN) % 10
    labels[13] = 10
    with pytest.raises(DatasetError, match="tiny, train: row 13 has label 10; labels go from 0 to 9"):
        pack(tiny_cifar10(cifar10_files(train_labels=labels)), tmp_path)


DECLARATIONS: Mapping[str, tuple[dict[str, object], type[Exception], str]] = {
    "training count": ({"train": 51}, DatasetError, "tiny, train: 50 images; params.yaml declares 51"),
    "test count": ({"test": 199}, DatasetError, "tiny, test: 200 images; params.yaml declares 199"),
    "shape": ({"shape": (3, 28, 28)}, DatasetError, r"images are \(3, 32, 32\); params.yaml declares \(3, 28, 28\)"),
    "classes": ({"classes": 100}, DatasetError, "10 class names; params.yaml declares 100"),
    "reader": ({"reader": "cifar-10"}, DatasetError, "reader is 'cifar-10'; known: cifar10, cifar100, imagenette"),
}


@pytest.mark.parametrize("case", DECLARATIONS)
def test_difference_from_the_declaration_is_named(tmp_path: Path, case: str) -> None:
    change, error, message = DECLARATIONS[case]
    dataset = tiny_cifar10()
    with pytest.raises(error, match=message):
        pack(dataset, tmp_path, dataclasses.replace(dataset.source, **change))  # type: ignore[arg-type]


def test_raw_file_that_changed_after_fetch_is_named(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    pack(dataset, tmp_path)
    manifest = fetch_dataset("tiny", dataset.source, tmp_path, None, lambda line: None)
    path = tmp_path / "downloads/tiny/MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(b"other")
    with pytest.raises(
        ChecksumMismatch, match=r"changed since it was fetched; run `python -m stages.fetch tiny` again"
    ):
        prepare(dataset.source, manifest, tmp_path, tmp_path / "packed")
    path.unlink()
    with pytest.raises(DatasetError, match="no such file, though the manifest lists it"):
        prepare(dataset.source, manifest, tmp_path, tmp_path / "packed")


def test_manifest_reads_back_as_written(tmp_path: Path) -> None:
    manifest = changed_mirror(tiny_cifar10(), tmp_path, TEST_BATCH, [3])
    (tmp_path / "tiny.json").write_bytes(manifest.to_json())
    assert read_manifest(tmp_path / "tiny.json") == manifest


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no such file"), ("{", "not a manifest"), ("{}", "not a manifest")]
)
def test_bad_manifest_says_how_to_make_it(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "tiny.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DatasetError, match=f"{message}.*; `python -m stages.fetch tiny` writes it"):
        read_manifest(path)
