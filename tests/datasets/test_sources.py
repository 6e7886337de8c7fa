"""Fetching from downloads, mirror and official host, with every fault that a host can have."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.manifest import Manifest
from stages.datasets.sources import fetch_dataset, find_source
from stages.datasets.verified import ChecksumMismatch, DatasetError
from stages.params.experiment import DatasetSource
from tests.datasets.official_host import Answer, OfficialHost
from tests.datasets.tiny import (
    TEST,
    TinyDataset,
    cifar10_files,
    md5,
    tar_gz,
    tiny_cifar10,
    tiny_mnist,
    write_mirror_json,
)

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
def test_official_files_are_fetched_whole(tmp_path: Path, official_host: OfficialHost, dataset: TinyDataset) -> None:
    manifest = fetch(serve(official_host, dataset), tmp_path)
    folder = tmp_path / "downloads/tiny"
    assert {name: (folder / name).read_bytes() for name in dataset.files} == dataset.files
    assert files_below(folder) == {*dataset.files, "mirror.json"}
    assert manifest.source == "official"
    assert [(file.path, file.matches_official) for file in manifest.files] == [
        (f"downloads/tiny/{name}", True) for name in dataset.files
    ]


def test_downloads_come_before_mirror_and_network(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "downloads/tiny")
    fetch(serve(official_host, dataset), tmp_path, tmp_path / "no-mirror")
    assert official_host.asked == []


def test_mirror_comes_before_network(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    put_in_mirror(dataset, tmp_path / "mirror")
    fetch(serve(official_host, dataset), tmp_path, tmp_path / "mirror")
    assert official_host.asked == []


@pytest.mark.parametrize("place", ["downloads", "mirror"])
def test_official_archive_lying_about_is_used_and_left(tmp_path: Path, place: str) -> None:
    dataset = tiny_cifar10()
    archive = tmp_path / place / "tiny" / ARCHIVE
    archive.parent.mkdir(parents=True)
    archive.write_bytes(dataset.archive or b"")
    fetch(dataset.source, tmp_path, tmp_path / "mirror")
    assert (tmp_path / "downloads/tiny" / TEST_BATCH).read_bytes() == dataset.files[TEST_BATCH]
    assert archive.exists()


def test_only_what_is_missing_is_downloaded(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    source = serve(official_host, dataset)
    dataset.write(tmp_path / "downloads/tiny")
    (tmp_path / "downloads/tiny" / IMAGES).unlink()
    fetch(source, tmp_path)
    assert official_host.asked == [Path(IMAGES).name]


def test_manifest_is_the_same_whichever_way_the_bytes_came(tmp_path: Path, official_host: OfficialHost) -> None:
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
def test_host_fault_is_named_and_leaves_nothing(tmp_path: Path, official_host: OfficialHost, fault: str) -> None:
    answer, message = FAULTS[fault]
    source = serve(official_host, tiny_cifar10())
    official_host.answers[ARCHIVE] = answer
    with pytest.raises(DatasetError, match=message):
        fetch(source, tmp_path)
    assert files_below(tmp_path) == set()


def test_unreachable_host_or_proxy_is_named_with_every_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_wrong_byte_from_official_host_stops_the_fetch(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    source = serve(official_host, dataset)
    wrong = bytearray(dataset.files[IMAGES])
    wrong[100] ^= 1
    official_host.answers[Path(IMAGES).name] = Answer(body=bytes(wrong))
    with pytest.raises(ChecksumMismatch) as caught:
        fetch(source, tmp_path)
    expected = f"expected md5 {md5(dataset.files[IMAGES])}, got {md5(bytes(wrong))} ({len(wrong):,} bytes)"
    assert expected in str(caught.value)
    assert files_below(tmp_path) == set()


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


def test_declared_inexact_file_is_taken_with_its_rows(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    inexact = bytearray(dataset.files[TEST_BATCH])
    inexact[3073 + 7] ^= 1  # one pixel of test image 1
    dataset.write(tmp_path / "mirror/tiny")
    (tmp_path / "mirror/tiny" / TEST_BATCH).write_bytes(bytes(inexact))
    write_mirror_json(tmp_path / "mirror/tiny", dataset, inexact_test_rows=[1])
    manifest = fetch(dataset.source, tmp_path, tmp_path / "mirror")
    assert manifest.source == "mirror"
    assert manifest.inexact_test_rows == (1,)
    assert [file.name for file in manifest.files if not file.matches_official] == [TEST_BATCH]
    assert fetch(dataset.source, tmp_path) == manifest, "the downloads carry the mirror's word on"


def test_inexact_file_that_is_not_declared_is_refused(tmp_path: Path) -> None:
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
def test_bad_mirror_description_is_named(tmp_path: Path, document: str, message: str) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "mirror/tiny")
    (tmp_path / "mirror/tiny/mirror.json").write_text(document)
    with pytest.raises(DatasetError, match=message):
        fetch(dataset.source, tmp_path, tmp_path / "mirror")


def test_mirror_names_are_never_paths(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    folder = put_in_mirror(dataset, tmp_path / "mirror")
    document = json.loads((folder / "mirror.json").read_text())
    document["files"]["../../escaped"] = document["files"][IMAGES]
    (folder / "mirror.json").write_text(json.dumps(document))
    fetch(dataset.source, tmp_path / "home", tmp_path / "mirror")
    assert files_below(tmp_path / "home") == {f"downloads/tiny/{name}" for name in (*dataset.files, "mirror.json")}


def test_other_members_of_an_archive_are_not_written(tmp_path: Path, official_host: OfficialHost) -> None:
    files = cifar10_files()
    dataset = tiny_cifar10(files, archive=tar_gz({"cifar-10-batches-bin/readme.html": b"no", **files}))
    fetch(serve(official_host, dataset), tmp_path / "home")
    assert files_below(tmp_path) == {f"home/downloads/tiny/{name}" for name in (*files, "mirror.json")}


def test_wrong_file_in_an_archive_is_named(tmp_path: Path, official_host: OfficialHost) -> None:
    files = cifar10_files()
    dataset = tiny_cifar10(files, archive=tar_gz({**files, TEST_BATCH: b"wrong"}))
    with pytest.raises(ChecksumMismatch, match=rf"{ARCHIVE}, {TEST_BATCH}: expected md5 .* \(5 bytes\)"):
        fetch(serve(official_host, dataset), tmp_path)
    assert files_below(tmp_path / "downloads/tiny").isdisjoint({TEST_BATCH, ARCHIVE})


def test_remains_of_a_killed_fetch_are_cleared(tmp_path: Path, official_host: OfficialHost) -> None:
    dataset = tiny_mnist()
    partial = (tmp_path / "downloads/tiny" / IMAGES).with_name(f".{Path(IMAGES).name}.partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"half")
    fetch(serve(official_host, dataset), tmp_path)
    assert files_below(tmp_path / "downloads/tiny") == {*dataset.files, "mirror.json"}


def test_unknown_dataset_lists_the_known() -> None:
    source = tiny_mnist().source
    with pytest.raises(DatasetError, match="no data set 'svhn'; known: cifar10, mnist"):
        find_source({"mnist": source, "cifar10": source}, "svhn")
    with pytest.raises(DatasetError, match=r"no data set 'mnits'; did you mean mnist\?$"):
        find_source({"mnist": source, "cifar10": source}, "mnits")
