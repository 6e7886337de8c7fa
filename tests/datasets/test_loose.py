"""Data sets whose archive a mirror holds in parts, or for which nobody publishes a digest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.datasets.archive import walk
from stages.datasets.manifest import Manifest
from stages.datasets.mirror import copy_to_mirror
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import ChecksumMismatch, DatasetError
from stages.params.experiment import DatasetSource, SourceFile
from tests.datasets import test_isic2019
from tests.datasets.conftest import write_folder
from tests.datasets.official_host import Answer, OfficialHost

ARCHIVE, TRUTH, METADATA = test_isic2019.ARCHIVE, test_isic2019.TRUTH, test_isic2019.METADATA


def declare(*urls: str, archive: str = ARCHIVE) -> DatasetSource:
    """As `params.yaml` declares ISIC 2019, for the pictures of its test."""
    return DatasetSource(
        title="tiny",
        reader="isic2019",
        shape=(3, 80, 80),
        classes=8,
        train=55,
        test=11,
        licence="none",
        homepage="http://127.0.0.1/",
        urls=urls,
        files=(SourceFile(name=METADATA, optional=True), SourceFile(name=TRUTH), SourceFile(name=archive)),
    )


def fetch(source: DatasetSource, home: Path, mirror: Path | None = None) -> Manifest:
    return fetch_dataset("tiny", source, home, mirror, lambda line: None)


def written(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    test_isic2019.write(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def loose(folder: Path) -> dict[str, bytes]:
    """The same files with the archive's content instead of the archive, and without the metadata."""
    files = written(folder)
    members = {member.name: member.read() for member in walk(folder / ARCHIVE)}
    return {TRUTH: files[TRUTH], **members}


def test_whole_set_without_digests_is_never_full(tmp_path: Path, official_host: OfficialHost) -> None:
    files = written(tmp_path / "official")
    official_host.answers = {name: Answer(body=content) for name, content in files.items()}
    source = declare(official_host.url)
    manifest = fetch(source, tmp_path)
    assert [file.name for file in manifest.files] == [METADATA, TRUTH, ARCHIVE]
    assert [(file.official_md5, file.matches_official) for file in manifest.files] == [("", False)] * 3
    info = prepare(source, manifest, tmp_path, tmp_path / "packed")
    assert (info.provenance, info.train_images, info.test_images) == ("subset", 55, 11)


def test_what_came_without_a_digest_is_held_to_its_first_bytes(tmp_path: Path) -> None:
    write_folder(tmp_path / "mirror/tiny", written(tmp_path / "official"))
    manifest = fetch(declare(), tmp_path, tmp_path / "mirror")
    assert fetch(declare(), tmp_path) == manifest
    path = tmp_path / "downloads/tiny" / TRUTH
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DatasetError, match=rf"{TRUTH}: sha256 was .* when it was fetched"):
        fetch(declare(), tmp_path)


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_unpacked_part_becomes_the_archive_always_the_same(tmp_path: Path, suffix: str) -> None:
    files = loose(tmp_path / "official")
    write_folder(tmp_path / "mirror/tiny", files)
    source = declare(archive=f"archive{suffix}")
    first = fetch(source, tmp_path / "a", tmp_path / "mirror")
    assert first == fetch(source, tmp_path / "b", tmp_path / "mirror") == fetch(source, tmp_path / "a")
    assert [file.name for file in first.files] == [TRUTH, f"archive{suffix}"]
    packed = {member.name: member.read() for member in walk(tmp_path / f"a/downloads/tiny/archive{suffix}")}
    assert packed == {name: content for name, content in files.items() if name != TRUTH}
    assert list(packed) == sorted(packed)


def test_mirror_of_a_mirror_lacks_what_that_lacked(tmp_path: Path) -> None:
    write_folder(tmp_path / "mirror/tiny", loose(tmp_path / "official"))
    manifest = fetch(declare(), tmp_path, tmp_path / "mirror")
    info = copy_to_mirror(declare(), tmp_path / "downloads/tiny", tmp_path / "second/tiny")
    assert (info.complete, list(info.files)) == (False, [TRUTH, ARCHIVE])
    assert fetch(declare(), tmp_path / "there", tmp_path / "second") == manifest


def hostile(folder: Path, name: str) -> None:
    """A mirror whose description lists `name` beside the unpacked part."""
    document = json.loads((folder / "mirror.json").read_text())
    document["files"][name] = document["files"][TRUTH]
    (folder / "mirror.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "message"),
    [("../../outside", "leads out"), ("linked", "leads out"), ("gone.jpg", "lists gone.jpg, which isn't there")],
)
def test_hostile_description_of_a_part_is_refused(tmp_path: Path, name: str, message: str) -> None:
    folder = tmp_path / "mirror/tiny"
    write_folder(folder, loose(tmp_path / "official"))
    (tmp_path / "outside").write_bytes((folder / TRUTH).read_bytes())
    (folder / "linked").symlink_to(tmp_path / "outside")
    hostile(folder, name)
    with pytest.raises(DatasetError, match=message):
        fetch(declare(), tmp_path / "home", tmp_path / "mirror")
    assert not (tmp_path / "home/downloads/tiny" / ARCHIVE).exists()


def test_changed_file_of_a_part_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mirror/tiny"
    write_folder(folder, loose(tmp_path / "official"))
    (folder / "ISIC_2019_Training_Input/ISIC_0000003.jpg").write_bytes(b"other")
    with pytest.raises(ChecksumMismatch, match=r"ISIC_0000003.jpg: expected sha256 .* \(5 bytes\)"):
        fetch(declare(), tmp_path / "home", tmp_path / "mirror")
    left = {path.name for path in (tmp_path / "home/downloads/tiny").iterdir()}
    assert ARCHIVE not in left and not any("partial" in name for name in left)
