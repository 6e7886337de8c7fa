"""Files without a published digest, such as a user's own: replacing one is detected and must be accepted."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages import cli, fetch, preprocess
from stages.datasets.manifest import DatasetError
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import DatasetSource, SourceFile
from tests.datasets.official_host import Answer, OfficialHost
from tests.datasets.tiny import declare, tar_gz
from tests.datasets.workplace import REPOSITORY, write_params

NAME = "mine.txt"
OLD, NEW = b"a" * 90 + b"b" * 10, b"c" * 90 + b"d" * 10


def mine(*, archive: bool = False, sha256: str | None = None) -> DatasetSource:
    text = {"kind": "text", "classes": 256, "train": 90, "test": 10}
    packed = SourceFile(name="mine.tar.gz") if archive else None
    return declare("text", (8,), SourceFile(name=NAME, sha256=sha256), archive=packed, title="mine", **text)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def advice(content: bytes) -> str:
    return f"fetch: declare `sha256: {sha256(content)}` of {NAME}, or it decides no claim"


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which fetch and preprocess run and whose only data set is the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLAIMCHECK_MIRROR", raising=False)
    write_params(tmp_path, "quick", mine=mine())
    return tmp_path


def digest_in_manifest() -> str:
    (file,) = json.loads(Path("data/raw/mine.json").read_text(encoding="utf-8"))["files"]
    return str(file["sha256"])


def packed_digest() -> str:
    return str(json.loads(Path("data/processed/mine/dataset.json").read_text(encoding="utf-8"))["digest"])


def test_replaced_file_is_detected_and_used_once_accepted(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(work / "data/downloads/mine" / NAME, OLD)
    assert fetch.main(["mine"]) == 0 and preprocess.main(["mine"]) == 0
    before = packed_digest()
    path.write_bytes(NEW)
    capsys.readouterr()
    assert fetch.main(["mine"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        f"fetch: data/downloads/mine/{NAME}: sha256 was {sha256(OLD)} (100 bytes) when it was fetched, is "
        f"{sha256(NEW)} (100 bytes) now. If the change is intended: `claimcheck stage fetch mine --accept`, then "
        "`dvc repro -f -s fetch@mine` and `dvc repro`. Else put the old one back"
    )
    assert path.read_bytes() == NEW and digest_in_manifest() == sha256(OLD)
    assert preprocess.main(["mine"]) == 1, "the raw file doesn't match the manifest"
    printed = said.partition("`claimcheck ")[2].partition("`")[0]
    assert fetch.main(cli.build_parser()[0].parse_args(printed.split()).arguments) == 0
    assert digest_in_manifest() == sha256(NEW)
    assert fetch.main(["mine"]) == 0 and preprocess.main(["mine"]) == 0
    assert packed_digest() != before


@pytest.mark.slow(hours=True)
def test_printed_remedy_works_with_real_dvc(work: Path) -> None:
    shutil.copytree(REPOSITORY / "stages", "stages", ignore=shutil.ignore_patterns("__pycache__"))
    Path("params").mkdir()
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(REPOSITORY / name, name)
    path = put(Path("data/downloads/mine") / NAME, OLD)

    def run(command: str) -> int:
        words = [sys.executable, "-m", *command.replace("claimcheck", "stages.cli").split()]
        found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(words, env=os.environ | {"PATH": found}, check=False, capture_output=True).returncode

    subprocess.run(["git", "init", "-q"], check=True)
    assert run("dvc init -q") == 0 and run("dvc config core.analytics false") == 0
    assert run("dvc repro preprocess@mine") == 0
    before = packed_digest()
    path.write_bytes(NEW)
    assert run("dvc repro -f -s fetch@mine") != 0
    assert run("claimcheck stage fetch mine --accept") == 0
    assert run("dvc repro -f -s fetch@mine") == 0
    assert run("dvc repro preprocess@mine") == 0
    assert digest_in_manifest() == sha256(NEW) and packed_digest() != before


@pytest.mark.parametrize("other", ["mirror", "host"])
def test_replaced_file_is_never_overwritten(tmp_path: Path, official_host: OfficialHost, other: str) -> None:
    path = put(tmp_path / "downloads/mine" / NAME, OLD)
    source, mirror = mine(), None
    if other == "mirror":
        mirror = put(tmp_path / "mirror/mine" / NAME, OLD).parent.parent
    else:
        official_host.answers[NAME] = Answer(body=OLD)
        source = dataclasses.replace(source, urls=(official_host.url,))
    fetch_dataset("mine", source, tmp_path, mirror, str)
    path.write_bytes(NEW)
    with pytest.raises(DatasetError):
        fetch_dataset("mine", source, tmp_path, mirror, str)
    assert path.read_bytes() == NEW


def test_file_replaced_in_the_mirror_is_reported_and_used_once_accepted(tmp_path: Path) -> None:
    theirs, said = put(tmp_path / "mirror/mine" / NAME, OLD), []
    fetch_dataset("mine", mine(), tmp_path, tmp_path / "mirror", said.append)
    theirs.write_bytes(NEW)
    said.clear()
    manifest = fetch_dataset("mine", mine(), tmp_path, tmp_path / "mirror", said.append)
    assert manifest.files[0].sha256 == sha256(OLD)
    assert said == [
        f"fetch: not used: {theirs}: sha256 was {sha256(OLD)} (100 bytes) when it was fetched, is {sha256(NEW)} "
        "(100 bytes) now. If the change is intended: `claimcheck stage fetch mine --accept`, then "
        "`dvc repro -f -s fetch@mine` and `dvc repro`.",
        advice(OLD),
    ]
    manifest = fetch_dataset("mine", mine(), tmp_path, tmp_path / "mirror", said.append, accept=True)
    assert manifest.files[0].sha256 == sha256(NEW)
    assert (tmp_path / "downloads/mine" / NAME).read_bytes() == NEW
    said.clear()
    assert fetch_dataset("mine", mine(), tmp_path, tmp_path / "mirror", said.append) == manifest
    assert said == [advice(NEW)]


@pytest.mark.parametrize("place", ["downloads", "mirror"])
def test_replaced_archive_is_detected_after_extraction(tmp_path: Path, place: str) -> None:
    source, said = mine(archive=True), []
    old, new = tar_gz({NAME: OLD}), tar_gz({NAME: NEW})
    archive = put(tmp_path / place / "mine" / "mine.tar.gz", old)
    first = fetch_dataset("mine", source, tmp_path, tmp_path / "mirror", said.append)
    assert first.files[0].sha256 == sha256(OLD)
    archive.write_bytes(new)
    said.clear()
    words = f"{archive}: sha256 was {sha256(old)} .* is {sha256(new)} .* --accept"
    if place == "downloads":
        with pytest.raises(DatasetError, match=words):
            fetch_dataset("mine", source, tmp_path, tmp_path / "mirror", said.append)
    else:
        assert fetch_dataset("mine", source, tmp_path, tmp_path / "mirror", said.append) == first
        assert said[1:] == [advice(OLD)] and "not used" in said[0] and sha256(new) in said[0]
    manifest = fetch_dataset("mine", source, tmp_path, tmp_path / "mirror", said.append, accept=True)
    assert manifest.files[0].sha256 == sha256(NEW)
    said.clear()
    assert fetch_dataset("mine", source, tmp_path, tmp_path / "mirror", said.append) == manifest
    assert said == [advice(NEW)]


def test_replaced_file_with_a_digest_in_params_explains_where_to_change_it(tmp_path: Path) -> None:
    source = mine(sha256=sha256(OLD))
    path = put(tmp_path / "downloads/mine" / NAME, OLD)
    fetch_dataset("mine", source, tmp_path, None, str)
    path.write_bytes(NEW)
    with pytest.raises(DatasetError, match="expected sha256"):  # a published digest can't be overridden
        fetch_dataset("mine", source, tmp_path, None, str, accept=True)
    with pytest.raises(DatasetError) as caught:
        fetch_dataset("mine", source, tmp_path, None, str)
    assert f"expected sha256 {sha256(OLD)}, got {sha256(NEW)} (100 bytes)" in str(caught.value)
    assert str(caught.value).endswith(
        "If a file of yours was replaced on purpose, put its new digest into datasets.mine.files of params.yaml, then "
        "`dvc repro`"
    )
    fetch_dataset("mine", mine(sha256=sha256(NEW)), tmp_path, None, str)
