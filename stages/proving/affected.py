"""Published lines and stored outcomes made by the code of an older revision: what has to be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.datasets.packed import PackedDataError, read_info
from stages.runs.equivalence import PATH, Equivalences, is_of_cpu, path_of
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines
from stages.runs.fingerprint import kind_of
from stages.runs.stores import open_store

Codes = Callable[[Sequence[tuple[str, str, str]]], Sequence[Mapping[str, str] | None]]


@dataclass(frozen=True)
class Made:
    """A run that something depends on: its spec, where it was made, and the data set's name ("" if unknown)."""

    label: str
    run_key: str
    spec: Mapping[str, Any]
    environment: Mapping[str, Any]
    dataset: str

    @property
    def is_stacked(self) -> bool:
        return "stacked" in self.environment

    @property
    def question(self) -> tuple[str, str, str]:
        """Kind of data, model and optimiser, by which its fingerprint is requested."""
        return kind_of(self.spec), self.spec["model"]["path"], self.spec["protocol"]["optimizer"]["name"]


@dataclass(frozen=True)
class Affected:
    """A path with its fingerprints before and after, and the first run that depends on it."""

    made: Made
    path: str
    before: Mapping[str, str]
    after: Mapping[str, str]


def made_runs(root: Path) -> Iterator[Made]:
    """Published runs in the order of their files, with replicates in order, then the outcomes in the store.

    Raises:
        EvidenceError: a published line can't be read.
    """
    for path in evidence_files((root / PATH).parent):
        for line in sorted(read_lines(path, EvidenceLine), key=lambda line: line.result.replicate):
            result = line.result
            label = f"{result.experiment}.{result.arm}.{result.replicate}"
            yield Made(label, result.run_key, result.spec, result.environment, result.data.dataset)
    packed = _packed_digests(root)
    store = open_store(root)
    for key in store.run_keys():
        folder = store.published(key)
        if folder is None:
            continue
        try:
            spec = json.loads((folder / "spec.json").read_bytes())
            environment = json.loads((folder / "result.json").read_bytes())["environment"]
            yield Made(f"the store's {key[:12]}", key, spec, environment, packed.get(spec["data_digest"], ""))
        except (OSError, ValueError, KeyError):
            continue  # a damaged outcome is no evidence, and is set aside when it is requested


def _packed_digests(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted((root / "data" / "processed").glob("*/dataset.json")):
        try:
            found[read_info(path.parent).digest] = path.parent.name
        except PackedDataError:
            continue
    return found


def find_affected(
    made: Sequence[Made], equivalences: Equivalences, codes_before: Codes, codes_after: Codes, *, again: bool = False
) -> tuple[list[Affected], list[str]]:
    """One run for each path and fingerprint that changed between the two trees and isn't covered (with `again`, even
    if it is); and what is left out.

    A run counts if its own code is that of the older tree, or if existing lines lead from it to that code.
    """
    questions = list(dict.fromkeys(run.question for run in made))
    before = dict(zip(questions, codes_before(questions), strict=True))
    after = dict(zip(questions, codes_after(questions), strict=True))
    found: dict[tuple[str, bool, str], Affected] = {}
    notes: dict[str, None] = {}
    for run in made:
        old, new = before[run.question], after[run.question]
        if old is None or new is None or old == new:
            continue
        if not is_of_cpu(run.environment):
            notes[f"{run.label} and others were made on {run.environment.get('device')}: only a CPU is compared"] = None
            continue
        if equivalences.chain(run.spec, run.environment, old) is None:
            continue
        if not again and equivalences.chain(run.spec, run.environment, new) is not None:
            continue
        identity = path_of(run.spec), run.is_stacked, json.dumps(sorted(old.items()))
        found.setdefault(identity, Affected(run, identity[0], old, new))
    return list(found.values()), list(notes)
