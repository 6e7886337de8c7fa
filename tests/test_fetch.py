"""The verbs fetch and preprocess."""

import json
import os
import sys
from pathlib import Path

import pytest

from stages import fetch, preprocess
from stages.datasets.packed import read_images, read_info
from tests.datasets.official_host import Answer, OfficialHost
from tests.datasets.tiny import TinyDataset, tiny_mnist
from tests.datasets.workplace import REPOSITORY, write_params
from tests.project import captured

IMAGES = "train-images-idx3-ubyte.gz"


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLAIMCHECK_MIRROR", raising=False)


def serve(host: OfficialHost, dataset: TinyDataset) -> None:
    for name, content in dataset.files.items():
        host.answers[Path(name).name] = Answer(body=content)


def test_placeholder_profile_makes_no_request(
    tmp_path: Path, official_host: OfficialHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_params(tmp_path, "smoke", tiny=tiny_mnist().at(official_host.url))
    monkeypatch.setenv("CLAIMCHECK_MIRROR", str(tmp_path / "mirror"))
    assert fetch.main(["tiny"]) == 0
    assert official_host.asked == []
    assert json.loads((tmp_path / "data/raw/tiny.json").read_text(encoding="utf-8")) == {
        "dataset": "tiny",
        "source": "embedded",
        "files": [],
        "inexact_test_rows": [],
    }
    assert preprocess.main(["tiny"]) == 0
    assert read_info(tmp_path / "data/processed/tiny").provenance == "embedded"
    assert len(read_images(tmp_path / "data/processed/tiny", "test")) == 16


def test_real_profile_downloads_to_the_home_folder(
    tmp_path: Path, official_host: OfficialHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = tiny_mnist()
    serve(official_host, dataset)
    write_params(tmp_path, "quick", tiny=dataset.at(official_host.url))
    monkeypatch.setenv("CLAIMCHECK_HOME", str(tmp_path / "elsewhere"))
    assert fetch.main(["tiny"]) == 0
    manifest = json.loads((tmp_path / "data/raw/tiny.json").read_text(encoding="utf-8"))
    stored = {file["name"]: (tmp_path / "elsewhere" / file["path"]).read_bytes() for file in manifest["files"]}
    assert stored == dataset.files
    assert not (tmp_path / "data/downloads").exists()


def test_mirror_is_found_by_its_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "mirror/tiny")
    write_params(tmp_path, "quick", tiny=dataset.source)
    monkeypatch.setenv("CLAIMCHECK_MIRROR", str(tmp_path / "mirror"))
    assert fetch.main(["tiny"]) == 0
    monkeypatch.delenv("CLAIMCHECK_MIRROR")
    assert fetch.main(["tiny"]) == 0, "existing downloads need no mirror"


def test_missing_mirror_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_params(tmp_path, "quick", tiny=tiny_mnist().source)
    monkeypatch.setenv("CLAIMCHECK_MIRROR", str(tmp_path / "mirro"))
    assert fetch.main(["tiny"]) == 1
    assert "which isn't a folder here; correct or unset it" in capsys.readouterr().err


def test_fault_is_one_line_and_leaves_no_manifest(tmp_path: Path, official_host: OfficialHost) -> None:
    """Exit status 1 and one line on stderr."""
    dataset = tiny_mnist()
    serve(official_host, dataset)
    official_host.answers[IMAGES] = Answer(body=b"wrong")
    write_params(tmp_path, "quick", tiny=dataset.at(official_host.url))
    done = captured([sys.executable, "-m", "stages.fetch", "tiny"], env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 1
    assert done.stderr.startswith(f"fetch: {official_host.url}{IMAGES}: expected md5 ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data/raw").exists()


def test_unwritable_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "mirror/tiny")
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    write_params(tmp_path, "quick", tiny=dataset.source)
    monkeypatch.setenv("CLAIMCHECK_MIRROR", str(tmp_path / "mirror"))
    assert fetch.main(["tiny"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("fetch: data")
    assert ": Not a directory; there is a file instead of a folder" in message
    assert message.count("\n") == 1
