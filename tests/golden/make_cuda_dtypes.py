"""Write cuda_dtypes.json: for each operator of PyTorch, the types of number that its CUDA kernel takes on an H100.

Origin: the operator database of PyTorch's own tests (`op_db`, its version is inside), not our code.  Where an operator
is in it several times, the types are those of all entries.  Needs the package expecttest, and no GPU: what the database
asks of one is answered here.
Run from the repository root: python tests/golden/make_cuda_dtypes.py
"""

import json
from pathlib import Path
from unittest.mock import patch

import torch

PATH = Path(__file__).with_name("cuda_dtypes.json")
HOPPER = 9, 0


def read_database() -> dict[str, set[str]]:
    """Names of types by the name of the operator, as in `torch.ops.aten`; `backward …` for its gradients."""
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.get_device_capability", lambda *device: HOPPER),
    ):
        from torch.testing._internal import common_cuda

        for name in dir(common_cuda):
            if name.startswith("SM"):
                bool(getattr(common_cuda, name))  # asks now, and remembers
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
    PATH.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
