"""`python -m stages.train EXPERIMENT`: train the runs that the store lacks, into `data/runs/<experiment>/`."""

from __future__ import annotations

import argparse
import os
import sys

from stages.datasets.packed import PackedDataError
from stages.evaluation.flops import FlopCounts
from stages.faults import Mistake, in_one_line, stop_on_signals
from stages.params.experiment import load_params
from stages.params.stage_inputs import refuse_changed
from stages.scheduling.display import progress_display
from stages.scheduling.groups import TrainingsKilled, default_engine
from stages.scheduling.orphans import dvc_and_shells, exit_when_gone
from stages.scheduling.planning import longest_first
from stages.scheduling.runner import slot_devices, train_experiment

KILLED = 3
"""Exit code if something killed the processes that trained."""


@in_one_line("train")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument(
        "--device",
        default=os.environ.get("CLAIMCHECK_DEVICE", "auto"),
        help="auto, cpu, cuda; one per slot: cuda:0,cuda:1; several that train one run together: cuda:0+cuda:1 "
        "(default: CLAIMCHECK_DEVICE, else auto)",
    )
    parser.add_argument(
        "--runs",
        nargs="+",
        metavar="PATTERN",
        help="only these runs, as <arm>.<replicate>: 'resnet20.*' 'mlp-25x[58].[012]' (default: those of the profile)",
    )
    parser.add_argument(
        "--engine", default=default_engine(), help="local or ray (default: CLAIMCHECK_ENGINE, else local)"
    )
    options = parser.parse_args(arguments)
    # Waiting threads sleep, because spinning ones would slow down all trainings that share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it when it is loaded, which is later
    try:
        exit_when_gone(dvc_and_shells())
        params, counts = load_params(), FlopCounts()
        with stop_on_signals() as stop, progress_display() as report:
            complete = train_experiment(
                options.experiment,
                params,
                devices=slot_devices(options.device, params, options.engine),
                report=report,
                stop=stop,
                only=options.runs,
                engine=options.engine,
                # On placeholder data, trainings take seconds; to count FLOPs first would take longer than it saves.
                order=longest_first(params, options.device, counts.count) if params.profile.data == "real" else None,
            )
            counts.save()
    except TrainingsKilled as error:
        print(f"train@{options.experiment}: {error}", file=sys.stderr)
        return KILLED
    except (Mistake, PackedDataError) as error:
        print(f"train@{options.experiment}: {error}", file=sys.stderr)
        return 1
    return 1 if refuse_changed(f"train@{options.experiment}") or not complete else 0


if __name__ == "__main__":
    sys.exit(main())
