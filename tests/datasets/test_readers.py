"""Raw formats, read from handwritten bytes."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.archive import decode_square
from stages.datasets.image_readers import (
    CIFAR10,
    CIFAR100,
    IMAGENETTE,
    IMAGES_MAGIC,
    IMAGEWOOF,
    MNIST,
    STL10,
    TINY_IMAGENET,
    TINY_IMAGENET_32,
    TINY_WNIDS,
    read_idx,
    read_rows,
)
from stages.datasets.manifest import DatasetError, ImageReader
from stages.datasets.packed import read_images
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import load_params
from tests.datasets.archives import Entries, write_tar, write_zip
from tests.datasets.test_archive import jpeg, stripes


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_idx_values_keep_the_files_order(tmp_path: Path) -> None:
    content = struct.pack(">IIII", 0x803, 2, 2, 3) + bytes(range(12))
    path = write(tmp_path, "images.gz", gzip.compress(content))
    expected = [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert read_idx(path, IMAGES_MAGIC).tolist() == expected


def test_mnist_split_pairs_images_with_labels(tmp_path: Path) -> None:
    images = struct.pack(">IIII", 0x803, 2, 28, 28) + bytes(784) + bytes([255]) * 784
    labels = struct.pack(">II", 0x801, 2) + bytes([7, 2])
    write(tmp_path, "MNIST/raw/t10k-images-idx3-ubyte.gz", gzip.compress(images))
    write(tmp_path, "MNIST/raw/t10k-labels-idx1-ubyte.gz", gzip.compress(labels))
    split = MNIST.read_split(tmp_path, "test")
    assert split.images.shape == (2, 1, 28, 28)
    assert [image.max() for image in split.images] == [0, 255]
    assert split.labels.tolist() == [7, 2]
    assert split.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "not a complete gzip file"),
        (gzip.compress(bytes(100))[:-12], "not a complete gzip file"),
        (gzip.compress(struct.pack(">II", 0x801, 0)), "magic number is 0x00000801, expected 0x00000803"),
        (gzip.compress(b""), "magic number is 0x00000000"),
        (gzip.compress(struct.pack(">IIII", 0x803, 2, 2, 3) + bytes(11)), "11 values; its header says 2 x 2 x 3"),
        (gzip.compress(struct.pack(">I", 0x803)), "ends within its header, after 4 of 16 bytes"),
    ],
    ids=["no gzip", "cut gzip", "labels", "empty", "a value short", "no header"],
)
def test_bad_idx_file_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, "images.gz", content)
    with pytest.raises(DatasetError, match=message):
        read_idx(path, IMAGES_MAGIC)


def row(head: list[int], red: int, green: int, blue: int) -> bytes:
    return bytes(head) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar10_rows_are_class_then_colour_planes(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, f"cifar-10-batches-bin/data_batch_{number}.bin", row([number], 10, 20, number))
    split = CIFAR10.read_split(tmp_path, "train")
    assert split.labels.tolist() == [1, 2, 3, 4, 5]
    assert split.images.shape == (5, 3, 32, 32)
    assert split.images[:, :, 0, 0].tolist() == [[10, 20, number] for number in range(1, 6)]


def test_cifar_pixels_are_stored_row_by_row(tmp_path: Path) -> None:
    plane = bytes(range(256)) * 4
    path = write(tmp_path, "batch.bin", bytes([0]) + plane * 3)
    _, images = read_rows(path, label_bytes=1)
    assert images[0, 0, 0, :3].tolist() == [0, 1, 2]
    assert images[0, 2, 1, :3].tolist() == [32, 33, 34]


def test_cifar100_takes_the_fine_class(tmp_path: Path) -> None:
    write(tmp_path, "cifar-100-binary/test.bin", row([3, 42], 1, 2, 3) + row([4, 99], 4, 5, 6))
    split = CIFAR100.read_split(tmp_path, "test")
    assert split.labels.tolist() == [42, 99]
    assert split.images[:, :, 0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_bad_cifar_file_is_reported(tmp_path: Path, size: int) -> None:
    path = write(tmp_path, "batch.bin", bytes(size))
    with pytest.raises(DatasetError, match=f"batch.bin: {size:,} bytes are not a whole number of rows"):
        read_rows(path, label_bytes=1)


def test_stl10_planes_are_stored_column_by_column(tmp_path: Path) -> None:
    ramp = np.arange(96, dtype=np.uint8)
    red = np.repeat(ramp, 96)  # each column has one value
    green = np.tile(ramp, 96)  # each row has one value
    write(tmp_path, "stl10_binary/test_X.bin", red.tobytes() + green.tobytes() + bytes(96 * 96))
    write(tmp_path, "stl10_binary/test_y.bin", bytes([10]))
    split = STL10.read_split(tmp_path, "test")
    assert split.images.shape == (1, 3, 96, 96)
    assert split.images[0, 0, 5].tolist() == ramp.tolist(), "red grows to the right"
    assert split.images[0, 1, :, 5].tolist() == ramp.tolist(), "green grows downwards"
    assert (split.labels.tolist(), STL10.classes[9]) == ([9], "truck")


@pytest.mark.parametrize("size", [0, 27_647, 27_649])
def test_bad_stl10_file_is_reported(tmp_path: Path, size: int) -> None:
    write(tmp_path, "stl10_binary/test_X.bin", bytes(size))
    write(tmp_path, "stl10_binary/test_y.bin", bytes([1]))
    with pytest.raises(DatasetError, match=f"test_X.bin: {size:,} bytes are not a whole number of pictures"):
        STL10.read_split(tmp_path, "test")


READERS = [  # with the folders of the classes 0, 4 and 9
    (IMAGENETTE, "imagenette2-160", ("n01440764", "n03028079", "n03888257")),
    (IMAGEWOOF, "imagewoof2-160", ("n02086240", "n02093754", "n02115641")),
]


def picture(root: str, split: str, wnid: str, name: str = "ILSVRC2012_val_00000293") -> str:
    return f"{root}/{split}/{wnid}/{name}.JPEG"


@pytest.mark.parametrize(("reader", "root", "wnids"), READERS)
def test_folder_is_the_class(tmp_path: Path, reader: ImageReader, root: str, wnids: tuple[str, str, str]) -> None:
    """Two training pictures and a test picture, plus other files that such archives contain."""
    first, fifth, last = wnids
    members: Entries = [
        (picture(root, "train", last, "n03888257_3-x"), jpeg(stripes(160, 213))),
        (f"{root}/noisy_labels.csv", b"path,noisy_labels_0\n"),
        (f"{root}/train/.DS_Store", b"left by a file manager"),
        (picture(root, "val", fifth), jpeg(stripes(160, 160)[:, :, 0])),
        (picture(root, "train", first), jpeg(stripes(200, 160))),
    ]
    write_tar(tmp_path / f"{root}.tgz", members)
    train, test = (reader.read_split(tmp_path, split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert (train.images.shape, train.labels.tolist()) == ((2, 3, 80, 80), [9, 0])
    assert (test.images.shape, test.labels.tolist()) == ((1, 3, 80, 80), [4])


FIRST, OTHER = picture("imagenette2-160", "train", "n01440764"), "n02086240"
FAULTS: dict[str, tuple[Entries, str]] = {
    "other class": ([(FIRST, b""), (picture("imagewoof2-160", "train", OTHER), b"")], f"{OTHER}.*belongs to no class"),
    "no class": ([("imagenette2-160/train/stray.JPEG", b"")], "stray.JPEG: a picture that belongs to no"),
    "other split": ([("imagenette2-160/test/n01440764/a.JPEG", b"")], "a.JPEG: a picture that belongs to"),
    "other format": ([("imagenette2-160/train/n01440764/a.png", b"")], "a.png: a picture that belongs to"),
    "no picture": ([("imagenette2-160/noisy_labels.csv", b"")], "has no labelled picture"),
    "damaged": ([(FIRST, b"x")], "00000293.JPEG: not a complete JPEG picture"),
    "twice": ([(FIRST, b"x"), (FIRST, b"x")], "00000293.JPEG: occurs twice"),
    "slip": ([(f"imagenette2-160/../../{FIRST}", b"x")], "leads out of the archive"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_image_archive_is_refused(tmp_path: Path, fault: str) -> None:
    members, message = FAULTS[fault]
    write_tar(tmp_path / "imagenette2-160.tgz", members)
    with pytest.raises(DatasetError, match=message):
        IMAGENETTE.read_split(tmp_path, "train")


def test_unpacked_real_sample_becomes_a_subset(tmp_path: Path, sample_mirror: Path) -> None:
    source = load_params().datasets["imagenette"]
    manifest = fetch_dataset("imagenette", source, tmp_path, sample_mirror, lambda line: None)
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.source) == ("subset", "mirror")
    assert (info.train_images, info.test_images, info.shape) == (60, 30, (3, 80, 80))
    labels = [read_images(tmp_path / "packed", split).labels for split in ("train", "test")]  # type: ignore[arg-type]
    assert [np.bincount(part).tolist() for part in labels] == [[6] * 10, [3] * 10]


ROOT, TINY_ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
FISH, WORM = TINY_WNIDS[0], TINY_WNIDS[199]
TRAIN = f"{ROOT}/train/{WORM}/images/{WORM}_3.JPEG"
GREY = f"{ROOT}/train/{FISH}/images/{FISH}_17.JPEG"
VAL = f"{ROOT}/val/images/val_0.JPEG"


def official_layout(**changes: bytes | None) -> Entries:
    """Two training pictures, one validation picture and an unlabelled one, in the official layout."""
    members: dict[str, bytes | None] = {
        "wnids": "\n".join(reversed(TINY_WNIDS)).encode(),
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


def test_folder_and_annotation_determine_the_class(tmp_path: Path) -> None:
    write_zip(tmp_path / TINY_ARCHIVE, official_layout())
    train, test = (TINY_IMAGENET.read_split(tmp_path, split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert (train.images.shape, train.labels.tolist()) == ((2, 3, 64, 64), [199, 0])
    assert (test.images.shape, test.labels.tolist()) == ((1, 3, 64, 64), [199])
    np.testing.assert_array_equal(train.images[0], decode_square(jpeg(stripes(64, 64)), 64, "here"))


def test_smaller_version_has_the_same_pictures_shrunk(tmp_path: Path) -> None:
    write_zip(tmp_path / TINY_ARCHIVE, official_layout())
    large, small = (reader.read_split(tmp_path, "train") for reader in (TINY_IMAGENET, TINY_IMAGENET_32))
    assert small.images.shape == (2, 3, 32, 32)
    assert small.labels.tolist() == large.labels.tolist()
    means = large.images.reshape(2, 3, 32, 2, 32, 2).mean((3, 5))
    # Antialiased bilinear shrinking weighs four pixels per direction; on ramps that is the mean of the middle two.
    assert abs(small.images[:, :, 1:-1, 1:-1] - means[:, :, 1:-1, 1:-1]).max() < 4


TINY_FAULTS: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no class list": ({"wnids": None}, "wnids.txt: missing, or not the 200 classes"),
    "other class list": ({"wnids": b"n01443537\n"}, "wnids.txt: missing, or not the 200 classes"),
    "no annotations": ({"annotations": None}, "val_0.JPEG: a picture that belongs to no class"),
    "missing picture": ({"val": None}, "val_0.JPEG: .*names it, but it isn't there"),
    "unknown class": ({"annotations": b"val_0.JPEG\tn00000000\t0"}, "names no class of Tiny ImageNet"),
    "no columns": ({"annotations": b"val_0.JPEG"}, "'val_0.JPEG' names no class"),
    "annotated twice": ({"annotations": f"val_0.JPEG\t{WORM}\nval_0.JPEG\t{FISH}".encode()}, "val_0.JPEG occurs twice"),
    "extra class": (
        {f"{ROOT}/train/n00000000/images/n00000000_0.JPEG": b""},
        "n00000000_0.JPEG: a picture that belongs to no class",
    ),
    "picture in another class's folder": (
        {f"{ROOT}/train/{FISH}/images/{WORM}_4.JPEG": b""},
        f"{WORM}_4.JPEG: a picture that belongs to no class",
    ),
    "extra picture": ({f"{ROOT}/val/images/val_1.JPEG": b""}, "val_1.JPEG: a picture that belongs"),
    "damaged picture": ({"train": b"not a picture"}, f"{TRAIN}: not a complete JPEG"),
}


@pytest.mark.parametrize("fault", TINY_FAULTS)
def test_faulty_tiny_imagenet_archive_is_refused(tmp_path: Path, fault: str) -> None:
    changes, message = TINY_FAULTS[fault]
    write_zip(tmp_path / TINY_ARCHIVE, official_layout(**changes))
    with pytest.raises(DatasetError, match=message):
        TINY_IMAGENET.read_split(tmp_path, "train")


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
    # ImageNet's published mean and deviation, for other sizes of these pictures.
    np.testing.assert_allclose(info.mean, (0.485, 0.456, 0.406), atol=0.03)
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["tinyimagenet"]
