"""Trains the runs that the store lacks, prints why, and links all outcomes into the experiment's folder.

Several experiments can train from one queue.  No device then idles at the end of each experiment, as it does under DVC,
which runs its stages one after another.

This module doesn't import torch, so an experiment whose runs are all in the store takes almost no time.
"""

from __future__ import annotations

import dataclasses
import filecmp
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stages.datasets.packed import PackedDataError, PackedInfo, read_info
from stages.params.experiment import ExperimentParams, Params, ParamsError, PlannedRun, describe_cut, plan_runs
from stages.params.schema import nearest
from stages.run import RunSpec, changed_parts
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.equivalence import Equivalences, is_of_one_cpu, read_equivalences
from stages.runs.fingerprint import imported_modules_of, training_code
from stages.runs.object_store import open_store
from stages.runs.store import (
    DamagedRunList,
    ListedRun,
    RunList,
    Store,
    find_fault,
    outcome_digest,
    read_run_list,
    write_atomically,
    write_run_list,
)
from stages.scheduling.groups import DEFAULT, Event, Group, Report, RunGroups, find_engine, form_groups
from stages.scheduling.journal import Journal

DATA = Path("data")
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
"""Device files, one of which exists if `auto` may be a GPU; asking torch would mean loading it."""
Order = Callable[[Sequence[PlannedRun], int], float]
"""Sort key of a group, given the runs of an experiment that train together and how many of them are stacked."""


def keyed_runs(
    experiment: ExperimentParams, params: Params, data_digest: str, *, every_role: bool = False
) -> list[PlannedRun]:
    """Plan the experiment's runs with data digest and code, in file order; `every_role`: also roles left out."""
    source = params.datasets[experiment.dataset]
    found = []
    for planned in plan_runs(experiment, params.profile, source, every_role=every_role):
        try:
            optimizer, others = planned.spec.protocol.optimizer.name, imported_modules_of(planned.spec.to_dict())
            code = training_code(source.kind, planned.spec.model.path, optimizer, *others)
        except ModuleNotFoundError as error:
            raise ParamsError(f"{experiment.name}.{planned.name.arm} can't be trained: {error}") from None
        spec = dataclasses.replace(planned.spec, data_digest=data_digest, code=code)
        found.append(PlannedRun(name=planned.name, spec=spec))
    return found


def train_experiment(
    name: str,
    params: Params,
    *,
    devices: list[str],
    report: Report,
    stop: threading.Event,
    only: Sequence[str] | None = None,
    engine: str = DEFAULT,
    order: Order | None = None,
) -> bool:
    """Bring `data/runs/<name>/` up to date; return True if every run has an outcome.

    `only` has patterns of `<arm>.<replicate>`, which may match arms whose role the profile leaves out; the folder then
    has only the matching runs.  `order` is a sort key: the group with the smallest number starts first.  Without it,
    groups start in file order.
    """
    run_groups, experiment, store = find_engine(engine), find_experiment(params, name), open_store(Path.cwd())
    found = compare(experiment, params, DATA.absolute(), store, only)  # a network may change the folder
    if order is not None and len(found.groups) > len(devices):
        found.groups.sort(key=lambda group: order(found.missing_of(group), group.stacked))
    wanted, held = found.wanted, len(found.wanted) - len(found.missing)
    queue = Queue(found.groups, {run.spec.run_key: run.name.label for run in wanted}, {name: held})
    complete = _run(run_groups, queue, store, params, devices, report, stop, engine)
    trained = [run for run in wanted if store.has(found.taken[run.spec.run_key])]
    if complete or (trained and not stop.is_set()):
        _write_folder(DATA / "runs" / name, experiment, params, found, store)
    print(f"{name}: {len(wanted)} runs, {held} from the store, {len(found.missing)} to train")
    if not complete and trained and not stop.is_set():
        print(
            f"{name}: {len(wanted) - len(trained)} runs failed; the next `dvc repro` trains only these.  To evaluate "
            f"the others now, run `claimcheck stage evaluate {name}`, then `claimcheck stage record`"
        )
    return complete


@dataclass(frozen=True)
class Queue:
    """Groups of runs to train, in the order in which they start.

    `names` has the label of each run (`<experiment>.<arm>.<replicate>`) by its key.  `held` counts the wanted runs of
    each experiment that already have an outcome.
    """

    groups: list[Group]
    names: dict[str, str]
    held: dict[str, int]


def _run(
    run_groups: RunGroups,
    queue: Queue,
    store: Store,
    params: Params,
    devices: Sequence[str],
    report: Report,
    stop: threading.Event,
    engine: str,
) -> bool:
    """Train the queue and keep a journal of it; return True if every group has an outcome."""
    journal = Journal(
        store,
        queue.groups,
        queue.names,
        held=queue.held,
        engine=engine,
        profile=params.profile_name,
        slots=len(devices),
    )

    def report_both(event: Event) -> None:
        report(event)
        journal.report(event)

    with journal:
        return run_groups(queue.groups, store, devices, report_both, stop)


def train_together(
    chosen: Mapping[str, Collection[str] | None],
    params: Params,
    *,
    devices: list[str],
    report: Report,
    stop: threading.Event,
    engine: str,
    order: Order,
) -> tuple[int, int]:
    """Train the runs of `chosen` that the store lacks; return how many were missing and how many still are.

    `chosen` has labels `<arm>.<replicate>` by experiment, or None for all runs of the profile.  The experiments'
    folders don't change, because `dvc repro` takes the outcomes from the store.

    Raises:
        EngineError, EvidenceError, ParamsError, TrainingsKilled: as in `train_experiment`.
        PackedDataError: some data aren't packed.
    """
    run_groups, store = find_engine(engine), open_store(Path.cwd())
    queue = line_up(chosen, params, DATA.absolute(), store, order)
    _run(run_groups, queue, store, params, devices, report, stop, engine)
    return len(queue.names), len(queue.names.keys() - {*store.run_keys()})


def line_up(
    chosen: Mapping[str, Collection[str] | None], params: Params, data: Path, store: Store, order: Order
) -> Queue:
    """Queue the missing groups of `chosen` (as in `train_together`) in `order`, with each run only once.

    Raises:
        EvidenceError, ParamsError: as in `train_experiment`.
        PackedDataError: some data aren't packed.
    """
    refuse_unpacked([find_experiment(params, name) for name in chosen], params, data)
    names, held, listed = dict[str, str](), dict[str, int](), [*store.run_keys()]
    ranked: list[tuple[float, Group]] = []
    for name, labels in chosen.items():
        print(f"{name}:")
        only = None if labels is None else sorted(labels)
        found = compare(find_experiment(params, name), params, data, store, only, listed)
        held[name] = len(found.wanted) - len(found.missing)
        for group in found.groups:
            runs = [run for run in found.missing_of(group) if run.spec.run_key not in names]
            names |= {run.spec.run_key: run.name.label for run in runs}
            if runs:
                ranked.append((order(runs, group.stacked), group))
    return Queue([group for _, group in sorted(ranked, key=lambda one: one[0])], names, held)


def refuse_unpacked(experiments: Iterable[ExperimentParams], params: Params, data: Path) -> None:
    """Check that all data sets of these experiments are packed as the profile requires.

    Raises:
        PackedDataError: some aren't; the message names them and the command that packs them.
    """
    lacking: dict[str, None] = {}
    for experiment in experiments:
        try:
            read_packed(experiment, params, data)
        except (PackedDataError, ParamsError):
            lacking[experiment.dataset] = None
    if lacking:
        wanted = {experiment.dataset for experiment in params.experiments.values()}
        targets = "preprocess" if lacking.keys() == wanted else " ".join(f"preprocess@{name}" for name in lacking)
        raise PackedDataError(
            f"{', '.join(lacking)}: not packed in data/processed as the profile {params.profile_name} wants them "
            f"({params.profile.data} data); `dvc repro {targets}` packs them"
        )


@dataclass(frozen=True, kw_only=True)
class MissingRuns:
    """An experiment's wanted runs, and those that the store lacks, also as groups.

    `taken` has the key of each run's outcome, which may be a key of older code.
    """

    wanted: list[PlannedRun]
    missing: list[PlannedRun]
    groups: list[Group]
    taken: Mapping[str, str]

    def missing_of(self, group: Group) -> list[PlannedRun]:
        return [run for run in self.missing if run.spec.run_key in group.run_keys]


def compare(
    experiment: ExperimentParams,
    params: Params,
    data: Path,
    store: Store,
    only: Sequence[str] | None = None,
    listed: Collection[str] | None = None,
) -> MissingRuns:
    """Find the experiment's runs (those matching `only`) that the store lacks, and print why each of them will train.

    `listed` has the keys of all outcomes, if the store was just asked for them.
    """
    name, folder, equivalences = experiment.name, data / "runs" / experiment.name, read_equivalences(data.parent)
    packed = read_packed(experiment, params, data)
    wanted = keyed_runs(experiment, params, packed.digest, every_role=only is not None)
    if only is not None:
        labels = [run.name.cell for run in wanted]
        if idle := [pattern for pattern in only if not any(fnmatchcase(label, pattern) for label in labels)]:
            raise ParamsError(f"{name}: no run matches {idle[0]!r}; there are {labels[0]} to {labels[-1]}")
        wanted = [run for run in wanted if any(fnmatchcase(run.name.cell, pattern) for pattern in only)]
    previous = previous_specs(folder)
    candidates = {run.spec.run_key: cached_keys(run.spec, equivalences) for run in wanted}
    keys = {cached.run_key for options in candidates.values() for cached in options}
    remove_damaged(folder, keys)
    stored = {*(store.run_keys() if listed is None else listed)}
    to_check = sorted(keys & stored)
    with ThreadPoolExecutor() as pool:  # in an object store, each check takes several requests
        stored -= {key for key, is_whole in zip(to_check, pool.map(store.whole, to_check), strict=True) if not is_whole}
    adopt(folder, store, stored)
    found = {run_key: find_outcome(store, options, stored) for run_key, options in candidates.items()}
    held = {run_key: cached for run_key, cached in found.items() if cached and equivalences.hold(cached.lines)}
    missing = []
    for run in wanted:
        if cached := held.get(run.spec.run_key):
            print(f"  {run.name.cell}: taken from the store ({cached.run_key[:12]}{cached.in_words()})")
        else:
            missing.append(run)
            before = previous.get(run.name.cell)
            changes = ["new"] if before is None else changed_parts(before, run.spec.to_dict())
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            why = f"{', '.join(changes[:3])}{more}" if changes else "its outcome is no longer in the store"
            print(f"  {run.name.cell}: to train, {why}")
    cells = {run.spec.run_key: run.name.cell for run in wanted}
    groups = []
    for specs, is_stack in form_groups([run.spec for run in missing], packed.train_images, store):
        # the arm with its replicates, or the first run and the number of others
        first, *others = labels = [cells[spec.run_key] for spec in specs if spec.run_key in cells]
        label = f"{first} and {len(others)} more"
        if len(arms := {one.rpartition(".")[0] for one in labels}) == 1:
            label = f"{arms.pop()}.{','.join(one.rpartition('.')[2] for one in labels)}"
        place = data / "processed" / experiment.dataset
        groups.append(Group(label=f"{name} {label}", specs=specs, data=place, is_stack=is_stack))
    taken = {key: held[key].run_key if key in held else key for key in candidates}
    return MissingRuns(wanted=wanted, missing=missing, groups=groups, taken=taken)


@dataclass(frozen=True)
class CachedKey:
    """A key under which a run's outcome may be stored: its own, or that of older code proven to give the same result.

    `lines` are the numbers of the equivalence lines that prove it.
    """

    run_key: str
    lines: tuple[int, ...] = ()
    is_stacked: bool | None = None

    def in_words(self) -> str:
        if not self.lines:
            return ""
        which = ", ".join(str(number) for number in self.lines)
        return f", of older code that gives the same by line {which} of {EQUIVALENCES.name}"


def cached_keys(spec: RunSpec, equivalences: Equivalences) -> list[CachedKey]:
    """List the run's own key, then the keys of older code, nearest first."""
    earlier = equivalences.earlier(spec.to_dict()) if equivalences else []
    older = (
        CachedKey(dataclasses.replace(spec, code=code).run_key, lines, is_stacked)
        for code, is_stacked, lines in earlier
    )
    return [CachedKey(spec.run_key), *older]


def find_outcome(store: Store, candidates: Sequence[CachedKey], stored: Container[str]) -> CachedKey | None:
    """Return the first candidate that is among the `stored` keys; None if there is none.

    An outcome of older code counts only if it was trained on a CPU, and stacked or not as its equivalence lines say.
    """
    for cached in candidates:
        if cached.run_key not in stored:
            continue
        if cached.is_stacked is None:
            return cached
        if folder := store.published(cached.run_key):
            with suppress(OSError, ValueError, KeyError):
                environment = json.loads((folder / "result.json").read_bytes())["environment"]
                if is_of_one_cpu(environment) and ("stacked" in environment) == cached.is_stacked:
                    return cached
    return None


class Outcomes:
    """Outcomes in the store of the clone at `root`, as listed when this is created."""

    def __init__(self, root: Path = Path()) -> None:
        self.store, self._equivalences = open_store(root), read_equivalences(root)
        self._stored = {*self.store.run_keys()}

    def find(self, spec: RunSpec) -> CachedKey | None:
        """Find the outcome of this training, or an equal one of older code; None if there is none."""
        return find_outcome(self.store, cached_keys(spec, self._equivalences), self._stored)


def slot_devices(named: str, params: Params, engine: str = DEFAULT) -> list[str]:
    """Return the device of each slot: the devices in a comma-separated list, or one device for all of its slots.

    The profile sets the number of slots.  If it doesn't, this machine's CPU has one per core, because two runs with one
    thread each are faster than one run with two (docs/decisions.md#0015).
    """
    devices = named.split(",")
    if len(devices) > 1:
        return devices
    is_cpu = named == "cpu" or (named == "auto" and not any(Path(name).exists() for name in _GPU_DRIVERS))
    cores = (os.cpu_count() or 1) if is_cpu and engine == DEFAULT else 1
    return devices * (params.profile.slots or cores)


def find_experiment(params: Params, name: str) -> ExperimentParams:
    if name not in params.experiments:
        raise ParamsError(f"params.yaml: no experiment {name!r}{nearest(name, params.experiments)}")
    return params.experiments[name]


def read_packed(experiment: ExperimentParams, params: Params, data: Path) -> PackedInfo:
    """Read the description of the experiment's packed data.

    Raises:
        PackedDataError: the data aren't packed.
        ParamsError: the data are placeholders and the profile wants real data, or the other way round.
    """
    info = read_info(data / "processed" / experiment.dataset)
    if (info.provenance == "embedded") != (params.profile.data == "embedded"):
        raise ParamsError(
            f"data/processed/{experiment.dataset} holds {info.provenance} data, the profile {params.profile_name} "
            f"wants {params.profile.data} data; run dvc repro, which packs them first"
        )
    return info


def _write_folder(folder: Path, experiment: ExperimentParams, params: Params, found: MissingRuns, store: Store) -> None:
    """Link the runs' outcomes into the folder, list them, and then remove outcomes that are no longer wanted."""
    linked = set[str]()
    for run_key in sorted(found.taken.values()):
        if (outcome := store.published(run_key)) is not None:
            linked.add(run_key)
            for file in outcome.iterdir():
                _link(file, folder / run_key / file.name)
    listed, missing = list[ListedRun](), list[str]()
    for run in found.wanted:
        run_key = found.taken[run.spec.run_key]
        if run_key in linked:
            arm, digest = run.name.arm, outcome_digest(folder / run_key, is_whole=True)
            role, replicate = experiment.arms[arm].role, run.name.replicate
            listed.append(ListedRun(arm=arm, role=role, replicate=replicate, run_key=run_key, digest=digest))
        else:
            missing.append(run.name.cell)
    run_list = RunList(
        experiment=experiment.name,
        dataset=experiment.dataset,
        profile=params.profile_name,
        cut=describe_cut(experiment, params.profile, params.datasets[experiment.dataset]),
        runs=tuple(listed),
        missing=tuple(missing),
    )
    write_run_list(folder, run_list)
    for path in folder.iterdir():
        if path.is_dir() and path.name not in linked:
            shutil.rmtree(path)


DVC_CACHE = Path(".dvc/cache/files/md5")


def adopt(folder: Path, store: Store, stored: set[str]) -> None:
    """Publish outcomes that `dvc pull` fetched to the store under their own specs' keys, and add these to `stored`."""
    for path in sorted(folder.glob("*/result.json")):
        run_key = path.parent.name
        if run_key in stored:
            continue
        fault = find_fault(path.parent, run_key)
        if fault is None:
            store.publish(run_key, {file.name: file.read_bytes() for file in path.parent.iterdir()})
            stored.add(run_key)
        else:
            _refuse(path.parent, fault)


def _refuse(outcome: Path, fault: str) -> None:
    print(f"  {outcome.parent.name}/{outcome.name[:12]}: not a complete outcome of that run ({fault}); not adopted")


def previous_specs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Read the specs of the runs in the folder, by label; skip damaged ones, which are rewritten later."""
    try:
        run_list = read_run_list(folder)
    except DamagedRunList as error:
        print(f"  {error}")
        return {}
    specs = {}
    for run in run_list.runs if run_list else ():
        with suppress(FileNotFoundError, ValueError):
            specs[f"{run.arm}.{run.replicate}"] = json.loads((folder / run.run_key / "spec.json").read_bytes())
    return specs


def _link(source: Path, target: Path) -> None:
    """Make a hard link, or a copy if the file system can't.  Files of the store are read-only under all their names."""
    if target.exists():
        if source.samefile(target) or filecmp.cmp(source, target, shallow=False):
            return
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        write_atomically(target, source.read_bytes())


def remove_damaged(folder: Path, wanted: Collection[str]) -> None:
    """Remove damaged outcomes from `folder`, together with the objects in DVC's cache that are the same files.

    DVC finds an object by its name and would replace a new training's outcome with the damaged one.
    """
    damaged: set[tuple[int, int]] = set()
    for path in sorted(folder.glob("*/result.json")):
        fault = find_fault(path.parent, path.parent.name) if path.parent.name in wanted else None
        if fault:
            _refuse(path.parent, fault)
            damaged |= {(file.stat().st_dev, file.stat().st_ino) for file in path.parent.iterdir()}
            shutil.rmtree(path.parent)
    if damaged:
        for file in DVC_CACHE.glob("*/*"):
            if (file.stat().st_dev, file.stat().st_ino) in damaged:
                file.unlink()
