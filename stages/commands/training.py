"""Trains what several experiments lack, all at once, on the engine of one's choice."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from stages.commands.command import Answer, UsageError
from stages.commands.trainings import write_profile
from stages.evaluation.flops import FlopCounts
from stages.interruption import stop_on_signals
from stages.params.experiment import load_params
from stages.scheduling.engine.choice import default_engine
from stages.scheduling.progress import ProgressDisplay
from stages.scheduling.runner import find_experiment, slot_devices
from stages.scheduling.together import longest_first, train_together


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all experiments of params.yaml")
    parser.add_argument(
        "--engine", default=default_engine(), help="local or ray (default: CLAIMCHECK_ENGINE, else local)"
    )
    parser.add_argument(
        "--device",
        default=os.environ.get("CLAIMCHECK_DEVICE", "auto"),
        help="auto, cpu, cuda, or one per slot: cuda:0,cuda:1 (default: CLAIMCHECK_DEVICE, else auto)",
    )
    parser.add_argument("--profile", help="written into params.yaml first, as by `claimcheck profile`")


def run(options: argparse.Namespace) -> Answer:
    """Train the missing runs of the named experiments, or of all, the longest first."""
    if options.all == bool(options.experiments):
        raise UsageError("claimcheck run: name experiments, or say --all (see claimcheck run --help)")
    if options.profile:
        write_profile(options.profile)
    params = load_params()
    names = [find_experiment(params, name).name for name in options.experiments or params.experiments]
    # Waiting threads sleep: if they spun, they would stall all work where several trainings share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded, which is later
    counts = FlopCounts()
    out = sys.stderr if options.json else sys.stdout  # the document stands alone
    with redirect_stdout(out), stop_on_signals() as stop, ProgressDisplay(out) as display:
        missing, left = train_together(
            dict.fromkeys(names),
            params,
            data=Path("data"),
            devices=slot_devices(options.device, params, options.engine),
            report=display.report,
            stop=stop,
            engine=options.engine,
            order=longest_first(params, options.device, counts.count),
        )
    counts.save()
    shown = f"{missing - left} of {missing} missing runs trained"
    document = {"missing": missing, "trained": missing - left}
    if left:
        return Answer(document=document, shown=[f"{shown}; the same command goes on with the rest"], code=1)
    return Answer(document=document, shown=[f"{shown}; `make repro` evaluates and records them"])
