"""Traps of every kind that an archive can hold, against real archives."""

from __future__ import annotations

import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.archive import walk
from stages.datasets.verified import DatasetError
from tests.datasets.archives import write_archive, write_tar_special, write_zip, write_zip_link

SUFFIXES = (".zip", ".tar.gz")


def contents(archive: Path) -> dict[str, bytes]:
    return {member.name: member.read() for member in walk(archive)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_come_in_the_order_of_the_archive(tmp_path: Path, suffix: str) -> None:
    archive = write_archive(tmp_path / f"a{suffix}", [("b/2", b"two"), ("./a/1", b"one"), ("empty", b"")])
    assert list(contents(archive).items()) == [("b/2", b"two"), ("a/1", b"one"), ("empty", b"")]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/absolute", "C:/windows", "a\\..\\escaped"])
def test_name_that_leads_out_is_refused(tmp_path: Path, suffix: str, name: str) -> None:
    archive = write_archive(tmp_path / f"a{suffix}", [("good", b""), (name, b"bad")])
    with pytest.raises(DatasetError, match="the name leads out of the archive"):
        contents(archive)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE],
    ids=["soft", "hard", "device", "pipe"],
)
def test_link_or_device_in_a_tar_is_refused(tmp_path: Path, kind: bytes) -> None:
    archive = write_tar_special(tmp_path / "a.tgz", "train/picture.JPEG", kind, "../../etc/passwd")
    with pytest.raises(DatasetError, match=r"train/picture.JPEG: a link or a device"):
        contents(archive)


def test_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    archive = write_zip_link(tmp_path / "a.zip", "train/picture.JPEG", "/etc/passwd")
    with pytest.raises(DatasetError, match=r"train/picture.JPEG: a link or a device"):
        contents(archive)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("twin", ["same", "./same"])
def test_member_that_comes_twice_is_named(tmp_path: Path, suffix: str, twin: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, on writing
        archive = write_archive(tmp_path / f"a{suffix}", [("same", b"1"), (twin, b"2")])
    with pytest.raises(DatasetError, match="same: comes twice"):
        contents(archive)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, suffix: str) -> None:
    entries = [(str(number), bytes(1 << 24)) for number in range(3)]
    path = tmp_path / f"a{suffix}"
    archive = write_zip(path, entries, zipfile.ZIP_DEFLATED) if suffix == ".zip" else write_archive(path, entries)
    assert archive.stat().st_size < 100_000
    with pytest.raises(DatasetError, match="unpacks to more than"):
        for _ in walk(archive):
            pass


def test_what_grows_like_text_is_no_bomb(tmp_path: Path) -> None:
    text = np.random.RandomState(0).bytes(17 << 19).hex().encode()
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("text", text)
    assert len(text) > (1 << 24) > (tmp_path / "a.zip").stat().st_size
    assert [member.size_bytes for member in walk(tmp_path / "a.zip")] == [len(text)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"neither zip nor tar" * 100], ids=["empty", "other"])
def test_what_is_no_archive_is_named(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"not a readable (zip|tar) archive"):
        contents(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_archive_that_is_cut_short_is_named(tmp_path: Path, suffix: str) -> None:
    archive = write_archive(tmp_path / f"a{suffix}", [("one", bytes(range(256)) * 100), ("two", b"2" * 5000)])
    archive.write_bytes(archive.read_bytes()[:-60])
    with pytest.raises(DatasetError):
        contents(archive)


def test_damaged_member_of_a_zip_is_named(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", [("one", b"right content")])
    archive.write_bytes(archive.read_bytes().replace(b"right content", b"wrong content"))
    with pytest.raises(DatasetError, match=r"a.zip, one: can't be read \(Bad CRC-32"):
        contents(archive)


def test_encrypted_member_is_named(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", [("one", b"secret")])
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # general purpose flag of the file's own header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and of the directory
    archive.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match=r"one: can't be read .*encrypted"):
        contents(archive)
