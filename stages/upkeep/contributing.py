"""Evidence of other labs, which `claimcheck contribute` packs, and `claimcheck accept` checks and adds.

A contribution is a zip file.  `evidence.jsonl` has the lab's lines, `evidence.jsonl.sig` their signature by ssh-keygen.
Weights, and states after some epochs, are named by their sha256, which the lines contain.  The accepted lines become
`data/evidence/labs/<lab>.jsonl`, byte for byte as they were signed.

Two kinds of epochs are trained again: random ones, and those in which a loss diverged.  With deposited states any epoch
can be trained alone; without them only first epochs can be checked.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from scipy.stats import permutation_test
from torch import Tensor

from stages.checkpoint.contract import CheckpointError, InputContract, read_contract
from stages.checkpoint.predictor import dump_checkpoint
from stages.datasets.packed import PackedDataError, read_info
from stages.device import pick_device
from stages.faults import Mistake
from stages.ops.fast.cpp import TAKEN
from stages.params.experiment import Params
from stages.recording.sources import RecordError
from stages.run import RunSpec
from stages.runs.evidence import (
    COLUMNS,
    EpochRow,
    EvidenceError,
    EvidenceLine,
    ResultLine,
    Trial,
    read_lines,
    write_lines,
)
from stages.runs.store import write_atomically
from stages.training.loop import Progress, TrainingState, TrainingStopped, measure
from stages.training.opening import find_divergence, open_training
from stages.training.process import describe_environment, describe_fast_paths
from stages.training.protocol import stops_early, training_rows
from stages.training.session import Session
from stages.upkeep.publishing import cell_of, collect
from stages.upkeep.verifying import (
    LAB_FILES,
    Link,
    Trail,
    check_lines,
    check_signature,
    compare,
    look_again,
    recompute,
    ssh_keygen,
)

MOST_BYTES = 1 << 30
_SAME_KIND = ("torch", "device", "device_name", "cpu_capability", "cuda")
"""Fields of an environment that are equal on machines that give the same bits."""
ELSEWHERE = {
    "train_loss": 0.05,
    "val_loss": 0.25,
    "test_loss": 0.25,
    "train_accuracy": 0.02,
    "val_accuracy": 0.05,
    "test_accuracy": 0.05,
}
"""Largest relative differences of losses, and absolute ones of accuracies, on another kind of device.

First epochs of published trainings differ between two kinds of processor by at most 0.031 (`train_loss`) and 0.23
(`val_loss`; 43 of DAC's), and by 0.0002 (`train_accuracy`) and 0.007 (`test_accuracy`; one of NiNformer's).
"""
_SAME_WEIGHTS = 1e-3
"""The same for scores of the same weights."""
CHANCE = 0.004
"""Differences between devices are refused if rounding has this probability or less of giving them a common sign."""


class ContributionError(Mistake, ValueError):
    """A contribution can't be packed, or is refused; the message gives the reasons."""


def read_member(packed: zipfile.ZipFile, name: str) -> bytes:
    """Read a member of an untrusted file, which may be damaged, or far larger than it looks."""
    try:
        if packed.getinfo(name).file_size > MOST_BYTES:
            raise ContributionError(f"refused: {name} is larger than {MOST_BYTES:,} bytes")
        return packed.read(name)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise ContributionError(f"refused: {name} can't be read ({error})") from None


def last_state(line: ResultLine) -> int:
    """Return the number of epochs before the last one, in which the loss may have diverged."""
    in_last_step = line.divergence and line.divergence.step == line.divergence.last_finite_step
    return len(line.curves) - (line.status == "finished" or bool(in_last_step))


def compare_metrics(params: Params, line: ResultLine, held: Path, weights: Path) -> list[str]:
    """Describe differences between the line and the metrics of its weights, on the test set and inside the network."""
    own = params.experiments[line.experiment].metrics
    scores = recompute(weights, held, line, own)
    return [*compare(line, scores, own), *look_again(weights, held, line, scores)]


def gives_metrics(line: ResultLine) -> str:
    return f"the weights of run {line.run_key[:12]} give its metrics"


def chance_of_passing(epochs: int, false: int, drawn: int) -> float:
    """Return the chance that none of `drawn` random epochs is one of the `false` ones."""
    return comb(epochs - false, drawn) / comb(epochs, drawn)


@dataclass(frozen=True)
class _Again:
    """A retrained epoch: its `row` here and `theirs`; `is_alike` if both devices give equal bits."""

    theirs: EpochRow
    row: Mapping[str, float]
    is_alike: bool
    gives_metrics: bool = False


class _Differs(Exception):
    """A retrained epoch has another result, or can't be trained; the message gives details."""


@dataclass(frozen=True)
class Retraining:
    """Retrains results of another lab on `device`, from the states and weights that it `packed`."""

    root: Path
    params: Params
    packed: zipfile.ZipFile
    device: torch.device

    def train_again(self, trials: Sequence[Trial], wanted: int) -> tuple[list[Trail], str]:
        """Retrain random epochs; also return a note with the chance that false ones aren't found."""
        epochs = [(trial, epoch) for trial in trials for epoch in range(len(trial.result.curves))]
        kept, found, compared = {None, *self.packed.namelist()}, list[Trail](), list[_Again]()
        possible = [one for one in epochs if (f"states/{one[0].states.get(str(one[1]))}" if one[1] else None) in kept]
        drawn = random.SystemRandom().sample(possible, min(wanted, len(possible)))
        for trial, epoch in drawn:
            try:
                compared.append(again := self._compare_epoch(trial, epoch))
                how = "bit for bit" if again.is_alike else "only nearly: it names another kind of device"
                links = [Link("retrained", "holds", f"epoch {epoch + 1} gives its row {how}")]
                if again.gives_metrics:
                    links.append(Link("metrics", "holds", gives_metrics(trial.result)))
                found.append(Trail(trial.name, tuple(links), gives_metrics=again.gives_metrics))
            except (_Differs, PackedDataError, KeyError, RuntimeError, TypeError, ValueError) as error:
                found.append(Trail(trial.name, (Link("retrained", "broken", f"epoch {epoch + 1}: {error}"),)))
        far = [again for again in compared if not again.is_alike]
        if faults := list(_common_signs(far)):
            found.append(Trail("the drawn epochs", (Link("retrained", "broken", "; ".join(faults)),)))
        chances = ", ".join(
            f"{false} with {chance_of_passing(len(possible), false, len(drawn)):.0%}"
            for false in sorted({min(1, len(possible)), -(-len(possible) // 10), len(possible)})
        )
        limits = (
            f"\n{len(far)} were compared only nearly, because their lines name another kind of device: unless most err "
            "in one direction, or deposited weights have other scores, test accuracies may be wrong by up to "
            f"{100 * ELSEWHERE['test_accuracy']:g} points, test losses by {ELSEWHERE['test_loss']:.0%}, and training "
            f"losses by {ELSEWHERE['train_loss']:.0%}"
        )
        return found, (
            f"{len(drawn)} of {len(possible)} epochs trained again, {len(compared) - len(far)} compared bit by bit "
            f"({len(epochs) - len(possible)} more have no deposited state); chance that a file passes, by the number "
            f"of false ones among them: {chances}{limits if far else ''}"
        )

    def diverge_again(self, trials: Sequence[Trial], budget: int) -> tuple[list[Trail], int]:
        """Retrain each diverged trial from the start or, if that exceeds `budget` epochs, from its last state.

        Also returns the epochs spent.
        """
        diverged = [trial for trial in trials if trial.result.status == "diverged"]
        ends, begins = [last_state(trial.result) + 1 for trial in diverged], [0] * len(diverged)
        if sum(ends) > budget:
            kept = {*self.packed.namelist()}
            for place, trial in enumerate(diverged):
                states = [n for n in range(1, ends[place]) if f"states/{trial.states.get(str(n))}" in kept]
                begins[place] = max(states, default=0)
        spent = sum(ends) - sum(begins)
        if spent > budget:
            remedy = f"give --retrain {spent} or more, or deposit the states before"
            unchecked = f"epochs that check the diverged trainings ({len(diverged)}): {spent}; {remedy}"
            return [Trail(diverged[0].name, (Link("retrained", "broken", unchecked),))], 0
        found = []
        for trial, begin in zip(diverged, begins, strict=True):
            try:
                link = Link("retrained", "holds", self._compare_divergence(trial, begin))
            except (_Differs, PackedDataError, KeyError, RuntimeError, TypeError, ValueError) as error:
                link = Link("retrained", "broken", f"divergence: {error}")
            found.append(Trail(trial.name, (link,)))
        return found, spent

    def _compare_divergence(self, trial: Trial, begin: int) -> str:
        """Train from the state after `begin` epochs until the loss diverges.

        Raises:
            _Differs: it doesn't, or elsewhere.
        """
        line = trial.result
        state = self._read_state(trial, begin) if begin else None
        since = f"trained from the state after epoch {begin}, which may be false" if begin else "trained from the start"
        again = _train(line, self._find_data(line), self.device, state, last_state(line) + 1)
        if again.divergence is None or len(again.state.history) != len(line.curves):
            raise _Differs("trained again, its loss doesn't diverge in that epoch")
        if not self._is_alike(line):
            return f"{since}, its loss diverges in the same epoch; its line names another kind of device"
        theirs = vars(line.divergence)
        if not _has_rows(line.curves[begin:], again.state.history[begin:]) or not all(
            np.isclose(np.array(theirs[name], float), np.array(value, float), rtol=1e-7, atol=0, equal_nan=True)
            for name, value in again.divergence.items()
        ):
            raise _Differs(f"trained again, it is {again.divergence}")
        return f"{since}, its loss diverges at the same step"

    def _find_data(self, line: ResultLine) -> Path:
        held = self.root / "data" / "processed" / line.data.dataset
        if read_info(held).digest != line.data.digest:
            raise _Differs(f"{held.name} is packed from other data here")
        return held

    def _is_alike(self, line: ResultLine) -> bool:
        """Return True if the line says that its machine gives the same bits as this one, which has just trained it."""
        here, theirs = describe_environment(self.device), line.environment
        return (
            all(here[name] == theirs.get(name) for name in _SAME_KIND)
            and describe_fast_paths(TAKEN) == theirs.get("process", {}).get("fast_paths")
            and not {"stacked", "data_parallel"} & theirs.keys()
        )

    def _compare_epoch(self, trial: Trial, epoch: int) -> _Again:
        """Retrain one epoch; compare its row, and its weights with the deposited state or weights after it.

        After the last epoch, on a device of the same kind, the weights must be the line's and give its metrics.

        Raises:
            _Differs: they differ.
        """
        line, held = trial.result, self._find_data(trial.result)
        state, following = (self._read_state(trial, after) if after else None for after in (epoch, epoch + 1))
        after = following.model if following else None
        again = _train(line, held, self.device, state, epoch + 1)
        if len(again.state.history) != epoch + 1 or again.state.model is None:
            raise _Differs("trained again, its loss diverges")
        is_alike, is_last = self._is_alike(line), epoch + 1 == len(line.curves)
        theirs, row, name = line.curves[epoch], again.state.history[-1], f"weights/{line.weights_sha256}"
        if not _has_rows([theirs], [row], {} if is_alike else ELSEWHERE):
            how = "bit for bit" if is_alike else "on another kind of device"
            raise _Differs(f"trained again from the state before it, its row of the curves differs ({how})")
        if is_last and name in self.packed.namelist():
            after = load(read_member(self.packed, name))
        if is_alike and is_last and line.status == "finished":
            with tempfile.NamedTemporaryFile(suffix=".safetensors") as weights:
                info = read_info(held)
                contract = InputContract.of_run(again.session.spec, info)
                weights.write(content := dump_checkpoint(again.session.model, contract))
                weights.flush()
                if hashlib.sha256(content).hexdigest() != line.weights_sha256:
                    raise _Differs("trained again, its final weights differ from those of the line")
                if faults := compare_metrics(self.params, line, held, Path(weights.name)):
                    raise _Differs("; ".join(faults))
            return _Again(theirs, row, is_alike, gives_metrics=True)
        pairs = [(after[name], one.cpu()) for name, one in again.state.model.items() if name in after] if after else []
        if is_alike and not all(deposited.equal(trained) for deposited, trained in pairs):
            raise _Differs("trained again, its final weights differ from the deposited ones")
        if after and not is_alike and line.spec["protocol"].get("ema") is None:
            _compare_scores(theirs, again.session, after)
        return _Again(theirs, row, is_alike)

    def _read_state(self, trial: Trial, after: int) -> TrainingState | None:
        """Read the state after `after` epochs, None if it wasn't deposited; its history must be that of the curves."""
        digest = trial.states.get(str(after))
        if f"states/{digest}" not in self.packed.namelist():
            return None
        content = read_member(self.packed, f"states/{digest}")
        try:  # the first 32 bytes are a digest of the rest
            saved = torch.load(io.BytesIO(content[32:]), weights_only=True, map_location="cpu")
            state = TrainingState(**saved["state"])
        except Exception as error:  # noqa: BLE001  (torch.load raises almost anything on a damaged file)
            raise _Differs(f"the state after epoch {after} can't be read: {error}") from None
        is_named = hashlib.sha256(content).hexdigest() == digest
        if not is_named or (saved["run_key"], state.epoch) != (trial.result.run_key, after):
            raise _Differs(f"the state after epoch {after} isn't the one that the line names")
        if not _has_rows(trial.result.curves[:after], state.history):
            raise _Differs(f"the state after epoch {after} has a history that differs from the curves")
        return state


def _common_signs(compared: Sequence[_Again]) -> Iterator[str]:
    """Describe columns that differ in one direction more than rounding does, by flipping signs at random."""
    for name in COLUMNS[3:]:
        pairs = [(getattr(again.theirs, name), again.row.get(name)) for again in compared]
        found = np.array([their / own - 1 if "loss" in name else their - own for their, own in pairs if their and own])
        if len(found) < 2 or not found.any():
            continue
        chance = permutation_test((found,), np.mean, permutation_type="samples").pvalue
        if chance <= CHANCE:
            yield (
                f"{name} differs by {found.mean():+.2%} on average of {len(found)} epochs, nearly always in one "
                f"direction; rounding on another kind of device does that with probability {chance:.1g}"
            )


def _compare_scores(theirs: EpochRow, session: Session, weights: dict[str, Tensor]) -> None:
    """Compare the scores of an epoch with those of the deposited weights after it.

    Raises:
        _Differs: they differ.
    """
    session.model.load_state_dict(weights)
    _, held_out = training_rows(len(session.task), session.spec.protocol, session.spec.replicate)
    measured = session.observe(session.model) if session.observe else {}
    if len(held_out):
        rows = held_out.to(session.task.device)
        measured |= {f"val_{name}": value for name, value in measure(session.model, session.task, rows).items()}
    if not _has_rows([theirs], [vars(theirs) | measured], dict.fromkeys(ELSEWHERE, _SAME_WEIGHTS)):
        raise _Differs("the scores of the deposited weights after it differ from its row of the curves")


@dataclass(frozen=True)
class _Trained:
    """A session whose network has trained some epochs, and its last state, whose history lacks a diverged epoch."""

    session: Session
    state: TrainingState
    divergence: Mapping[str, Any] | None


def _train(line: ResultLine, data: Path, device: torch.device, state: TrainingState | None, end: int) -> _Trained:
    """Train from `state`, or from the start, to the end of epoch `end`, counted from 1, or until the loss diverges."""
    passed, states, threads = [0], [state or TrainingState()], torch.get_num_threads()
    divergence: Mapping[str, Any] | None = None

    def progress(now: Progress) -> None:
        passed.append(now.step // (now.total_steps // now.epochs))

    torch.set_num_threads(int(line.environment.get("threads", 1)))
    TAKEN.clear()
    try:
        session = open_training(RunSpec.from_dict(dict(line.spec)), data, read_info(data), device)
        outcome = session.train(
            state=state, save=states.append, progress=progress, should_stop=lambda: passed[-1] >= end
        )
        divergence = find_divergence(outcome, session.model)
    except TrainingStopped:
        pass
    finally:
        torch.set_num_threads(threads)
    return _Trained(session, states[-1], divergence)


def _has_rows(
    rows: Sequence[EpochRow], trained: Sequence[Mapping[str, Any]], slack: Mapping[str, float] = MappingProxyType({})
) -> bool:
    """Return True if the rows equal those of a training to eight digits, or are within `slack` (see `ELSEWHERE`)."""
    return len(rows) == len(trained) and all(
        np.allclose(
            np.array([getattr(row, name) for row in rows], float),
            np.array([row.get(name) for row in trained], float),
            rtol=1e-7 + slack.get(name, 0.0) * name.endswith("loss"),
            atol=slack.get(name, 0.0) * name.endswith("accuracy"),
            equal_nan=True,
        )
        for name in COLUMNS
    )


EVIDENCE, SIGNATURE = "evidence.jsonl", "evidence.jsonl.sig"
_LAB = re.compile(r"[a-z][a-z0-9-]{1,39}")
_IN_CURVES = (
    *("accuracy", "best_epoch_accuracy", "loss", "validation_loss", "perplexity"),
    *("mse", "log_mse", "rmse", "selected_mse", "selected_log_mse"),
)
"""Metrics that follow from the curves and the bitmap."""


def contribute(
    root: Path, experiments: Sequence[str], lab: str, output: Path, *, key: Path | None, **deposited: Any
) -> int:
    """Pack the experiments' results, and what `lab` contributed before, into `output`; return the number of lines.

    `deposited` has `weights`, True to deposit them, and `states`, the folder with resume states, or None.
    """
    earlier = read_lines(_path_of(root, lab), EvidenceLine)
    lines, deposits = {(line.result.experiment, *cell_of(line.result)): line for line in earlier}, dict[str, bytes]()

    def deposit(kind: str, path: Path) -> str:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        deposits[f"{kind}/{digest}"] = content
        return digest

    for line in (line for name in experiments for line in collect(name, root)):
        result, cell = line.result, (line.result.experiment, *cell_of(line.result))
        run = root / "data" / "runs" / result.experiment / result.run_key / "weights.safetensors"
        if deposited["weights"] and run.is_file():
            deposit("weights", run)
        found = deposited["states"].joinpath(result.run_key).glob("*.pt") if deposited["states"] else ()
        kept = {path.stem: deposit("states", path) for path in sorted(found)} or None
        if cell not in lines or lines[cell].result != result:
            lines[cell] = replace(line, origin=replace(line.origin, lab=lab), states=kept)
    content = write_lines(lines.values())
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(EVIDENCE, content)
        if key:
            packed.writestr(SIGNATURE, ssh_keygen("sign", "-f", str(key), given=content))
        for name, kept_bytes in deposits.items():
            packed.writestr(name, kept_bytes)
    return len(lines)


def _path_of(root: Path, lab: str) -> Path:
    if not _LAB.fullmatch(lab):
        raise ContributionError(f"{lab!r} can't be a lab's name: use small letters, digits and hyphens, as in uni-oslo")
    return root / LAB_FILES / f"{lab}.jsonl"


def accept(
    root: Path, params: Params, file: Path, lab: str, *, key: Path | None, epochs: int, device: str
) -> tuple[int, int, list[Trail], str]:
    """Check a contribution of `lab`, train `epochs` random epochs of it again, and add its lines to the evidence.

    `key` is the lab's public key, which is needed once and kept.  Returns the number of lines, the number of new ones,
    everything that was checked, and a note about the epochs.

    Raises:
        ContributionError: a check failed; nothing was added.
    """
    path, notes = _path_of(root, lab), list[str]()
    known = path.with_suffix(".pub")
    if key and known.is_file() and known.read_bytes() != key.read_bytes():
        raise ContributionError(f"{lab} signs with another key: {known}; delete it if {lab} says that it has a new one")
    try:
        with zipfile.ZipFile(file) as packed, tempfile.TemporaryDirectory() as folder:
            content = read_member(packed, EVIDENCE)
            signature = read_member(packed, SIGNATURE) if SIGNATURE in packed.namelist() else None
            signed = check_signature(lab, content, signature, key or known, labs=path.parent)
            offered = Path(folder, path.name)
            offered.write_bytes(content)
            if signed.status == "broken":
                raise ContributionError(f"refused: {signed.detail}")
            lines, before = read_lines(offered, EvidenceLine), read_lines(path, EvidenceLine)
            whole = _check_whole(lines, before, lab)
            checked = check_lines(root, params, offered) if whole.status == "holds" else []
            if whole.status == "holds" and len(checked) < len(lines):
                whole = Link("lab", "broken", "some of its lines have a profile that params.yaml doesn't have")
            trials, accepted = [trial for trial, _ in checked], {line.digest for line in before}
            new = [trial for trial in trials if trial.digest not in accepted]
            trails = [Trail(f"the file of {lab}", (signed, whole, _check_states(new, packed)))]
            trails += [Trail(trial.name, (*links, _check_end(trial.result))) for trial, links in checked]
            if not any(trail.broken for trail in trails):  # first, because loading weights runs the line's model
                trails += [_check_weights(root, params, trial, packed) for trial in trials]
            spent, retraining = 0, Retraining(root, params, packed, pick_device(device))
            if not any(trail.broken for trail in trails):
                diverged, spent = retraining.diverge_again(new, epochs)
                trails += diverged
                notes += [f"{trail.checkpoint}: {trail.links[0].detail}" for trail in diverged]
            if not any(trail.broken for trail in trails):
                again, note = retraining.train_again(trials, epochs - spent)
                trails, notes = [*trails, *again], [*notes, note]
            if unseen := _list_unseen(new, trails):
                said = defaultdict[str, list[str]](list)
                for trail in unseen:
                    said[trail.links[0].detail].append(trail.checkpoint)
                notes += [f"{detail}: {', '.join(names)}" for detail, names in said.items()]
                trails += unseen
    except (zipfile.BadZipFile, KeyError) as error:
        raise ContributionError(f"{file} was not made by claimcheck contribute: {error}") from None
    except (EvidenceError, RecordError) as error:
        raise ContributionError(f"refused: {str(error).replace(f'{folder}/', '')}") from None
    if broken := [f"{trail.checkpoint}: {link.name}: {link.detail}" for trail in trails if (link := trail.broken)]:
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise ContributionError(f"refused: {'; '.join(broken[:3])}{more}")
    for target, written in ((path.with_suffix(".jsonl.sig"), signature), (known, key and key.read_bytes())):
        if written:
            write_atomically(target, written)
    write_atomically(path, content)
    return len(lines), len(lines) - len(before), trails, "\n".join(notes)


def _check_whole(lines: Sequence[EvidenceLine], before: Sequence[EvidenceLine], lab: str) -> Link:
    """Check that the lines are the lab's own, and that all lines that were accepted earlier are among them."""
    if not lines:
        return Link("lab", "broken", "it has no lines")
    if other := {line.origin.lab or "this project" for line in lines} - {lab}:
        return Link("lab", "broken", f"it has results of {', '.join(sorted(other))}")
    if any(line.release for line in lines):
        return Link("lab", "broken", "it has released models, and only this project releases models")
    if missing := {line.digest for line in before} - {line.digest for line in lines}:
        return Link("lab", "broken", f"it lacks or changes {len(missing)} lines of {lab} that were accepted earlier")
    return Link("lab", "holds", f"{len(lines)} lines of {lab}")


def _check_states(trials: Sequence[Trial], packed: zipfile.ZipFile) -> Link:
    """Check that states of every epoch or of none are deposited, so that no epoch can be left out of the draw."""
    kept = {*packed.namelist()}
    wanted = [(trial, after) for trial in trials for after in range(1, last_state(trial.result) + 1)]
    missing = [(trial, after) for trial, after in wanted if f"states/{trial.states.get(str(after))}" not in kept]
    if len(missing) == len(wanted):
        return Link("states", "not here", "none are deposited")
    some = [
        f"{len(missing)} of {len(wanted)} states are missing, first that of {trial.name} after epoch {after}; "
        "deposit all of them or none, because no epoch may be hidden from the draw"
        for trial, after in missing[:1]
    ]
    return Link.of("states", some, f"{len(wanted)} states")


def _check_end(line: ResultLine) -> Link:
    """Check that a training with fewer epochs than planned ended when its rule of early stopping says so."""
    try:
        protocol, history = RunSpec.from_dict(dict(line.spec)).protocol, [vars(row) for row in line.curves]
        ends = [stops_early(history[:length], protocol.early_stop) for length in (len(history) - 1, len(history))]
    except (KeyError, TypeError, ValueError) as error:
        return Link("end", "broken", f"its spec or its val_loss can't be read: {error}")
    is_right = line.status == "diverged" or ends == [False, True] or (not ends[0] and len(history) == protocol.epochs)
    fault = f"its curves end after epoch {len(history)}, its rule of early stopping ends it elsewhere"
    return Link.of("end", [] if is_right else [fault], f"after epoch {len(history)}")


def _check_weights(root: Path, params: Params, trial: Trial, packed: zipfile.ZipFile) -> Trail:
    """Check deposited weights: their digest, their run, and their scores on the packed test set."""
    line, held = trial.result, root / "data" / "processed" / trial.result.data.dataset
    name = f"weights/{line.weights_sha256}"
    if name not in packed.namelist():
        return Trail(trial.name, ())
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as weights:
        weights.write(content := read_member(packed, name))
        weights.flush()
        try:
            contract = read_contract(content, name)
            if hashlib.sha256(content).hexdigest() != line.weights_sha256:
                faults = ["the deposited weights have another sha256"]
            elif (contract.run_key, vars(contract.model)) != (line.run_key, line.spec["model"]):
                faults = ["the deposited weights belong to another run"]
            elif read_info(held).digest != line.data.digest:
                raise PackedDataError(f"{held.name} is packed from other data here")
            else:
                faults = compare_metrics(params, line, held, Path(weights.name))
            return Trail(trial.name, (Link.of("weights", faults, gives_metrics(line)),), gives_metrics=not faults)
        except CheckpointError as error:
            return Trail(trial.name, (Link("weights", "broken", str(error)),))
        except PackedDataError as error:
            return Trail(trial.name, (Link("weights", "not here", str(error)),))


def _list_unseen(trials: Sequence[Trial], trails: Sequence[Trail]) -> list[Trail]:
    """List the finished trials whose metrics nothing has recomputed."""
    seen, unseen = {trail.checkpoint for trail in trails if trail.gives_metrics}, []
    for trial in trials:
        if trial.result.status == "diverged" or trial.name in seen:
            continue
        names = sorted({row.metric for row in trial.result.metrics} - {*_IN_CURVES})
        listed = ", ".join([*names, *(["observations"] if trial.result.observed else [])])
        unseen.append(Trail(trial.name, (Link("metrics", "not here", f"no weights here give its {listed}"),)))
    return unseen
