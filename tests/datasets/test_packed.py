from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stages.datasets import packed
from stages.datasets.packed import ImageSet, PackedDataError, PackedInfo, digest_images, read_images, read_info

CLASSES = ("cat", "dog")


def image_set(count: int, seed: int) -> ImageSet:
    random = np.random.RandomState(seed)
    return ImageSet(random.randint(0, 256, (count, 3, 4, 4)).astype(np.uint8), np.arange(count) % 2)


def packed_set(folder: Path) -> tuple[ImageSet, ImageSet, PackedInfo]:
    train, test = image_set(6, 0), image_set(4, 1)
    info = PackedInfo(
        dataset="tiny",
        provenance="full",
        digest=digest_images(train, test, CLASSES),
        classes=CLASSES,
        shape=(3, 4, 4),
        train_images=6,
        test_images=4,
        test_rows=(0, 1, 2, 4),
        excluded_test_images=1,
        source="mirror",
    )
    packed.write_packed(folder, {"train": train, "test": test}, info)
    return train, test, info


def test_packed_set_reads_back_as_written(tmp_path: Path) -> None:
    train, test, info = packed_set(tmp_path / "tiny")
    assert read_info(tmp_path / "tiny") == info
    for written, split in ((train, "train"), (test, "test")):
        read = read_images(tmp_path / "tiny", split)  # type: ignore[arg-type]
        np.testing.assert_array_equal(read.images, written.images)
        np.testing.assert_array_equal(read.labels, written.labels)
        assert (read.images.dtype, read.labels.dtype) == (np.uint8, np.int64)


def test_packed_set_is_the_same_bytes_twice(tmp_path: Path) -> None:
    packed_set(tmp_path / "a")
    packed_set(tmp_path / "b")
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"train.safetensors", "test.safetensors", "dataset.json"}


def test_packed_set_replaces_the_old_one_whole(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "stale.safetensors").write_bytes(b"")
    (tmp_path / ".tiny.partial").mkdir()  # left by a killed process
    packed_set(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny"}
    assert {path.name for path in folder.iterdir()} == {"train.safetensors", "test.safetensors", "dataset.json"}


def test_failed_write_leaves_the_old_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tiny"
    packed_set(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "_write_durably", full_disk)
    with pytest.raises(OSError, match="No space left"):
        packed_set(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_digest_turns_with_every_part() -> None:
    train, test = image_set(6, 0), image_set(4, 1)
    pixel = train.images.copy()
    pixel[0, 0, 0, 0] ^= 1
    variants = [
        (train, test, CLASSES),
        (dataclasses.replace(train, images=pixel), test, CLASSES),
        (dataclasses.replace(train, labels=1 - train.labels), test, CLASSES),
        (train, image_set(4, 2), CLASSES),
        (train, test, ("cat", "fox")),
        (dataclasses.replace(train, images=train.images.reshape(6, 3, 2, 8)), test, CLASSES),
    ]
    assert len({digest_images(*variant) for variant in variants}) == len(variants)


def test_digest_is_of_the_values_and_not_of_their_layout() -> None:
    train, test = image_set(6, 0), image_set(4, 1)
    turned = ImageSet(np.asfortranarray(train.images), train.labels.astype(">i8"))
    assert digest_images(turned, test, CLASSES) == digest_images(train, test, CLASSES)


def test_missing_set_says_how_to_make_it(tmp_path: Path) -> None:
    for read in (read_info, lambda folder: read_images(folder, "train")):
        with pytest.raises(PackedDataError, match=r"no such file; `python -m stages.preprocess tiny` writes it"):
            read(tmp_path / "tiny")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"test_rows": null, "classes": [], "shape": [], "extra": 1}'])
def test_damaged_description_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(PackedDataError, match=r"dataset.json: not the description of a packed set"):
        read_info(tmp_path)


def test_damaged_split_is_named(tmp_path: Path) -> None:
    packed_set(tmp_path / "tiny")
    path = tmp_path / "tiny/test.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PackedDataError, match=r"test.safetensors: not a packed split"):
        read_images(tmp_path / "tiny", "test")
