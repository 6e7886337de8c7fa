"""The only reader of `params.yaml` and `params/<experiment>.yaml`: experiments, arms, profiles and data sets.

Every mistake in a file is one `ParamsError` with the file, the path inside it, the value found and the known values.
Imports no torch: model keywords are checked against the constructor's signature as written in the source.
Also plans the runs that an experiment needs under a profile, and describes how they differ from the printed protocol.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stages.params.callables import signature_of
from stages.params.metrics import OwnMetric, read_metrics
from stages.params.protocol import check_recipe, protocol_schema, read_protocol
from stages.params.schema import ParamsError as ParamsError
from stages.params.schema import SourceFile as SourceFile
from stages.params.schema import (
    address_of,
    check_choice,
    check_keywords,
    check_task,
    classes_of,
    hint,
    known_papers,
    model_path,
    read_yaml,
    validate,
)
from stages.rules import Rules
from stages.run import (
    IMPORTED_MODEL,
    STRICT,
    AugmentationSpec,
    ModelSpec,
    Precision,
    Protocol,
    Replicate,
    RunSpec,
    TaskName,
)

Role = Literal["baseline", "proposed", "ablation", "sensitivity"]


class ArmTemplate(BaseModel):
    """An arm as written in the file.

    `like` names an earlier arm, whose model and protocol are the defaults; `against` is the arm that it is compared
    with; `grid` has lists of values of the model's keywords, every combination of which is an arm.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    role: Role
    title: str
    like: str | None = None
    against: str | None = None
    grid: dict[str, list[Any]] = {}
    model: dict[str, Any] = {}
    protocol: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class ArmParams:
    """One model under the experiment's protocol.  `model` keeps the class name and the keywords of the file.

    `protocol` holds the fields that differ from the experiment's, which this arm is there to compare.  `against` names
    the arm that it is compared with: the file's first baseline unless the file says otherwise.
    """

    name: str
    role: Role
    title: str
    model: Mapping[str, Any]
    protocol: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    against: str | None = None


def expand_arms(templates: Mapping[str, ArmTemplate]) -> dict[str, ArmParams]:
    """Expand templates to arms by name, in the order of the file.

    Raises:
        ValueError: a name occurs twice, `like` or `against` is unknown, or a name in braces isn't in the grid.
    """
    arms: dict[str, ArmParams] = {}
    for pattern, template in templates.items():
        if empty := [key for key, values in template.grid.items() if not values]:
            raise ValueError(f"arms.{pattern}.grid.{empty[0]} is an empty list; expected at least one value")
        for values in (
            dict(zip(template.grid, some, strict=True)) for some in itertools.product(*template.grid.values())
        ):
            name, title, like, against = (
                _fill(text, values, pattern) for text in (pattern, template.title, template.like, template.against)
            )
            assert name is not None and title is not None, "only like and against may be left out"
            if name in arms:
                raise ValueError(f"arms.{pattern}: {name} occurs twice; its name needs every key of its grid in braces")
            if like is not None and like not in arms:
                raise ValueError(f"arms.{pattern}.like is {like!r}; known above it: {', '.join(arms)}")
            base = arms[like] if like is not None else None
            arms[name] = ArmParams(
                name=name,
                role=template.role,
                title=title,
                against=against,
                model={**(base.model if base else {}), **template.model, **values},
                protocol={**(base.protocol if base else {}), **template.protocol},
            )
    for name, arm in arms.items():
        if arm.against is not None and arm.against not in arms:
            raise ValueError(f"arms.{name}.against is {arm.against!r}; known: {', '.join(arms)}")
        if arm.against == name:  # every comparison of it would be zero
            raise ValueError(f"arms.{name}.against is the arm itself; name another, or leave it out")
    first = next((arm.name for arm in arms.values() if arm.role == "baseline"), None)
    return {name: dataclasses.replace(arm, against=arm.against or first) for name, arm in arms.items()}


def _fill(text: str | None, values: Mapping[str, Any], pattern: str) -> str | None:
    try:
        return None if text is None else text.format(**values)
    except (KeyError, IndexError, ValueError):
        raise ValueError(f"arms.{pattern}: {text!r} has braces for {', '.join(values) or 'no grid'} only") from None


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A data set as published.  `archive`, if given, contains `files`; `urls` are tried in order.

    `shape` is [channels, height, width] of an image; `train` and `test` count the official images, `..._per_class`
    those of each class (one number: of every class; None: not published).  `shared_images` of the test set are in the
    training set, too, pixel by pixel (None: not counted).  `folder` names the data set with the same raw files.
    `complete_by_content`: no digest is published, and the content shows whether it is complete (decision 0033).
    `test_is_ours`: the publisher has no test set, so ours differs from the papers'.

    A table has `shape` [columns] and no classes; its `response_range` is the smallest and the largest response in its
    file, over all measured runs.  A text has shape [], its token ids as classes, and counts tokens.

    From `broken` on, for a user's own data.  `broken`: what becomes of pictures that can't be read.  `target`,
    `separator` and `ignore` are a table's columns and the character between them; `missing`: what becomes of rows with
    missing values, `mean` of the training rows in their place or not.  `task`: what is learned, with `classes` labels,
    unless it is a picture's class or a row's number.  `labels`: the table that has the labels of a folder's pictures.
    `text`: the column of a table that is the text.  `task_class`: `name` and arguments of a class of another package
    that learns the task.
    """

    __pydantic_config__: ClassVar = STRICT
    title: str
    reader: str
    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    licence: str
    homepage: str
    urls: tuple[str, ...]
    files: Annotated[tuple[SourceFile, ...], Field(min_length=1)]
    kind: Literal["images", "table", "text"] = "images"
    archive: SourceFile | None = None
    train_per_class: int | tuple[int, ...] | None = None
    test_per_class: int | tuple[int, ...] | None = None
    shared_images: int | None = None
    response_range: tuple[float, float] | None = None
    folder: str | None = None
    complete_by_content: bool = False
    test_is_ours: bool = False
    broken: Literal["refuse", "skip"] = "refuse"
    target: str | tuple[str, ...] | None = None
    separator: str | None = None
    ignore: tuple[str, ...] = ()
    missing: Literal["refuse", "drop", "mean"] = "refuse"
    task: TaskName | None = None
    labels: str | None = None
    text: str | None = None
    task_class: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class LatencySpec:
    """Measurement of inference time: `repeats` batches of `batch_size`; `warmup` uncounted ones start each round."""

    __pydantic_config__: ClassVar = STRICT
    batch_size: Annotated[int, Field(ge=1)]
    warmup: Annotated[int, Field(ge=0)]
    repeats: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class ProfileParams:
    """A budget.  `overrides` replace protocol fields; `replicates` keeps the first n seeds (None: all).

    `roles` are those of the arms that it trains (None: all).  `slots`: how many train at once if one device is named
    (None: one per core of a CPU, one on a GPU); on a CPU they share its threads.  `test_rows`: how many `evaluate`
    scores, for a text in windows (None: all); with fewer than all there are no test curves, since these use all rows.
    `float32_as`: the precision of trainings that are printed in float32; those of another keep it (None: all do).
    """

    __pydantic_config__: ClassVar = STRICT
    data: Literal["embedded", "real"]
    replicates: Annotated[int, Field(ge=1)] | None
    overrides: Mapping[str, Any]
    latency: LatencySpec
    roles: tuple[Role, ...] | None = None
    slots: Annotated[int, Field(ge=1)] | None = None
    test_rows: Annotated[int, Field(ge=1)] | None = None
    float32_as: Precision | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentParams:
    """One table or figure of one paper on one data set.  `printed` is the protocol before a profile cuts it.

    `metrics`: those of other packages that its results have, too, by name.
    """

    name: str
    title: str
    paper: str
    dataset: str
    printed: Protocol
    seeds: tuple[int, ...]
    arms: Mapping[str, ArmParams]
    metrics: Mapping[str, OwnMetric] = dataclasses.field(default_factory=dict)

    @property
    def replicates(self) -> int:
        """The printed replicates: every seed, with every fold if the split has folds."""
        split = self.printed.split
        return len(self.seeds) * (split.folds if split.kind == "folds" and split.folds else 1)

    @property
    def varied(self) -> tuple[str, ...]:
        """Protocol fields that some arm sets for itself; results that differ in other fields are not compared."""
        return tuple(sorted({field for arm in self.arms.values() for field in arm.protocol}))


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A device's hourly price, its speed over whole steps, and its peak.  `goal_hours`: for everything as printed.

    `source` says for readers how the speeds were measured or estimated.
    `start_seconds`: time of a training besides its steps, to build, save and publish its network.
    `load_seconds`: time of a command before its first training, to load PyTorch.
    `stack_step_seconds`: time of a step of a stack of any size; not set if stacking doesn't make steps free.
    """

    __pydantic_config__: ClassVar = STRICT
    device: str
    source: str
    usd_per_hour: Annotated[float, Field(ge=0)]
    flops_per_second: Mapping[Precision, float]
    peak_flops_per_second: Mapping[Precision, float]
    step_seconds: Annotated[float, Field(ge=0)]
    stack_step_seconds: Annotated[float, Field(ge=0)] | None = None
    start_seconds: Annotated[float, Field(ge=0)] = 0.0
    load_seconds: Annotated[float, Field(ge=0)] = 0.0
    goal_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class Params:
    """Everything under `params.yaml` and `params/`, checked.

    `verdicts`: the rules by which claims are judged.  `rates`: by kind of device; `cpu` and `cuda` price results.
    """

    profile_name: str
    profiles: Mapping[str, ProfileParams]
    datasets: Mapping[str, DatasetSource]
    experiments: Mapping[str, ExperimentParams]
    verdicts: Rules
    rates: Mapping[str, Rate]

    @property
    def profile(self) -> ProfileParams:
        return self.profiles[self.profile_name]


class _IndexEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    paper: str
    dataset: str


class _Index(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    profile: str
    profiles: dict[str, ProfileParams]
    experiments: dict[str, _IndexEntry]
    datasets: dict[str, DatasetSource]
    verdicts: Rules
    rates: dict[str, Rate]


class _ExperimentFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    protocol: dict[str, Any]
    arms: Annotated[dict[str, ArmTemplate], Field(min_length=1)]
    metrics: dict[str, dict[str, Any]] = {}


def load_params(root: Path = Path()) -> Params:
    """Read and check `root/params.yaml` and the file of every experiment in its index.

    Raises:
        ParamsError: a file is missing or not YAML, or holds an unknown key, a wrong type or an unknown name.
    """
    index_path = root / "params.yaml"
    index = validate(TypeAdapter(_Index), read_yaml(index_path), index_path)
    check_choice(index.profile, index.profiles, index_path, "profile")
    datasets = {name: _with_task(one, index_path, f"datasets.{name}") for name, one in index.datasets.items()}
    known = sorted(field.name for field in dataclasses.fields(Protocol))
    for name, profile in index.profiles.items():
        if strange := next((key for key in profile.overrides if key not in known), None):
            raise ParamsError(f"{index_path}: unknown key profiles.{name}.overrides.{strange}{hint(strange, known)}")
        if profile.test_rows is not None and profile.overrides.get("observe_test") is not False:
            raise ParamsError(
                f"{index_path}: profiles.{name}.test_rows is set; its overrides need observe_test: false, since curves "
                "over all test rows contradict a score on some of them"
            )
    for key, names in (("experiments", index.experiments), ("datasets", index.datasets)):
        if odd := next((name for name in names if not re.fullmatch(r"\w[\w-]*", name)), None):
            fitting = re.sub(r"[^\w-]+", "-", odd).strip("-") or "own"
            raise ParamsError(
                f"{index_path}: {key}.{odd} has other characters than letters, digits, _ and -, and names stages and "
                f"files; call it {fitting}"
            )
    experiments = {}
    files = read_files(root, index.experiments)
    # Those that are like another come last, so that a mistake is reported for the file that has it.
    for name in sorted(index.experiments, key=lambda name: _like(files[name]) is not None):
        entry = index.experiments[name]
        check_choice(entry.paper, known_papers(), index_path, f"experiments.{name}.paper")
        check_choice(entry.dataset, index.datasets, index_path, f"experiments.{name}.dataset")
        path = root / "params" / f"{name}.yaml"
        document = merge(files, name, path)
        experiments[name] = _read_experiment(name, entry, datasets[entry.dataset], document, path)
        for key, own in experiments[name].metrics.items():
            for first, other in ((one.name, one.metrics.get(key, own)) for one in experiments.values()):
                if (other.unit, other.better) != (own.unit, own.better):
                    raise ParamsError(f"{path}: metrics.{key} differs in unit or better from params/{first}.yaml")
        for profile in index.profiles.values():
            for arm in [None, *(arm for arm in experiments[name].arms.values() if arm.protocol)]:
                if (recipe := resolve_protocol(experiments[name], profile, arm).recipe) is not None:
                    check_recipe(recipe, datasets[entry.dataset], path)
    return Params(
        profile_name=index.profile,
        profiles=index.profiles,
        datasets=datasets,
        experiments={name: experiments[name] for name in index.experiments},
        verdicts=index.verdicts,
        rates=index.rates,
    )


def _with_task(source: DatasetSource, path: Path, key_path: str) -> DatasetSource:
    """Return the data set, checked, with the address of its task if that is another package's."""
    check_task(source, path, key_path)
    if source.task_class is None:
        return source
    arguments = {key: value for key, value in source.task_class.items() if key != "name"}
    place = f"{key_path}.task_class"
    address = address_of("tasks", str(source.task_class.get("name")), (), path, f"{place}.name")
    check_keywords(address, arguments, path, place, given=("plain",))
    return dataclasses.replace(source, task_class={"name": address, **arguments})


def read_files(root: Path, experiments: Iterable[str]) -> dict[str, Any]:
    """Read the files of `experiments`, by name, and of those that they are `like`.

    Raises:
        ParamsError: a file can't be read.
    """
    folder = root / "params"
    files = {name: read_yaml(folder / f"{name}.yaml") for name in experiments}
    liked = {like for content in files.values() if (like := _like(content)) is not None}
    more = {name for name in liked - files.keys() if (folder / f"{name}.yaml").is_file()}
    return files | {name: read_yaml(folder / f"{name}.yaml") for name in sorted(more)}


def merge(files: Mapping[str, Any], name: str, path: Path) -> Any:
    """Merge an experiment's file with the file that it is `like`, if any.

    Each field of `protocol`, each arm and each other key in the file replaces the other file's.  `files`:
    content by experiment.  `path`: this one's file.

    Raises:
        ParamsError: `like` names no other experiment, or one that is itself like another.
    """
    own = files[name]
    like = _like(own)
    if like is None:
        return own
    check_choice(like, [other for other in files if other != name], path, "like")
    if not isinstance(files[like], dict):
        raise ParamsError(f"{path.with_name(f'{like}.yaml')}: expected title, protocol and arms; found {files[like]!r}")
    if (further := _like(files[like])) is not None:
        raise ParamsError(f"{path}: like is {like!r}, which is itself like {further!r}; name that one")
    whole = dict(files[like])
    for key, value in own.items():
        is_merged = key in ("protocol", "arms") and isinstance(value, dict) and isinstance(whole.get(key), dict)
        whole[key] = whole[key] | value if is_merged else value
    del whole["like"]
    return whole


def _like(content: Any) -> str | None:
    """Return the experiment that a file's content says it is like, if any."""
    return str(content["like"]) if isinstance(content, dict) and "like" in content else None


def _read_experiment(
    name: str, entry: _IndexEntry, source: DatasetSource, document: Any, path: Path
) -> ExperimentParams:
    file = validate(TypeAdapter(_ExperimentFile), document, path)
    fields = dict(file.protocol)
    seeds = validate(TypeAdapter(tuple[int, ...]), fields.pop("seeds", None), path, "protocol.seeds")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ParamsError(f"{path}: protocol.seeds is {list(seeds)}; expected at least one seed and no duplicates")
    if outside := [seed for seed in seeds if abs(seed) >= 1 << 31]:
        raise ParamsError(f"{path}: protocol.seeds has {outside[0]}; expected numbers below 2^31, which databases hold")
    printed = read_protocol(fields, path, "protocol")
    channels = source.shape[0] if source.kind == "images" else 0
    for field in ("mean", "std"):
        if len(getattr(printed, field)) != channels:
            raise ParamsError(
                f"{path}: protocol.{field} has {len(getattr(printed, field))} values; "
                f"{source.kind} of {entry.dataset} have {channels} channels"
            )
    for field, unset in (("augmentation", AugmentationSpec()), ("recipe", None)):
        if source.kind != "images" and getattr(printed, field) != unset:
            raise ParamsError(f"{path}: protocol.{field} is set; {entry.dataset} is a {source.kind}, not images")
    weights = printed.recipe.class_weights if printed.recipe else None
    if isinstance(weights, tuple) and len(weights) != source.classes:
        raise ParamsError(f"{path}: protocol.recipe.class_weights has {len(weights)} values, not {source.classes}")
    try:
        arms = expand_arms(file.arms)
    except ValueError as error:
        raise ParamsError(f"{path}: {error}") from None
    arms = {name: _with_address(arm, entry.paper, path) for name, arm in arms.items()}
    for arm in arms.values():
        model_path(entry.paper, arm.model, path, f"arms.{arm.name}.model")
        if arm.protocol:
            read_protocol(fields | dict(arm.protocol), path, f"arms.{arm.name}.protocol")
    return ExperimentParams(
        name=name,
        title=file.title,
        paper=entry.paper,
        dataset=entry.dataset,
        printed=printed,
        seeds=seeds,
        arms=arms,
        metrics=read_metrics(file.metrics, source, path),
    )


def _with_address(arm: ArmParams, paper: str, path: Path) -> ArmParams:
    """Return the arm with the address of its model if that is a plugin."""
    known, name = classes_of(paper), str(arm.model.get("name"))
    if "name" not in arm.model or name in known:
        return arm
    address = address_of("models", name, known, path, f"arms.{arm.name}.model.name")
    return dataclasses.replace(arm, model={**arm.model, "name": address})


def resolve_protocol(experiment: ExperimentParams, profile: ProfileParams, arm: ArmParams | None = None) -> Protocol:
    """Return the printed protocol with an arm's fields, if given, and the profile's overrides and precision.

    Raises:
        ParamsError: an override has the wrong type or a value that doesn't allow training.
    """
    own = dict(arm.protocol) if arm is not None else {}
    fields = protocol_schema().dump_python(experiment.printed) | own | dict(profile.overrides)
    if profile.float32_as is not None and fields["precision"] == "float32":
        fields["precision"] = profile.float32_as
    return read_protocol(fields, Path("params.yaml"), "profiles.overrides")


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
    """Return model keywords that describe the data, for models that have them and files that don't set them."""
    if source.kind == "table":
        return {"in_features": source.shape[0]} | ({"num_classes": source.classes} if source.task else {})
    if source.kind == "text":
        return {"context": source.shape[0]}
    channels, height, _ = source.shape
    return {"image_size": height, "in_channels": channels, "num_classes": source.classes}


def plan_runs(
    experiment: ExperimentParams, profile: ProfileParams, source: DatasetSource, *, every_role: bool = False
) -> list[PlannedRun]:
    """Plan the experiment's grid, arm by arm: seeds, and folds if the split has them, cut to the profile's replicates.

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
        wanted = signature_of(path).keywords
        arguments = {key: value for key, value in arm.model.items() if key != "name"}
        if path == IMPORTED_MODEL:
            arguments = {"address": arm.model["name"], "arguments": arguments}
        arguments |= {key: value for key, value in given.items() if key in wanted}
        model = ModelSpec(path=path, arguments=arguments)
        protocol = resolve_protocol(experiment, profile, arm)
        for index, replicate in enumerate(replicates[: profile.replicates]):
            spec = RunSpec(
                model=model,
                protocol=protocol,
                data_digest="",
                replicate=replicate,
                code={},
                task=source.task,
                task_class=source.task_class,
            )
            runs.append(PlannedRun(name=RunName(experiment.name, arm.name, index), spec=spec))
    return runs


def _rows(source: DatasetSource, count: int) -> tuple[int, str]:
    """Return the number of rows in a split of `count` images, rows or tokens, and a reader's name for them."""
    if source.kind == "text":
        return (count - 1) // source.shape[0], f"windows of {source.shape[0]:,} tokens"
    return count, {"images": "images", "table": "rows"}[source.kind]


def describe_cut(experiment: ExperimentParams, profile: ProfileParams, source: DatasetSource) -> str:
    """Describe how the profile departs from the printed protocol; empty if it doesn't."""
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
