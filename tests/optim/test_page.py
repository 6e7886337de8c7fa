"""The example in docs/operators/cg_fac.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "operators" / "cg_fac.md"


def test_example_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert isinstance(names["loss"], torch.Tensor) and names["loss"].item() < 1.0
