"""Judges whether a packed data set is the whole official one and may decide a claim (decision 0033)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from stages.datasets.manifest import Manifest
from stages.datasets.packed import Split
from stages.params.experiment import DatasetSource
from stages.runs.evidence import INEXACT_SHARE


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
