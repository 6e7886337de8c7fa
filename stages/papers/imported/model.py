"""A network from another package or a user's own file, built by the callable that the parameters name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

# Keywords by which constructors accept the properties of a data set.
_ALIASES = {
    "image_size": ("image_size", "img_size"),
    "in_channels": ("in_channels", "in_chans", "num_channels"),
    "num_classes": ("num_classes", "num_labels"),
    "in_features": ("in_features",),
    "context": ("context", "n_positions", "max_position_embeddings"),
}
_WEIGHTS = ("pretrained", "weights", "weights_backbone", "checkpoint_path", "pretrained_cfg")


class ImportedModel(nn.Module):
    """The network that `module:name` builds from `arguments`, and from the properties of the data set that it accepts.

    It returns logits.  A class must be a module, and a function must be annotated with the module that it returns;
    nothing else of an installed package is called.  Weights are never downloaded, because no run key would cover them.
    """

    def __init__(
        self,
        *,
        address: str,
        arguments: Mapping[str, Any],
        image_size: int | None = None,
        in_channels: int | None = None,
        num_classes: int | None = None,
        in_features: int | None = None,
        context: int | None = None,
    ) -> None:
        super().__init__()
        given = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
        given |= {"in_features": in_features, "context": context}
        if loaded := [name for name in _WEIGHTS if arguments.get(name)]:
            raise ValueError(f"{address}: {loaded[0]} loads weights that no run key covers; leave it out")
        make, config = _find(address)
        known, is_open = _keywords(config or make)
        if (unknown := [name for name in arguments if name not in known]) and not is_open:
            raise TypeError(f"{address}: unknown argument {', '.join(unknown)}; it takes {', '.join(known)}")
        chosen = {name: None for name in ("weights", "weights_backbone") if name in known} | dict(arguments)
        for name, aliases in _ALIASES.items():
            if given[name] is not None and not any(alias in arguments for alias in aliases):
                chosen |= {alias: given[name] for alias in aliases if alias in known}
        try:
            self.network: nn.Module = make(config(**chosen)) if config else make(**chosen)
        except Exception as error:
            raise ValueError(f"{address} can't be built: {type(error).__name__}: {error}") from error

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's logits: its output, or the output's `logits`, or `out` as in torchvision's segmentation.

        Raises:
            TypeError: it returns something else.
        """
        outputs = self.network(inputs)
        if isinstance(outputs, Tensor):
            return outputs
        named = outputs if isinstance(outputs, Mapping) else {"logits": getattr(outputs, "logits", None)}
        logits = named.get("logits", named.get("out"))
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"{type(self.network).__name__} returns a {type(outputs).__name__}; expected a Tensor of logits, or an "
                "output with `logits` or `out`"
            )
        return logits


def _find(address: str) -> tuple[Any, Any]:
    """Return the callable, and the class of its configuration if it takes one, as transformers' models do.

    Raises:
        ValueError: it can't be imported or found, or makes no module.
    """
    module, _, name = address.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names or "__main__" in module.split("."):
        raise ValueError(f"{address} is a module of Python's own, which has no networks")
    try:
        found = getattr(import_module(module), name)
        is_class = inspect.isclass(found)
        made = found if is_class else inspect.signature(found, eval_str=True).return_annotation
    except (ImportError, AttributeError, TypeError, NameError) as error:
        raise ValueError(f"{address} can't be imported: {error}") from None
    if not (inspect.isclass(made) and issubclass(made, nn.Module)):
        raise ValueError(
            f"{address} is neither an nn.Module nor a function annotated with the nn.Module that it returns"
        )
    takes_config = is_class and [*inspect.signature(found).parameters][:1] == ["config"]
    return found, getattr(found, "config_class", None) if takes_config else None


def _keywords(make: Any) -> tuple[list[str], bool]:
    """Return the keywords of a callable, or of the class that it returns, and whether it accepts any others."""
    parameters = inspect.signature(make, eval_str=not inspect.isclass(make)).parameters
    names = [name for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    is_open = any(one.kind == one.VAR_KEYWORD for one in parameters.values())
    if inspect.isclass(make):
        return [*names, *(["num_labels"] if hasattr(make, "num_labels") else [])], is_open
    if not is_open:
        return names, False
    more, is_open = _keywords(inspect.signature(make, eval_str=True).return_annotation)
    return [*names, *more], is_open
