from __future__ import annotations

from pathlib import Path

import pytest

from stages.datasets.mirror import copy_to_mirror, main, read_mirror
from stages.datasets.sources import fetch_dataset
from stages.datasets.verified import ChecksumMismatch, DatasetError
from tests.datasets.tiny import TinyDataset, tiny_cifar10, tiny_mnist, write_mirror_json
from tests.datasets.workplace import write_params

TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"
IMAGES = "MNIST/raw/train-images-idx3-ubyte.gz"


def quiet(line: str) -> None:
    """Say nothing."""


def fetched(dataset: TinyDataset, home: Path) -> Path:
    dataset.write(home / "downloads/tiny")
    fetch_dataset("tiny", dataset.source, home, None, quiet)
    return home / "downloads/tiny"


def test_mirror_of_what_was_fetched_serves_another_machine(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    info = copy_to_mirror(dataset.source, fetched(dataset, tmp_path / "here"), tmp_path / "mirror/tiny")
    assert info.complete
    there = fetch_dataset("tiny", dataset.source, tmp_path / "there", tmp_path / "mirror", quiet)
    here = fetch_dataset("tiny", dataset.source, tmp_path / "here", None, quiet)
    assert there == here


def test_mirror_carries_inexact_rows_on(tmp_path: Path) -> None:
    dataset = tiny_cifar10()
    dataset.write(tmp_path / "first/tiny")
    path = tmp_path / "first/tiny" / TEST_BATCH
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    write_mirror_json(tmp_path / "first/tiny", dataset, inexact_test_rows=[199])
    manifest = fetch_dataset("tiny", dataset.source, tmp_path, tmp_path / "first", quiet)
    copied = copy_to_mirror(dataset.source, tmp_path / "downloads/tiny", tmp_path / "second/tiny")
    assert (copied.complete, copied.inexact_test_rows) == (False, (199,))
    assert fetch_dataset("tiny", dataset.source, tmp_path / "there", tmp_path / "second", quiet) == manifest


def test_written_description_has_the_fields_of_the_format(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "by-hand")
    write_mirror_json(tmp_path / "by-hand", dataset)
    copy_to_mirror(dataset.source, fetched(dataset, tmp_path), tmp_path / "written")
    assert read_mirror(tmp_path / "written") == read_mirror(tmp_path / "by-hand")


def test_changed_download_is_not_mirrored(tmp_path: Path) -> None:
    dataset = tiny_mnist()
    downloads = fetched(dataset, tmp_path)
    (downloads / IMAGES).write_bytes(b"rotten")
    with pytest.raises(ChecksumMismatch, match=IMAGES):
        copy_to_mirror(dataset.source, downloads, tmp_path / "mirror")
    assert not (tmp_path / "mirror/mirror.json").exists()


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
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    assert main(["mirror"]) == 1, "nothing was fetched yet"
    fetched(dataset, tmp_path / "data")
    assert main(["mirror"]) == 0
    assert "mirror: tiny: 4 files, complete" in capsys.readouterr().out
    assert (tmp_path / "mirror/tiny" / IMAGES).read_bytes() == dataset.files[IMAGES]
    (tmp_path / "data/downloads/tiny" / IMAGES).write_bytes(b"rotten")
    assert main(["mirror"]) == 1
    assert "expected md5" in capsys.readouterr().err
    assert main([]) == 2
