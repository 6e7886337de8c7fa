"""Write cuda_dtypes.json: the dtypes that each PyTorch operator's CUDA kernel supports on an H100.

Origin: the operator database of PyTorch's own tests (`op_db`, version inside), not our code. The dtypes of operators
with several entries are combined. Needs the package expecttest but no GPU, because the database's queries are answered
here. Run from the repository root: python tests/golden/make_cuda_dtypes.py
"""

import json
from pathlib import Path
from unittest.mock import patch

import torch

PATH = Path(__file__).with_name("cuda_dtypes.json")
HOPPER = 9, 0


def read_database() -> dict[str, set[str]]:
    """Return dtypes by operator name, as in `torch.ops.aten`; `backward …` has those of its gradients."""
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.get_device_capability", lambda *device: HOPPER),
    ):
        from torch.testing._internal import common_cuda

        for name in dir(common_cuda):
            if name.startswith("SM"):
                bool(getattr(common_cuda, name))  # queried on import and cached
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, set[str]] = {}
    for entry in op_db:
        name = "index" if entry.name == "__getitem__" else entry.aten_name.removeprefix("nn.functional.")
        for key, dtypes in ((name, entry.dtypesIfCUDA), (f"backward {name}", entry.backward_dtypesIfCUDA)):
            names = {str(dtype).removeprefix("torch.") for dtype in dtypes or ()}
            found[key] = found.get(key, names) & names
    return found


def main() -> None:
    names: dict[str, list[str]] = {}
    for name, dtypes in sorted(read_database().items()):
        if dtypes:
            names.setdefault(" ".join(sorted(dtypes)), []).append(name)
    content = {"torch": torch.__version__, "operators": {dtypes: ", ".join(names[dtypes]) for dtypes in sorted(names)}}
    PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
