"""A data set without files is an error for every reader: it has nothing whose absence could be noticed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stages.datasets import own, prepare, text
from stages.datasets.manifest import DatasetError, Manifest
from stages.datasets.sources import fetch_dataset
from stages.params.experiment import DatasetSource, ParamsError, SourceFile, load_params
from tests.datasets.tiny import declare
from tests.datasets.workplace import write_params

SHAPES = {"images": (3, 8, 8), "table": (14,), "text": (8,)}
READERS = {
    "images": {*prepare.READERS, *own.IMAGES},
    "table": {"csv", "npz", "parquet", "sgemm"},
    "text": {*text.READERS},
}
every = pytest.mark.parametrize(("kind", "reader"), [(kind, one) for kind in READERS for one in sorted(READERS[kind])])


def source_of(kind: str, reader: str, **fields: Any) -> DatasetSource:
    return declare(reader, SHAPES[kind], SourceFile(name="pets/"), kind=kind, target="price", title="Pets", **fields)


@every
def test_params_without_files_are_refused(tmp_path: Path, kind: str, reader: str) -> None:
    write_params(tmp_path, "smoke", pets=dataclasses.replace(source_of(kind, reader), files=()))
    with pytest.raises(ParamsError, match=r"datasets\.pets\.files is \[\]; tuple should have at least 1 item"):
        load_params(tmp_path)


@every
@pytest.mark.parametrize("name", ["pets/", "pets-{0..1}.tar"])
def test_folder_or_range_without_files_is_not_fetched(tmp_path: Path, kind: str, reader: str, name: str) -> None:
    (tmp_path / "downloads/pets/pets").mkdir(parents=True)
    source = dataclasses.replace(source_of(kind, reader), files=(SourceFile(name=name),))
    with pytest.raises(DatasetError, match=r"no file in .*downloads/pets|2 of 2 files were not found"):
        fetch_dataset("pets", source, tmp_path, None, str)


@every
@pytest.mark.parametrize("origin", ["official", "mirror"])
def test_manifest_without_files_is_not_packed(tmp_path: Path, kind: str, reader: str, origin: Any) -> None:
    """Counted by what it lists, it would be the complete official data set."""
    manifest = Manifest(dataset="pets", source=origin)
    with pytest.raises(DatasetError, match="lists no files"):
        prepare.prepare(source_of(kind, reader), manifest, tmp_path, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
