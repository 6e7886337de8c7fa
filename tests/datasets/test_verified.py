from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.datasets.verified import ChecksumMismatch, Digests, Pin, digest_file, store_verified

CONTENT = b"seven bytes" * 7
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_verified_bytes_are_stored_with_their_digests(tmp_path: Path) -> None:
    target = tmp_path / "new/folder/file"
    digests = store_verified([CONTENT[:5], CONTENT[5:]], target, Pin(official_md5=MD5), "here")
    assert target.read_bytes() == CONTENT
    assert digests == Digests(md5=MD5, sha256=SHA256, size_bytes=77) == digest_file(target)


def test_wrong_bytes_leave_the_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(ChecksumMismatch, match=f"^here: expected md5 {MD5}, got "):
        store_verified([b"wrong"], target, Pin(official_md5=MD5), "here")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"


def test_interrupted_bytes_leave_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[bytes]:
        yield CONTENT
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_verified(interrupted(), tmp_path / "file", Pin(official_md5=MD5), "here")
    assert list(tmp_path.iterdir()) == []


def test_pin_tells_official_from_declared_inexact_bytes() -> None:
    digests = Digests(md5=MD5, sha256=SHA256, size_bytes=77)
    other = "0" * 32
    assert Pin(official_md5=MD5).check(digests, "here") is True
    assert Pin(official_md5=other, inexact_sha256=SHA256).check(digests, "here") is False
    with pytest.raises(ChecksumMismatch, match="expected sha256 1111"):
        Pin(official_md5=other, inexact_sha256="1" * 64).check(digests, "here")


def test_pin_with_two_digests_wants_both() -> None:
    digests = Digests(md5=MD5, sha256=SHA256, size_bytes=77)
    assert Pin(official_sha256=SHA256).check(digests, "here") is True
    assert Pin(official_md5=MD5, official_sha256=SHA256).check(digests, "here") is True
    with pytest.raises(ChecksumMismatch, match="expected sha256 1111"):
        Pin(official_md5=MD5, official_sha256="1" * 64).check(digests, "here")
    with pytest.raises(ChecksumMismatch, match="expected md5 0000"):
        Pin(official_md5="0" * 32, official_sha256=SHA256).check(digests, "here")


def test_file_without_a_published_digest_answers_to_its_mirror_or_to_nobody() -> None:
    digests = Digests(md5=MD5, sha256=SHA256, size_bytes=77)
    assert Pin().check(digests, "here") is None
    assert Pin(inexact_sha256=SHA256).check(digests, "here") is False
    with pytest.raises(ChecksumMismatch, match="expected sha256 1111"):
        Pin(inexact_sha256="1" * 64).check(digests, "here")
