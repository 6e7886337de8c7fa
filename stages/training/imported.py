"""Tries a network of another package before it trains."""

from __future__ import annotations

from functools import partial

import torch

from stages.datasets.packed import PackedInfo
from stages.papers import build_model
from stages.run import ModelSpec


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
