"""Preparing a data set: its packed content, checks against its declaration, and its provenance."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from stages.datasets import packed
from stages.datasets.manifest import (
    ChecksumMismatch,
    DatasetError,
    Manifest,
    check_split,
    judge_provenance,
    pixel_statistics,
    read_manifest,
)
from stages.datasets.packed import ImageSet, PackedDataError, PackedInfo, digest_images, read_images, read_info
from stages.datasets.prepare import READERS, class_names, compose_stand_in, load_sources, prepare
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import DatasetSource, load_params
from tests.datasets.tiny import TEST, TRAIN, TinyDataset, cifar10_files, tiny_cifar10, tiny_mnist, write_mirror_json
from tests.packed_table import pack_images
from tests.project import REPOSITORY

TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"
BATCH_2 = "cifar-10-batches-bin/data_batch_2.bin"


def pack(dataset: TinyDataset, home: Path, source: DatasetSource | None = None) -> PackedInfo:
    """Fetch from the downloads and prepare, under another declaration if given."""
    dataset.write(home / "downloads/tiny")
    manifest = fetch_dataset("tiny", dataset.source, home, None, lambda line: None)
    return prepare(source or dataset.source, manifest, home, home / "processed/tiny")


def provenance_of(source: DatasetSource, manifest: Manifest, test: int = TEST) -> str:
    files = READERS[source.reader].files
    return judge_provenance(source, manifest, TRAIN, test, files=files, content_is_whole=False)


def changed_mirror(dataset: TinyDataset, mirror: Path, name: str, rows: list[int] | None) -> Manifest:
    """Fetch from a mirror in which the last byte of `name` is changed and declared inexact."""
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
    assert (info.mean, info.std) == pixel_statistics(images.images), "of the training images alone"


def test_inexact_test_row_is_omitted_and_counted(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    manifest = changed_mirror(dataset, tmp_path, TEST_BATCH, [199])
    info = prepare(dataset.source, manifest, tmp_path, tmp_path / "processed/tiny")
    assert (info.test_images, info.excluded_test_images) == (199, 1)
    assert info.test_rows == tuple(range(199))
    assert (info.provenance, info.source) == ("full", "mirror")
    pixels = np.frombuffer(dataset.files[TEST_BATCH], dtype=np.uint8).reshape(200, 3073)[:199, 1:]
    kept = read_images(tmp_path / "processed/tiny", "test")
    np.testing.assert_array_equal(kept.images.reshape(199, 3072), pixels)


@pytest.mark.parametrize(
    ("name", "rows", "provenance"),
    [
        (TEST_BATCH, [199], "full"),
        (TEST_BATCH, [198, 199], "subset"),  # more than half a percent
        (TEST_BATCH, None, "subset"),  # unknown which rows
        (BATCH_2, [199], "subset"),
    ],
)
def test_only_few_inexact_test_rows_are_accepted(
    tmp_path: Path, name: str, rows: list[int] | None, provenance: str
) -> None:
    dataset = tiny_cifar10()
    manifest = changed_mirror(dataset, tmp_path, name, rows)
    assert prepare(dataset.source, manifest, tmp_path, tmp_path / "packed").provenance == provenance


def test_data_set_with_a_missing_file_is_a_subset(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "downloads/tiny")
    manifest = fetch_dataset("tiny", dataset.source, tmp_path, None, lambda line: None)
    assert provenance_of(dataset.source, manifest) == "full"
    part = dataclasses.replace(manifest, files=manifest.files[:-1])
    assert provenance_of(dataset.source, part) == "subset"


def test_placeholder_data_are_marked_as_embedded(tmp_path: Path) -> None:
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
def test_missing_class_is_reported(tmp_path: Path, split: str) -> None:
    files, message = CLASSES_GONE[split]
    with pytest.raises(DatasetError, match=message):
        pack(tiny_cifar10(files), tmp_path)
    assert not (tmp_path / "processed").exists()


def test_class_with_only_inexact_rows_is_missing(tmp_path: Path) -> None:
    labels = np.append(np.arange(TEST - 1) % 9, 9)
    dataset = tiny_cifar10(cifar10_files(test_labels=labels))
    manifest = changed_mirror(dataset, tmp_path, TEST_BATCH, [199])
    with pytest.raises(DatasetError, match="tiny, test: no image of truck"):
        prepare(dataset.source, manifest, tmp_path, tmp_path / "packed")


def test_invalid_label_is_reported(tmp_path: Path) -> None:
    labels = np.arange(TRAIN) % 10
    labels[13] = 10
    with pytest.raises(DatasetError, match="tiny, train: row 13 has label 10; labels go from 0 to 9"):
        pack(tiny_cifar10(cifar10_files(train_labels=labels)), tmp_path)


DECLARATIONS: Mapping[str, tuple[dict[str, object], str]] = {
    "training count": ({"train": 51}, "tiny, train: 50 images; params.yaml declares 51"),
    "test count": ({"test": 199}, "tiny, test: 200 images; params.yaml declares 199"),
    "shape": ({"shape": (3, 28, 28)}, r"images are \(3, 32, 32\); params.yaml declares \(3, 28, 28\)"),
    "classes": ({"classes": 100}, "10 class names; params.yaml declares 100"),
    "reader": (
        {"reader": "cifar-10"},
        r"reader is 'cifar-10' \(did you mean cifar10\?\); known: cifar10, cifar100, folder, huggingface",
    ),
}


@pytest.mark.parametrize("case", DECLARATIONS)
def test_deviation_from_the_declaration_is_reported(tmp_path: Path, case: str) -> None:
    change, message = DECLARATIONS[case]
    dataset = tiny_cifar10()
    with pytest.raises(DatasetError, match=message):
        pack(dataset, tmp_path, dataclasses.replace(dataset.source, **change))  # type: ignore[arg-type]


def test_raw_file_changed_after_fetch_is_reported(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    pack(dataset, tmp_path)
    manifest = fetch_dataset("tiny", dataset.source, tmp_path, None, lambda line: None)
    path = tmp_path / "downloads/tiny/MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(b"other")
    with pytest.raises(
        ChecksumMismatch, match=r"changed since it was fetched; run `claimcheck stage fetch tiny` again"
    ):
        prepare(dataset.source, manifest, tmp_path, tmp_path / "packed")
    path.unlink()
    with pytest.raises(DatasetError, match="no such file, though the manifest lists it"):
        prepare(dataset.source, manifest, tmp_path, tmp_path / "packed")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no such file"), ("{", "not a manifest"), ("{}", "not a manifest")]
)
def test_bad_manifest_explains_how_to_recreate_it(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "tiny.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(DatasetError, match=f"{message}.*; `claimcheck stage fetch tiny` writes it"):
        read_manifest(path)


ROW = 3073


def with_shared_pixels() -> TinyDataset:
    """The third test picture equals the second one of the second training batch, under another class."""
    files = cifar10_files()
    test = bytearray(files[TEST_BATCH])
    test[2 * ROW + 1 : 3 * ROW] = files[BATCH_2][ROW + 1 : 2 * ROW]
    return tiny_cifar10({**files, TEST_BATCH: bytes(test)})


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


def test_changed_files_of_a_mirror_are_checked_for_shared_images_too(tmp_path: Path) -> None:
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


def test_class_counts_are_the_declared_ones() -> None:
    images = ImageSet(np.zeros((50, 3, 32, 32), dtype=np.uint8), np.arange(50) % 10)
    source = tiny_cifar10().source
    for right in (None, 5, (5,) * 10):
        declared = dataclasses.replace(source, train_per_class=right)
        check_split(images, "train", declared, "tiny, train", may_be_part=False)
    declared = dataclasses.replace(source, train_per_class=(5, 5, 5, 4, 6, 5, 5, 5, 5, 5))
    with pytest.raises(DatasetError, match=r"tiny, train: 5 images of class 3, more than params.yaml declares"):
        check_split(images, "train", declared, "tiny, train", may_be_part=False)


def test_statistics_equal_numpys() -> None:
    images = np.random.RandomState(0).randint(0, 256, (20, 3, 8, 8)).astype(np.uint8)
    images[:, 1] //= 7
    mean, std = pixel_statistics(images)
    np.testing.assert_allclose(mean, images.mean((0, 2, 3)) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, images.std((0, 2, 3), dtype=np.float64) / 255, rtol=1e-12)


CLASSES = ("cat", "dog")


def image_set(count: int, seed: int) -> ImageSet:
    random = np.random.RandomState(seed)
    return ImageSet(random.randint(0, 256, (count, 3, 4, 4)).astype(np.uint8), np.arange(count) % 2)


def packed_set(folder: Path) -> tuple[ImageSet, ImageSet, PackedInfo]:
    train, test = image_set(6, 0), image_set(4, 1)
    kept = {"test_rows": (0, 1, 2, 4), "excluded_test_images": 1}
    info = pack_images(folder, "tiny", train, test, CLASSES, provenance="full", source="mirror", **kept)
    return train, test, info


def test_packing_is_deterministic(tmp_path: Path) -> None:
    packed_set(tmp_path / "a")
    packed_set(tmp_path / "b")
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"train.safetensors", "test.safetensors", "dataset.json"}


def test_packed_set_fully_replaces_the_old_one(tmp_path: Path) -> None:
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


def test_digest_changes_with_every_part() -> None:
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


def test_digest_ignores_memory_layout() -> None:
    train, test = image_set(6, 0), image_set(4, 1)
    turned = ImageSet(np.asfortranarray(train.images), train.labels.astype(">i8"))
    assert digest_images(turned, test, CLASSES) == digest_images(train, test, CLASSES)


def test_missing_set_explains_how_to_make_it(tmp_path: Path) -> None:
    for read in (read_info, lambda folder: read_images(folder, "train")):
        with pytest.raises(PackedDataError, match=r"no such file; `python -m stages.preprocess tiny` writes it"):
            read(tmp_path / "tiny")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"test_rows": null, "classes": [], "shape": [], "extra": 1}'])
def test_damaged_description_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.json").write_text(text, encoding="utf-8")
    with pytest.raises(PackedDataError, match=r"dataset.json: not the description of a packed set"):
        read_info(tmp_path)


def test_damaged_split_is_reported(tmp_path: Path) -> None:
    packed_set(tmp_path / "tiny")
    path = tmp_path / "tiny/test.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PackedDataError, match=r"test.safetensors: not a packed split"):
        read_images(tmp_path / "tiny", "test")


MNIST, CIFAR10, CIFAR100 = ((1, 28, 28), 10), ((3, 32, 32), 10), ((3, 32, 32), 100)
TINY_IMAGENET, STL10, ISIC = ((3, 64, 64), 200), ((3, 96, 96), 10), ((3, 80, 80), 8)
ALL = [MNIST, CIFAR10, CIFAR100, TINY_IMAGENET, STL10, ISIC]

Kind = tuple[tuple[int, int, int], int]


@pytest.mark.parametrize("kind", ALL, ids=["mnist", "cifar10", "cifar100", "tinyimagenet", "stl10", "isic"])
def test_placeholder_data_have_the_shape_and_classes_of_their_data_set(kind: Kind) -> None:
    shape, classes = kind
    train, test = compose_stand_in("any", shape, classes)
    assert train.images.shape == (max(128, classes), *shape)
    assert test.images.shape == (16, *shape)
    assert set(train.labels.tolist()) == set(range(classes))
    assert len(set(test.labels.tolist())) == min(classes, 16)
    counts = np.bincount(train.labels)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    ("name", "kind", "digest"),
    [("mnist", MNIST, "c2c936e2243d"), ("cifar10", CIFAR10, "1faaea649f59"), ("cifar100", CIFAR100, "81930dbb751a")],
)
def test_placeholder_data_are_equal_on_every_machine(name: str, kind: Kind, digest: str) -> None:
    train, test = compose_stand_in(name, *kind)
    assert digest_images(train, test, class_names(kind[1])).startswith(digest)


def cells(images: np.ndarray, places: int) -> set[bytes]:
    """Return the digits in images [N, 1, 8, 8 * places]; at this size every source is copied pixel by pixel."""
    ink = (images[:, 0].astype(int) * 16 + 254) // 255
    return {cell.astype(np.uint8).tobytes() for part in np.split(ink, places, axis=2) for cell in part}


@pytest.mark.parametrize(("classes", "places"), [(10, 1), (100, 2)])
def test_no_digit_is_in_both_splits(classes: int, places: int) -> None:
    train, test = compose_stand_in("any", (1, 8, 8 * places), classes)
    images, _ = load_sources()
    sources = {image.tobytes() for image in images}
    assert cells(train.images, places) <= sources, "cells are recovered exactly"
    assert cells(test.images, places) <= sources
    assert cells(train.images, places).isdisjoint(cells(test.images, places))


def test_label_is_the_two_digit_number_in_the_image() -> None:
    images, digits = load_sources()
    meaning = {image.tobytes(): int(digit) for image, digit in zip(images, digits, strict=True)}
    train, _ = compose_stand_in("any", (1, 8, 16), 100)
    ink = ((train.images[:, 0].astype(int) * 16 + 254) // 255).astype(np.uint8)
    read = [10 * meaning[i[:, :8].tobytes()] + meaning[i[:, 8:].tobytes()] for i in ink]
    assert read == train.labels.tolist()


PAGE = (REPOSITORY / "docs" / "data.md").read_text(encoding="utf-8")
DATASETS = load_params().datasets
IMAGES = {name: source for name, source in DATASETS.items() if source.kind == "images"}


@pytest.mark.parametrize("name", IMAGES)
def test_reader_reads_exactly_the_declared_files(name: str) -> None:
    source = IMAGES[name]
    reader = READERS[source.reader]
    assert {file for split in ("train", "test") for file in reader.files[split]} == {f.name for f in source.files}
    assert len(reader.classes) == source.classes


@pytest.mark.parametrize("name", DATASETS)
def test_declaration_has_terms_place_and_digests(name: str) -> None:
    source = DATASETS[name]
    assert source.licence and source.homepage.startswith("http")
    assert source.urls and all(url.startswith("http") and url.endswith("/") for url in source.urls)
    for file in (*source.files, *([source.archive] if source.archive else [])):
        assert file.md5 is None or len(bytes.fromhex(file.md5)) == 16
        assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32


def test_only_two_data_sets_have_files_without_a_digest() -> None:
    """No digests are published for them; another such set needs a reason, too."""
    unpinned = {name for name, source in DATASETS.items() for f in source.files if f.md5 is None and f.sha256 is None}
    assert unpinned == {"isic2019", "openwebtext"}


@pytest.mark.parametrize("name", IMAGES)
def test_counts_of_classes_add_up(name: str) -> None:
    source = IMAGES[name]
    for whole, parts in ((source.train, source.train_per_class), (source.test, source.test_per_class)):
        if parts is not None:
            assert np.broadcast_to(parts, source.classes).sum() == whole


def test_shared_folder_has_the_same_files() -> None:
    sharing = {name: source for name, source in DATASETS.items() if source.folder is not None}
    assert sharing
    for source in sharing.values():
        other: DatasetSource = DATASETS[source.folder or ""]
        assert (source.files, source.archive, source.urls) == (other.files, other.archive, other.urls)


def test_page_lists_the_written_files(tmp_path: Path) -> None:
    named = set(re.findall(r"`(\w+\.safetensors)`", PAGE)) | {"dataset.json"}
    for name in ("mnist", "sgemm", "tinyshakespeare"):
        prepare(DATASETS[name], Manifest(dataset=name, source="embedded"), tmp_path, tmp_path / name)
        assert {path.name for path in (tmp_path / name).iterdir()} == named, name


def test_notice_lists_every_data_set() -> None:
    notice = (REPOSITORY / "NOTICE").read_text(encoding="utf-8")
    assert [source.title for source in DATASETS.values() if source.title.split(",")[0] not in notice] == []
