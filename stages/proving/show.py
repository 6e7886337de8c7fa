"""Compares two revisions on every path that published lines or stored outcomes depend on, and writes the line."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from stages.datasets.verified import DatasetError
from stages.faults import Mistake
from stages.params.experiment import Params
from stages.proving.driver import differences, parted
from stages.run import Protocol, Replicate, RunSpec, canonical_json
from stages.runs.equivalence import (
    PATH,
    Compared,
    EquivalenceLine,
    Equivalences,
    Proof,
    append_line,
    is_of_one_cpu,
    path_of,
    read_equivalences,
)
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines
from stages.runs.fingerprint import code_today, kind_of
from stages.runs.object_store import open_store
from stages.runs.revisions import GitError, ask_git, refusal, run_git
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
    """Published runs in the order of their files, with replicates in order, then the outcomes in the store."""
    for path in evidence_files((root / PATH).parent):
        for line in sorted(read_lines(path, EvidenceLine), key=lambda line: line.result.replicate):
            result = line.result
            label = f"{result.experiment}.{result.arm}.{result.replicate}"
            yield Made(label, result.run_key, result.spec, result.environment, result.data.dataset)
    packed = {}  # names of the data sets here, by digest
    for path in sorted((root / "data" / "processed").glob("*/dataset.json")):
        with suppress(PackedDataError):
            packed[read_info(path.parent).digest] = path.parent.name
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
        if (dataset, digest) in self._packed:
            return self._packed[dataset, digest]
        found = self.root / "data" / "processed" / dataset
        info = read_info(found) if (found / "dataset.json").is_file() else None
        if info is None or (info.digest != digest and info.provenance == "embedded"):
            found = self.scratch / "processed" / dataset
            if not found.exists():
                source, mirror = self.params.datasets[dataset], mirror_folder()
                raw = self.root / home() if mirror is None else self.scratch
                manifest = fetch_dataset(dataset, source, raw, mirror)
                prepare(source, manifest, raw, found)
        self._packed[dataset, digest] = found
        return found

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


DRIVER = Path("stages/proving/driver.py")


class EquivalenceError(Mistake, ValueError):
    """The two codes can't be compared, or give different numbers; the message says where."""


@dataclass(frozen=True)
class RevisionTree:
    """A revision, its files and the driver that runs them."""

    revision: str
    tree: Path
    driver: Path

    def fingerprints(self, questions: Sequence[tuple[str, str, str]]) -> list[Mapping[str, str] | None]:
        """Fingerprints of trainings by kind of data, model and optimiser; None if this revision has no such model."""
        output = self.tree.with_name(f"{self.tree.name}-codes.json")
        self._run({"codes": [list(question) for question in questions], "output": str(output)})
        answers: list[Mapping[str, str] | None] = json.loads(output.read_text(encoding="utf-8"))
        return answers

    def train(
        self, trainings: Sequence[Mapping[str, Any]], threads: Sequence[int], more_env: Mapping[str, str] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The results of each training, by number of threads, one after another in one process."""
        output = self.tree.with_name(f"{self.tree.name}-output-{'-'.join(sorted(more_env or {}))}")
        self._run({"trainings": list(trainings), "threads": list(threads), "output": str(output)}, more_env)
        return [
            [
                json.loads((output / str(count) / f"{number}.json").read_text(encoding="utf-8"))
                for number in range(len(trainings))
            ]
            for count in threads
        ]

    def _run(self, job: Mapping[str, Any], more_env: Mapping[str, str] | None = None) -> None:
        job_file = self.tree.with_name(f"{self.tree.name}-job.json")
        job_file.write_text(json.dumps({**job, "tree": str(self.tree)}), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if name != "CLAIMCHECK_HOME"}
        env |= {
            "PYTHONPATH": os.pathsep.join([str(self.tree), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            **(more_env or {}),
        }
        command = [sys.executable, "-P", str(self.driver), str(job_file)]
        done = subprocess.run(
            command, cwd=self.tree, env=env, capture_output=True, check=False, encoding="utf-8", errors="replace"
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise EquivalenceError(f"the code of {self.revision[:12]} fails: {said[-1]}")


def check_out(root: Path, revision: str, folder: Path) -> str:
    """Put all files of `revision`, given by any of its names, into `folder`; returns its full name."""
    if words := refusal(root):
        raise EquivalenceError(f"both codes are taken from git, and {words}")
    name = ask_git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not name:
        raise EquivalenceError(f"{revision!r} is no revision of this clone; `git log` lists them")
    try:
        packed = run_git(root, "archive", "--format=tar", name)
    except GitError as error:
        raise EquivalenceError(str(error)) from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return name


STEPS = 100
THREADS = (1, 2)


@dataclass(frozen=True)
class ComparedRevisions:
    """The result of a comparison; `line` is None if nothing had to be compared, or could be."""

    line: EquivalenceLine | None
    compared: tuple[str, ...]
    left_out: tuple[str, ...]


def show_equivalent(
    root: Path,
    params: Params,
    revision: str,
    *,
    steps: int = STEPS,
    again: bool = False,
    plain: bool = False,
    say: Callable[[str], None] = print,
) -> ComparedRevisions:
    """Train every path whose fingerprint changed between `revision` and HEAD with both codes, and add the line.

    `again`: also those that lines already cover, without adding a line.  `plain`: without fast paths in C++, which are
    in no fingerprint; a change that removes one changes how it rounded, and no equation.
    """
    made, equivalences = list(made_runs(root)), read_equivalences(root)
    with tempfile.TemporaryDirectory(prefix="claimcheck-equivalent-") as folder:
        scratch = Path(folder)
        older, newer = _sides(root, revision, "HEAD", scratch)
        affected, left_out = find_affected(made, equivalences, older.fingerprints, newer.fingerprints, again=again)
        for item in affected:
            if (code := code_today(item.made.spec)) != item.after:
                changed = ", ".join(sorted(parted(item.after, code or {})))
                raise EquivalenceError(f"HEAD doesn't hold the code of this tree ({changed}); commit it first")
        here = DataHere(root, params, scratch)
        paths: list[_Path] = []
        for item in affected:
            try:
                paths.append(_Path(item, cut_run(here, item.made, steps)))
            except (DatasetError, PackedDataError) as error:
                left_out.append(f"{item.made.label} isn't compared and stays uncovered: {error}")
        if not paths:
            return ComparedRevisions(None, (), tuple(left_out))
        say(f"{len(paths)} paths with {older.revision[:12]} and {newer.revision[:12]}, on {_in_words(THREADS)} threads")
        machine = _compare(paths, older, newer, plain=plain, say=say)
        line = EquivalenceLine(
            before=older.revision,
            after=newer.revision,
            made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            device="cpu",
            machine={name: value for name, value in machine.items() if name not in ("threads", "stacked")},
            versions={name: importlib.metadata.version(name) for name in ("torch", "numpy")},
            proofs=_proofs(paths, plain=plain),
        )
    if not again:
        append_line(root, line)
    return ComparedRevisions(
        line, tuple(f"{path.item.made.label}: {_describe(path.item)}" for path in paths), tuple(left_out)
    )


def compare_again(root: Path, params: Params, *, steps: int = 20) -> Iterator[tuple[bool | None, str]]:
    """Train the smallest path of each line again, with both of its revisions: are the numbers the same?

    None if none of the line's runs is here with its data.
    """
    made, lines = {run.run_key: run for run in made_runs(root)}, read_equivalences(root).lines
    with tempfile.TemporaryDirectory(prefix="claimcheck-equivalent-") as folder:
        here = DataHere(root, params, Path(folder))
        for number, line in enumerate(lines, start=1):
            try:
                same, detail = _compare_line(here, line, made, steps, Path(folder) / str(number))
            except EquivalenceError as error:
                same, detail = False, str(error).removesuffix("; nothing is written")
            yield same, f"{PATH.name}, line {number}: {detail}"


def _compare_line(
    here: DataHere, line: EquivalenceLine, made: Mapping[str, Made], steps: int, scratch: Path
) -> tuple[bool | None, str]:
    told = [(proof, compared) for proof in line.proofs for compared in proof.compared]
    for proof, compared in sorted(
        told, key=lambda pair: (pair[1].is_stacked, pair[1].run)
    ):  # stacks compile for minutes
        if (run := made.get(compared.run_key)) is None:
            continue
        if compared.path != path_of(run.spec):
            raise EquivalenceError(f"{compared.run} takes another path than the line says")
        try:
            cuts = cut_run(here, run, steps)
        except (DatasetError, PackedDataError):
            continue
        path = _Path(Affected(run, compared.path, proof.code(0), proof.code(1)), cuts)
        sides = _sides(here.root, line.before, line.after, scratch)
        _compare([path], *sides, plain=compared.is_plain, say=lambda _: None)
        return True, f"{run.label} ({_describe(path.item)}) is the same again, bit by bit"
    return None, "none of its runs is here with its data"


def _compare(
    paths: Sequence[_Path], older: RevisionTree, newer: RevisionTree, *, plain: bool, say: Callable[[str], None]
) -> Mapping[str, Any]:
    """Train every path with both codes and keep what came; returns the environment of the last training."""
    trainings = [(path, cut) for path in paths for cut in path.cuts]
    machine: Mapping[str, Any] = {}
    both = []
    for side, code in ((older, "before"), (newer, "after")):
        # in the driver's form; each side's specs name its own code, and its worker refuses any other
        asked = [
            {
                "specs": [
                    dataclasses.replace(spec, code=dict(getattr(path.item, code))).to_dict() for spec in cut.specs
                ],
                "data": str(cut.data),
                "is_stacked": path.item.made.is_stacked,
            }
            for path, cut in trainings
        ]
        both.append(_train(side, asked, plain=plain))
        for (path, _), gave in ((one, gave) for found in both[-1] for one, gave in zip(trainings, found, strict=True)):
            if "error" in gave:
                raise EquivalenceError(
                    f"the code of {side.revision[:12]} can't train {path.item.made.label} ({_describe(path.item)}): "
                    f"{gave['error'].strip().splitlines()[-1]}; nothing is written"
                )
    for threads, *pair in zip(THREADS, *both, strict=True):
        for (path, cut), before, after in zip(trainings, *pair, strict=True):
            if difference := next(differences(before, after), None):
                raise EquivalenceError(
                    f"{path.item.made.label} ({_describe(path.item)}, {_in_words([threads])}, batches of "
                    f"{cut.specs[0].protocol.batch_size}) is another run with the code of {newer.revision[:12]}: "
                    f"{difference}; nothing is written"
                )
            if not any(after["tensors"]):
                raise EquivalenceError(f"{path.item.made.label}: no step was taken; nothing is written")
            path.keep(cut, threads, after)
            machine = {name: fact for name, fact in after["outcomes"][0]["environment"].items() if name != "process"}
        say(f"  {_in_words([threads])}: the same, bit by bit")
    return machine


def _train(side: RevisionTree, trainings: Sequence[Mapping[str, Any]], *, plain: bool) -> list[list[dict[str, Any]]]:
    """Results by number of threads, in the order of the trainings."""
    found: list[list[dict[str, Any]]] = [[{} for _ in trainings] for _ in THREADS]
    for without_cpp in (False, True):
        chosen = [
            index for index, training in enumerate(trainings) if (plain and not training["is_stacked"]) == without_cpp
        ]
        if chosen:
            answers = side.train([trainings[index] for index in chosen], THREADS, _plain_env(side, plain, without_cpp))
            for results, own in zip(found, answers, strict=True):
                for index, result in zip(chosen, own, strict=True):
                    results[index] = result
    return found


def _plain_env(side: RevisionTree, plain: bool, without_cpp: bool) -> dict[str, str]:
    """Older revisions took fast paths by what they found: C++ where it compiles, oneDNN's products by AVX512.

    Code that torch compiles is kept in a folder of its own, as those revisions share it between capabilities.
    """
    if not plain:
        return {}
    cache = side.tree.with_name(f"{side.tree.name}-compiled")
    env = {"ATEN_CPU_CAPABILITY": "avx2", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    return env | ({"CXX": "false"} if without_cpp else {})


@dataclass
class _Path:
    """A path and its cut trainings, with their steps by batch size and their results by number of threads."""

    item: Affected
    cuts: list[Cut]
    steps: dict[str, int] = field(default_factory=dict)
    found: dict[str, list[str]] = field(default_factory=dict)

    def keep(self, cut: Cut, threads: int, gave: Mapping[str, Any]) -> None:
        self.steps[str(cut.specs[0].protocol.batch_size)] = len(gave["scores"])
        outcomes = [{name: value for name, value in one.items() if name != "environment"} for one in gave["outcomes"]]
        self.found.setdefault(str(threads), []).append(
            hashlib.sha256(canonical_json({**gave, "outcomes": outcomes}).encode()).hexdigest()[:16]
        )

    def compared(self, *, plain: bool) -> Compared:
        kind, model, optimizer = self.item.made.question
        return Compared(
            run=self.item.made.label,
            run_key=self.item.made.run_key,
            path=self.item.path,
            model=model,
            kind=kind,  # type: ignore[arg-type]  # one of three
            precision=self.cuts[0].specs[0].protocol.precision,
            optimizer=optimizer,
            is_stacked=self.item.made.is_stacked,
            is_plain=plain and not self.item.made.is_stacked,  # torch compiles a stack, with the same compiler
            data=self.cuts[0].specs[0].data_digest,
            steps=self.steps,
            state={threads: "-".join(digests) for threads, digests in self.found.items()},
        )


def _sides(root: Path, before: str, after: str, scratch: Path) -> tuple[RevisionTree, RevisionTree]:
    names = [check_out(root, name, scratch / folder) for name, folder in ((before, "before"), (after, "after"))]
    newest = scratch / "after" / DRIVER
    if not newest.is_file():
        newest = Path(__file__).parent / DRIVER.name
    own = scratch / "before" / DRIVER
    return (
        RevisionTree(names[0], scratch / "before", own if own.is_file() else newest),
        RevisionTree(names[1], scratch / "after", newest),
    )


def _proofs(paths: Sequence[_Path], *, plain: bool) -> tuple[Proof, ...]:
    """Proofs by pair of fingerprints, in the order of their first path."""
    grouped: dict[str, list[_Path]] = {}
    for path in paths:
        grouped.setdefault(canonical_json([path.item.before, path.item.after]), []).append(path)
    return tuple(
        Proof(
            modules={
                name: (same[0].item.before.get(name), same[0].item.after.get(name))
                for name in sorted({*same[0].item.before, *same[0].item.after})
            },
            compared=tuple(path.compared(plain=plain) for path in same),
        )
        for same in grouped.values()
    )


def _describe(item: Affected) -> str:
    kind, model, optimizer = item.made.question
    together = ", in a stack" if item.made.is_stacked else ""
    return f"{model.rpartition(':')[2]}, {kind}, {item.made.spec['protocol']['precision']}, {optimizer}{together}"


def _in_words(threads: Iterable[int]) -> str:
    numbers = [str(number) for number in threads]
    return f"{' and '.join(numbers)}" if len(numbers) > 1 else f"{numbers[0]} thread{'s' if numbers != ['1'] else ''}"
