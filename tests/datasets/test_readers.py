"""Raw formats, from bytes written by hand."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from stages.datasets import cifar10, cifar100, mnist, stl10
from stages.datasets.verified import DatasetError


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_idx_values_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    content = struct.pack(">IIII", 0x803, 2, 2, 3) + bytes(range(12))
    path = write(tmp_path, "images.gz", gzip.compress(content))
    expected = [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert mnist.read_idx(path, mnist.IMAGES_MAGIC).tolist() == expected


def test_mnist_split_pairs_images_with_labels(tmp_path: Path) -> None:
    images = struct.pack(">IIII", 0x803, 2, 28, 28) + bytes(784) + bytes([255]) * 784
    labels = struct.pack(">II", 0x801, 2) + bytes([7, 2])
    write(tmp_path, "MNIST/raw/t10k-images-idx3-ubyte.gz", gzip.compress(images))
    write(tmp_path, "MNIST/raw/t10k-labels-idx1-ubyte.gz", gzip.compress(labels))
    split = mnist.read_split(tmp_path, "test")
    assert split.images.shape == (2, 1, 28, 28)
    assert [image.max() for image in split.images] == [0, 255]
    assert split.labels.tolist() == [7, 2]
    assert split.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "not a whole gzip file"),
        (gzip.compress(bytes(100))[:-12], "not a whole gzip file"),
        (gzip.compress(struct.pack(">II", 0x801, 0)), "magic number is 0x00000801, expected 0x00000803"),
        (gzip.compress(b""), "magic number is 0x00000000"),
        (gzip.compress(struct.pack(">IIII", 0x803, 2, 2, 3) + bytes(11)), "11 values; its header says 2 x 2 x 3"),
        (gzip.compress(struct.pack(">I", 0x803)), "ends within its header, after 4 of 16 bytes"),
    ],
    ids=["no gzip", "cut gzip", "labels", "empty", "a value short", "no header"],
)
def test_bad_idx_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, "images.gz", content)
    with pytest.raises(DatasetError, match=message):
        mnist.read_idx(path, mnist.IMAGES_MAGIC)


def row(head: list[int], red: int, green: int, blue: int) -> bytes:
    return bytes(head) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar10_rows_are_class_then_colour_planes(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, f"cifar-10-batches-bin/data_batch_{number}.bin", row([number], 10, 20, number))
    split = cifar10.read_split(tmp_path, "train")
    assert split.labels.tolist() == [1, 2, 3, 4, 5]
    assert split.images.shape == (5, 3, 32, 32)
    assert split.images[:, :, 0, 0].tolist() == [[10, 20, number] for number in range(1, 6)]


def test_cifar_pixels_go_along_the_rows_of_the_image(tmp_path: Path) -> None:
    plane = bytes(range(256)) * 4
    path = write(tmp_path, "batch.bin", bytes([0]) + plane * 3)
    _, images = cifar10.read_rows(path, label_bytes=1)
    assert images[0, 0, 0, :3].tolist() == [0, 1, 2]
    assert images[0, 2, 1, :3].tolist() == [32, 33, 34]


def test_cifar100_takes_the_fine_class(tmp_path: Path) -> None:
    write(tmp_path, "cifar-100-binary/test.bin", row([3, 42], 1, 2, 3) + row([4, 99], 4, 5, 6))
    split = cifar100.read_split(tmp_path, "test")
    assert split.labels.tolist() == [42, 99]
    assert split.images[:, :, 0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_bad_cifar_file_is_named(tmp_path: Path, size: int) -> None:
    path = write(tmp_path, "batch.bin", bytes(size))
    with pytest.raises(DatasetError, match=f"batch.bin: {size:,} bytes are not a whole number of rows"):
        cifar10.read_rows(path, label_bytes=1)


def test_stl10_planes_are_stored_column_by_column(tmp_path: Path) -> None:
    ramp = np.arange(96, dtype=np.uint8)
    red = np.repeat(ramp, 96)  # each column has one value
    green = np.tile(ramp, 96)  # each row has one value
    write(tmp_path, "stl10_binary/test_X.bin", red.tobytes() + green.tobytes() + bytes(96 * 96))
    write(tmp_path, "stl10_binary/test_y.bin", bytes([10]))
    split = stl10.read_split(tmp_path, "test")
    assert split.images.shape == (1, 3, 96, 96)
    assert split.images[0, 0, 5].tolist() == ramp.tolist(), "red grows to the right"
    assert split.images[0, 1, :, 5].tolist() == ramp.tolist(), "green grows downwards"
    assert (split.labels.tolist(), stl10.CLASSES[9]) == ([9], "truck")


@pytest.mark.parametrize("size", [0, 27_647, 27_649])
def test_bad_stl10_file_is_named(tmp_path: Path, size: int) -> None:
    write(tmp_path, "stl10_binary/test_X.bin", bytes(size))
    write(tmp_path, "stl10_binary/test_y.bin", bytes([1]))
    with pytest.raises(DatasetError, match=f"test_X.bin: {size:,} bytes are not a whole number of pictures"):
        stl10.read_split(tmp_path, "test")
