"""Fetching from downloads, mirror and official host, including every host fault."""

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.archive import walk
from stages.datasets.manifest import ChecksumMismatch, DatasetError, Digests, Manifest, Pin, store_verified
from stages.datasets.mirror import copy_to_mirror, main
from stages.datasets.sources import fetch_dataset, find_source
from stages.params.experiment import DatasetSource, SourceFile
from tests.datasets import test_isic2019
from tests.datasets.conftest import write_folder
from tests.datasets.official_host import Answer, OfficialHost
from tests.datasets.tiny import (
    TEST,
    TinyDataset,
    cifar10_files,
    declare,
    tar_gz,
    tiny_cifar10,
    tiny_mnist,
    write_mirror_json,
)
from tests.datasets.workplace import write_params

ARCHIVE = "cifar-10-binary.tar.gz"
TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"
IMAGES = "MNIST/raw/train-images-idx3-ubyte.gz"


def fetch(source: DatasetSource, home: Path, mirror: Path | None = None) -> Manifest:
    said: list[str] = []
    return fetch_dataset("tiny", source, home, mirror, said.append)


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def serve(host: OfficialHost, dataset: TinyDataset) -> DatasetSource:
    for name, content in dataset.files.items():
        host.answers[Path(name).name] = Answer(body=content)
    if dataset.archive is not None:
        host.answers = {ARCHIVE: Answer(body=dataset.archive)}
    return dataset.at(host.url)


def put_in_mirror(dataset: TinyDataset, mirror: Path) -> Path:
    dataset.write(mirror / "tiny")
    write_mirror_json(mirror / "tiny", dataset)
    return mirror / "tiny"


@pytest.mark.parametrize("dataset", [tiny_cifar10(), tiny_mnist()], ids=["archive", "files"])
def test_official_files_are_fetched(tmp_path: Path, official_host: OfficialHost, dataset: TinyDataset) -> None:
    manifest = fetch(serve(official_host, dataset), tmp_path)
    folder = tmp_path / "downloads/tiny"
    assert {name: (folder / name).read_bytes() for name in dataset.files} == dataset.files
    assert files_below(folder) == {*dataset.files, "mirror.json"}
    assert manifest.source == "official"
    assert [(file.path, file.matches_official) for file in manifest.files] == [
        (f"downloads/tiny/{name}", True) for name in dataset.files
    ]


@pytest.mark.parametrize("place", ["downloads", "mirror", "downloads without a file"])
def test_downloads_precede_the_mirror_and_the_network_fills_gaps(
    tmp_path: Path, official_host: OfficialHost, place: str
) -> None:
    dataset = tiny_mnist()
    if place == "mirror":
        put_in_mirror(dataset, tmp_path / "mirror")
    else:
        dataset.write(tmp_path / "downloads/tiny")
    if is_part := place.endswith("without a file"):
        (tmp_path / "downloads/tiny" / IMAGES).unlink()
    fetch(serve(official_host, dataset), tmp_path, tmp_path / "mirror" if place == "mirror" else None)
    assert official_host.asked == [Path(IMAGES).name] * is_part


@pytest.mark.parametrize("place", ["downloads", "mirror"])
def test_existing_official_archive_is_used_and_kept(tmp_path: Path, place: str) -> None:
    dataset = tiny_cifar10()
    archive = tmp_path / place / "tiny" / ARCHIVE
    archive.parent.mkdir(parents=True)
    archive.write_bytes(dataset.archive or b"")
    fetch(dataset.source, tmp_path, tmp_path / "mirror")
    assert (tmp_path / "downloads/tiny" / TEST_BATCH).read_bytes() == dataset.files[TEST_BATCH]
    assert archive.exists()


def test_manifest_does_not_depend_on_the_source(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    source = serve(official_host, dataset)
    put_in_mirror(dataset, tmp_path / "mirror")
    by_mirror = fetch(source, tmp_path / "a", tmp_path / "mirror").to_json()
    by_network = fetch(source, tmp_path / "b").to_json()
    again = fetch(source, tmp_path / "a").to_json()
    assert by_mirror == by_network == again


FAULTS = {
    "not found": (Answer(status=404), "Unavailable: .*HTTP 404"),
    "forbidden": (Answer(status=403), "Unavailable: .*HTTP 403"),
    "broken host": (Answer(status=500), "Unavailable: .*HTTP 500"),
    "truncated": (
        Answer(body=b"\x1f\x8b" + bytes(998), promised_bytes=5000),
        "Unavailable: .*after [0-9,]+ of 5,000 bytes",
    ),
    "web page": (
        Answer(body=b"<p>Please log in</p>", content_type="text/html; charset=utf-8"),
        "Unavailable: .*a web page",
    ),
    "web page without saying so": (Answer(body=b"\n<!DOCTYPE html><p>Moved</p>"), "Unavailable: .*a web page"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_host_fault_is_reported_and_leaves_nothing(tmp_path: Path, official_host: OfficialHost, fault: str) -> None:
    answer, message = FAULTS[fault]
    source = serve(official_host, tiny_cifar10())
    official_host.answers[ARCHIVE] = answer
    with pytest.raises(DatasetError, match=message):
        fetch(source, tmp_path)
    assert files_below(tmp_path) == set()


def test_unreachable_host_or_proxy_has_all_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with pytest.raises(DatasetError) as caught:
            fetch(tiny_cifar10().at(url), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (f"Unavailable: {url}", "downloads/tiny: lacks", "CLAIMCHECK_MIRROR: not set", "profile: smoke"):
        assert part in message
    assert files_below(tmp_path) == set()
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(DatasetError, match=r", through the proxy 127\.0\.0\.1:9 \(http_proxy\): ") as proxied:
        fetch(tiny_cifar10().at("http://example.org/"), tmp_path)
    assert "secret" not in str(proxied.value)


def test_wrong_byte_in_mirror_stops_the_fetch(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    folder = put_in_mirror(dataset, tmp_path / "mirror")
    (folder / IMAGES).write_bytes(dataset.files[IMAGES][:-1])
    with pytest.raises(ChecksumMismatch, match="mirror/tiny/MNIST"):
        fetch(serve(official_host, dataset), tmp_path, tmp_path / "mirror")
    assert official_host.asked == []
    assert not (tmp_path / "downloads/tiny" / IMAGES).exists()


def test_wrong_byte_in_downloads_is_reported_and_replaced(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "downloads/tiny")
    path = tmp_path / "downloads/tiny" / IMAGES
    path.write_bytes(b"rotten")
    said: list[str] = []
    fetch_dataset("tiny", serve(official_host, dataset), tmp_path, None, said.append)
    assert path.read_bytes() == dataset.files[IMAGES]
    assert any("not used" in line and str(path) in line for line in said)


def test_undeclared_inexact_file_is_refused(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    other = tiny_cifar10(cifar10_files(test_labels=np.arange(TEST)[::-1] % 10))
    other.write(tmp_path / "mirror/tiny")
    write_mirror_json(tmp_path / "mirror/tiny", other)
    with pytest.raises(ChecksumMismatch, match=TEST_BATCH):
        fetch(dataset.source, tmp_path, tmp_path / "mirror")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "mirror.json: file: Invalid JSON"),
        ('{"complete": true}', "mirror.json: files: Field required"),
        ('{"complete": true, "files": {}, "inexact_test_rows": [200]}', "inexact_test_rows has 200; .* 0 to 199"),
    ],
)
def test_bad_mirror_description_is_reported(tmp_path: Path, document: str, message: str) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "mirror/tiny")
    (tmp_path / "mirror/tiny/mirror.json").write_text(document, encoding="utf-8")
    with pytest.raises(DatasetError, match=message):
        fetch(dataset.source, tmp_path, tmp_path / "mirror")


def test_mirror_names_with_path_separators_are_refused(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    folder = put_in_mirror(dataset, tmp_path / "mirror")
    document = json.loads((folder / "mirror.json").read_text(encoding="utf-8"))
    document["files"]["../../escaped"] = document["files"][IMAGES]
    (folder / "mirror.json").write_text(json.dumps(document), encoding="utf-8")
    fetch(dataset.source, tmp_path / "home", tmp_path / "mirror")
    assert files_below(tmp_path / "home") == {f"downloads/tiny/{name}" for name in (*dataset.files, "mirror.json")}


def test_other_archive_members_are_not_extracted(tmp_path: Path, official_host: OfficialHost) -> None:
    files = cifar10_files()
    dataset = tiny_cifar10(files, archive=tar_gz({"cifar-10-batches-bin/readme.html": b"no", **files}))
    fetch(serve(official_host, dataset), tmp_path / "home")
    assert files_below(tmp_path) == {f"home/downloads/tiny/{name}" for name in (*files, "mirror.json")}


def test_wrong_file_in_an_archive_is_reported(tmp_path: Path, official_host: OfficialHost) -> None:
    files = cifar10_files()
    dataset = tiny_cifar10(files, archive=tar_gz({**files, TEST_BATCH: b"wrong"}))
    with pytest.raises(ChecksumMismatch, match=rf"{ARCHIVE}, {TEST_BATCH}: expected md5 .* \(5 bytes\)"):
        fetch(serve(official_host, dataset), tmp_path)
    assert files_below(tmp_path / "downloads/tiny").isdisjoint({TEST_BATCH, ARCHIVE})


def test_leftovers_of_a_killed_fetch_are_removed(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    partial = (tmp_path / "downloads/tiny" / IMAGES).with_name(f".{Path(IMAGES).name}.partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"half")
    fetch(serve(official_host, dataset), tmp_path)
    assert files_below(tmp_path / "downloads/tiny") == {*dataset.files, "mirror.json"}


def test_unknown_dataset_lists_the_known_ones() -> None:
    source = tiny_mnist().source
    with pytest.raises(DatasetError, match="no data set 'svhn'; known: cifar10, mnist"):
        find_source({"mnist": source, "cifar10": source}, "svhn")
    with pytest.raises(DatasetError, match=r"no data set 'mnits'; did you mean mnist\?$"):
        find_source({"mnist": source, "cifar10": source}, "mnits")


def quiet(line: str) -> None:
    """Discard the line."""


def fetched(dataset: TinyDataset, home: Path) -> Path:
    dataset.write(home / "downloads/tiny")
    fetch_dataset("tiny", dataset.source, home, None, quiet)
    return home / "downloads/tiny"


def test_mirror_of_fetched_files_serves_another_machine(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    info = copy_to_mirror(dataset.source, fetched(dataset, tmp_path / "here"), tmp_path / "mirror/tiny")
    assert info.complete
    there = fetch_dataset("tiny", dataset.source, tmp_path / "there", tmp_path / "mirror", quiet)
    here = fetch_dataset("tiny", dataset.source, tmp_path / "here", None, quiet)
    assert there == here


def test_mirror_keeps_inexact_rows(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    dataset.write(tmp_path / "first/tiny")
    path = tmp_path / "first/tiny" / TEST_BATCH
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    write_mirror_json(tmp_path / "first/tiny", dataset, inexact_test_rows=[199])
    manifest = fetch_dataset("tiny", dataset.source, tmp_path, tmp_path / "first", quiet)
    assert (manifest.source, manifest.inexact_test_rows) == ("mirror", (199,))
    assert [file.name for file in manifest.files if not file.matches_official] == [TEST_BATCH]
    copied = copy_to_mirror(dataset.source, tmp_path / "downloads/tiny", tmp_path / "second/tiny")
    assert (copied.complete, copied.inexact_test_rows) == (False, (199,))
    assert fetch_dataset("tiny", dataset.source, tmp_path / "there", tmp_path / "second", quiet) == manifest


def test_incomplete_downloads_are_not_mirrored(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    downloads = fetched(dataset, tmp_path)
    (downloads / IMAGES).unlink()
    with pytest.raises(DatasetError, match="no such file; fetch the data set with real data first"):
        copy_to_mirror(dataset.source, downloads, tmp_path / "mirror")


def test_command_mirrors_every_fetched_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tiny_mnist()
    write_params(tmp_path, "quick", tiny=dataset.source, other=dataset.source)
    monkeypatch.chdir(tmp_path)
    assert main(["mirror"]) == 1, "nothing is fetched yet"
    fetched(dataset, tmp_path / "data")
    assert main(["mirror"]) == 0
    assert "mirror: tiny: 4 files, complete" in capsys.readouterr().out
    assert (tmp_path / "mirror/tiny" / IMAGES).read_bytes() == dataset.files[IMAGES]
    (tmp_path / "data/downloads/tiny" / IMAGES).write_bytes(b"rotten")
    assert main(["mirror"]) == 1
    assert "expected md5" in capsys.readouterr().err
    assert main([]) == 2


CONTENT = b"seven bytes" * 7
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


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


@pytest.mark.parametrize(
    ("pin", "result"),
    [
        (Pin(official_md5=MD5), True),
        (Pin(official_sha256=SHA256), True),
        (Pin(official_md5=MD5, official_sha256=SHA256), True),
        (Pin(official_md5=MD5, official_sha256="1" * 64), "expected sha256 1111"),  # both digests are required
        (Pin(official_md5="0" * 32, official_sha256=SHA256), "expected md5 0000"),
        (Pin(official_md5="0" * 32, inexact_sha256=SHA256), False),
        (Pin(official_md5="0" * 32, inexact_sha256="1" * 64), "expected sha256 1111"),
        (Pin(), None),  # no digest is published
        (Pin(inexact_sha256=SHA256), False),
        (Pin(inexact_sha256="1" * 64), "expected sha256 1111"),
    ],
)
def test_pin_distinguishes_official_declared_inexact_and_wrong_bytes(pin: Pin, result: bool | str | None) -> None:
    digests = Digests(md5=MD5, sha256=SHA256, size_bytes=77)
    if isinstance(result, str):
        with pytest.raises(ChecksumMismatch, match=result):
            pin.check(digests, "here")
    else:
        assert pin.check(digests, "here") is result


PICTURES, TRUTH, METADATA = test_isic2019.ISIC_ARCHIVE, test_isic2019.ISIC_TRUTH, test_isic2019.ISIC_METADATA


def declare_isic(archive: str = PICTURES) -> DatasetSource:
    """Declare ISIC 2019 as in `params.yaml`, for the pictures of its test."""
    files = SourceFile(name=METADATA, optional=True), SourceFile(name=TRUTH), SourceFile(name=archive)
    return declare("isic2019", (3, 80, 80), *files, classes=8, train=55, test=11, title="tiny")


def written(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    test_isic2019.write(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def loose(folder: Path) -> dict[str, bytes]:
    """Return the official files with the archive unpacked and without the metadata."""
    files = written(folder)
    members = {member.name: member.read() for member in walk(folder / PICTURES)}
    return {TRUTH: files[TRUTH], **members}


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_unpacked_part_is_packed_deterministically(tmp_path: Path, suffix: str) -> None:
    files = loose(tmp_path / "official")
    write_folder(tmp_path / "mirror/tiny", files)
    source = declare_isic(archive=f"archive{suffix}")
    first = fetch(source, tmp_path / "a", tmp_path / "mirror")
    assert first == fetch(source, tmp_path / "b", tmp_path / "mirror") == fetch(source, tmp_path / "a")
    assert [file.name for file in first.files] == [TRUTH, f"archive{suffix}"]
    packed = {member.name: member.read() for member in walk(tmp_path / f"a/downloads/tiny/archive{suffix}")}
    assert packed == {name: content for name, content in files.items() if name != TRUTH}
    assert list(packed) == sorted(packed)


def test_mirror_of_a_mirror_lacks_the_same_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "mirror/tiny", loose(tmp_path / "official"))
    manifest = fetch(declare_isic(), tmp_path, tmp_path / "mirror")
    info = copy_to_mirror(declare_isic(), tmp_path / "downloads/tiny", tmp_path / "second/tiny")
    assert (info.complete, list(info.files)) == (False, [TRUTH, PICTURES])
    assert fetch(declare_isic(), tmp_path / "there", tmp_path / "second") == manifest


def hostile(folder: Path, name: str) -> None:
    """A mirror whose description lists `name` besides the unpacked part."""
    document = json.loads((folder / "mirror.json").read_text(encoding="utf-8"))
    document["files"][name] = document["files"][TRUTH]
    (folder / "mirror.json").write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "message"),
    [("../../outside", "leads out"), ("linked", "leads out"), ("gone.jpg", "lists gone.jpg, which isn't there")],
)
def test_malicious_description_of_a_part_is_refused(tmp_path: Path, name: str, message: str) -> None:
    folder = tmp_path / "mirror/tiny"
    write_folder(folder, loose(tmp_path / "official"))
    (tmp_path / "outside").write_bytes((folder / TRUTH).read_bytes())
    (folder / "linked").symlink_to(tmp_path / "outside")
    hostile(folder, name)
    with pytest.raises(DatasetError, match=message):
        fetch(declare_isic(), tmp_path / "home", tmp_path / "mirror")
    assert not (tmp_path / "home/downloads/tiny" / PICTURES).exists()


def test_changed_file_of_a_part_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mirror/tiny"
    write_folder(folder, loose(tmp_path / "official"))
    (folder / "ISIC_2019_Training_Input/ISIC_0000003.jpg").write_bytes(b"other")
    with pytest.raises(ChecksumMismatch, match=r"ISIC_0000003.jpg: expected sha256 .* \(5 bytes\)"):
        fetch(declare_isic(), tmp_path / "home", tmp_path / "mirror")
    left = {path.name for path in (tmp_path / "home/downloads/tiny").iterdir()}
    assert PICTURES not in left and not any("partial" in name for name in left)
