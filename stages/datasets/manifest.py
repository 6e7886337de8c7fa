"""Manifests: `data/raw/<dataset>.json`, written by `fetch` and read by `preprocess`, and what they prove.

Everything that enters `downloads` passes through `store_verified`, which compares it with a pinned digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from stages.datasets.packed import ImageSet, Split
from stages.faults import Mistake, named
from stages.params.callables import describe_guest, isolated
from stages.params.experiment import DatasetSource
from stages.params.schema import ParamsError, address_of
from stages.runs.evidence import INEXACT_SHARE

CHUNK_BYTES = 1 << 20


class DatasetError(Mistake):
    """A data set is missing or not as declared; the message says how to fix it, in one line whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


class ChecksumMismatch(DatasetError):
    """A file isn't the pinned one."""

    def __init__(self, where: object, *, kind: str, expected: str, got: str, size_bytes: int) -> None:
        super().__init__(f"{where}: expected {kind} {expected}, got {got} ({size_bytes:,} bytes)")


@dataclass(frozen=True, kw_only=True)
class Digests:
    """The digests of a file's bytes."""

    md5: str
    sha256: str
    size_bytes: int


def digest_file(path: Path) -> Digests:
    """Compute both digests of a file, reading it once."""
    return _digest(read_chunks(path), into=None)


def read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from chunks_of(file)


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The expected digests of a file: the published ones, or the sha256 by which a mirror declares its copy.

    With neither, there is nothing to compare the bytes with, and all are accepted: the content is checked when it is
    read.
    """

    official_md5: str | None = None
    official_sha256: str | None = None
    inexact_sha256: str | None = None

    def is_official(self, digests: Digests) -> bool | None:
        """True if the bytes have every published digest; None if none is published."""
        if self.official_md5 is None and self.official_sha256 is None:
            return None
        return self.official_md5 in (None, digests.md5) and self.official_sha256 in (None, digests.sha256)

    def check(self, digests: Digests, where: object) -> bool | None:
        """Return True for the official bytes, False for declared inexact ones, None if there is nothing to compare.

        Raises:
            ChecksumMismatch: the bytes match neither.
        """
        is_official = self.is_official(digests)
        if is_official:
            return True
        if digests.sha256 == self.inexact_sha256:
            return False
        if is_official is None and self.inexact_sha256 is None:
            return None
        kind, expected, got = "md5", self.official_md5, digests.md5
        if self.inexact_sha256 is not None or expected in (None, got):
            kind, expected, got = "sha256", self.inexact_sha256 or self.official_sha256, digests.sha256
        raise ChecksumMismatch(where, kind=kind, expected=expected or "", got=got, size_bytes=digests.size_bytes)


def store_verified(chunks: Iterable[bytes], target: Path, pin: Pin, where: object) -> Digests:
    """Write `chunks` to `target` if they match `pin`: hashed on the way, renamed after fsync.

    A truncated or wrong file never gets the final name, and its remains are removed.

    Raises:
        ChecksumMismatch: the bytes differ; `where` names their source.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # One name per target, so that the next process overwrites what a killed one left.
    partial = target.with_name(f".{target.name}.partial")
    try:
        digests = _digest(chunks, into=partial)
        pin.check(digests, where)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return digests


def _digest(chunks: Iterable[bytes], into: Path | None) -> Digests:
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    file = into.open("wb") if into is not None else None
    try:
        for chunk in chunks:
            md5.update(chunk)
            sha256.update(chunk)
            size += len(chunk)
            if file is not None and into is not None:
                with named(into):
                    file.write(chunk)
        if file is not None and into is not None:
            with named(into):
                file.flush()
                os.fsync(file.fileno())
    finally:
        if file is not None:
            file.close()
    return Digests(md5=md5.hexdigest(), sha256=sha256.hexdigest(), size_bytes=size)


Source = Literal["embedded", "mirror", "official"]


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """A verified raw file; `path` is relative to `CLAIMCHECK_HOME`."""

    name: str
    path: str
    sha256: str
    bytes: int
    official_md5: str
    matches_official: bool


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The raw files of a data set; none if it is placeholder data.

    It doesn't record when or from where they came, so the same bytes give the same manifest everywhere.  `source` says
    whose digests they match: `mirror` if only a mirror gives the digest of some file.  `inexact_test_rows` are the
    positions of test images that are not the official ones.
    """

    dataset: str
    source: Source
    files: tuple[ManifestFile, ...] = ()
    inexact_test_rows: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest that `fetch` wrote."""
    remedy = f"`claimcheck stage fetch {path.stem}` writes it"
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; {remedy}")
    try:
        return TypeAdapter(Manifest).validate_json(path.read_bytes())
    except ValidationError as error:
        raise DatasetError(f"{path}: not a manifest ({error.errors()[0]['msg']}); {remedy}") from None


def judge_provenance(
    source: DatasetSource,
    manifest: Manifest,
    train: int,
    test: int,
    *,
    files: Mapping[Split, tuple[str, ...]],
    content_is_whole: bool,
) -> Literal["embedded", "subset", "full"]:
    """Return `full` if all training rows are official and at most `INEXACT_SHARE` of the test rows lacking or inexact.

    A file is official by its published digest.  If no publisher gives one and `source` says so, it counts as official
    if `content_is_whole` and both splits, of `train` and `test` rows, have exactly the declared numbers.  `files`: the
    names of the raw files behind each split.
    """
    if manifest.source == "embedded":
        return "embedded"
    inexact = {file.name for file in manifest.files if not file.matches_official}
    is_whole = len(manifest.files) == len(source.files)
    if source.complete_by_content and content_is_whole and is_whole and (train, test) == (source.train, source.test):
        inexact -= {file.name for file in source.files if file.md5 is None and file.sha256 is None}
    is_train_exact = is_whole and inexact.isdisjoint(files["train"]) and train == source.train
    # An inexact test file without a list of its inexact rows may be wrong anywhere.
    is_test_known = inexact.isdisjoint(files["test"]) or bool(manifest.inexact_test_rows)
    is_test_enough = source.test - test <= INEXACT_SHARE * source.test
    return "full" if is_train_exact and is_test_known and is_test_enough else "subset"


def all_files(source: DatasetSource) -> dict[Split, tuple[str, ...]]:
    """Return all raw files for each split of a text or a table, whose splits are made from the same files."""
    names = tuple(file.name for file in source.files)
    return {"train": names, "test": names}


@dataclass(frozen=True, kw_only=True)
class ImageReader:
    """Reads a data set of images: its classes, the names of each split's raw files, and the split's images in order.

    `describe` explains a split that the publisher doesn't make.  `is_whole` checks whether the files of a data set
    without published digests are complete.
    """

    classes: tuple[str, ...]
    files: Mapping[Split, tuple[str, ...]]
    read_split: Callable[[Path, Split], ImageSet]
    describe: Callable[[Path], str] | None = None
    is_whole: Callable[[Path], bool] | None = None


Reader = TypeVar("Reader")


def find_reader(dataset: str, reader: str, known: Mapping[str, Reader]) -> Reader:
    """Return the reader that params.yaml names: one of `known`, or a function like them of another package or file.

    That function, and what it returns to be called, leave the process as it was.

    Raises:
        DatasetError: there is no such function.  The function that is returned raises it if the user's one fails.
    """
    if reader in known:
        return known[reader]
    path, key_path = Path("params.yaml"), f"datasets.{dataset}.reader"
    try:
        module, _, name = address_of("readers", reader, known, path, key_path).partition(":")
        with isolated():
            found = getattr(import_module(module), name)
    except ParamsError as error:
        raise DatasetError(str(error)) from None
    except SyntaxError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's module may raise anything)
        what = str(error) if isinstance(error, ImportError | AttributeError) else describe_guest(error)
        raise DatasetError(f"{path}: {key_path} is {reader!r}, which can't be imported: {what}") from None
    guarded: Reader = _guarded(found, f"the reader {reader}")
    return guarded


def _guarded(call: Callable[..., Any], who: str) -> Any:
    """Return a function that calls a user's one; its faults are a `DatasetError` that names the line."""

    def guarded(*arguments: Any) -> Any:
        where = next((f"{one}: " for one in arguments if isinstance(one, Path)), "")
        try:
            with isolated():
                found = call(*arguments)
        except DatasetError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code may raise anything)
            raise DatasetError(f"{where}{who} can't read it ({describe_guest(error)})") from None
        if not isinstance(found, ImageReader):
            return found
        calls = {name: _guarded(part, who) for name, part in vars(found).items() if callable(part)}
        return dataclasses.replace(found, **calls)

    return guarded


def check_split(images: ImageSet, split: Split, source: DatasetSource, where: str, *, may_be_part: bool) -> None:
    """Check that counts and shapes are as declared; only part of a data set may have fewer images, of every class."""
    declared = source.train if split == "train" else source.test
    per_class = source.train_per_class if split == "train" else source.test_per_class
    if len(images.images) != len(images.labels):
        raise DatasetError(f"{where}: {len(images.images):,} images and {len(images.labels):,} labels")
    if len(images) > declared or (len(images) < declared and not may_be_part):
        raise DatasetError(f"{where}: {len(images):,} images; params.yaml declares {declared:,}")
    if images.images.shape[1:] != source.shape:
        raise DatasetError(f"{where}: images are {images.images.shape[1:]}; params.yaml declares {source.shape}")
    if per_class is not None:
        known = images.labels[(images.labels >= 0) & (images.labels < source.classes)]
        counts = np.bincount(known, minlength=source.classes)
        # If the total is right and no class has more, none has fewer.
        above = np.flatnonzero(counts > np.broadcast_to(per_class, counts.shape))
        if above.size:
            raise DatasetError(
                f"{where}: {counts[above[0]]:,} images of class {above[0]}, more than params.yaml declares"
            )


def check_response(measured: np.ndarray, source: DatasetSource, where: str) -> None:
    """Check that the least and the greatest measured value are the declared ones, if any are declared."""
    found = float(measured.min()), float(measured.max())
    if source.response_range is not None and found != source.response_range:
        low, high = source.response_range
        raise DatasetError(f"{where}: responses from {found[0]:g} to {found[1]:g}; params.yaml: {low:g} to {high:g}")


def check_classes(labels: np.ndarray, classes: tuple[str, ...], where: str) -> None:
    """Check that every label is a class and every class has an image; of labels [N, K], that each is given to a row."""
    if labels.ndim == 2:
        if unused := [classes[index] for index in np.flatnonzero(labels.sum(0) == 0)]:
            raise DatasetError(f"{where}: no row has the label {', '.join(unused[:5])}")
        return
    outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if outside.size:
        row = int(outside[0])
        raise DatasetError(f"{where}: row {row} has label {labels[row]}; labels go from 0 to {len(classes) - 1}")
    counts = np.bincount(labels, minlength=len(classes))
    empty = [classes[index] for index in np.flatnonzero(counts == 0)]
    if empty:
        named = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise DatasetError(f"{where}: no image of {named}")


def find_shared(train: np.ndarray, test: np.ndarray) -> list[tuple[int, int]]:
    """Return (training row, test row) of every row of `test` [N, ...] that is also in `train`."""
    rows = {blake2b(one.tobytes(), digest_size=16).digest(): row for row, one in enumerate(train)}
    keys = (blake2b(one.tobytes(), digest_size=16).digest() for one in test)
    return [(rows[key], row) for row, key in enumerate(keys) if key in rows]


def check_shared(shared: list[tuple[int, int]], allowed: int, dataset: str, what: str = "image") -> None:
    """Check that no more test images or rows are in the training set than in the official sets."""
    if len(shared) > allowed:
        train_row, test_row = shared[0]
        raise DatasetError(
            f"{dataset}: {len(shared)} test {what}s are in the training set, too ({allowed} expected); "
            f"first: test {what} {test_row} is training {what} {train_row}; remove them, or, if they are published "
            "so, declare their number as `shared_images`"
        )


def pixel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 [N, C, H, W], pixels in [0, 1].

    Computed from exact counts of the 256 values, so they are the same on every machine.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), 1000):  # all at once would take eight times the memory of the images
        for channel, pixels in enumerate(images[start : start + 1000].swapaxes(0, 1)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    values, pixels_each = np.arange(256), int(counts[0].sum())
    totals = [int(total) for total in counts @ values]
    squares = [int(square) for square in counts @ values**2]
    mean = [total / pixels_each / 255 for total in totals]
    std = [
        math.sqrt(pixels_each * square - total**2) / pixels_each / 255
        for total, square in zip(totals, squares, strict=True)
    ]
    return tuple(mean), tuple(std)
