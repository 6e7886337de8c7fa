"""Real runs shortened to some hundred steps on a little of their data, so that both codes can train them in seconds.

Architecture, optimiser, augmentation, split and all else that selects branches stay; batches, rows, epochs shrink.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.datasets.packed import (
    ImageSet,
    PackedDataError,
    PackedInfo,
    TableSet,
    TokenSet,
    digest_images,
    digest_tables,
    digest_tokens,
    read_images,
    read_info,
    read_table,
    read_tokens,
    write_packed,
)
from stages.datasets.prepare import prepare
from stages.datasets.sources import fetch_dataset, mirror_folder
from stages.params.experiment import Params
from stages.run import Protocol, Replicate, RunSpec
from stages.runs.equivalence import PATH, Equivalences, is_of_one_cpu, path_of
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines
from stages.runs.fingerprint import kind_of
from stages.runs.object_store import open_store
from stages.runs.store import home

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
        if not is_of_one_cpu(run.environment):
            device = run.environment.get("device")
            notes[f"{run.label} and others were made on {device}: only one process on a CPU is compared"] = None
            continue
        if equivalences.chain(run.spec, run.environment, old) is None:
            continue
        if not again and equivalences.chain(run.spec, run.environment, new) is not None:
            continue
        identity = path_of(run.spec), run.is_stacked, json.dumps(sorted(old.items()))
        found.setdefault(identity, Affected(run, identity[0], old, new))
    return list(found.values()), list(notes)


_TEST_ROWS = 32
_LARGEST_BATCH = {"images": 4, "table": 256, "text": 2}


@dataclass(frozen=True)
class Cut:
    """A training to compare: its spec without code (two of one network if it trains in a stack), its packed data."""

    specs: tuple[RunSpec, ...]
    data: Path


class DataHere:
    """Packed data of the runs: those of this clone if they are the run's or real, otherwise repacked from the official
    files or the mirror.
    """

    def __init__(self, root: Path, params: Params, scratch: Path) -> None:
        self.root, self.params, self.scratch = root, params, scratch
        self._packed: dict[tuple[str, str], Path] = {}

    def find(self, dataset: str, digest: str) -> Path:
        """Folder of the packed set `dataset`, with this digest if there is one.

        Raises:
            DatasetError: its files can't be fetched.
            PackedDataError: the set is unknown, or no packed set of this digest and no real one is here.
        """
        if dataset not in self.params.datasets:
            raise PackedDataError(f"no data set has the digest {digest[:12]}")
        if (dataset, digest) not in self._packed:
            self._packed[dataset, digest] = self._find(dataset, digest)
        return self._packed[dataset, digest]

    def _find(self, dataset: str, digest: str) -> Path:
        here = self.root / "data" / "processed" / dataset
        if (here / "dataset.json").is_file():
            info = read_info(here)
            if info.digest == digest or info.provenance != "embedded":
                return here
        target = self.scratch / "processed" / dataset
        if not target.exists():
            source, mirror = self.params.datasets[dataset], mirror_folder()
            raw = self.root / home() if mirror is None else self.scratch
            manifest = fetch_dataset(dataset, source, raw, mirror)
            prepare(source, manifest, raw, target)
        return target

    def cut(self, folder: Path, protocol: Protocol, replicate: Replicate, batches: float) -> Path:
        """Cut a packed set to its first rows, as many as this number of batches of an epoch of `protocol` needs."""
        info = read_info(folder)
        split, held_out = protocol.split, 0.0
        if split.kind == "fraction" and split.fraction is not None:
            held_out = split.fraction
        elif split.kind == "folds" and split.folds is not None and replicate.fold is not None:
            held_out = 1 / split.folds
        wanted = max(2, math.ceil(batches * protocol.batch_size / (1 - held_out)))
        target = self.scratch / "cut" / f"{info.dataset}-{info.digest[:12]}-{wanted}"
        if not target.exists():
            _write_cut(folder, info, wanted, target)
        return target


def cut_run(here: DataHere, made: Made, steps: int) -> list[Cut]:
    """Two trainings per run: two epochs of small batches, `steps` in all, and one and a half of the run's own batches.

    The latter covers code whose path depends on the size of its tensors.

    Raises:
        DatasetError, PackedDataError: the run's data aren't available.
    """
    whole = RunSpec.from_dict(dict(made.spec))
    size, folder = whole.protocol.batch_size, here.find(made.dataset, whole.data_digest)
    small = min(size, _LARGEST_BATCH[kind_of(made.spec)])
    found = []
    for batch_size, epochs, batches in [(small, 2, max(1, steps // 2) - 0.5), (size, 1, 1.5)][: 1 + (size > small)]:
        protocol = _cut_protocol(whole.protocol, batch_size, epochs, math.ceil(batches))
        data = here.cut(folder, protocol, whole.replicate, batches)
        first = dataclasses.replace(whole, protocol=protocol, data_digest=read_info(data).digest)
        second = dataclasses.replace(whole.replicate, seed=whole.replicate.seed + 1)
        both = first, dataclasses.replace(first, replicate=second)
        found.append(Cut(both if made.is_stacked else both[:1], data))
    return found


def _cut_protocol(protocol: Protocol, batch_size: int, epochs: int, steps_per_epoch: int) -> Protocol:
    schedule, stop = protocol.schedule, protocol.early_stop
    if schedule.warmup_steps:
        warmup = min(schedule.warmup_steps, max(1, epochs * steps_per_epoch // 4))
        schedule = dataclasses.replace(schedule, warmup_steps=warmup)
    if stop is not None:
        stop = dataclasses.replace(stop, from_epoch=1, patience=1)
    return dataclasses.replace(
        protocol,
        batch_size=batch_size,
        epochs=epochs,
        schedule=schedule,
        early_stop=stop,
        steps_per_epoch=None if protocol.steps_per_epoch is None else min(protocol.steps_per_epoch, steps_per_epoch),
    )


def _write_cut(folder: Path, info: PackedInfo, wanted: int, target: Path) -> None:
    train: ImageSet | TableSet | TokenSet
    test: ImageSet | TableSet | TokenSet
    if info.kind == "table":
        train, test = _few_rows(read_table(folder, "train"), wanted), _few_rows(read_table(folder, "test"), _TEST_ROWS)
        digest = digest_tables(train, test, info.classes)
    elif info.kind == "text":
        window = info.shape[0]
        train = TokenSet(read_tokens(folder, "train").tokens[: wanted * window + 1])
        test = TokenSet(read_tokens(folder, "test").tokens[: 2 * window + 1])
        digest = digest_tokens(train, test, window)
    else:
        train = _few_images(read_images(folder, "train"), wanted)
        test = _few_images(read_images(folder, "test"), _TEST_ROWS)
        digest = digest_images(train, test, info.classes)
    described = dataclasses.replace(
        info,
        digest=digest,
        train_images=len(train),
        test_images=len(test),
        test_rows=None,
        excluded_test_images=0,
        provenance="embedded" if info.provenance == "embedded" else "subset",
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_packed(target, {"train": train, "test": test}, described)


def _few_rows(table: TableSet, n: int) -> TableSet:
    return TableSet(table.features[:n], table.targets[:n])


def _few_images(images: ImageSet, n: int) -> ImageSet:
    return ImageSet(images.images[:n], images.labels[:n])
