"""Manifests: `data/raw/<dataset>.json`, written by `fetch` and read by `preprocess`, and what they prove."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from stages.datasets.packed import Split
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource
from stages.runs.evidence import INEXACT_SHARE

Source = Literal["embedded", "mirror", "official"]


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """A verified raw file; `path` is relative to `CLAIMCHECK_HOME`."""

    name: str
    path: str
    sha256: str
    bytes: int
    official_md5: str
    matches_official: bool


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The raw files of a data set, or the statement that it is a stand-in and has none.

    It doesn't record when or from where they came, so the same bytes give the same manifest everywhere.  `source` says
    whose digests they match: `mirror` where some file is known only by a mirror's word.  `inexact_test_rows` are the
    positions of test images that are not the official ones.
    """

    dataset: str
    source: Source
    files: tuple[ManifestFile, ...] = ()
    inexact_test_rows: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n").encode()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest that `fetch` wrote."""
    remedy = f"`python -m stages.fetch {path.stem}` writes it"
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; {remedy}")
    try:
        return TypeAdapter(Manifest).validate_json(path.read_bytes())
    except ValidationError as error:
        raise DatasetError(f"{path}: not a manifest ({error.errors()[0]['msg']}); {remedy}") from None


def judge_provenance(
    source: DatasetSource,
    manifest: Manifest,
    train: int,
    test: int,
    *,
    files: Mapping[Split, tuple[str, ...]],
    content_is_whole: bool,
) -> Literal["embedded", "subset", "full"]:
    """`full`: every training row is official and at most `INEXACT_SHARE` of the test rows are missing or inexact.

    A file is official by its published digest.  If nobody publishes one and `source` says so, it counts as official if
    `content_is_whole` and both splits, of `train` and `test` rows, have exactly the declared numbers.  `files`: the
    names of the raw files behind each split.
    """
    if manifest.source == "embedded":
        return "embedded"
    inexact = {file.name for file in manifest.files if not file.matches_official}
    is_whole = len(manifest.files) == len(source.files)
    if source.complete_by_content and content_is_whole and is_whole and (train, test) == (source.train, source.test):
        inexact -= {file.name for file in source.files if file.md5 is None and file.sha256 is None}
    is_train_exact = is_whole and inexact.isdisjoint(files["train"]) and train == source.train
    # An inexact test file without a list of its inexact rows may be wrong anywhere.
    is_test_known = inexact.isdisjoint(files["test"]) or bool(manifest.inexact_test_rows)
    is_test_enough = source.test - test <= INEXACT_SHARE * source.test
    return "full" if is_train_exact and is_test_known and is_test_enough else "subset"


def all_files(source: DatasetSource) -> dict[Split, tuple[str, ...]]:
    """All raw files, for a text or a table, whose splits are made from the same files."""
    names = tuple(file.name for file in source.files)
    return {"train": names, "test": names}
