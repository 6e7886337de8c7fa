"""PyTorch's compiler is loaded when something is compiled, not by an optimiser's first step.

Every `torch.optim` step imports `torch._dynamo` to tell a compiler, should one be tracing, where not to look.  Its
import takes nearly as long as that of torch, and says nothing to a step that nobody compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


def defer_dynamo() -> None:
    """From now on `import torch._dynamo` is for nothing until more of it is used than an eager step needs."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _Deferred(_NAME)


class _Deferred(ModuleType):
    """Stands for the module.  Whatever else is asked of it (for a submodule, its path) loads and asks the real one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._left_alone: list[Callable[..., Any]] = []

    def graph_break(self, msg: str = "") -> None:
        """Nothing, as in the real module: only a compiler that traces sees it."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_options: Any) -> Callable[..., Any]:
        """The function itself, which torch keeps in its place; it asks again once there is a compiler."""
        self._left_alone.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)  # what `inspect` asks of every module says nothing of a use
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            import torch._dynamo  # noqa: F401  (found anew, now that this no longer stands in its place)

            for fn in self._left_alone:
                vars(fn).pop("__dynamo_disable", None)
        return getattr(sys.modules[_NAME], name)
