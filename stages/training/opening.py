"""Opens the training of a spec with all that it asks for; says why a network can't be trained, or where it diverged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.datasets.packed import PackedInfo
from stages.papers import build_model
from stages.run import ModelSpec, RunSpec
from stages.training.loop import Outcome
from stages.training.options import with_options
from stages.training.recipe import with_recipe
from stages.training.session import Session, open_session
from stages.training.tasks import with_task


def refuse_unfit(model: ModelSpec, info: PackedInfo, *, has_task: bool) -> None:
    """Refuse a network that would fail later or be served wrongly; a task checks its outputs' shape itself.

    Raises:
        ValueError: it has nothing to train, its outputs don't fit, or a checkpoint couldn't hold it.
        TypeError: it returns something else than logits.
    """
    shapes = {
        "images": ((len(info.classes),), "a logit for each class"),
        "table": ((1,), "one number"),
        "text": ((*info.shape, info.vocabulary), "a logit for each token that may follow"),
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        draw = torch.rand if info.vocabulary is None else partial(torch.randint, info.vocabulary)
        inputs = draw((2, *info.shape))
        one, other = build_model(model).eval(), build_model(model).eval()
        outputs, _ = one(inputs), other(inputs)  # lazy layers get their shapes
        other.load_state_dict(one.state_dict())
        if not any(parameter.requires_grad for parameter in one.parameters()):
            raise ValueError("the network has no parameters to train")
        expected, meaning = shapes[info.kind]
        if not has_task and outputs.shape != (2, *expected):
            raise ValueError(
                f"the network's outputs are {[*outputs.shape]} for 2 rows of {info.dataset}; expected "
                f"{[2, *expected]}, {meaning}"
            )
        for again in (one(inputs), other(inputs)):
            if not torch.allclose(outputs, again, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise ValueError(
                    "the network gives other outputs for the same weights and inputs in evaluation mode, so no "
                    "checkpoint holds it: register tensors that its constructor draws as buffers or parameters "
                    "(not persistent=False), and draw nothing in its forward pass"
                )


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
