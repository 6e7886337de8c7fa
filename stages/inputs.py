"""`python -m stages.inputs`: write the code and parameters that each other stage uses to `data/inputs/<stage>.json`.

DVC doesn't follow imports, and at every repro it checks each dependency separately and parses a params file once per
stage.  Therefore this stage depends on all source and all params.  For each other stage, it writes the modules with
their digests (as in a run key, comments and docstrings don't count) and the validated parameters.
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
        # Not sorted, because arms are trained and shown in the order of the file.
        path = TARGET / f"{name}.json"
        with named(path):
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"inputs: {len(found)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
