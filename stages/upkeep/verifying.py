"""Recomputes everything behind a served model, link by link and offline, and compares the database with the files.

Metrics are recomputed from weights and test data, or from other contents of the result line.  A link holds, is broken,
or can't be checked because something is missing on this machine, which is reported but isn't an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import track
from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager

from stages.checkpoint.contract import CheckpointError, read_contract
from stages.checkpoint.predictor import load_predictor
from stages.claims import ClaimsError
from stages.datasets.packed import ImageSet, PackedDataError, digest_packed, read_images, read_info
from stages.evaluation.flops import FlopCounts
from stages.evaluation.scores import Observer, Scores, correctness, cut_rows, score
from stages.faults import Mistake
from stages.params.experiment import Params, load_params, plan_runs
from stages.params.metrics import OwnMetric
from stages.recording.append_only import read_versions, row_faults
from stages.recording.builder import record
from stages.recording.sources import PLAN_CHANGED, RecordError, find_results, lab_seeds
from stages.results import Base, Checkpoint, ExperimentRow, Result, UnknownCheckpoint, open_results
from stages.run import RunSpec, canonical_json, environment_digest
from stages.runs.consistency import SHARES, compare_canaries, find_contradictions, find_impossible_times, find_repeats
from stages.runs.equivalence import PATH, read_equivalences
from stages.runs.evidence import (
    LABS,
    DataUsed,
    Divergence,
    EpochRow,
    EvidenceError,
    Measurement,
    ResultLine,
    Trial,
    list_observed,
    unpack_correct,
)
from stages.runs.revisions import has_revision, is_full_clone, refusal
from stages.training.kinds import read_rows
from stages.upkeep.publishing import COSTS, compare_with_run, digest_at

LinkStatus = Literal["holds", "broken", "not here"]
REMEDIES = {
    "record": "restore what was edited from git or evaluate it again, then `claimcheck stage record`",
    "equivalences": "retract the line with its reason (claimcheck audit --retract), then train its runs again",
    "checkpoint": "restore it from git (data/models), or train it again with `dvc repro`",
    "run": "`claimcheck stage record`; if it stays, take data/evidence from git again",
    "params": "if the file was edited on purpose, train its runs again with `dvc repro`; otherwise restore it from git",
    "code": "`git fetch --all`; else publish from the revision that trained it",
    "data": "`dvc repro -f preprocess@<dataset>` packs them again",
    "environment": "`claimcheck stage record`; if it stays, take data/evidence from git again",
    **dict.fromkeys(("repeat", "cost", "signature"), "take data/evidence from git again, or retract it"),
    "metrics": "`dvc repro` evaluates it again if its run is here; otherwise restore data/evidence from git",
}
"""Remedies by name of the broken link."""
_AS_RECORDED = (
    *("experiment", "arm", "replicate", "run_key", "profile", "cut", "status", "spec"),
    *("environment_digest", "environment", "weights_sha256"),
)


@dataclass(frozen=True)
class Link:
    """One step of a trail."""

    name: str
    status: LinkStatus
    detail: str

    @classmethod
    def of(cls, name: str, faults: Sequence[str], otherwise: str) -> Link:
        """Return a link that is broken if there are `faults`; otherwise it holds, with the detail `otherwise`."""
        return cls(name, "broken" if faults else "holds", "; ".join(faults) or otherwise)


def check_checkpoint(root: Path, checkpoint: Checkpoint) -> Link:
    """Check that the file has the recorded digest, and that its header names the run and the data."""
    result = checkpoint.result
    path, faults = root / checkpoint.path, []
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest == checkpoint.sha256:
            contract = read_contract(content, path.name)
            named = {"run": (contract.run_key, result.run_key)}
            named["data digest"] = contract.data_digest, result.data_digest
        else:
            named = {"sha256": (digest, checkpoint.sha256)}
        for what, (found, recorded) in named.items():
            if found != recorded:
                faults.append(f"{checkpoint.path}: its {what} is {found[:12]}…, not {recorded[:12]}…")
        return Link.of("checkpoint", faults, f"sha256 {digest[:12]}…")
    except OSError as error:
        return Link("checkpoint", "broken", f"{checkpoint.path}: {error.strerror}")
    except CheckpointError as error:
        return Link("checkpoint", "broken", str(error))


def check_run(result: Result | ResultLine) -> Link:
    """Check that the run key is the digest of the spec."""
    digest = hashlib.sha256(canonical_json(result.spec).encode()).hexdigest()
    fault = f"the spec's sha256 is {digest[:12]}…, the run key {result.run_key[:12]}…"
    return Link.of("run", [] if digest == result.run_key else [fault], f"run key {digest[:12]}…")


def check_params(params: Params, result: Result) -> Link:
    """Compare the spec's model, protocol and seed with those that the params files currently plan."""
    experiment, profile = params.experiments.get(result.experiment), params.profiles.get(result.profile)
    if experiment is None or profile is None:
        missing = f"experiment {result.experiment}" if experiment is None else f"profile {result.profile}"
        return Link("params", "broken", f"params.yaml has no {missing}")
    file = f"params/{experiment.name}.yaml"
    for planned in plan_runs(experiment, profile, params.datasets[experiment.dataset], every_role=True):
        if planned.name[1:] == (result.arm, result.replicate):
            spec = planned.spec.to_dict()
            differing = [name for name in ("model", "protocol", "replicate") if spec[name] != result.spec[name]]
            faults = [f"{file} gives another {' and '.join(differing)} now"] if differing else []
            return Link.of("params", faults, f"{file} under profile {result.profile}")
    return Link("params", "broken", f"{file} plans no replicate {result.replicate} of {result.arm}")


def check_code(
    root: Path, code: Mapping[str, str], origin: Mapping[str, Any] | None, equivalences: Sequence[int]
) -> Link:
    """Check that each module of a spec's `code` has its digest, at the evidence's revision or in this tree."""
    revision = None if origin is None else str(origin["revision"])
    if revision is not None and (words := refusal(root)):
        return Link("code", "not here", words)
    if revision is not None and not has_revision(root, revision):
        if not is_full_clone(root):
            return Link("code", "not here", f"revision {revision[:12]} is not in this clone; a full clone has it")
        return Link("code", "broken", f"there is no revision {revision[:12]} in this repository")
    where = "in this tree" if revision is None else f"at revision {revision[:12]}"
    own = {name: digest for name, digest in code.items() if "==" not in digest}  # not of packages
    wrong = [name for name, digest in own.items() if digest_at(root, revision, name) != digest]
    if wrong and revision is None and equivalences:
        which = ", ".join(str(number) for number in equivalences)
        return Link("code", "holds", f"{', '.join(wrong)} changed without changing a number: {PATH}, line {which}")
    dirty = ", which had uncommitted changes" if origin is not None and origin["dirty"] else ""
    faults = [f"{', '.join(wrong)} differ{'s' if len(wrong) == 1 else ''} {where}"] if wrong else []
    return Link.of("code", faults, f"{len(own)} modules {where}{dirty}")


def check_data(folder: Path, recorded: str, in_spec: str) -> Link:
    """Check that the packed data, if they are here, have the recorded digest."""
    if recorded != in_spec:
        return Link("data", "broken", f"the result names data {recorded[:12]}…, its spec {in_spec[:12]}…")
    if not (folder / "dataset.json").is_file():
        return Link(
            "data", "not here", f"{folder.name} is not packed here; `dvc repro preprocess@{folder.name}` packs it"
        )
    try:
        info = read_info(folder)
        digest = digest_packed(folder, info)
    except PackedDataError as error:
        return Link("data", "broken", str(error))
    if digest == recorded == info.digest:
        return Link("data", "holds", f"digest {digest[:12]}…")
    if digest == info.digest:
        other = f"{folder.name} is packed from {info.provenance} data here, digest {digest[:12]}…"
        return Link("data", "not here", other)
    return Link("data", "broken", f"{folder.name}: digest {digest[:12]}…, recorded {recorded[:12]}…")


def check_environment(result: Result | ResultLine) -> Link:
    """Check that the environment's digest is that of its facts, and that no unknown code ran in the process."""
    digest = environment_digest(result.environment)
    if digest != result.environment_digest:
        return Link("environment", "broken", f"its facts give {digest}, recorded {result.environment_digest}")
    process = result.environment.get("process")
    if process is None:
        return Link("environment", "holds", f"{digest}; other code in the process was not recorded then")
    other = ", ".join(f"{name} ({code})" for name, code in process["modules"].items())
    fault = f"{other} ran in its process, from no package and not in its run key; remove it and train the run again"
    return Link.of("environment", [fault] if other else [], digest)


def check_metrics(
    root: Path, checkpoint: Checkpoint, packed: Path, own: Mapping[str, OwnMetric], *, with_weights: bool = False
) -> Link:
    """Check that the metrics follow from bitmap, curves and weights, and that the curves are the run's."""
    line, cost = _line_of(checkpoint.result, packed.name), checkpoint.result.cost
    spent = None if cost is None or checkpoint.result.origin else {name: getattr(cost, name) for name in COSTS}
    found = [*find_contradictions(line), *compare_with_run(root, line, spent)]
    if found:
        return Link("metrics", "broken", "; ".join(found))
    taken = "from bitmap and curves"
    if line.correct is None and "mse" not in {row.metric for row in line.metrics} and not with_weights:
        return Link("metrics", "holds", f"{taken}; `claimcheck verify --weights` predicts again, too")
    try:
        if not (packed / "dataset.json").is_file() or read_info(packed).digest != line.data.digest:
            needed = f"the weights need {packed.name} as it was packed, which is not here"
            return Link("metrics", "holds", f"{taken}; {needed}")
        weights = root / checkpoint.path
        if not with_weights:
            found = list(spot_check(weights, packed, line))
            n = line.data.test_images if line.correct is None else min(SPOTS, line.data.test_images)
        elif checkpoint.accuracy is None:
            scores, n = recompute(weights, packed, line, own), line.data.test_images
            found = [*compare(line, scores, own), *look_again(weights, packed, line, scores)]
        else:
            scores, n = recompute(weights, packed, line), line.data.test_images
            found = list(compare_released(line, scores, checkpoint.accuracy))
    except (CheckpointError, PackedDataError, OSError) as error:
        return Link("metrics", "broken", str(error))
    return Link.of("metrics", found, f"{taken}, and from the weights on {n:,} test samples")


def _line_of(result: Result, dataset: str) -> ResultLine:
    """Return the result line of a row of the database, without the observations inside the network."""
    arrays = {array.kind: array.content for array in result.arrays}
    return ResultLine(
        **{name: getattr(result, name) for name in _AS_RECORDED},
        data=DataUsed(
            dataset=dataset,
            digest=result.data_digest,
            provenance=result.provenance,
            train_images=result.train_images,
            test_images=result.test_images,
            excluded_test_images=result.excluded_test_images,
        ),
        metrics=tuple(
            Measurement(metric=row.metric, split=row.split, value=row.value, n=row.n)  # type: ignore[arg-type]
            for row in result.metrics
        ),
        curves=tuple(
            EpochRow(**{field.name: getattr(row, field.name) for field in fields(EpochRow)}) for row in result.epochs
        ),
        correct=arrays.get("correct"),
        confusion=arrays.get("confusion"),
        divergence=Divergence(**result.divergence) if result.divergence else None,
    )


_OTHER_MACHINE = 1e-3
"""Largest relative difference of a loss, and share of test images with another class, between two machines."""
_ROUNDED = 0.01
"""Largest share of test images with another class by weights that were rounded to 11 bits."""
SPOTS = 256
"""Number of test images that `spot_check` predicts; a whole test set takes minutes per model on a small machine."""


def recompute(weights: Path, packed: Path, line: ResultLine, own: Mapping[str, OwnMetric] | None = None) -> Scores:
    """Compute the metrics as `evaluate` does, from the weights, the packed set's test split and the curves of `line`.

    `own`: the experiment's metrics of other packages.

    Raises:
        CheckpointError: the weights can't be loaded.
        PackedDataError: the test data can't be read.
    """
    whole, spec = read_info(packed), RunSpec.from_dict(dict(line.spec))
    rows = read_rows(packed, whole, "test")
    info = dataclasses.replace(whole, test_images=line.data.test_images)
    flops = FlopCounts().count(spec.model, info.shape, info.vocabulary)
    curves = [{name: value for name, value in asdict(row).items() if value is not None} for row in line.curves]
    test_set = cut_rows(rows, info.test_images)
    return score(load_predictor(weights), test_set, info, spec, curves, flops, own)


def spot_check(weights: Path, packed: Path, line: ResultLine) -> Iterator[str]:
    """Describe differences from `line` in which of `SPOTS` evenly spread images the weights get right.

    The weights may be as trained or rounded.  A table has no bitmap and is quick, so all its rows are predicted.

    Raises:
        CheckpointError: the weights can't be loaded, or aren't a classifier of these images.
        PackedDataError: the test data can't be read.
    """
    if line.correct is None:
        yield from compare(line, recompute(weights, packed, line))
        return
    n = line.data.test_images
    test_set = cut_rows(read_images(packed, "test"), n)
    assert isinstance(test_set, ImageSet), "a part of images is images"
    chosen = np.linspace(0, n - 1, min(n, SPOTS)).astype(int)
    found = correctness(load_predictor(weights).probabilities(test_set.images[chosen]), test_set.labels[chosen])
    differing = int(np.sum(found != unpack_correct(line.correct, n)[chosen]))
    if differing > max(_ROUNDED * len(chosen), 1):
        yield _in_words(differing, len(chosen))


def compare(line: ResultLine, scores: Scores, own: Mapping[str, OwnMetric] | None = None) -> Iterator[str]:
    """Describe differences between the metrics of `line` and those of its weights as trained.

    `own`: the experiment's metrics of other packages.
    """
    n = line.data.test_images
    recorded = {(row.metric, row.split): row.value for row in line.metrics}
    for row in scores.metrics:
        if (value := recorded.get((row.metric, row.split))) is None:
            continue
        slack = max(_OTHER_MACHINE, 1.5 / n) if row.metric in SHARES else 1e-12
        if own and row.metric in own:  # one sample may have another class: that much of the range, or of the number
            low, high = own[row.metric].range
            slack = max(_OTHER_MACHINE, 1.5 / n) * (abs(row.value) if low is None or high is None else high - low)
        if not math.isclose(value, row.value, rel_tol=0 if row.split == "none" else _OTHER_MACHINE, abs_tol=slack):
            yield f"{row.metric} is recorded as {value:.10g}, the weights give {row.value:.10g}"
    yield from _compare_images(line, scores, _OTHER_MACHINE)


def look_again(weights: Path, packed: Path, line: ResultLine, scores: Scores | None = None) -> Iterator[str]:
    """Describe differences between the observations in `line` and those of its weights as trained.

    With the weights' `scores`, a metric that is neither a score nor an observation is one, too.

    Raises:
        CheckpointError: the weights can't be loaded.
        PackedDataError: the test data can't be read.
    """
    recorded = {(row.metric, row.split): row.value for row in line.metrics}
    test_set = cut_rows(read_rows(packed, read_info(packed), "test"), line.data.test_images)
    replicate = RunSpec.from_dict(dict(line.spec)).replicate
    inside = Observer(test_set).observe(load_predictor(weights), replicate)
    for row in inside.metrics:
        value = recorded.get((row.metric, row.split))
        slack = 1.5 / row.n if row.n and row.metric.startswith("accuracy") else 1e-6
        if value is not None and not math.isclose(value, row.value, rel_tol=_OTHER_MACHINE, abs_tol=slack):
            yield f"{row.metric} is recorded as {value:.7g}, the weights give {row.value:.7g}"
    given = {(row.metric, row.split) for row in (*scores.metrics, *inside.metrics)} if scores else recorded.keys()
    if invented := [f"{metric} of split {split}" for metric, split in sorted(recorded.keys() - given)]:
        yield f"it has {', '.join(invented)}, which the weights don't give"
    if line.observed is not None:
        pair = (line.observed, inside.layers or {})
        theirs, ours = (sorted((one[:4], one[4]) for one in list_observed(layers)) for layers in pair)
        numbers, found = (np.array([value for _, value in each], float) for each in (theirs, ours))
        if [place for place, _ in theirs] != [place for place, _ in ours] or not np.allclose(
            numbers, found, rtol=_OTHER_MACHINE, atol=_OTHER_MACHINE, equal_nan=True
        ):
            yield "its observations inside the network differ from those of its weights"


def compare_released(line: ResultLine, scores: Scores, accuracy: float) -> Iterator[str]:
    """Describe differences of a released model, whose rounded weights scored `accuracy`, from its record."""
    found = {row.metric: row.value for row in scores.metrics}
    if abs(found["accuracy"] - accuracy) > max(_OTHER_MACHINE, 1.5 / line.data.test_images):
        yield f"accuracy is recorded as {accuracy:.10g}, the released weights give {found['accuracy']:.10g}"
    for row in line.metrics:
        if row.split == "none" and found.get(row.metric, row.value) != row.value:
            yield f"{row.metric} is recorded as {row.value:.10g}, the released model has {found[row.metric]:.10g}"
    yield from _compare_images(line, scores, _ROUNDED)


def _compare_images(line: ResultLine, scores: Scores, share: float) -> Iterator[str]:
    if line.correct is None or scores.correct is None:
        return
    n = line.data.test_images
    differing = int(np.sum(unpack_correct(line.correct, n) != unpack_correct(scores.correct, n)))
    if differing > max(share * n, 1):
        yield _in_words(differing, n)


def _in_words(differing: int, n: int) -> str:
    return f"{differing:,} of {n:,} images are right in the bitmap and wrong by the weights, or the other way round"


@dataclass(frozen=True)
class Trail:
    """The links behind a checkpoint or an evidence line, by name.

    `gives_metrics`: its weights were here, and gave the metrics of its result.
    """

    checkpoint: str
    links: tuple[Link, ...]
    gives_metrics: bool = False

    @property
    def broken(self) -> Link | None:
        """The first link that doesn't hold."""
        return next((link for link in self.links if link.status == "broken"), None)


def verify(
    root: Path, database: str, names: Sequence[str] = (), *, with_weights: bool = False
) -> tuple[Link, list[Trail]]:
    """Return the link from the files to `database`, and the trails (see `find_trails`); a terminal shows progress."""
    with open_results(database)() as session:
        trails = find_trails(root, session, names, with_weights=with_weights)
        with Console(stderr=True).status("Comparing the database with the files"):
            return _check_record(root, session), trails


def find_trails(root: Path, session: Session, names: Sequence[str] = (), *, with_weights: bool = False) -> list[Trail]:
    """Return the trail of each named checkpoint of the database (default: all).

    Released models predict some test images again if these are packed here.  With `with_weights`, every model predicts
    all test images, and each metric is recomputed from them.
    """
    params = load_params(root)
    query = (
        select(Checkpoint, ExperimentRow.dataset)
        .join(Checkpoint.result)
        .join(ExperimentRow, ExperimentRow.name == Result.experiment)
        .options(contains_eager(Checkpoint.result))
        .order_by(Checkpoint.position)
    )
    found = {row.Checkpoint.id: (row.Checkpoint, row.dataset) for row in session.execute(query)}
    for name in names:
        if name not in found:
            raise UnknownCheckpoint(name, found)
    console, is_hidden = Console(stderr=True), not sys.stderr.isatty()
    trails = []
    for name in track(
        [*names] or [*found], "Verifying checkpoints", console=console, transient=True, disable=is_hidden
    ):
        checkpoint, dataset = found[name]
        result, packed = checkpoint.result, root / "data" / "processed" / dataset
        experiment = params.experiments.get(result.experiment)
        own = experiment.metrics if experiment else {}
        links = (
            check_checkpoint(root, checkpoint),
            check_run(result),
            check_params(params, result),
            check_code(root, result.spec["code"], result.origin, result.equivalences),
            check_data(packed, result.data_digest, result.spec["data_digest"]),
            check_environment(result),
            check_metrics(root, checkpoint, packed, own, with_weights=with_weights),
        )
        trails.append(Trail(checkpoint.id, links))
    return trails


LAB_FILES = Path("data/evidence") / LABS
"""Folder of accepted evidence: `<lab>.jsonl` and, if the lab signs, its signature and the lab's public key."""


def check_evidence(root: Path) -> list[Trail]:
    """Check the links behind every line of published evidence, and the signature of each lab's file."""
    trails = [Trail(trial.name, links) for trial, links in check_lines(root, load_params(root))]
    for path in sorted((root / LAB_FILES).glob("*.jsonl")):
        signature = path.with_suffix(".jsonl.sig")
        signed = signature.read_bytes() if signature.is_file() else None
        link = check_signature(path.stem, path.read_bytes(), signed, path.with_suffix(".pub"), labs=path.parent)
        trails.append(Trail(f"the file of {path.stem}", (link,)))
    return trails


def check_lines(root: Path, params: Params, offered: Path | None = None) -> list[tuple[Trial, tuple[Link, ...]]]:
    """Check the links behind each line of evidence, or only of an `offered` file.

    Raises:
        EvidenceError, RecordError: a line can't be read or contradicts itself.
    """
    found, _ = find_results(root, params, evidence_only=True, offered=offered)
    repeats = defaultdict[Any, list[str]](list)
    for trial, repeat in find_repeats(sorted(found, key=lambda trial: (trial.file == offered, bool(trial.lab)))):
        repeats[trial.identity].append(repeat)
    packed = dict[tuple[str, str], Link]()
    checked = list[tuple[Trial, tuple[Link, ...]]]()
    for trial in found:
        line, data = trial.result, trial.result.data
        if offered and trial.file != offered:
            continue
        if (data.dataset, data.digest) not in packed:
            folder = root / "data" / "processed" / data.dataset
            packed[data.dataset, data.digest] = check_data(folder, data.digest, line.spec["data_digest"])
        slow = find_impossible_times(line, trial.cost) if trial.cost else []
        experiment = params.experiments[line.experiment]
        seeds = f"; own seeds: {lab_seeds(trial.lab, experiment.seeds)}" if trial.lab else ""
        other = [f"params/{line.experiment}.yaml plans another model, protocol, data set or seed{seeds}"]
        is_planned = trial.follows_plan and data.dataset == experiment.dataset
        code = check_code(root, line.spec["code"], asdict(trial.origin) if trial.origin else None, trial.equivalences)
        if offered and trial.changed_code and code.status == "holds":
            changed = f"{', '.join(trial.changed_code)} changed since, or is missing from its code; train it again"
            code = Link("code", "broken", changed)
        links = (
            Link.of("params", [] if is_planned else other, "as planned"),
            check_run(line),
            code,
            Link.of("repeat", repeats[trial.identity], "no other line has its outcome"),
            packed[data.dataset, data.digest],
            check_environment(line),
            Link.of("cost", slow, "possible on its device"),
        )
        checked.append((trial, links))
    return checked


class SignatureRefused(Mistake):
    """`ssh-keygen` refused to sign, or rejected a signature."""


def check_signature(lab: str, content: bytes, signature: bytes | None, key: Path, *, labs: Path) -> Link:
    """Check the signature of a lab's file by its public `key`, which no other lab in the folder `labs` may have."""
    if signature is None:
        return Link(
            "signature", "broken", f"not signed; its key identifies a lab: claimcheck contribute --lab {lab} --sign KEY"
        )
    if not key.is_file():
        return Link("signature", "broken", f"no key of {lab} is known: give its public key once (--key)")
    own = {*key.read_text(encoding="utf-8").split()}
    for other in sorted(labs.glob("*.pub")):
        if other.stem != lab and any(
            word.startswith("AAAA") for word in own & {*other.read_text(encoding="utf-8").split()}
        ):
            return Link("signature", "broken", f"{other.stem} signs with this key; each lab needs its own")
    with tempfile.TemporaryDirectory() as folder:
        allowed, signed = Path(folder, "allowed"), Path(folder, "signature")
        signed.write_bytes(signature)
        allowed.write_text(f"{lab} {key.read_text(encoding='utf-8')}", encoding="utf-8")
        for fault, *arguments in (
            ("the file was changed after it was signed, or the signature is damaged", "check-novalidate"),
            (f"it wasn't signed with the key of {lab}", "verify", "-f", str(allowed), "-I", lab),
        ):
            try:
                ssh_keygen(*arguments, "-s", str(signed), given=content)
            except SignatureRefused:
                return Link("signature", "broken", fault)
    return Link("signature", "holds", f"signed by {lab}")


def ssh_keygen(verb: str, *options: str, given: bytes) -> bytes:
    """Let `ssh-keygen -Y` sign or check `given`; return what it prints.

    Raises:
        SignatureRefused: it refuses.
        Mistake: it isn't installed.
    """
    command = ["ssh-keygen", "-Y", verb, "-n", "claimcheck", *options]
    if shutil.which("ssh-keygen") is None:
        raise Mistake("ssh-keygen isn't installed; on Debian: apt install openssh-client")
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    if done.returncode:
        raise SignatureRefused(f"ssh-keygen: {' '.join(done.stderr.decode(errors='replace').split())}")
    return done.stdout


def _check_record(root: Path, session: Session) -> Link:
    """Check that the database is what `record` builds from the files."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/results.db"
        try:
            equivalences = read_equivalences(root)
            lines = [fault for number in range(1, len(equivalences.lines) + 1) for fault in equivalences.faults(number)]
            ran = select(Result.experiment, Result.arm, Result.replicate, Result.environment)
            if faults := [*compare_canaries(session.execute(ran)), *lines, *row_faults(root, read_versions(root))]:
                return Link("record", "broken", "; ".join(faults))
            notes = record(root, database).notes
            if changed := [note for note in notes if note.startswith(PLAN_CHANGED)]:
                return Link("record", "broken", "; ".join(changed))
        except (EvidenceError, RecordError, ClaimsError) as error:
            return Link("record", "broken", str(error))
        with open_results(database)() as rebuilt:
            for table in Base.metadata.sorted_tables:
                query = select(table).order_by(*table.primary_key.columns)
                pair = (side.execute(query.execution_options(yield_per=1000)) for side in (session, rebuilt))
                if any(one != other for one, other in zip_longest(*pair)):
                    what = f"table {table.name} is not what the files give; `claimcheck stage record` rebuilds it"
                    return Link("record", "broken", what)
    unchecked = refusal(root)
    compared = f"; not compared with its history: {unchecked}" if unchecked else ", and git's history has no more"
    return Link("record", "holds", f"every row is what result lines, evidence, claims and params give{compared}")
