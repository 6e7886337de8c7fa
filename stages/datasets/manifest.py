"""Manifests: `data/raw/<dataset>.json`, written by `fetch` and read by `preprocess`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from stages.datasets.verified import DatasetError

Source = Literal["embedded", "mirror", "official"]


class BadManifest(DatasetError):
    """A manifest is missing or can't be read, or the downloads no longer match it."""


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
    """Read the manifest that `fetch` wrote.

    Raises:
        BadManifest: it is missing or can't be read.
    """
    remedy = f"`python -m stages.fetch {path.stem}` writes it"
    if not path.is_file():
        raise BadManifest(f"{path}: no such file; {remedy}")
    try:
        return TypeAdapter(Manifest).validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadManifest(f"{path}: not a manifest ({error.errors()[0]['msg']}); {remedy}") from None
