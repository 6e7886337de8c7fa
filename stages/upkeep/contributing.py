"""Evidence of other labs: packed by `claimcheck contribute`, checked and added by `claimcheck accept`.

A contribution is a zip file.  `evidence.jsonl` has the lab's lines, `evidence.jsonl.sig` their signature by ssh-keygen.
Weights, and states after some epochs, are named by their sha256, which the lines contain.  The accepted lines become
`data/evidence/labs/<lab>.jsonl`, byte for byte as they were signed.
"""

from __future__ import annotations

import hashlib
import random
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import comb, isclose
from pathlib import Path
from typing import TYPE_CHECKING

from stages.checkpoint.contract import CheckpointError, read_contract
from stages.datasets.packed import PackedDataError, read_info
from stages.device import pick_device
from stages.faults import Mistake
from stages.params.experiment import Params
from stages.recording import RecordError
from stages.run import RunSpec
from stages.runs.equivalence import read_equivalences
from stages.runs.evidence import EpochRow, EvidenceError, EvidenceLine, Trial, read_lines, write_lines
from stages.runs.fingerprint import changed_modules
from stages.runs.store import write_atomically
from stages.upkeep.publishing import cell_of, collect, is_near
from stages.upkeep.verifying import LAB_FILES, Link, Trail, check_lines, check_signature, compare, recompute, ssh_keygen

if TYPE_CHECKING:
    from stages.training.loop import TrainingState

EVIDENCE, SIGNATURE = "evidence.jsonl", "evidence.jsonl.sig"
_LAB = re.compile(r"[a-z][a-z0-9-]{1,39}")
_LARGEST = 100_000_000
"""Bytes of evidence that git should take from one lab."""
_SAME_KIND = ("torch", "device", "device_name", "cpu_capability", "cuda")
"""Fields of an environment in which two machines agree that give the same bits."""
ELSEWHERE = 0.05
"""Relative difference of a loss, and absolute one of an accuracy, after an epoch on another kind of device.

The first epochs of 27 trainings of DAC's differ by at most 0.006 between two kinds of processor.
"""


class ContributionError(Mistake, ValueError):
    """A contribution can't be made, or is refused; the message gives the reasons."""


def contribute(
    root: Path,
    experiments: Sequence[str],
    lab: str,
    output: Path,
    *,
    key: Path | None,
    weights: bool,
    states: Path | None,
) -> int:
    """Pack the experiments' results, and what `lab` contributed before, into `output`; returns the number of lines."""
    _refuse_name(lab)
    earlier = read_lines(root / LAB_FILES / f"{lab}.jsonl", EvidenceLine)
    lines, deposits = {(line.result.experiment, *cell_of(line.result)): line for line in earlier}, dict[str, bytes]()

    def deposit(kind: str, path: Path) -> str:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        deposits[f"{kind}/{digest}"] = content
        return digest

    for line in (line for name in experiments for line in collect(name, root)):
        result = line.result
        run = root / "data" / "runs" / result.experiment / result.run_key / "weights.safetensors"
        if weights and run.is_file():
            deposit("weights", run)
        found = states.joinpath(result.run_key).glob("*.pt") if states else ()
        kept = {path.stem: deposit("states", path) for path in sorted(found)} or None
        contributed = replace(line, origin=replace(line.origin, lab=lab), states=kept)
        cell = (result.experiment, *cell_of(result))
        if cell not in lines or lines[cell].result != result:
            lines[cell] = contributed
    content = write_lines(lines.values())
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(EVIDENCE, content)
        if key:
            packed.writestr(SIGNATURE, ssh_keygen("sign", "-f", str(key), given=content))
        for name, deposited in deposits.items():
            packed.writestr(name, deposited)
    return len(lines)


def _refuse_name(lab: str) -> None:
    if not _LAB.fullmatch(lab):
        raise ContributionError(f"{lab!r} is no name of a lab: use small letters, digits and hyphens, as in uni-oslo")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The file that `accept` wrote, its lines, and everything that was checked."""

    path: Path
    lines: int
    new: int
    trails: tuple[Trail, ...]
    notes: tuple[str, ...]


def accept(root: Path, params: Params, file: Path, lab: str, *, key: Path | None, epochs: int, device: str) -> Accepted:
    """Check a contribution of `lab`, train `epochs` random epochs of it again, and add its lines to the evidence.

    `key`: the lab's public key, which is kept; needed once.

    Raises:
        ContributionError: a check failed; nothing was added.
    """
    _refuse_name(lab)
    path, known = root / LAB_FILES / f"{lab}.jsonl", root / LAB_FILES / f"{lab}.pub"
    if key and known.is_file() and known.read_bytes() != key.read_bytes():
        raise ContributionError(
            f"{lab} signs with another key: {known}; delete that if {lab} says that it has a new one"
        )
    try:
        with zipfile.ZipFile(file) as packed, tempfile.TemporaryDirectory() as folder:
            if packed.getinfo(EVIDENCE).file_size > _LARGEST:
                raise ContributionError(f"{file}: {EVIDENCE} is larger than {_LARGEST:,} bytes")
            content = packed.read(EVIDENCE)
            signature = packed.read(SIGNATURE) if SIGNATURE in packed.namelist() else None
            signed = check_signature(lab, content, signature, key or known)
            if signed.status == "broken":
                raise ContributionError(f"refused: {signed.detail}")
            offered = Path(folder, path.name)
            offered.write_bytes(content)
            lines, before = read_lines(offered, EvidenceLine), read_lines(path, EvidenceLine)
            whole = _check_whole(lines, before, lab)
            checked = check_lines(root, params, offered) if whole.status == "holds" else []
            if len(checked) < len(lines) and whole.status == "holds":
                whole = Link("lab", "broken", "some of its lines have a profile that params.yaml doesn't have")
            trails = [Trail(f"the file of {lab}", (signed, whole))]
            trails += [Trail(trial.name, (*links, *_check_deposits(root, trial, packed))) for trial, links in checked]
            notes = []
            if epochs and not any(trail.broken for trail in trails):
                again, note = _train_again(root, [trial for trial, _ in checked], packed, epochs, device)
                trails, notes = [*trails, *again], [note]
    except (zipfile.BadZipFile, KeyError) as error:
        raise ContributionError(f"{file} is no file of claimcheck contribute: {error}") from None
    except (EvidenceError, RecordError) as error:
        raise ContributionError(f"refused: {str(error).replace(f'{folder}/', '')}") from None
    if broken := [f"{trail.checkpoint}: {link.name}: {link.detail}" for trail in trails if (link := trail.broken)]:
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise ContributionError(f"refused: {'; '.join(broken[:3])}{more}")
    for target, written in ((path.with_suffix(".jsonl.sig"), signature), (known, key and key.read_bytes())):
        if written:
            write_atomically(target, written)
    write_atomically(path, content)
    return Accepted(path=path, lines=len(lines), new=len(lines) - len(before), trails=tuple(trails), notes=tuple(notes))


def _check_whole(lines: Sequence[EvidenceLine], before: Sequence[EvidenceLine], lab: str) -> Link:
    """Check that the lines are the lab's own, and that none is missing that was accepted before."""
    if other := {line.origin.lab or "this project" for line in lines} - {lab}:
        return Link("lab", "broken", f"it has results of {', '.join(sorted(other))}")
    if any(line.release for line in lines):
        return Link("lab", "broken", "it has released models, and only this project releases models")
    if missing := {line.digest for line in before} - {line.digest for line in lines}:
        return Link(
            "lab", "broken", f"it lacks {len(missing)} lines of {lab} that were accepted earlier, or changes them"
        )
    return Link("lab", "holds", f"{len(lines)} lines of {lab}")


def _check_deposits(root: Path, trial: Trial, packed: zipfile.ZipFile) -> Iterator[Link]:
    """Check deposited weights: their digest, whose they are, and what they score on the packed test set."""
    line, held = trial.result, root / "data" / "processed" / trial.result.data.dataset
    name = f"weights/{line.weights_sha256}"
    if name not in packed.namelist():
        return
    content = packed.read(name)
    if hashlib.sha256(content).hexdigest() != line.weights_sha256:
        yield Link("weights", "broken", "the deposited weights have another sha256")
        return
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as weights:
        try:
            contract = read_contract(content, name)
            if (contract.run_key, vars(contract.model)) != (line.run_key, line.spec["model"]):
                yield Link("weights", "broken", "the deposited weights are those of another run")
                return
            if read_info(held).digest != line.data.digest:
                raise PackedDataError(f"{held.name} is packed from other data here")
            weights.write(content)
            weights.flush()
            faults = list(compare(line, recompute(Path(weights.name), held, line)))
        except CheckpointError as error:
            yield Link("weights", "broken", str(error))
        except PackedDataError as error:
            yield Link("weights", "not here", str(error))
        else:
            yield Link("weights", "broken" if faults else "holds", "; ".join(faults) or "they give the line's metrics")


def list_epochs(trials: Sequence[Trial], deposited: Sequence[str]) -> list[tuple[Trial, int]]:
    """List every epoch that can be trained again: the first one, and those after a deposited state."""
    return [
        (trial, epoch)
        for trial in trials
        for epoch in range(len(trial.result.curves))
        if epoch == 0 or f"states/{trial.states.get(str(epoch))}" in deposited
    ]


def chance_of_passing(epochs: int, false: int, drawn: int) -> float:
    """The chance that none of `drawn` random epochs is one of the `false` ones."""
    return comb(epochs - false, drawn) / comb(epochs, drawn)


def _train_again(
    root: Path, trials: Sequence[Trial], packed: zipfile.ZipFile, wanted: int, device: str
) -> tuple[list[Trail], str]:
    """Train random epochs again; also a note with the chance that invented ones are not found."""
    possible = list_epochs(trials, packed.namelist())
    drawn = random.SystemRandom().sample(possible, min(wanted, len(possible)))
    found = [Trail(trial.name, (_train_epoch(root, trial, epoch, packed, device),)) for trial, epoch in drawn]
    every = sum(len(trial.result.curves) for trial in trials)
    chances = ", ".join(
        f"{false} with {chance_of_passing(len(possible), false, len(drawn)):.0%}"
        for false in sorted({1, -(-len(possible) // 10), len(possible)})
    )
    return found, (
        f"{len(drawn)} of {len(possible)} epochs trained again ({every - len(possible)} more have no deposited state); "
        f"chance that a file passes, by the number of false ones among them: {chances}"
    )


class _Differs(Exception):
    """An epoch that was trained again gave something else, or can't be trained; the message says what."""


def _train_epoch(root: Path, trial: Trial, epoch: int, packed: zipfile.ZipFile, device: str) -> Link:
    try:
        return Link("retrained", "holds", _compare_epoch(root, trial, epoch, packed, device))
    except (_Differs, PackedDataError) as error:
        return Link("retrained", "broken", f"epoch {epoch + 1}: {error}")


def _compare_epoch(root: Path, trial: Trial, epoch: int, packed: zipfile.ZipFile, device: str) -> str:
    """Train one epoch again; compare its row, and its weights with the deposited state or weights after it.

    Raises:
        _Differs, PackedDataError: they are others, or the epoch can't be trained here.
    """
    from safetensors.torch import load  # brings torch

    from stages.training.retraining import read_deposit, retrain_epoch

    line, held = trial.result, root / "data" / "processed" / trial.result.data.dataset

    def deposit(after: int) -> TrainingState | None:
        name = f"states/{trial.states.get(str(after))}"
        if name not in packed.namelist():
            return None
        content = packed.read(name)
        try:
            state = read_deposit(content, line.run_key)
        except Exception as error:  # noqa: BLE001  (torch.load raises almost anything on what it can't read)
            raise _Differs(f"the state after epoch {after} can't be read: {error}") from None
        if hashlib.sha256(content).hexdigest() != trial.states[str(after)] or state.epoch != after:
            raise _Differs(f"the state after epoch {after} is another one")
        if not _has_rows(line.curves[:after], state.history, 0.0):
            raise _Differs(f"the state after epoch {after} has another history than the curves")
        return state

    changed = changed_modules(line.spec)
    if changed and not read_equivalences(root).today(line.spec, line.environment):
        raise _Differs(f"{', '.join(changed)} changed since it was trained; accept it in a clone of that revision")
    if read_info(held).digest != line.data.digest:
        raise _Differs(f"{held.name} is packed from other data here")
    state, following = deposit(epoch) if epoch else None, deposit(epoch + 1)
    threads = int(line.environment.get("threads", 1))
    again = retrain_epoch(RunSpec.from_dict(dict(line.spec)), held, pick_device(device), threads, state)
    if again is None:
        raise _Differs("trained again, its loss diverges")
    theirs, own = line.environment, again.environment
    is_alike = (
        all(own[name] == theirs.get(name) for name in _SAME_KIND)
        and own["process"]["fast_paths"] == theirs.get("process", {}).get("fast_paths")
        and not {"stacked", "data_parallel"} & theirs.keys()
    )
    how = "bit for bit" if is_alike else f"within {ELSEWHERE:.0%}, on another kind of device"
    if not _has_rows([line.curves[epoch]], [again.row], 0.0 if is_alike else ELSEWHERE):
        raise _Differs(f"trained again from the state before it, its row of the curves is another one ({how})")
    name = f"weights/{line.weights_sha256}"
    after = following.model if following else None
    if epoch + 1 == len(line.curves) and name in packed.namelist():
        after = load(packed.read(name))
    if (
        is_alike
        and after
        and any(not after[name].equal(one.cpu()) for name, one in again.weights.items() if name in after)
    ):
        raise _Differs("trained again, it ends in other weights than the deposited ones")
    return f"epoch {epoch + 1} gives its row {how}"


def _has_rows(rows: Sequence[EpochRow], trained: Sequence[dict[str, float]], slack: float) -> bool:
    """True if the rows of the curves are those of a training, to eight digits or within `slack`."""

    def agree(name: str, stored: float | None, again: float | None) -> bool:
        if is_near(stored, again) or stored is None or again is None:
            return is_near(stored, again)
        return isclose(stored, again, rel_tol=0 if name.endswith("accuracy") else slack, abs_tol=slack)

    return len(rows) == len(trained) and all(
        agree(field.name, getattr(row, field.name), other.get(field.name))
        for row, other in zip(rows, trained, strict=True)
        for field in fields(EpochRow)
    )
