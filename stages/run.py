"""The definition of a training: a `RunSpec` has everything that determines its numbers and nothing else.

It names no experiment, arm or profile.  `run_key` is the address of the outcome in the `RunStore`, so the same training
in two tables is one run.

Standard library only, because the worker also runs where no schema, YAML or SQL library is installed.  The dataclasses
have `__pydantic_config__`, a plain attribute, so that `stages.params.experiment` can validate a file against them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

STRICT = {"extra": "forbid"}

Precision = Literal["float32", "tf32", "bfloat16", "float16"]
TaskName = Literal["multi-label", "regression", "segmentation"]


IMPORTED_MODEL = "stages.papers.imported.model:ImportedModel"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """`path` is `module:Class`; `arguments` are the constructor's keywords, including input shape and classes."""

    path: str
    arguments: Mapping[str, Any]

    @property
    def is_imported(self) -> bool:
        """True for another package's network, or a user's own."""
        return self.path == IMPORTED_MODEL


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimiser with its settings.  `decay` says which parameters weight decay acts on (None: all).

    `betas` are for Adam, `momentum` is for SGD.  The fields from `damping` on are for the optimisers of `stages.optim`,
    which define meaning and default of each.  The optimiser `imported` is another package's callable: its `address` is
    `package.module:name`, and it has its own `arguments`.
    """

    __pydantic_config__: ClassVar = STRICT
    name: Literal["adam", "adamw", "sgd", "cg_fac", "kfac", "imported"]
    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    decay: Literal["kernels"] | None = None
    damping: float | None = None
    cg_iterations: int | None = None
    cg_tolerance: float | None = None
    warm_start: bool | None = None
    reading: Literal["kronecker", "per-sample"] | None = None
    factor_decay: float | None = None
    update_interval: int | None = None
    kl_clip: float | None = None
    layers: tuple[str, ...] | None = None
    rest: Literal["adam", "sgd"] | None = None
    rest_lr: float | None = None
    clip_norm: float | None = None
    address: str | None = None
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Learning rate over the steps of a run; `stages.training.protocol` has the formulas.

    The schedule `imported` is a class of `torch.optim.lr_scheduler` or another package, like the optimiser `imported`.
    """

    __pydantic_config__: ClassVar = STRICT
    name: Literal["constant", "cosine", "steps", "imported"] = "constant"
    warmup_steps: int | None = None
    floor: float | None = None
    milestones: tuple[float, ...] | None = None
    factor: float | None = None
    address: str | None = None
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class EarlyStopSpec:
    """Rule to stop if the validation loss hasn't fallen by `min_delta` for `patience` epochs from `from_epoch` on."""

    __pydantic_config__: ClassVar = STRICT
    from_epoch: int
    patience: int
    min_delta: float


@dataclass(frozen=True, kw_only=True)
class AugmentationSpec:
    """Augmentation of training images: zero padding by `crop_padding` pixels and a random crop; a flip with p = 1/2."""

    __pydantic_config__: ClassVar = STRICT
    crop_padding: int = 0
    horizontal_flip: bool = False


@dataclass(frozen=True, kw_only=True)
class SplitSpec:
    """Division of the official training set: `none` trains on all of it; `fraction` and `folds` hold a part out."""

    __pydantic_config__: ClassVar = STRICT
    kind: Literal["none", "fraction", "folds"] = "none"
    fraction: float | None = None
    folds: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RecipeSpec:
    """Additions to the training on images, which don't affect validation and test.

    `class_weights` are given per class, or `balanced`: the inverse of each class's share, or for labels of which a row
    has several, how many rows lack one for each that has it.  `transforms` of single images and `mix` of whole batches
    are those of `torchvision.transforms.v2`, or `package.module:name`, with keywords; so is `loss`, a module of outputs
    and targets in place of the task's; with `accumulate` it must be a mean over rows, which each step checks.
    """

    __pydantic_config__: ClassVar = STRICT
    label_smoothing: float | None = None
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    loss: Mapping[str, Any] | None = None
    transforms: tuple[Mapping[str, Any], ...] | None = None
    mix: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Settings that all arms of an experiment share.  The last two fields cut the work; printed protocols lack them.

    `mean` and `std` are for images, one value per channel; tables and texts are used as packed.  `batch_size` counts
    the rows of a step; `accumulate` computes them in so many parts.  `ema` is the decay of averaged weights.
    """

    __pydantic_config__: ClassVar = STRICT
    optimizer: OptimizerSpec
    batch_size: int
    epochs: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    precision: Precision = "float32"
    schedule: ScheduleSpec = dataclasses.field(default_factory=ScheduleSpec)
    augmentation: AugmentationSpec = dataclasses.field(default_factory=AugmentationSpec)
    split: SplitSpec = dataclasses.field(default_factory=SplitSpec)
    early_stop: EarlyStopSpec | None = None
    recipe: RecipeSpec | None = None
    accumulate: int | None = None
    ema: float | None = None
    compile: bool = False
    observe_test: bool = True
    train_images: int | None = None
    steps_per_epoch: int | None = None

    @property
    def has_options(self) -> bool:
        """True if `stages.training.options` trains instead of the plain loop."""
        is_imported = self.schedule.address is not None
        return is_imported or self.precision == "float16" or self.accumulate is not None or self.ema is not None

    @property
    def contradiction(self) -> str | None:
        """Reason why the loop's options can't be used with the other settings; None if they can."""
        used = "accumulate" if self.accumulate else "float16" if self.precision == "float16" else None
        if used and self.optimizer.name in ("cg_fac", "kfac"):
            return f"{used} is used with {self.optimizer.name}, which takes the curvature of one pass of the plain loss"
        recipe = self.recipe
        if recipe is not None and recipe.label_smoothing and 0 in (*(recipe.class_weights or ()),):
            return "recipe.label_smoothing teaches every class, but one has a class weight of 0; leave out one of them"
        return None


@dataclass(frozen=True, kw_only=True)
class Replicate:
    """One seed, and one fold if the protocol's split has folds."""

    seed: int
    fold: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that determines a training's numbers.

    `code` maps each module to the digest of its source, and each installed package that it needs to its version.
    `task` names what is learned, unless it is an image's class, a number for a table's row, or a text's next token.
    `task_class` has the `name`, `package.module:name`, and the arguments of another package's class for that task.
    """

    model: ModelSpec
    protocol: Protocol
    data_digest: str
    replicate: Replicate
    code: Mapping[str, str]
    task: TaskName | None = None
    task_class: Mapping[str, Any] | None = None

    @property
    def run_key(self) -> str:
        return hashlib.sha256(canonical_json(self.to_dict()).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values.  Unset ones (None) are left out, so that a field added later changes no old key."""
        return _set_fields(json.loads(json.dumps(self, default=vars)))

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> RunSpec:
        """Build the spec from what `to_dict` returned."""
        protocol = dict(spec["protocol"])
        protocol["optimizer"] = OptimizerSpec(**_tuples(protocol["optimizer"]))
        protocol["schedule"] = ScheduleSpec(**_tuples(protocol["schedule"]))
        protocol["augmentation"] = AugmentationSpec(**protocol["augmentation"])
        protocol["split"] = SplitSpec(**protocol["split"])
        if "early_stop" in protocol:
            protocol["early_stop"] = EarlyStopSpec(**protocol["early_stop"])
        if "recipe" in protocol:
            protocol["recipe"] = RecipeSpec(**_tuples(protocol["recipe"]))
        return cls(
            model=ModelSpec(**spec["model"]),
            protocol=Protocol(**_tuples(protocol)),
            data_digest=spec["data_digest"],
            replicate=Replicate(**spec["replicate"]),
            code=dict(spec["code"]),
            task=spec.get("task"),
            task_class=spec.get("task_class"),
        )


def _set_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _set_fields(item) for name, item in value.items() if item is not None}
    return value


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def training_counts(n: int, protocol: Protocol, replicate: Replicate) -> tuple[int, int]:
    """Return the numbers of training and validation rows that `stages.training.protocol` chooses from n rows."""
    split, held_out = protocol.split, 0
    if split.kind == "fraction" and split.fraction is not None:
        held_out = round(n * split.fraction)
    elif split.kind == "folds" and split.folds is not None and replicate.fold is not None:
        held_out = n // split.folds + (replicate.fold < n % split.folds)
    return min(n - held_out, protocol.train_images or n), held_out


def steps_per_epoch(train_rows: int, protocol: Protocol) -> int:
    """Return the number of batches per epoch, including an incomplete last one; fewer if the protocol cuts them."""
    full = math.ceil(train_rows / protocol.batch_size)
    return min(full, protocol.steps_per_epoch or full)


def canonical_json(value: Any) -> str:
    """Return the only text for a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def environment_digest(environment: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits that identify an environment."""
    return hashlib.sha256(canonical_json(environment).encode()).hexdigest()[:12]


def changed_parts(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the leaves in which two specs differ by dotted names, e.g. `protocol.optimizer.lr: 0.001 -> 0.01`."""
    changes: list[str] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += changed_parts(before, after, f"{prefix}{name}.")
        elif prefix == "code.":
            changes.append(f"code of {name}")
        else:
            changes.append(f"{prefix}{name}: {_short(before)} -> {_short(after)}")
    return changes


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:20]}…"
