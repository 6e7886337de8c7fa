from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.manifest import check_split, find_shared, pixel_statistics
from stages.datasets.packed import ImageSet
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import DatasetError
from tests.datasets.tiny import TinyDataset, cifar10_files, tiny_cifar10, write_mirror_json

TEST_BATCH, BATCH_2 = "cifar-10-batches-bin/test_batch.bin", "cifar-10-batches-bin/data_batch_2.bin"
ROW = 3073


def with_shared_pixels() -> TinyDataset:
    """The third test picture is the second one of the second training batch, under another class."""
    files = cifar10_files()
    test = bytearray(files[TEST_BATCH])
    test[2 * ROW + 1 : 3 * ROW] = files[BATCH_2][ROW + 1 : 2 * ROW]
    return tiny_cifar10({**files, TEST_BATCH: bytes(test)})


def test_image_in_both_splits_is_found_whatever_its_class() -> None:
    train = ImageSet(np.arange(4 * 12, dtype=np.uint8).reshape(4, 3, 2, 2), np.arange(4))
    test = ImageSet(np.stack([train.images[3] + 1, train.images[2]]), np.array([9, 9]))
    assert find_shared(train, test) == [(2, 1)]


@pytest.mark.parametrize(("declared", "is_refused"), [(0, True), (1, False), (None, False)])
def test_official_sets_share_as_many_images_as_declared(tmp_path: Path, declared: int | None, is_refused: bool) -> None:
    dataset = with_shared_pixels()
    source = dataclasses.replace(dataset.source, shared_images=declared)
    dataset.write(tmp_path / "downloads/tiny")
    manifest = fetch_dataset("tiny", source, tmp_path, None, lambda line: None)
    if is_refused:
        with pytest.raises(DatasetError, match=r"tiny: 1 test images .*: test image 2 is training image 11"):
            prepare(source, manifest, tmp_path, tmp_path / "packed")
    else:
        assert prepare(source, manifest, tmp_path, tmp_path / "packed").shared_test_images == 1


def test_part_of_a_data_set_shares_no_image(tmp_path: Path) -> None:
    dataset = with_shared_pixels()
    source = dataclasses.replace(
        dataset.source, files=tuple(dataclasses.replace(file, md5="0" * 32) for file in dataset.source.files)
    )
    dataset.write(tmp_path / "mirror/tiny")
    write_mirror_json(tmp_path / "mirror/tiny", dataclasses.replace(dataset, source=source))
    manifest = fetch_dataset("tiny", source, tmp_path, tmp_path / "mirror", lambda line: None)
    assert manifest.source == "mirror"
    with pytest.raises(DatasetError, match="0 expected"):
        prepare(source, manifest, tmp_path, tmp_path / "packed")


def test_count_of_each_class_is_the_declared_one() -> None:
    images = ImageSet(np.zeros((50, 3, 32, 32), dtype=np.uint8), np.arange(50) % 10)
    source = tiny_cifar10().source
    for right in (None, 5, (5,) * 10):
        declared = dataclasses.replace(source, train_per_class=right)
        check_split(images, "train", declared, "tiny, train", may_be_part=False)
    declared = dataclasses.replace(source, train_per_class=(5, 5, 5, 4, 6, 5, 5, 5, 5, 5))
    with pytest.raises(DatasetError, match=r"tiny, train: 5 images of class 3, more than params.yaml declares"):
        check_split(images, "train", declared, "tiny, train", may_be_part=False)


def test_statistics_are_those_of_numpy() -> None:
    images = np.random.RandomState(0).randint(0, 256, (20, 3, 8, 8)).astype(np.uint8)
    images[:, 1] //= 7
    mean, std = pixel_statistics(images)
    np.testing.assert_allclose(mean, images.mean((0, 2, 3)) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, images.std((0, 2, 3), dtype=np.float64) / 255, rtol=1e-12)


def test_statistics_know_nothing_of_the_test_set(tmp_path: Path) -> None:
    seen = []
    for seed in (0, 1):
        files = cifar10_files()
        test = np.random.RandomState(seed).bytes(200 * ROW)
        rows = np.frombuffer(test, dtype=np.uint8).reshape(200, ROW).copy()
        rows[:, 0] = np.arange(200) % 10
        dataset = tiny_cifar10({**files, TEST_BATCH: rows.tobytes()})
        home = tmp_path / str(seed)
        dataset.write(home / "downloads/tiny")
        manifest = fetch_dataset("tiny", dataset.source, home, None, lambda line: None)
        info = prepare(dataset.source, manifest, home, home / "packed")
        seen.append((info.mean, info.std))
    assert seen[0] == seen[1]
