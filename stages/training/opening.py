"""Opens the training of a spec with all that it asks for, and says where it diverged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.datasets.packed import PackedInfo
from stages.run import RunSpec
from stages.training.loop import Outcome
from stages.training.options import with_options
from stages.training.recipe import with_recipe
from stages.training.session import Session, open_session
from stages.training.tasks import with_task


def open_training(spec: RunSpec, data: Path, info: PackedInfo, device: torch.device, *, devices: int = 1) -> Session:
    """Prepare the training of `spec` on the packed set in `data`: its task, its recipe and its loop's options.

    `devices`: how many share it.

    Raises:
        PackedDataError: a split can't be read.
        ValueError, TypeError: the model can't be built with the spec's arguments, or the devices can't share it.
    """
    session = open_session(spec, data, info, device)
    if spec.task is not None:
        session = with_task(session, data, info, devices)
    if spec.protocol.recipe is not None:
        session = with_recipe(session, devices)
    if spec.protocol.has_options:
        session = with_options(session, devices)
    return session


def find_divergence(outcome: Outcome, model: nn.Module) -> Mapping[str, Any] | None:
    """Return where the loss, or the weights by its last step, stopped being finite; None if they are."""
    if outcome.divergence is not None or all(value.isfinite().all() for value in model.state_dict().values()):
        return outcome.divergence
    last = outcome.history[-1]  # its loss was finite, and its step made the weights non-finite
    return {"step": last["steps"], "last_finite_step": last["steps"], "last_finite_loss": last["train_loss"]}
