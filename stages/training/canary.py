"""Canaries: short trainings with a run's operators, whose digest changes if anything changes the numbers.

No list of possible causes is complete.  So before an arm's first run, a process trains a small version of its network
for `STEPS` steps on synthetic rows, with the same loop, optimiser and precision.  Compiled code is left out, because
compiling takes longer than a second, and so are the loop's options.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from stages.datasets.packed import ImageSet, PackedInfo, TableSet, TokenSet
from stages.ops.fast.cpp import TAKEN
from stages.ops.fast.dropout import with_fast_dropout
from stages.ops.fast.wide_attention import use_wide_attention
from stages.papers import build_model
from stages.run import ModelSpec, Replicate, RunSpec, SplitSpec, canonical_json
from stages.runs.fingerprint import module_digest, source_path
from stages.training.kinds import RowSet, make_task
from stages.training.loop import fit, seeded_model
from stages.training.process import digest
from stages.training.resuming import first_line
from stages.training.session import flushing_denormals
from stages.training.stacked import fit_stack, stack_class
from stages.training.tables import Regression
from stages.training.tasks import task_learned

STEPS, BATCH = 20, 2
_SMALL = {"image_size": 32, "context": 16, "vocabulary_size": 256}
_WIDTH = 16  # width of a head, or of a network without heads
_LARGEST = 4_000_000
"""Parameters of the largest network that trains for `STEPS` steps in a second; none of the papers' is as large."""
VARIES = "varies from one training to the next"


@dataclass(frozen=True)
class Canary:
    """`of`: digest of setup and code; `digest`: of losses and weights, or why there is none; `taken`: fast paths."""

    of: str
    digest: str
    taken: frozenset[str]

    def described(self) -> dict[str, str]:
        """Return the fields for a result's environment."""
        return {"of": self.of, "digest": self.digest}


_known: dict[tuple[object, ...], Canary] = {}


def canary_of(spec: RunSpec, info: PackedInfo, device: torch.device, *, is_stacked: bool = False) -> Canary:
    """Return the canary of a run's arm, trained once per process, device and number of threads."""
    model, protocol = (
        _small_model(spec.model),
        dataclasses.replace(
            spec.protocol,
            batch_size=BATCH,
            epochs=1,
            steps_per_epoch=STEPS,
            split=SplitSpec(),
            early_stop=None,
            compile=False,
            observe_test=False,
            train_images=None,
        ),
    )
    small = dataclasses.replace(spec, model=model, protocol=protocol)
    code = module_digest(path) if (path := source_path(__name__)) else ""
    what = [dataclasses.asdict(model), dataclasses.asdict(protocol), info.kind, info.shape, dict(spec.code), code]
    of = digest(canonical_json([*what, is_stacked]).encode())
    key = of, str(device), torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    if key not in _known:
        TAKEN.clear()
        train = _train_stack if is_stacked else _train
        with torch.random.fork_rng([device] if device.type == "cuda" else []), flushing_denormals():
            found = _digest(lambda: train(small, info, device))
            if device.type == "cuda" and found != _digest(lambda: train(small, info, device)):
                found = VARIES
        _known[key] = Canary(of, found, frozenset(TAKEN))
    return _known[key]


def _small_model(model: ModelSpec) -> ModelSpec:
    """Shrink the model: the fewest layers that can be built, narrow, for small inputs.

    A network that can't be built at such sizes stays as it is.
    """
    given = model.arguments
    small = {name: min(given[name], size) for name, size in _SMALL.items() if name in given}
    width = _WIDTH * given.get("num_heads", 1)
    small |= {name: min(given[name], width) for name in ("dim", "width") if name in given}
    for depth in range(1, given["depth"] + 1) if "depth" in given else [None]:
        tried = {**given, **small} if depth is None else {**given, **small, "depth": depth}
        try:
            with torch.device("meta"):
                build_model(ModelSpec(path=model.path, arguments=tried))
        except ValueError:
            continue
        return ModelSpec(path=model.path, arguments=tried)
    return model


def _rows(spec: RunSpec, info: PackedInfo) -> tuple[RowSet, PackedInfo]:
    """Generate synthetic rows, enough for every step."""
    draw, count, given = np.random.default_rng(0), STEPS * BATCH, spec.model.arguments
    if info.kind == "table":
        features = draw.standard_normal((count, *info.shape), np.float32)
        if spec.task is None:
            return TableSet(features, features.sum(1)), info
        return TableSet(features, draw.integers(2, size=(count, given.get("num_classes", 1)))), info
    if info.kind == "text":
        window = given.get("context", info.shape[0])
        tokens = draw.integers(given.get("vocabulary_size", 2), size=count * window + 1, dtype=np.uint16)
        return TokenSet(tokens), dataclasses.replace(info, shape=(window,))
    size = given.get("image_size", info.shape[1])
    images = draw.integers(256, size=(count, info.shape[0], size, size), dtype=np.uint8)
    if spec.task is None:
        return ImageSet(images, draw.integers(len(info.classes), size=count)), info
    if spec.task == "regression":
        return ImageSet(images, draw.standard_normal((count, len(info.classes))).view(np.int64)), info
    if spec.task == "segmentation":
        masks = draw.integers(1, len(info.classes) + 1, (count, -(-size * size // 8) * 8), np.uint8)
        return ImageSet(images, masks.view(np.int64)), info
    return ImageSet(images, draw.integers(2, size=(count, len(info.classes)))), info


def _train(spec: RunSpec, info: PackedInfo, device: torch.device) -> list[Any]:
    rows, info = _rows(spec, info)
    if device.type == "cpu" and spec.protocol.precision == "bfloat16":
        use_wide_attention()
    network = seeded_model(lambda: with_fast_dropout(build_model(spec.model)), Replicate(seed=0)).to(device)
    _refuse_large(network)
    task = task_learned(spec, make_task(rows, info, spec.protocol, device))
    outcome = fit(network, task, spec.protocol, Replicate(seed=0))
    return [outcome.history, outcome.divergence, network.state_dict()]


def _train_stack(spec: RunSpec, info: PackedInfo, device: torch.device) -> list[Any]:
    seeds = [Replicate(seed=seed) for seed in range(2)]
    networks = [seeded_model(lambda: build_model(spec.model), seed).to(device) for seed in seeds]
    _refuse_large(networks[0])
    task = make_task(_rows(spec, info)[0], info, spec.protocol, device)
    assert isinstance(task, Regression), "only networks of tables are stacked"
    found = fit_stack(networks, stack_class(spec.model), task, spec.protocol, seeds, is_compiled=False)
    return [outcome.history for outcome, _ in found] + [network.state_dict() for network in networks]


def _refuse_large(network: nn.Module) -> None:
    if (count := sum(parameter.numel() for parameter in network.parameters())) > _LARGEST:
        raise ValueError(f"{count:,} parameters take more than a second")


def _digest(train: Callable[[], list[Any]]) -> str:
    """Return a digest of all training results, or the reason if the network can't be trained like this."""
    content = hashlib.sha256()
    try:
        for part in train():
            tensors = part.items() if isinstance(part, Mapping) else [("", part)]
            for name, value in tensors:
                content.update(f"{name}|".encode())
                if isinstance(value, torch.Tensor):
                    content.update(value.cpu().flatten().view(torch.uint8).numpy().tobytes())
                else:
                    content.update(repr(value).encode())
    except Exception as error:  # noqa: BLE001  (a failing canary must not block a run that can be trained)
        return f"none: {first_line(error)}"
    return content.hexdigest()[:12]
