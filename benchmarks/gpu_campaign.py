"""Trainings on a GPU machine that is borrowed for minutes: a command at a time, each under ten minutes.

Here, where params and packed data are; it takes in what came back, and lays out what goes there next:

    python -m benchmarks.gpu_campaign prepare --budget 1800 [--back FOLDER] [--fresh] [EXPERIMENT …]

There, with the code and data/campaign/carry beside it (torch 2.11 at least, numpy and safetensors, nothing else):

    python -m benchmarks.gpu_campaign run data/campaign/carry --work FOLDER --out BACK

Both can be repeated at any time and go on where they were; `--fresh` says that the next machine is another one, which
holds no data.  Trainings come in the order of verdicts a device-second.  Not yet run on a GPU.
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    verb, *rest = arguments or [""]
    if verb == "run":
        from benchmarks import campaign_run

        return campaign_run.main(rest)
    if verb == "prepare":
        from benchmarks import campaign_prepare  # reads params, which the borrowed machine can't

        return campaign_prepare.main(rest)
    print(__doc__, file=sys.stderr)
    return 0 if verb in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
