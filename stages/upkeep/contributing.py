"""Evidence of other labs, which `claimcheck contribute` packs, and `claimcheck accept` checks and adds.

A contribution is a zip file.  `evidence.jsonl` has the lab's lines, `evidence.jsonl.sig` their signature by ssh-keygen.
Weights, and states after some epochs, are named by their sha256, which the lines contain.  The accepted lines become
`data/evidence/labs/<lab>.jsonl`, byte for byte as they were signed.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from stages.checkpoint.contract import CheckpointError, read_contract
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
from stages.training.loop import Progress, TrainingState, TrainingStopped
from stages.training.options import with_options
from stages.training.process import describe_environment, describe_fast_paths
from stages.training.recipe import with_recipe
from stages.training.session import open_session
from stages.training.tasks import with_task
from stages.upkeep.publishing import cell_of, collect
from stages.upkeep.verifying import LAB_FILES, Link, Trail, check_lines, check_signature, compare, recompute, ssh_keygen

EVIDENCE, SIGNATURE = "evidence.jsonl", "evidence.jsonl.sig"
MOST_BYTES = 1 << 30
_LAB = re.compile(r"[a-z][a-z0-9-]{1,39}")
_SAME_KIND = ("torch", "device", "device_name", "cpu_capability", "cuda")
"""Fields of an environment that are equal on machines that give the same bits."""
ELSEWHERE = 0.05
"""Largest relative difference of a loss, and absolute difference of an accuracy, on another kind of device.

The first epochs of 27 of DAC's trainings differ by at most 0.006 between two kinds of processor.
"""


class ContributionError(Mistake, ValueError):
    """A contribution can't be packed, or is refused; the message gives the reasons."""


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
    path, note = _path_of(root, lab), ""
    known = path.with_suffix(".pub")
    if key and known.is_file() and known.read_bytes() != key.read_bytes():
        raise ContributionError(f"{lab} signs with another key: {known}; delete it if {lab} says that it has a new one")
    try:
        with zipfile.ZipFile(file) as packed, tempfile.TemporaryDirectory() as folder:
            content = _read(packed, EVIDENCE)
            signature = _read(packed, SIGNATURE) if SIGNATURE in packed.namelist() else None
            signed, offered = check_signature(lab, content, signature, key or known), Path(folder, path.name)
            offered.write_bytes(content)
            if signed.status == "broken":
                raise ContributionError(f"refused: {signed.detail}")
            lines, before = read_lines(offered, EvidenceLine), read_lines(path, EvidenceLine)
            whole = _check_whole(lines, before, lab)
            checked = check_lines(root, params, offered) if whole.status == "holds" else []
            if whole.status == "holds" and len(checked) < len(lines):
                whole = Link("lab", "broken", "some of its lines have a profile that params.yaml doesn't have")
            trails = [Trail(f"the file of {lab}", (signed, whole))]
            trails += [Trail(trial.name, links) for trial, links in checked]
            if not any(trail.broken for trail in trails):  # first, because loading weights runs the line's model
                trails += [Trail(trial.name, tuple(_check_weights(root, trial, packed))) for trial, _ in checked]
            if epochs and not any(trail.broken for trail in trails):
                again, note = _train_again(root, [trial for trial, _ in checked], packed, epochs, device)
                trails += again
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
    return len(lines), len(lines) - len(before), trails, note


def _read(packed: zipfile.ZipFile, name: str) -> bytes:
    """Read a member of an untrusted file, which may be damaged, or far larger than it looks."""
    try:
        if packed.getinfo(name).file_size > MOST_BYTES:
            raise ContributionError(f"refused: {name} is larger than {MOST_BYTES:,} bytes")
        return packed.read(name)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise ContributionError(f"refused: {name} can't be read ({error})") from None


def _check_whole(lines: Sequence[EvidenceLine], before: Sequence[EvidenceLine], lab: str) -> Link:
    """Check that the lines are the lab's own, and that all lines that were accepted earlier are among them."""
    if other := {line.origin.lab or "this project" for line in lines} - {lab}:
        return Link("lab", "broken", f"it has results of {', '.join(sorted(other))}")
    if any(line.release for line in lines):
        return Link("lab", "broken", "it has released models, and only this project releases models")
    if missing := {line.digest for line in before} - {line.digest for line in lines}:
        return Link("lab", "broken", f"it lacks or changes {len(missing)} lines of {lab} that were accepted earlier")
    return Link("lab", "holds", f"{len(lines)} lines of {lab}")


def _check_weights(root: Path, trial: Trial, packed: zipfile.ZipFile) -> Iterator[Link]:
    """Check deposited weights: their digest, their run, and their scores on the packed test set."""
    line, held = trial.result, root / "data" / "processed" / trial.result.data.dataset
    name = f"weights/{line.weights_sha256}"
    if name not in packed.namelist():
        return
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as weights:
        weights.write(content := _read(packed, name))
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
                faults = list(compare(line, recompute(Path(weights.name), held, line)))
            yield Link.of("weights", faults, "they give the line's metrics")
        except CheckpointError as error:
            yield Link("weights", "broken", str(error))
        except PackedDataError as error:
            yield Link("weights", "not here", str(error))


def chance_of_passing(epochs: int, false: int, drawn: int) -> float:
    """Return the chance that none of `drawn` random epochs is one of the `false` ones."""
    return comb(epochs - false, drawn) / comb(epochs, drawn)


def _train_again(
    root: Path, trials: Sequence[Trial], packed: zipfile.ZipFile, wanted: int, device: str
) -> tuple[list[Trail], str]:
    """Train random epochs again; also return a note with the chance that false ones aren't found."""
    epochs = [(trial, epoch) for trial in trials for epoch in range(len(trial.result.curves))]
    kept, found = {None, *packed.namelist()}, list[Trail]()
    possible = [one for one in epochs if (f"states/{one[0].states.get(str(one[1]))}" if one[1] else None) in kept]
    drawn = random.SystemRandom().sample(possible, min(wanted, len(possible)))
    for trial, epoch in drawn:
        try:
            link = Link("retrained", "holds", _compare_epoch(root, trial, epoch, packed, device))
        except (_Differs, PackedDataError, KeyError, RuntimeError, TypeError, ValueError) as error:
            link = Link("retrained", "broken", f"epoch {epoch + 1}: {error}")
        found.append(Trail(trial.name, (link,)))
    chances = ", ".join(
        f"{false} with {chance_of_passing(len(possible), false, len(drawn)):.0%}"
        for false in sorted({min(1, len(possible)), -(-len(possible) // 10), len(possible)})
    )
    return found, (
        f"{len(drawn)} of {len(possible)} epochs trained again ({len(epochs) - len(possible)} more have no deposited "
        f"state); chance that a file passes, by the number of false ones among them: {chances}"
    )


class _Differs(Exception):
    """An epoch that was trained again gave another result, or can't be trained; the message gives details."""


def _compare_epoch(root: Path, trial: Trial, epoch: int, packed: zipfile.ZipFile, device: str) -> str:
    """Train one epoch again; compare its row, and its weights with the deposited state or weights after it.

    Raises:
        _Differs: they differ.
    """
    line, theirs = trial.result, trial.result.environment
    held = root / "data" / "processed" / line.data.dataset
    if read_info(held).digest != line.data.digest:
        raise _Differs(f"{held.name} is packed from other data here")
    state, following = (_read_state(trial, after, packed) if after else None for after in (epoch, epoch + 1))
    after = following.model if following else None
    again = _train_epoch(line, held, pick_device(device), state)
    if len(again.history) != epoch + 1 or again.model is None:
        raise _Differs("trained again, its loss diverges")
    here = describe_environment(pick_device(device))
    is_alike = (
        all(here[name] == theirs.get(name) for name in _SAME_KIND)
        and describe_fast_paths(TAKEN) == theirs.get("process", {}).get("fast_paths")
        and not {"stacked", "data_parallel"} & theirs.keys()
    )
    how = "bit for bit" if is_alike else f"within {ELSEWHERE:.0%}, on another kind of device"
    if not _has_rows([line.curves[epoch]], again.history[-1:], 0.0 if is_alike else ELSEWHERE):
        raise _Differs(f"trained again from the state before it, its row of the curves differs ({how})")
    name = f"weights/{line.weights_sha256}"
    if epoch + 1 == len(line.curves) and name in packed.namelist():
        after = load(_read(packed, name))
    pairs = [(after[name], one.cpu()) for name, one in again.model.items() if name in after] if after else []
    if is_alike and not all(deposited.equal(trained) for deposited, trained in pairs):
        raise _Differs("trained again, it ends in other weights than the deposited ones")
    return f"epoch {epoch + 1} gives its row {how}"


def _read_state(trial: Trial, after: int, packed: zipfile.ZipFile) -> TrainingState | None:
    """Read the state after `after` epochs, None if it wasn't deposited; its history must be that of the curves."""
    digest = trial.states.get(str(after))
    if f"states/{digest}" not in packed.namelist():
        return None
    content = _read(packed, f"states/{digest}")
    try:  # the first 32 bytes are a digest of the rest
        saved = torch.load(io.BytesIO(content[32:]), weights_only=True, map_location="cpu")
        state = TrainingState(**saved["state"])
    except Exception as error:  # noqa: BLE001  (torch.load raises almost anything on a damaged file)
        raise _Differs(f"the state after epoch {after} can't be read: {error}") from None
    is_named = hashlib.sha256(content).hexdigest() == digest
    if not is_named or (saved["run_key"], state.epoch) != (trial.result.run_key, after):
        raise _Differs(f"the state after epoch {after} is another one")
    if not _has_rows(trial.result.curves[:after], state.history, 0.0):
        raise _Differs(f"the state after epoch {after} has another history than the curves")
    return state


def _train_epoch(line: ResultLine, data: Path, device: torch.device, state: TrainingState | None) -> TrainingState:
    """Train the epoch after `state`, or the first one; return the last state, whose history lacks a diverged epoch."""
    passed, states, threads = [0], list[TrainingState](), torch.get_num_threads()
    end = 1 + (state.epoch if state else 0)  # taken now, because training changes the state itself

    def progress(now: Progress) -> None:
        passed.append(now.step // (now.total_steps // now.epochs))

    torch.set_num_threads(int(line.environment.get("threads", 1)))
    TAKEN.clear()
    try:
        session = open_session(spec := RunSpec.from_dict(dict(line.spec)), data, read_info(data), device)
        if spec.task is not None:
            session = with_task(session, data, read_info(data), 1)
        if spec.protocol.recipe is not None:
            session = with_recipe(session, 1)
        if spec.protocol.has_options:
            session = with_options(session, 1)
        session.train(state=state, save=states.append, progress=progress, should_stop=lambda: passed[-1] >= end)
    except TrainingStopped:
        pass
    finally:
        torch.set_num_threads(threads)
    return states[-1] if states else TrainingState()


def _has_rows(rows: Sequence[EpochRow], trained: Sequence[dict[str, Any]], slack: float) -> bool:
    """Return True if the rows equal those of a training to eight digits, or their scores are within `slack`."""
    return len(rows) == len(trained) and all(
        np.allclose(
            np.array([getattr(row, name) for row in rows], float),
            np.array([row.get(name) for row in trained], float),
            rtol=1e-7 + slack * name.endswith("loss"),
            atol=slack * name.endswith("accuracy"),
            equal_nan=True,
        )
        for name in COLUMNS
    )
