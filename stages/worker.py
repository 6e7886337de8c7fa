"""Trains a run from its spec to a sealed outcome; needs only torch, numpy and safetensors, no DVC, YAML, SQL or schema.

Engines import this module by name, so that a parent with nothing to train never loads torch.  Packed data come from a
folder of this machine, and resume states from the store's scratch.  The caller, which holds the lease, publishes the
outcome.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.checkpoint.contract import InputContract
from stages.checkpoint.predictor import dump_checkpoint
from stages.datasets.packed import PackedInfo, read_info
from stages.device import devices_of, keep_freed_memory, pick_device
from stages.evaluation.flops import FlopCounts
from stages.ops.fast.cpp import TAKEN, keep_compiled_steps_apart
from stages.run import RunSpec, canonical_json, environment_digest, steps_per_epoch, training_counts
from stages.runs.fingerprint import is_pinned, unlike_loaded
from stages.runs.store import Scratch, remember, seal, stack_id
from stages.training.canary import STEPS, Canary, canary_of
from stages.training.loop import Outcome, Progress, TrainingState, TrainingStopped
from stages.training.opening import find_divergence, open_training, refuse_unfit
from stages.training.parallel import Rank, agreed, describe_ranks, from_first, highest, joined, run_together, share
from stages.training.process import (
    describe_environment,
    describe_fast_paths,
    describe_process,
    peak_memory_bytes,
    reset_peak_memory,
)
from stages.training.resuming import EnergyMeter, ResumeState, energy_joules, first_line, sum_known
from stages.training.session import flushing_denormals, plain_network, task_of
from stages.training.stacked import StackState, code_of_stack, fit_stack, mode_of, stack_class
from stages.training.tables import Regression
from stages.training.tf32 import describe_products

__all__ = ["Job", "Trained", "TrainingStopped", "can_stack", "count_flops", "train_run", "train_stack"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to train: its spec, the folder with its packed data, and its device."""

    spec: RunSpec
    data: Path
    device: str


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Sealed outcomes as contents by file name, by run key; `work` is the scratch to drop when all are published."""

    outcomes: Mapping[str, Mapping[str, bytes]]
    work: str


def train_run(
    job: Job,
    scratch: Scratch,
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train `job.spec`, or resume an interrupted attempt; several devices (`cuda:0+cuda:1`) have a process each.

    Raises:
        RankLost: one of several processes was killed.
        ValueError: the packed data are not those of the spec, or several devices would change its numbers.
        TrainingStopped: it was asked to stop; the resume state is saved.
    """
    devices = devices_of(job.device)
    if len(devices) > 1:
        trained: Trained = run_together(
            partial(_train_share, job, scratch), devices, tell=progress, should_stop=should_stop
        )
        return trained
    ready = _PreparedTraining(job, scratch, devices, should_stop)
    outcome = ready.session.train(
        state=ready.resume.load(), save=ready.resume.save, progress=progress, should_stop=should_stop
    )
    return ready.close(outcome, peak_memory_bytes(ready.device))


def _train_share(
    job: Job, scratch: Scratch, rank: Rank, tell: Callable[[Progress], None], should_stop: Callable[[], bool]
) -> Trained | None:
    """Train `job.spec` as one of several ranks; only rank 0 saves states, reports, and returns the outcome."""
    job = dataclasses.replace(job, device=rank.device)
    with joined(rank.number, rank.size, pick_device(rank.device), rank.port):
        ready = _PreparedTraining(job, scratch, rank.devices, should_stop)
        is_first = rank.number == 0
        outcome = share(ready.session).train(
            state=from_first(ready.resume.load() if is_first else None),
            save=ready.resume.save if is_first else lambda state: None,
            progress=tell if is_first else lambda progress: None,
            should_stop=agreed(should_stop),
        )
        peak = peak_memory_bytes(ready.device)
        if outcome.divergence is None:  # only rank 0 notices a divergence
            peak = highest(peak)
        return ready.close(outcome, peak) if is_first else None


class _PreparedTraining:
    """A training that is ready to start or resume on its device, which is one of the `devices` that share it."""

    def __init__(self, job: Job, scratch: Scratch, devices: Sequence[str], should_stop: Callable[[], bool]) -> None:
        self.job = job
        self.info, self.device, self.environment = _prepare(job)
        self._stamp = stamp_of(job.data)
        if job.spec.model.is_imported:
            refuse_unfit(job.spec.model, self.info, has_task=job.spec.task is not None)
        self.session = open_training(job.spec, job.data, self.info, self.device, devices=len(devices))
        _refuse_other_code(job)
        _refuse_unkeyed_layers(job, self.session.model)
        if len(devices) > 1:
            self.environment |= describe_ranks(len(devices), self.device, job.spec.protocol)
        self._energy = EnergyMeter(lambda: sum_known(energy_joules(torch.device(name)) for name in devices))
        self.resume = ResumeState(
            scratch=scratch,
            work=job.spec.run_key,
            kind=TrainingState,
            environment=environment_digest(self.environment),
            epochs=job.spec.protocol.epochs,
            energy=self._energy,
            should_stop=should_stop,
        )
        self._started = time.monotonic()

    def close(self, outcome: Outcome, peak_memory: int) -> Trained:
        """Return the sealed outcome."""
        spent = _Spent(time.monotonic() - self._started, self._energy.used(), peak_memory)
        _refuse_changed_data(self.job, self._stamp)
        environment = _with_fast_paths(self.environment, TAKEN)
        files = _sealed_files(self.job, self.info, self.session.model, outcome, environment, spent)
        return Trained(outcomes={self.job.spec.run_key: files}, work=self.job.spec.run_key)


def _refuse_other_code(job: Job) -> None:
    """Refuse to publish if this process loaded other code than the run's key names.

    Raises:
        ValueError: it did.
    """
    unlike = unlike_loaded(job.spec.code)
    if unlike:
        raise ValueError(
            f"run {job.spec.run_key[:12]} asks for other code than this process has loaded ({', '.join(unlike)}), "
            "because it was edited meanwhile: nothing is published, and the next dvc repro trains it"
        )


def _refuse_unkeyed_layers(job: Job, model: nn.Module) -> None:
    """Refuse a layer that static imports don't show, for example because its module is imported by name.

    Raises:
        ValueError: a layer from outside the pinned packages isn't in the run's key.
    """
    found = {type(layer).__module__ for layer in model.modules()}
    unkeyed = sorted(
        name for name in found - job.spec.code.keys() if not name.startswith("stages.") and not is_pinned(name)
    )
    if unkeyed:
        raise ValueError(
            f"run {job.spec.run_key[:12]} has layers of {', '.join(unkeyed)}, which its key doesn't cover: import "
            "that module by an import statement in the model's module"
        )


def _refuse_changed_data(job: Job, stamp: dict[str, tuple[int, int]]) -> None:
    """Refuse packed data that changed between the start and the end of a training.

    Raises:
        ValueError: their stamp has changed.
    """
    if stamp_of(job.data) != stamp:
        key = job.spec.run_key[:12]
        raise ValueError(f"{job.data} changed while run {key} trained; nothing is published, run dvc repro")


def stamp_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and last change of each file."""
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


def count_flops(spec: RunSpec, data: Path, kept: Path) -> None:
    """Count the operations of a run and save them in the file `kept`, because a training has already loaded torch."""
    info, counts = read_info(data), FlopCounts(kept)
    counts.count(spec.model, info.shape, info.vocabulary)
    counts.save()


def can_stack(device: str) -> bool:
    """Return True if a stack is faster on this device, because it can be compiled; several devices share no stack."""
    return len(devices_of(device)) == 1 and _compiles(pick_device(device))


@cache
def _compiles(device: torch.device) -> bool:
    """Try once to compile, because Inductor needs its compiler and Python's headers."""
    keep_compiled_steps_apart()
    try:
        tried = torch.compile(lambda x: (x.sin() + 1).sum(), mode=mode_of(device))
        for _ in range(3):  # a graph is recorded in the second call
            tried(torch.zeros(8, device=device, requires_grad=True)).backward()
    except Exception as error:  # noqa: BLE001  (whatever the error, the networks can be trained without compiling)
        reason = first_line(error)
        print(f"torch.compile fails here, so networks are trained one by one: {reason}", file=sys.stderr)
        return False
    return True


def train_stack(
    jobs: Sequence[Job],
    scratch: Scratch,
    *,
    published: Collection[str] = (),
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train runs of one network as one stacked model (`stages.training.stacked`), each sealed as by `train_run`.

    `published` has run keys that already have an outcome; they train, too, only if a state of all can be resumed.

    Raises:
        ValueError: the packed data are not those of the specs.
        TrainingStopped: it was asked to stop; the state at the end of an earlier epoch is saved, if there was one.
    """
    job, specs = jobs[0], [job.spec for job in jobs]
    protocol = job.spec.protocol
    info, device, environment = _prepare(job, is_stacked=True)
    stamp = stamp_of(job.data)
    environment |= {"stacked": code_of_stack(job.spec.model)}
    energy = EnergyMeter(lambda: energy_joules(device))
    remember(specs, scratch)
    resume = ResumeState(
        scratch=scratch,
        work=stack_id(specs),
        kind=StackState,
        environment=environment_digest(environment),
        epochs=protocol.epochs,
        energy=energy,
        should_stop=should_stop,
    )
    state = resume.load()
    missing = [one for one in jobs if one.spec.run_key not in published]
    if state is None and len(missing) < len(jobs):
        scratch.drop(stack_id(specs))
        return train_stack(missing, scratch, progress=progress, should_stop=should_stop)
    task = task_of(job.spec, job.data, info, "train", device)
    assert isinstance(task, Regression), "only networks of tables are stacked"
    test = task_of(job.spec, job.data, info, "test", device) if protocol.observe_test else None
    assert test is None or isinstance(test, Regression), "as its training rows"
    networks = [plain_network(spec, device) for spec in specs]
    for one in jobs:
        _refuse_other_code(one)
    with flushing_denormals():
        stacked = fit_stack(
            networks,
            stack_class(job.spec.model),
            task,
            protocol,
            [spec.replicate for spec in specs],
            is_compiled=True,
            test=test,
            state=state,
            save=resume.save,
            progress=progress,
            should_stop=should_stop,
        )
    used, peak = energy.used(), peak_memory_bytes(device)
    environment = _with_fast_paths(environment, TAKEN)
    _refuse_changed_data(job, stamp)
    outcomes = {}
    for one, network, (outcome, seconds) in zip(jobs, networks, stacked, strict=True):
        spent = _Spent(seconds, None if used is None else used / len(jobs), peak)
        outcomes[one.spec.run_key] = _sealed_files(one, info, network, outcome, environment, spent)
    return Trained(outcomes=outcomes, work=stack_id(specs))


def _prepare(job: Job, *, is_stacked: bool = False) -> tuple[PackedInfo, torch.device, dict[str, Any]]:
    """Check the packed data and the device, set up memory, and describe the environment with its canary."""
    info = read_info(job.data)
    if info.digest != job.spec.data_digest:
        raise ValueError(
            f"{job.data}: packed data have digest {info.digest[:12]}, the run asks for {job.spec.data_digest[:12]}"
        )
    device = pick_device(job.device)
    keep_freed_memory()
    keep_compiled_steps_apart()
    rows, _ = training_counts(info.train_images, job.spec.protocol, job.spec.replicate)
    is_short = job.spec.protocol.epochs * steps_per_epoch(rows, job.spec.protocol) < STEPS
    if is_short:
        canary = Canary("", "none, because the training has fewer steps", frozenset())
    else:
        canary = canary_of(job.spec, info, device, is_stacked=is_stacked)
    process = describe_process(job.spec.code) | {"canary": canary.described()}
    environment = describe_environment(device) | describe_products(job.spec.protocol, device) | {"process": process}
    if packages := {name: version for name, version in job.spec.code.items() if "==" in version}:
        environment["packages"] = packages  # those installed, or the run is refused
    TAKEN.clear()
    if not (is_short and info.provenance == "embedded"):  # a reset would take longer than a few steps
        reset_peak_memory(device)
    return info, device, _with_fast_paths(environment, canary.taken)


def _with_fast_paths(environment: dict[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the environment with the fast paths that were taken by its canary, or by the training."""
    return environment | {"process": environment["process"] | {"fast_paths": describe_fast_paths(taken)}}


@dataclass(frozen=True)
class _Spent:
    seconds: float
    energy_joules: float | None
    peak_memory_bytes: int


def _sealed_files(
    job: Job, info: PackedInfo, model: nn.Module, outcome: Outcome, environment: dict[str, Any], spent: _Spent
) -> dict[str, bytes]:
    divergence = find_divergence(outcome, model)
    train_seconds = sum(outcome.epoch_seconds) or spent.seconds
    result: dict[str, Any] = {
        "run_key": job.spec.run_key,
        "status": "finished" if divergence is None else "diverged",
        "divergence": divergence,
        "environment": environment,
        "environment_digest": environment_digest(environment),
        "epoch_seconds": outcome.epoch_seconds,
        "train_seconds": train_seconds,
        "samples_per_second": outcome.samples / train_seconds,
        "peak_memory_bytes": spent.peak_memory_bytes,
        "energy_joules": spent.energy_joules,
        "weights_sha256": None,
    }
    _refuse_other_code(job)
    # without numbers that JSON can't hold, as measured on a network with broken weights
    rows = [{name: value for name, value in row.items() if math.isfinite(value)} for row in outcome.history]
    files = {
        "spec.json": canonical_json(job.spec.to_dict()).encode(),
        "history.jsonl": "".join(f"{canonical_json(row)}\n" for row in rows).encode(),
    }
    known = {}
    if divergence is None:
        weights = files["weights.safetensors"] = dump_checkpoint(model, InputContract.of_run(job.spec, info))
        known["weights.safetensors"] = result["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    files["result.json"] = canonical_json(result).encode()
    return seal(files, known)
