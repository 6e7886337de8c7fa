import re
from pathlib import Path

import pytest
import torch

from tests.project import REPOSITORY


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs" / "operators").glob("*.md")), ids=lambda page: page.stem)
def test_docstring_examples_of_operators_run(page: Path) -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(example, str(page), "exec"), names)
    assert all(value.isfinite().all() for value in names.values() if isinstance(value, torch.Tensor))
