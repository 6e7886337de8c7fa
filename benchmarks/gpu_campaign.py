"""Train on a GPU machine that you can hold only for minutes, without a network and with few packages.

Here, with params and packed data, write what to train into `data/campaign`:

    python -m benchmarks.gpu_campaign prepare --budget 1800 [EXPERIMENT …]

There, with a copy of the code and of that folder (and only torch 2.11 or later, numpy and safetensors), train:

    python -m benchmarks.gpu_campaign run data/campaign --seconds 500

Here again, import the outcomes and unfinished states of the folder that came back, and prepare the rest:

    python -m benchmarks.gpu_campaign prepare --budget 1200 --back FOLDER [EXPERIMENT …]

Every command can be repeated and resumes its work.  The folder's `store` is a run store, so only that part has to come
back.  Not run on a GPU so far.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from stages.device import pick_device
from stages.faults import Mistake, stop_on_signals
from stages.run import RunSpec, canonical_json
from stages.runs.object_store import open_store
from stages.runs.store import RunStore, Store
from stages.scheduling.groups import Event, Group
from stages.scheduling.local import run_groups

FOLDER = Path("data/campaign")
COMMAND = "python -m benchmarks.gpu_campaign run {folder} --seconds 500"


def run(folder: Path, seconds: float, device: str) -> int:
    """Train the queue in `folder` until the time is over; return 1 if a training failed."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    groups = [
        Group(
            label=one["label"],
            specs=tuple(RunSpec.from_dict(spec) for spec in one["specs"]),
            data=folder / "data" / one["dataset"],
            is_stack=one["is_stack"],
        )
        for one in json.loads((folder / "queue.json").read_text(encoding="utf-8"))
    ]
    failed = set[str]()

    def report(event: Event) -> None:
        if event.kind != "progress":
            print(f"{event.label}: {event.kind} {event.message}".rstrip(), flush=True)
        if event.kind == "failed":
            failed.add(event.label)

    with stop_on_signals() as stop:
        timer = threading.Timer(seconds, stop.set)
        timer.start()
        run_groups(groups, RunStore(folder / "store"), [device], report, stop)
        timer.cancel()
    return int(bool(failed))


def take_back(folder: Path, store: Store) -> None:
    """Publish the whole outcomes of a folder that came back, and keep its states of unfinished trainings."""
    from stages.scheduling.runner import adopt

    back = RunStore(folder / "store")
    adopt(back.root / "runs", store, {*store.run_keys()})
    for path in back.root.glob("work/*/*"):
        if not store.has(path.parent.name):
            store.scratch.save(f"{path.parent.name}/{path.name}", path.read_bytes())


def prepare(names: Sequence[str], budget: float, device: str, store: Store) -> int:
    """Write the missing groups of these experiments with their data and states; return the number of groups.

    Under the profile that decides, they are those that bring most claims to an interim analysis, best first.  The plan
    is only an estimate, so they may take up to twice the budget.
    """
    from stages.commands.priorities import PROFILE, propose
    from stages.params.experiment import load_params
    from stages.scheduling.runner import line_up

    params = load_params()
    if params.profile_name == PROFILE:
        proposal = propose(Path(), params, device, budget=2 * budget, experiments=names)
        queue = line_up(proposal.chosen, params, Path("data"), store, proposal.order)
    else:
        queue = line_up(dict.fromkeys(names or params.experiments), params, Path("data"), store, lambda *_: 0.0)
    shutil.rmtree(FOLDER, ignore_errors=True)
    scratch = RunStore(FOLDER / "store").scratch
    for folder in {group.data for group in queue.groups}:
        shutil.copytree(folder, FOLDER / "data" / folder.name)
    for name in (name for group in queue.groups for name in group.states):
        if (content := store.scratch.load(name)) is not None:
            scratch.save(name, content)
    described = [
        {
            "label": group.label,
            "specs": [spec.to_dict() for spec in group.specs],
            "dataset": group.data.name,
            "is_stack": group.is_stack,
        }
        for group in queue.groups
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "queue.json").write_text(canonical_json(described), encoding="utf-8")
    return len(queue.groups)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    here = verbs.add_parser("prepare", help="on your machine: import what came back, and write what to train next")
    here.add_argument("experiments", nargs="*", help="default: all")
    here.add_argument("--budget", type=float, required=True, help="seconds of the device that are left")
    here.add_argument("--back", type=Path, help="the folder that came back")
    here.add_argument("--rate", default="cuda", help="device in params.yaml by whose speed runs are planned")
    there = verbs.add_parser("run", help="on the GPU machine: train, and write outcomes and states into the folder")
    there.add_argument("folder", type=Path)
    there.add_argument("--seconds", type=float, default=500.0, help="time for trainings, after which states are saved")
    there.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    try:
        if options.verb == "run":
            pick_device(options.device)
            return run(options.folder, options.seconds, options.device)
        store = open_store()
        if options.back is not None:
            take_back(options.back, store)
        groups = prepare(options.experiments, options.budget, options.rate, store)
    except (Mistake, ValueError) as error:
        print(f"gpu_campaign: {error}", file=sys.stderr)
        return 1
    if not groups:
        print("nothing is left to train within the budget")
        return 0
    print(f"{groups} groups are in {FOLDER}.  There, with the code next to it:")
    print(f"  {COMMAND.format(folder=FOLDER)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
