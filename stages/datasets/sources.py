"""Where a data set's files come from: the downloads, a mirror, the official host, in this order.

Whatever the place, a file counts only if its bytes are the official ones, or those that a mirror declares to be inexact.
What is found is kept in the downloads, so that later runs need neither mirror nor network.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from stages.datasets.download import Unavailable, download, extract
from stages.datasets.mirror import (
    BadMirror,
    MirrorFile,
    MirrorInfo,
    describe_file,
    pin_in,
    read_mirror,
    write_mirror,
)
from stages.datasets.verified import (
    ChecksumMismatch,
    DatasetError,
    Pin,
    digest_file,
    read_chunks,
    store_verified,
)
from stages.experiment import DatasetSource, SourceFile

Say = Callable[[str], None]


class UnknownDataset(DatasetError):
    """`params.yaml` has no such data set."""


class NothingAvailable(DatasetError):
    """No place has the files; the message lists every place tried and what can be done."""


class BadManifest(DatasetError):
    """A manifest is missing or can't be read, or the downloads are no longer what it says."""


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
    """`data/raw/<dataset>.json`: what `preprocess` reads.  Says nothing of when or from where, so that it is the same
    for the same bytes.  `source` says whose digests they answer to; see `PackedInfo`."""

    dataset: str
    source: Literal["embedded", "mirror", "official"]
    complete: bool
    files: tuple[ManifestFile, ...]
    inexact_test_rows: tuple[int, ...]

    def to_json(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode()


def find_source(datasets: Mapping[str, DatasetSource], dataset: str) -> DatasetSource:
    """The declaration of a data set.

    Raises:
        UnknownDataset: there is none.
    """
    if dataset not in datasets:
        raise UnknownDataset(f"params.yaml: no data set {dataset!r}; known: {', '.join(sorted(datasets))}")
    return datasets[dataset]


def embedded_manifest(dataset: str) -> Manifest:
    """The manifest of a stand-in, which has no files."""
    return Manifest(dataset=dataset, source="embedded", complete=True, files=(), inexact_test_rows=())


def read_manifest(path: Path) -> Manifest:
    """Read what `fetch` wrote.

    Raises:
        BadManifest: it is missing or can't be read.
    """
    remedy = f"`python -m stages.fetch {path.stem}` writes it"
    if not path.is_file():
        raise BadManifest(f"{path}: no such file; {remedy}")
    try:
        return TypeAdapter(Manifest).validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadManifest(f"{path}: not a manifest ({error.errors()[0]['msg']}); {remedy}") from None


def fetch_dataset(dataset: str, source: DatasetSource, home: Path, mirror: Path | None, say: Say = print) -> Manifest:
    """Bring every file of `source` into `home/downloads/<dataset>`, verified, and describe them.

    `mirror` is the folder of all mirrored data sets.  `say` is told where each batch of files came from.

    Raises:
        ChecksumMismatch: the mirror or the official host has other bytes.
        NothingAvailable: no place has the files.
        BadMirror: a `mirror.json` can't be read.
    """
    folder = home / "downloads" / dataset
    kept, missing, tried = _look_through_downloads(folder, source, say)
    if missing and mirror is not None:
        kept, missing = _take_from_mirror(mirror / dataset, folder, source, kept, missing, say)
        if missing:
            tried.append(f"CLAIMCHECK_MIRROR ({mirror / dataset}): no {', '.join(file.name for file in missing)}")
    elif missing:
        tried.append("CLAIMCHECK_MIRROR: not set")
    if missing:
        tried += _download_missing(folder, source, missing, say)
        kept, missing, _ = _look_through_downloads(folder, source, say)
    if missing:
        raise NothingAvailable(
            f"{dataset}: {len(missing)} of {len(source.files)} files are nowhere to be had. Tried: {'; '.join(tried)}. "
            "Set CLAIMCHECK_MIRROR to a folder of mirrored data sets (docs/data.md), or go on-line, "
            "or set `profile: smoke` in params.yaml"
        )
    write_mirror(folder, kept)
    return _describe(dataset, source, kept)


def _look_through_downloads(
    folder: Path, source: DatasetSource, say: Say
) -> tuple[MirrorInfo, list[SourceFile], list[str]]:
    """Which files are there and right, which are wanted, and a line on each place and each file that is wrong."""
    info = read_mirror(folder)
    found: dict[str, MirrorFile] = {}
    missing: list[SourceFile] = []
    tried: list[str] = []
    for file in source.files:
        path = folder / file.name
        try:
            if path.is_file():
                digests = digest_file(path)
                pin_in(info, file.name, file.md5).check(digests, path)
                found[file.name] = describe_file(digests, file.md5)
                continue
        except ChecksumMismatch as error:
            say(f"fetch: not used: {error}")
            tried.append(f"ChecksumMismatch: {error}")
        missing.append(file)
    if len(tried) < len(missing):
        tried.insert(0, f"{folder}: {'some files are' if found else 'nothing'} there")
    inexact = info.inexact_test_rows if info is not None else ()
    return _as_info(source, found, inexact), missing, tried


def _take_from_mirror(
    place: Path,
    folder: Path,
    source: DatasetSource,
    kept: MirrorInfo,
    missing: Sequence[SourceFile],
    say: Say,
) -> tuple[MirrorInfo, list[SourceFile]]:
    """Copy what `place` has into `folder`.  Wrong bytes in a mirror stop the fetch: its owner wants to know."""
    info = read_mirror(place)
    found = dict(kept.files)
    still_missing = []
    for file in missing:
        path = place / file.name
        if path.is_file():
            pin = pin_in(info, file.name, file.md5)
            found[file.name] = describe_file(store_verified(read_chunks(path), folder / file.name, pin, path), file.md5)
        else:
            still_missing.append(file)
    if len(still_missing) < len(missing):
        say(f"fetch: {len(missing) - len(still_missing)} files from the mirror {place}")
    inexact = info.inexact_test_rows if info is not None else ()
    taken = _as_info(source, found, (*kept.inexact_test_rows, *inexact))
    write_mirror(folder, taken)
    return taken, still_missing


def _as_info(source: DatasetSource, found: dict[str, MirrorFile], inexact: Sequence[int]) -> MirrorInfo:
    """The `mirror.json` of these files; inexact rows count only while some file is not the official one."""
    is_official = all(file.matches_official for file in found.values())
    rows = () if is_official else tuple(sorted(set(inexact)))
    if rows and not 0 <= rows[0] <= rows[-1] < source.test:
        raise BadMirror(
            f"inexact_test_rows go from {rows[0]} to {rows[-1]}; the test set has rows 0 to {source.test - 1}"
        )
    is_complete = is_official and len(found) == len(source.files)
    ordered = {file.name: found[file.name] for file in source.files if file.name in found}
    return MirrorInfo(complete=is_complete, files=ordered, inexact_test_rows=rows)


def _download_missing(folder: Path, source: DatasetSource, missing: Sequence[SourceFile], say: Say) -> list[str]:
    """Try every official address in turn; a line for each that did not hand the files out.

    Other bytes from an official address stop the fetch: a second address would only hide it.
    """
    tried = []
    wanted = list(missing)
    for base in source.urls:
        try:
            if source.archive is not None:
                _download_archive(base, source.archive, folder, wanted, say)
                return tried
            while wanted:
                _download_file(base, wanted[0], folder, say)
                wanted.pop(0)
            return tried
        except Unavailable as error:
            tried.append(f"{type(error).__name__}: {error}")
    return tried


def _download_file(base: str, file: SourceFile, folder: Path, say: Say) -> None:
    url = base + PurePosixPath(file.name).name
    say(f"fetch: {url}")
    download(url, folder / file.name, Pin(official_md5=file.md5))


def _download_archive(base: str, archive: SourceFile, folder: Path, wanted: Sequence[SourceFile], say: Say) -> None:
    """Download the archive unless a verified one lies in the downloads, take the files out, and remove it."""
    path, pin = folder / archive.name, Pin(official_md5=archive.md5)
    if not path.is_file():
        say(f"fetch: {base}{archive.name}")
        download(base + archive.name, path, pin)
    else:
        pin.check(digest_file(path), path)
    extract(path, folder, {file.name: Pin(official_md5=file.md5) for file in wanted})
    path.unlink()


def _describe(dataset: str, source: DatasetSource, info: MirrorInfo) -> Manifest:
    files = tuple(
        ManifestFile(
            name=file.name,
            path=f"downloads/{dataset}/{file.name}",
            sha256=entry.sha256,
            bytes=entry.bytes,
            official_md5=file.md5,
            matches_official=bool(entry.matches_official),
        )
        for file in source.files
        for entry in [info.files[file.name]]
    )
    is_official = all(file.matches_official for file in files)
    return Manifest(
        dataset=dataset,
        source="official" if is_official else "mirror",
        complete=info.complete,
        files=files,
        inexact_test_rows=info.inexact_test_rows,
    )
