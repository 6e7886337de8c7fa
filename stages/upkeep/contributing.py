"""Evidence of other labs, which `claimcheck contribute` packs, and `claimcheck accept` checks and adds.

A contribution is a zip file.  `evidence.jsonl` has the lab's lines, `evidence.jsonl.sig` their signature by ssh-keygen.
Weights, and states after some epochs, are named by their sha256, which the lines contain.  The accepted lines become
`data/evidence/labs/<lab>.jsonl`, byte for byte as they were signed.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.checkpoint.contract import CheckpointError, read_contract
from stages.datasets.packed import PackedDataError, read_info
from stages.device import pick_device
from stages.params.experiment import Params
from stages.recording.sources import RecordError
from stages.run import RunSpec
from stages.runs.evidence import EvidenceError, EvidenceLine, ResultLine, Trial, read_lines, write_lines
from stages.runs.store import write_atomically
from stages.training.protocol import stops_early
from stages.upkeep.publishing import cell_of, collect
from stages.upkeep.retraining import (
    ContributionError,
    Retraining,
    compare_metrics,
    gives_metrics,
    last_state,
    read_member,
)
from stages.upkeep.verifying import LAB_FILES, Link, Trail, check_lines, check_signature, ssh_keygen

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
                trails, notes = [*trails, *unseen], [*notes, _describe_unseen(unseen)]
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


def _describe_unseen(unseen: Sequence[Trail]) -> str:
    said = defaultdict[str, list[str]](list)
    for trail in unseen:
        said[trail.links[0].detail].append(trail.checkpoint)
    return "\n".join(f"{detail}: {', '.join(names)}" for detail, names in said.items())
