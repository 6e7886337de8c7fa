"""Train on a GPU machine that is available for minutes, with commands of under ten minutes each.

Here, with params and packed data, accept the results and write the next inputs:

    python -m benchmarks.gpu_campaign prepare --budget 1800 [--back FOLDER] [--fresh] [EXPERIMENT …]

There, with the code and data/campaign/carry (and only torch 2.11 or later, numpy and safetensors), train:

    python -m benchmarks.gpu_campaign run data/campaign/carry --work FOLDER --out BACK

Both can be repeated at any time and resume their work; `--fresh` says that the next machine is another one without
data. Trainings are ordered by verdicts per device-second. Not run on a GPU so far.
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    verb, *rest = arguments or [""]
    if verb == "run":
        from benchmarks import campaign_run

        return campaign_run.main(rest)
    if verb == "prepare":
        from benchmarks import campaign_prepare  # reads params, which the GPU machine can't

        return campaign_prepare.main(rest)
    print(__doc__, file=sys.stderr)
    return 0 if verb in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
