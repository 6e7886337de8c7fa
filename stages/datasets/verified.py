"""Bytes that match a pinned digest: everything that enters `downloads` passes through here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stages.faults import Mistake, named

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
