"""Retrain results of other labs: random epochs, and epochs in which a loss diverged.

With deposited states any epoch can be trained alone; without them only first epochs can be checked.
"""

from __future__ import annotations

import hashlib
import io
import random
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from scipy.stats import permutation_test
from torch import Tensor

from stages.checkpoint.contract import InputContract
from stages.checkpoint.predictor import dump_checkpoint
from stages.datasets.packed import PackedDataError, read_info
from stages.faults import Mistake
from stages.ops.fast.cpp import TAKEN
from stages.params.experiment import Params
from stages.run import RunSpec
from stages.runs.evidence import COLUMNS, EpochRow, ResultLine, Trial
from stages.training.loop import Progress, TrainingState, TrainingStopped, measure
from stages.training.opening import find_divergence, open_training
from stages.training.process import describe_environment, describe_fast_paths
from stages.training.protocol import training_rows
from stages.training.session import Session
from stages.upkeep.verifying import Link, Trail, compare, look_again, recompute

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
