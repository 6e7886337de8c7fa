"""`python -m stages.inputs`: code and parameters of every other stage of dvc.yaml, one file each below `data/inputs/`.

DVC doesn't follow imports, and at every repro it checks each dependency separately and parses a params file once per
stage.  So one stage depends on all source and all params, and writes down the part that each other stage uses: modules
with their digests (comments and docstrings don't count, as in a run key) and the parameters, checked.
"""

from __future__ import annotations

import json
import shutil
import sys

from stages.faults import in_one_line, named
from stages.params.experiment import load_params
from stages.params.stage_inputs import TARGET, code_digests, stage_inputs


@in_one_line("inputs")
def main() -> int:
    found = stage_inputs(load_params())
    if TARGET.exists():
        shutil.rmtree(TARGET)
    TARGET.mkdir(parents=True)
    for name, inputs in found.items():
        content = {"params": inputs.params, "code": code_digests(inputs.roots, inputs.files)}
        # Not sorted: the order of arms in a file is the order in which they are trained and shown.
        path = TARGET / f"{name}.json"
        with named(path):
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"inputs: {len(found)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
