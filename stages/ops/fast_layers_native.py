"""A model whose layers compute by their fast forms, where these have the same parameters and equations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from torch import nn

from stages.ops.batch_norm_native import Sequential
from stages.ops.dropout_native import Dropout

Forms = Mapping[type[nn.Module], type[nn.Module]]

_OF_PYTORCH: Forms = {nn.Dropout: Dropout, nn.Sequential: Sequential}


def with_fast_layers(model: nn.Module) -> nn.Module:
    """`model`, whose layers have other classes now; parameters, buffers, hooks and state stay as they are.

    A paper's layers have theirs in `FAST_LAYERS` of the module of fast paths beside their own.
    """
    for module in model.modules():
        module.__class__ = _forms_beside(type(module).__module__).get(type(module), type(module))
    return model


@cache
def _forms_beside(module: str) -> Forms:
    if not module.startswith("stages."):
        return _OF_PYTORCH
    name = f"{module}_native"
    return {} if find_spec(name) is None else getattr(import_module(name), "FAST_LAYERS", {})
