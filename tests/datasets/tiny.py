"""Tiny data sets in the official formats, written byte by byte without our readers."""

import dataclasses
import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.params.experiment import DatasetSource, SourceFile

TRAIN, TEST = 50, 200


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class TinyDataset:
    """A declaration and matching bytes."""

    source: DatasetSource
    files: Mapping[str, bytes]
    archive: bytes | None = None

    def at(self, *urls: str) -> DatasetSource:
        """Return the declaration with these official addresses."""
        return dataclasses.replace(self.source, urls=urls)

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def cifar10_files(train_labels: np.ndarray | None = None, test_labels: np.ndarray | None = None) -> dict[str, bytes]:
    """Make five training batches and a test batch: each row is the class byte, then 3,072 pixel bytes."""
    random = np.random.RandomState(0)
    train = np.arange(TRAIN) % 10 if train_labels is None else train_labels
    test = np.arange(TEST) % 10 if test_labels is None else test_labels
    files = {}
    for number, labels in enumerate([*np.split(train, 5), test], start=1):
        rows = [bytes([label]) + random.bytes(3072) for label in labels.tolist()]
        name = "test_batch" if number == 6 else f"data_batch_{number}"
        files[f"cifar-10-batches-bin/{name}.bin"] = b"".join(rows)
    return files


def tiny_cifar10(files: Mapping[str, bytes] | None = None, archive: bytes | None = None) -> TinyDataset:
    """Make fifty training and 200 test images in the layout of CIFAR-10, in an archive."""
    files = cifar10_files() if files is None else files
    archive = tar_gz(files) if archive is None else archive
    pins = tuple(SourceFile(name=name, md5=md5(content)) for name, content in files.items())
    packed = SourceFile(name="cifar-10-binary.tar.gz", md5=md5(archive))
    source = declare("cifar10", (3, 32, 32), *pins, archive=packed)
    return TinyDataset(source, files, archive)


def tiny_mnist() -> TinyDataset:
    """Make fifty training and 200 test images in the four idx files of MNIST."""
    random = np.random.RandomState(1)
    files = {}
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        images = struct.pack(">IIII", 2051, count, 28, 28) + random.bytes(count * 784)
        labels = struct.pack(">II", 2049, count) + bytes(index % 10 for index in range(count))
        files[f"MNIST/raw/{prefix}-images-idx3-ubyte.gz"] = gzip.compress(images, mtime=0)
        files[f"MNIST/raw/{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(labels, mtime=0)
    pins = tuple(SourceFile(name=name, md5=md5(content)) for name, content in files.items())
    return TinyDataset(declare("mnist", (1, 28, 28), *pins), files)


def declare(reader: str, shape: tuple[int, ...], *files: SourceFile, **fields: Any) -> DatasetSource:
    """Declare ten classes of images without official addresses, unless `fields` override them."""
    known: dict[str, Any] = {
        "title": reader,
        "classes": 10,
        "train": TRAIN,
        "test": TEST,
        "licence": "none",
        "urls": (),
    }
    return DatasetSource(reader=reader, shape=shape, files=files, homepage="http://127.0.0.1/", **known | fields)


def tar_gz(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_mirror_json(folder: Path, dataset: TinyDataset, inexact_test_rows: list[int] | None = None) -> None:
    """Write `mirror.json` for the files in `folder`."""
    files = {}
    for file in dataset.source.files:
        content = (folder / file.name).read_bytes()
        files[file.name] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
            "official_md5": file.md5,
            "matches_official": md5(content) == file.md5,
        }
    document: dict[str, object] = {"complete": inexact_test_rows is None, "files": files, "note": "for a test"}
    if inexact_test_rows is not None:
        document["inexact_test_rows"] = inexact_test_rows
    (folder / "mirror.json").write_text(json.dumps(document), encoding="utf-8")
