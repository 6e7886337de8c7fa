"""Replaces a model's layers by their fast forms, which have the same parameters and equations."""

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
    """Change the classes of the layers of `model`; parameters, buffers, hooks and state stay as they are.

    The fast forms of a paper's layers are in `FAST_LAYERS` of the fast-path module beside their own.
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
