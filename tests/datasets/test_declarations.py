"""The declarations in `params.yaml`, checked against the readers and each other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.manifest import Manifest
from stages.datasets.prepare import READERS, prepare
from stages.params.experiment import DatasetSource, load_params
from tests.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "data.md").read_text()
DATASETS = load_params().datasets
IMAGES = {name: source for name, source in DATASETS.items() if source.kind == "images"}


@pytest.mark.parametrize("name", IMAGES)
def test_reader_reads_the_declared_files_and_no_other(name: str) -> None:
    source = IMAGES[name]
    reader = READERS[source.reader]
    assert {file for split in ("train", "test") for file in reader.FILES[split]} == {f.name for f in source.files}
    assert len(reader.CLASSES) == source.classes


@pytest.mark.parametrize("name", DATASETS)
def test_declaration_names_terms_place_and_digests(name: str) -> None:
    source = DATASETS[name]
    assert source.licence and source.homepage.startswith("http")
    assert source.urls and all(url.startswith("http") and url.endswith("/") for url in source.urls)
    for file in (*source.files, *([source.archive] if source.archive else [])):
        assert file.md5 is None or len(bytes.fromhex(file.md5)) == 16
        assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32


def test_two_data_sets_have_files_without_a_digest() -> None:
    """Nobody publishes any for them; a third such set would have to say why, too."""
    unpinned = {name for name, source in DATASETS.items() for f in source.files if f.md5 is None and f.sha256 is None}
    assert unpinned == {"isic2019", "openwebtext"}


@pytest.mark.parametrize("name", IMAGES)
def test_counts_of_classes_add_up(name: str) -> None:
    source = IMAGES[name]
    for whole, parts in ((source.train, source.train_per_class), (source.test, source.test_per_class)):
        if parts is not None:
            assert np.broadcast_to(parts, source.classes).sum() == whole


def test_shared_folder_holds_the_same_files() -> None:
    sharing = {name: source for name, source in DATASETS.items() if source.folder is not None}
    assert sharing
    for source in sharing.values():
        other: DatasetSource = DATASETS[source.folder or ""]
        assert (source.files, source.archive, source.urls) == (other.files, other.archive, other.urls)


def test_the_page_has_the_declared_counts() -> None:
    rows = re.findall(r"^\| ([\w -]+) \| ([\d,]+) \+ ([\d,]+)(?:,| rows| tokens)", PAGE, flags=re.MULTILINE)
    shown = {title: tuple(int(number.replace(",", "")) for number in numbers) for title, *numbers in rows}
    declared = {source.title: (source.train, source.test) for source in DATASETS.values()}
    assert shown == {re.sub(",.*| GPU kernel.*", "", title): counts for title, counts in declared.items()}


def test_the_page_names_the_files_that_are_written(tmp_path: Path) -> None:
    named = set(re.findall(r"`(\w+\.safetensors)`", PAGE)) | {"dataset.json"}
    for name in ("mnist", "sgemm", "tinyshakespeare"):
        prepare(DATASETS[name], Manifest(dataset=name, source="embedded"), tmp_path, tmp_path / name)
        assert {path.name for path in (tmp_path / name).iterdir()} == named, name


def test_the_notice_names_every_data_set() -> None:
    notice = (REPOSITORY / "NOTICE").read_text()
    assert [source.title for source in DATASETS.values() if source.title.split(",")[0] not in notice] == []
