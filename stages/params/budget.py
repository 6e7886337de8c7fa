"""The runs that an experiment needs under a profile, and how they depart from what is printed; imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stages.params.experiment import DatasetSource, Experiment, Profile, resolve_protocol
from stages.params.schema import keyword_types, model_path
from stages.run import ModelSpec, Protocol, Replicate, RunSpec


class RunName(NamedTuple):
    """A cell of an experiment's grid."""

    experiment: str
    arm: str
    replicate: int

    @property
    def cell(self) -> str:
        return f"{self.arm}.{self.replicate}"

    @property
    def label(self) -> str:
        return f"{self.experiment}.{self.cell}"


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A cell and the training it needs; `spec` has no data digest and no code until they are known."""

    name: RunName
    spec: RunSpec


def _given_by_data(source: DatasetSource) -> dict[str, int]:
    """Model keywords that describe the data, where a model has them and its file doesn't set them."""
    if source.kind == "table":
        return {"in_features": source.shape[0]}
    if source.kind == "text":
        return {"context": source.shape[0]}
    channels, height, _ = source.shape
    return {"image_size": height, "in_channels": channels, "num_classes": source.classes}


def plan_runs(
    experiment: Experiment, profile: Profile, source: DatasetSource, *, every_role: bool = False
) -> list[PlannedRun]:
    """The experiment's grid, arm by arm: seeds, and folds where the split has them, cut to the profile's replicates.

    Arms are those of the profile's roles, or all with `every_role`: a run requested by name may have any role.
    """
    given, split = _given_by_data(source), experiment.printed.split
    folds = range(split.folds) if split.kind == "folds" and split.folds else (None,)
    replicates = [Replicate(seed=seed, fold=fold) for seed in experiment.seeds for fold in folds]
    runs = []
    for arm in experiment.arms.values():
        if not every_role and profile.roles is not None and arm.role not in profile.roles:
            continue
        file = Path("params") / f"{experiment.name}.yaml"
        path = model_path(experiment.paper, arm.model, file, f"arms.{arm.name}.model")
        wanted = keyword_types(*path.split(":"))
        arguments = {key: value for key, value in arm.model.items() if key != "name"}
        arguments |= {key: value for key, value in given.items() if key in wanted}
        model = ModelSpec(path=path, arguments=arguments)
        protocol = resolve_protocol(experiment, profile, arm)
        for index, replicate in enumerate(replicates[: profile.replicates]):
            spec = RunSpec(model=model, protocol=protocol, data_digest="", replicate=replicate, code={})
            runs.append(PlannedRun(name=RunName(experiment.name, arm.name, index), spec=spec))
    return runs


def _rows(source: DatasetSource, count: int) -> tuple[int, str]:
    """The number of rows in a split of `count` images, rows or tokens, and their name for a reader."""
    if source.kind == "text":
        return (count - 1) // source.shape[0], f"windows of {source.shape[0]:,} tokens"
    return count, {"images": "images", "table": "rows"}[source.kind]


def describe_cut(experiment: Experiment, profile: Profile, source: DatasetSource) -> str:
    """How the profile departs from the printed protocol, for a reader; empty if it doesn't."""
    protocol, printed = resolve_protocol(experiment, profile), experiment.printed
    rows, noun = _rows(source, source.train)
    words = {
        "epochs": f"{protocol.epochs} of {printed.epochs} epochs",
        "train_images": f"{protocol.train_images or rows:,} of {rows:,} training {noun}",
        "steps_per_epoch": f"{protocol.steps_per_epoch} steps an epoch",
        "observe_test": "no test curves",
        "batch_size": f"batches of {protocol.batch_size} instead of {printed.batch_size}",
        "precision": f"{protocol.precision} instead of {printed.precision}",
    }
    changed = [
        field.name
        for field in dataclasses.fields(Protocol)
        if getattr(protocol, field.name) != getattr(printed, field.name)
    ]
    cuts = ["placeholder data"] if profile.data == "embedded" else []
    cuts += [words[name] for name in words if name in changed]
    cuts += [f"another {name.replace('_', ' ')}" for name in changed if name not in words]
    test_rows, noun = _rows(source, source.test)
    if profile.test_rows is not None and profile.test_rows < test_rows:
        cuts.append(f"{profile.test_rows:,} of {test_rows:,} test {noun}")
    if profile.replicates is not None and profile.replicates < experiment.replicates:
        cuts.append(f"{profile.replicates} of {experiment.replicates} replicates")
    return ", ".join(cuts)
