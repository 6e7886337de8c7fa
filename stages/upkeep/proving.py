"""Compares two revisions on every path that published lines or stored outcomes depend on, and writes an equivalence."""

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

from stages.datasets.manifest import DatasetError
from stages.datasets.packed import (
    ImageSet,
    PackedDataError,
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
from stages.faults import Mistake
from stages.params.experiment import Params
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
from stages.upkeep.driver import differences, differing


@dataclass(frozen=True)
class KnownRun:
    """A published run or one in the store: its spec, its environment, and its data set's name ("" if unknown)."""

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
class Cut:
    """A shortened training: its spec without code (two of one network if it trains in a stack), and its packed data."""

    specs: tuple[RunSpec, ...]
    data: Path


@dataclass
class ChangedPath:
    """A path with its fingerprints before and after, and the first run that depends on it.

    `cuts` are its shortened trainings, `steps` their numbers of steps by batch size, and `results` the digests of what
    they gave, by number of threads.
    """

    run: KnownRun
    path: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    cuts: list[Cut] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    results: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        kind, model, optimizer = self.run.question
        stacked = ", in a stack" if self.run.is_stacked else ""
        precision = self.run.spec["protocol"]["precision"]
        return f"{self.run.label} ({model.rpartition(':')[2]}, {kind}, {precision}, {optimizer}{stacked})"

    def keep(self, cut: Cut, threads: int, result: Mapping[str, Any]) -> None:
        self.steps[str(cut.specs[0].protocol.batch_size)] = len(result["scores"])
        outcomes = [{name: part for name, part in one.items() if name != "environment"} for one in result["outcomes"]]
        digest = hashlib.sha256(canonical_json({**result, "outcomes": outcomes}).encode()).hexdigest()[:16]
        self.results.setdefault(str(threads), []).append(digest)

    def compared(self, *, plain: bool) -> Compared:
        kind, model, optimizer = self.run.question
        return Compared(
            run=self.run.label,
            run_key=self.run.run_key,
            path=self.path,
            model=model,
            kind=kind,  # type: ignore[arg-type]  # one of three
            precision=self.cuts[0].specs[0].protocol.precision,
            optimizer=optimizer,
            is_stacked=self.run.is_stacked,
            is_plain=plain and not self.run.is_stacked,  # torch compiles a stack, with the same compiler
            data=self.cuts[0].specs[0].data_digest,
            steps=self.steps,
            state={threads: "-".join(digests) for threads, digests in self.results.items()},
        )


def known_runs(root: Path) -> Iterator[KnownRun]:
    """Yield published runs in the order of their files, with replicates in order, then the outcomes in the store."""
    for path in evidence_files((root / PATH).parent):
        for line in sorted(read_lines(path, EvidenceLine), key=lambda line: line.result.replicate):
            result = line.result
            yield KnownRun(result.name, result.run_key, result.spec, result.environment, result.data.dataset)
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
            yield KnownRun(f"the store's {key[:12]}", key, spec, environment, packed.get(spec["data_digest"], ""))
        except (OSError, ValueError, KeyError):
            continue  # a damaged outcome isn't evidence, and is set aside when it is requested


def find_changed(
    runs: Sequence[KnownRun], equivalences: Equivalences, older: RevisionTree, newer: RevisionTree, *, again: bool
) -> tuple[list[ChangedPath], list[str]]:
    """Find the paths and fingerprints that changed between the two trees and that no line covers; also return notes.

    With `again`, covered ones count, too.  A run depends on a path if its own code is that of the older tree, or if
    existing lines lead from it to that code.  The notes name what isn't compared.
    """
    questions = list(dict.fromkeys(run.question for run in runs))
    before = dict(zip(questions, older.fingerprints(questions), strict=True))
    after = dict(zip(questions, newer.fingerprints(questions), strict=True))
    found: dict[tuple[str, bool, str], ChangedPath] = {}
    notes: dict[str, None] = {}
    for run in runs:
        old, new = before[run.question], after[run.question]
        if old is None or new is None or old == new:
            continue
        if not is_of_one_cpu(run.environment):
            device = run.environment.get("device")
            notes[f"{run.label} and others were trained on {device}: only one process on a CPU is compared"] = None
            continue
        if equivalences.chain(run.spec, run.environment, old) is None:
            continue
        if not again and equivalences.chain(run.spec, run.environment, new) is not None:
            continue
        identity = path_of(run.spec), run.is_stacked, json.dumps(sorted(old.items()))
        found.setdefault(identity, ChangedPath(run, identity[0], old, new))
    return list(found.values()), list(notes)


_TEST_ROWS = 32
_LARGEST_BATCH = {"images": 4, "table": 256, "text": 2}


class PackedSets:
    """Packed data of the runs.

    They are taken from this clone if they are real or the run's own, otherwise repacked from the official files or the
    mirror.
    """

    def __init__(self, root: Path, params: Params, scratch: Path) -> None:
        self.root, self.params, self.scratch = root, params, scratch
        self._packed: dict[tuple[str, str], Path] = {}

    def find(self, dataset: str, digest: str) -> Path:
        """Return the folder of the packed set `dataset`, with this digest if there is one.

        Raises:
            DatasetError: its files can't be fetched.
            PackedDataError: the set is unknown, or neither one of this digest nor a real one is here.
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
        if target.exists():
            return target
        train: ImageSet | TableSet | TokenSet
        test: ImageSet | TableSet | TokenSet
        if info.kind == "table":
            tables = ((read_table(folder, "train"), wanted), (read_table(folder, "test"), _TEST_ROWS))
            train, test = (TableSet(rows.features[:n], rows.targets[:n]) for rows, n in tables)
            digest = digest_tables(train, test, info.classes)
        elif info.kind == "text":
            window = info.shape[0]
            train = TokenSet(read_tokens(folder, "train").tokens[: wanted * window + 1])
            test = TokenSet(read_tokens(folder, "test").tokens[: 2 * window + 1])
            digest = digest_tokens(train, test, window)
        else:
            images = ((read_images(folder, "train"), wanted), (read_images(folder, "test"), _TEST_ROWS))
            train, test = (ImageSet(rows.images[:n], rows.labels[:n]) for rows, n in images)
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
        return target


def cut_run(packed: PackedSets, run: KnownRun, steps: int) -> list[Cut]:
    """Return two trainings: two epochs of small batches (`steps` in all), and one and a half of the run's own batches.

    The latter covers code whose path depends on the size of its tensors.

    Raises:
        DatasetError, PackedDataError: the run's data aren't available.
    """
    whole = RunSpec.from_dict(dict(run.spec))
    size, folder = whole.protocol.batch_size, packed.find(run.dataset, whole.data_digest)
    small = min(size, _LARGEST_BATCH[kind_of(run.spec)])
    found = []
    for batch_size, epochs, batches in [(small, 2, max(1, steps // 2) - 0.5), (size, 1, 1.5)][: 1 + (size > small)]:
        steps_per_epoch, longest = math.ceil(batches), whole.protocol.steps_per_epoch
        schedule, stop = whole.protocol.schedule, whole.protocol.early_stop
        if schedule.warmup_steps:
            warmup = min(schedule.warmup_steps, max(1, epochs * steps_per_epoch // 4))
            schedule = dataclasses.replace(schedule, warmup_steps=warmup)
        protocol = dataclasses.replace(
            whole.protocol,
            batch_size=batch_size,
            epochs=epochs,
            schedule=schedule,
            early_stop=stop and dataclasses.replace(stop, from_epoch=1, patience=1),
            steps_per_epoch=None if longest is None else min(longest, steps_per_epoch),
        )
        data = packed.cut(folder, protocol, whole.replicate, batches)
        first = dataclasses.replace(whole, protocol=protocol, data_digest=read_info(data).digest)
        second = dataclasses.replace(whole.replicate, seed=whole.replicate.seed + 1)
        both = first, dataclasses.replace(first, replicate=second)
        found.append(Cut(both if run.is_stacked else both[:1], data))
    return found


DRIVERS = "stages/upkeep/driver.py", "stages/proving/driver.py"
"""Places of a revision's own driver, the current one first."""


class EquivalenceError(Mistake, ValueError):
    """The two codes can't be compared, or give different numbers; the message says where."""


@dataclass(frozen=True)
class RevisionTree:
    """A revision, its files and the driver that runs them."""

    revision: str
    tree: Path
    driver: Path

    def fingerprints(self, questions: Sequence[tuple[str, str, str]]) -> list[Mapping[str, str] | None]:
        """Return fingerprints by kind of data, model and optimiser; None if this revision has no such model."""
        output = self.tree.with_name(f"{self.tree.name}-codes.json")
        self._run({"codes": [list(question) for question in questions], "output": str(output)})
        answers: list[Mapping[str, str] | None] = json.loads(output.read_text(encoding="utf-8"))
        return answers

    def train(
        self, trainings: Sequence[Mapping[str, Any]], threads: Sequence[int], more_env: Mapping[str, str] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Return the results of each training, by number of threads; one process trains them one after another."""
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
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise EquivalenceError(f"the code of {self.revision[:12]} fails: {lines[-1]}")


def check_out(root: Path, revision: str, folder: Path) -> str:
    """Put all files of `revision`, given by any of its names, into `folder`; return its full name."""
    if words := refusal(root):
        raise EquivalenceError(f"both codes are taken from git, and {words}")
    name = ask_git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not name:
        raise EquivalenceError(f"{revision!r} isn't a revision of this clone; `git log` lists them")
    try:
        packed = run_git(root, "archive", "--format=tar", name)
    except GitError as error:
        raise EquivalenceError(str(error)) from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return name


STEPS, FEW_STEPS = 100, 20
"""Steps of each training, to show that two codes are equal and to check that again."""
THREADS = (1, 2)


@dataclass(frozen=True)
class ComparedRevisions:
    """The result of a comparison; `line` is None if there was nothing to compare, or nothing could be compared."""

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
    runs, equivalences = list(known_runs(root)), read_equivalences(root)
    with tempfile.TemporaryDirectory(prefix="claimcheck-equivalent-") as folder:
        scratch = Path(folder)
        older, newer = _sides(root, revision, "HEAD", scratch)
        changed, left_out = find_changed(runs, equivalences, older, newer, again=again)
        for item in changed:
            if (code := code_today(item.run.spec)) != item.after:
                modules = ", ".join(sorted(differing(item.after, code or {})))
                raise EquivalenceError(f"HEAD doesn't hold the code of this tree ({modules}); commit it first")
        packed = PackedSets(root, params, scratch)
        for item in changed:
            try:
                item.cuts = cut_run(packed, item.run, steps)
            except (DatasetError, PackedDataError) as error:
                left_out.append(f"{item.run.label} isn't compared and stays uncovered: {error}")
        paths = [item for item in changed if item.cuts]
        if not paths:
            return ComparedRevisions(None, (), tuple(left_out))
        say(f"{len(paths)} paths with {older.revision[:12]} and {newer.revision[:12]}, on {_in_words(THREADS)}")
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
    return ComparedRevisions(line, tuple(map(str, paths)), tuple(left_out))


def compare_again(root: Path, params: Params) -> Iterator[tuple[bool | None, str]]:
    """Train the smallest path of each line again, with both of its revisions; yield whether the numbers are the same.

    None if none of the line's runs is here with its data.
    """
    runs, lines = {run.run_key: run for run in known_runs(root)}, read_equivalences(root).lines
    with tempfile.TemporaryDirectory(prefix="claimcheck-equivalent-") as folder:
        packed = PackedSets(root, params, Path(folder))
        for number, line in enumerate(lines, start=1):
            try:
                same, detail = _compare_line(packed, line, runs, Path(folder) / str(number))
            except EquivalenceError as error:
                same, detail = False, str(error).removesuffix("; nothing is written")
            yield same, f"{PATH.name}, line {number}: {detail}"


def _compare_line(
    packed: PackedSets, line: EquivalenceLine, runs: Mapping[str, KnownRun], scratch: Path
) -> tuple[bool | None, str]:
    pairs = [(proof, compared) for proof in line.proofs for compared in proof.compared]
    pairs.sort(key=lambda pair: (pair[1].is_stacked, pair[1].run))  # stacks compile for minutes
    for proof, compared in pairs:
        if (run := runs.get(compared.run_key)) is None:
            continue
        if compared.path != path_of(run.spec):
            raise EquivalenceError(f"{compared.run} doesn't take the path that the line states")
        try:
            cuts = cut_run(packed, run, FEW_STEPS)
        except (DatasetError, PackedDataError):
            continue
        path = ChangedPath(run, compared.path, proof.code(0), proof.code(1), cuts)
        sides = _sides(packed.root, line.before, line.after, scratch)
        _compare([path], *sides, plain=compared.is_plain, say=lambda _: None)
        return True, f"{path} is the same again, bit by bit"
    return None, "none of its runs is here with its data"


def _compare(
    paths: Sequence[ChangedPath], older: RevisionTree, newer: RevisionTree, *, plain: bool, say: Callable[[str], None]
) -> Mapping[str, Any]:
    """Train every path with both codes and keep the results; return the environment of the last training."""
    trainings = [(path, cut) for path in paths for cut in path.cuts]
    machine: Mapping[str, Any] = {}
    both = []
    for side, code in ((older, "before"), (newer, "after")):
        # in the driver's form; each side's specs name its own code, and its worker refuses any other
        jobs = [
            {
                "specs": [dataclasses.replace(spec, code=dict(getattr(path, code))).to_dict() for spec in cut.specs],
                "data": str(cut.data),
                "is_stacked": path.run.is_stacked,
            }
            for path, cut in trainings
        ]
        both.append(_train(side, jobs, plain=plain))
        for results in both[-1]:
            for (path, _), result in zip(trainings, results, strict=True):
                if "error" in result:
                    raise EquivalenceError(
                        f"the code of {side.revision[:12]} can't train {path}: "
                        f"{result['error'].strip().splitlines()[-1]}; nothing is written"
                    )
    for threads, *pair in zip(THREADS, *both, strict=True):
        for (path, cut), before, after in zip(trainings, *pair, strict=True):
            if difference := next(differences(before, after), None):
                raise EquivalenceError(
                    f"{path}, with {_in_words([threads])} and batches of {cut.specs[0].protocol.batch_size}, is "
                    f"another run with the code of {newer.revision[:12]}: {difference}; nothing is written"
                )
            if not any(after["tensors"]):
                raise EquivalenceError(f"{path.run.label}: no step was taken; nothing is written")
            path.keep(cut, threads, after)
            machine = {name: fact for name, fact in after["outcomes"][0]["environment"].items() if name != "process"}
        say(f"  {_in_words([threads])}: the same, bit by bit")
    return machine


def _train(side: RevisionTree, trainings: Sequence[Mapping[str, Any]], *, plain: bool) -> list[list[dict[str, Any]]]:
    """Return the results by number of threads, in the order of the trainings.

    With `plain`, fast paths are off in older revisions, too.  Those took C++ if it compiled, and oneDNN's products if
    the processor has AVX512.  They shared code that torch compiles between capabilities, so it gets its own folder.
    """
    cache = side.tree.with_name(f"{side.tree.name}-compiled")
    env = {"ATEN_CPU_CAPABILITY": "avx2", "TORCHINDUCTOR_CACHE_DIR": str(cache)} if plain else {}
    found: list[list[dict[str, Any]]] = [[{} for _ in trainings] for _ in THREADS]
    for without_cpp in (False, True):
        chosen = [i for i, training in enumerate(trainings) if (plain and not training["is_stacked"]) == without_cpp]
        if not chosen:
            continue
        more = env | ({"CXX": "false"} if without_cpp else {})
        for results, own in zip(found, side.train([trainings[i] for i in chosen], THREADS, more), strict=True):
            for i, result in zip(chosen, own, strict=True):
                results[i] = result
    return found


def _sides(root: Path, before: str, after: str, scratch: Path) -> tuple[RevisionTree, RevisionTree]:
    sides, driver = list[RevisionTree](), Path(__file__).with_name("driver.py")
    for name, tree in ((after, scratch / "after"), (before, scratch / "before")):
        revision = check_out(root, name, tree)
        driver = next((tree / path for path in DRIVERS if (tree / path).is_file()), driver)
        sides.append(RevisionTree(revision, tree, driver))
    return sides[1], sides[0]


def _proofs(paths: Sequence[ChangedPath], *, plain: bool) -> tuple[Proof, ...]:
    """Return the proofs by pair of fingerprints, in the order of their first path."""
    grouped: dict[str, list[ChangedPath]] = {}
    for path in paths:
        grouped.setdefault(canonical_json([path.before, path.after]), []).append(path)
    return tuple(
        Proof(
            modules={
                name: (first.before.get(name), first.after.get(name)) for name in sorted({*first.before, *first.after})
            },
            compared=tuple(path.compared(plain=plain) for path in same),
        )
        for same in grouped.values()
        for first in same[:1]
    )


def _in_words(threads: Iterable[int]) -> str:
    numbers = [str(number) for number in threads]
    return f"{' and '.join(numbers)} thread{'s' if numbers != ['1'] else ''}"
