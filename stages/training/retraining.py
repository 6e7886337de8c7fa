"""One epoch of a published training, trained again from its seed or from a state that its lab deposited."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.datasets.packed import read_info
from stages.ops.fast.cpp import TAKEN
from stages.run import RunSpec
from stages.training.loop import Progress, TrainingState, TrainingStopped
from stages.training.process import describe_environment, describe_fast_paths
from stages.training.resuming import read_state
from stages.training.session import open_session


@dataclass(frozen=True, kw_only=True)
class RetrainedEpoch:
    """The row of the curves and the weights that an epoch gave, where it was trained again."""

    row: dict[str, Any]
    weights: dict[str, Tensor]
    environment: dict[str, Any]


def read_deposit(content: bytes, run_key: str) -> TrainingState:
    """Read the state that a training kept after an epoch.

    Raises:
        Exception: it can't be read; `torch.load` raises almost anything.
    """
    return TrainingState(**read_state(content, run_key)["state"])


def retrain_epoch(
    spec: RunSpec, data: Path, device: torch.device, threads: int, state: TrainingState | None
) -> RetrainedEpoch | None:
    """Train the epoch after `state`, or the first one, on the packed set in `data`; None if the loss diverges in it."""
    done, kept = False, dict[str, Any]()
    epoch = 1 + (state.epoch if state else 0)  # training goes on in the state itself
    before = torch.get_num_threads()
    TAKEN.clear()

    def save(after: TrainingState) -> None:
        kept.update(vars(after))

    def progress(now: Progress) -> None:
        nonlocal done
        done = now.step >= epoch * (now.total_steps // now.epochs)

    torch.set_num_threads(threads)
    try:
        session = open_session(spec, data, read_info(data), device)
        session.train(state=state, save=save, progress=progress, should_stop=lambda: done)
    except TrainingStopped:
        pass
    finally:
        torch.set_num_threads(before)
    if len(kept.get("history", ())) != epoch:
        return None
    environment = describe_environment(device) | {"threads": threads}
    environment["process"] = {"fast_paths": describe_fast_paths(TAKEN)}
    return RetrainedEpoch(row=kept["history"][-1], weights=kept["model"], environment=environment)
