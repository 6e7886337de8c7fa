"""`prepare`, run here: accept results of the GPU machine, and write its next inputs."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.campaign_parcels import MIB, DamagedParcel, cut, read_json, unpack_back
from stages.datasets.packed import PackedDataError, PackedInfo, read_info
from stages.datasets.prepare import count_rows
from stages.evaluation.flops import FlopCounts
from stages.params.experiment import ExperimentParams, Params, ParamsError, PlannedRun, load_params
from stages.priorities import PROFILE, propose
from stages.run import canonical_json
from stages.runs.object_store import open_store
from stages.runs.store import Specs, Store, write_atomically
from stages.scheduling.engine.groups import form_groups
from stages.scheduling.planning import cost_of_run
from stages.scheduling.runner import Outcomes, find_experiment, keyed_runs

FOLDER = Path("data/campaign")
COMMAND = "python -m benchmarks.gpu_campaign run {carry} --work FOLDER --out BACK --seconds {seconds:.0f}"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Runs that train together, planned to take `seconds` of the device.

    `place` is the position of the first step that needs one of them; `verdicts` are these steps' claims, by share of
    runs.
    """

    label: str
    dataset: str
    specs: Specs
    is_stack: bool
    replicate: int
    seconds: float
    verdicts: float
    place: int

    @property
    def rank(self) -> tuple[int, str, int]:
        return self.place, self.label.rpartition(".")[0], self.replicate


def wanted_groups(names: Sequence[str], params: Params, data: Path, kind: str, skipped: set[str]) -> list[Wanted]:
    """Return the groups of these experiments' runs that the store lacks, best first; unpacked data are skipped.

    The best ones complete most claims' next analyses (`stages.priorities`). Under a profile that decides nothing,
    groups are ordered by label.
    """
    proposal = propose(Path(), params, kind, experiments=names) if params.profile_name == PROFILE else None
    counts, found = FlopCounts(), list[Wanted]()
    outcomes, seen = Outcomes(), set[str]()
    for name in names:
        experiment = find_experiment(params, name)
        try:
            info = _packed(experiment, params, data)
        except PackedDataError as error:
            print(f"{name}: left out, {error}")
            continue
        runs = {one.spec.run_key: one for one in keyed_runs(experiment, params, info.digest)}
        lacking = {
            key: one for key, one in runs.items() if key not in seen | skipped and outcomes.find(one.spec) is None
        }
        seen |= runs.keys()
        for specs, is_stack in form_groups([one.spec for one in lacking.values()], info.train_images, outcomes.store):
            members = [lacking[spec.run_key] for spec in specs if spec.run_key in lacking]
            seconds = sum(_seconds(one, experiment, params, counts, kind, len(specs)) for one in members)
            places = [proposal.place(one.name) for one in members] if proposal else [(0, 0.0)]
            found.append(
                Wanted(
                    label=members[0].name.label + (f" to {members[-1].name.cell}" if members[1:] else ""),
                    dataset=experiment.dataset,
                    specs=specs,
                    is_stack=is_stack,
                    replicate=members[0].name.replicate,
                    seconds=max(seconds, 1e-3),
                    verdicts=sum(share for _, share in places),
                    place=min(place for place, _ in places),
                )
            )
    counts.save()
    return sorted(found, key=lambda one: one.rank)


def _packed(experiment: ExperimentParams, params: Params, data: Path) -> PackedInfo:
    info = read_info(data / experiment.dataset)
    if (info.provenance == "embedded") != (params.profile.data == "embedded"):
        raise PackedDataError(f"{data / experiment.dataset} holds {info.provenance} data; run dvc repro")
    return info


def _seconds(
    one: PlannedRun, experiment: ExperimentParams, params: Params, counts: FlopCounts, kind: str, together: int
) -> float:
    source = params.datasets[experiment.dataset]
    rows = count_rows(experiment.dataset, source, is_stand_in=params.profile.data == "embedded")
    # Tests are measured here, after the results come back.
    rates = {kind: params.rates[kind]}
    return cost_of_run(one, rows, source, rates, counts.count, 0, together=together).seconds[kind]


class Campaign:
    """The state of the work on the GPU machine, in `folder/state.json`."""

    def __init__(self, folder: Path, part_bytes: int) -> None:
        self.folder, self.path, self.part_bytes = folder, folder / "state.json", part_bytes
        self.state: dict[str, Any] = read_json(
            self.path,
            {"slice": 0, "taken": [], "spent": 0.0, "held": [], "failed": {}, "without_weights": [], "waiting": 0},
        )

    def save(self) -> None:
        write_atomically(self.path, (json.dumps(self.state, indent=1) + "\n").encode())

    def take_back(self, back: Path, store: Store) -> None:
        """Publish complete outcomes; keep resume states, and curves of outcomes without weights.

        Raises:
            DamagedParcel: the report is missing, or something differs from what was sent.
        """
        report = read_json(back / "report.json", None)
        if report is None:
            raise DamagedParcel(f"{back}: no report.json; the slice didn't end, run it again")
        published = 0
        for kind, key, files in unpack_back(back, report["archives"]):
            if kind == "work":
                for name, content in files.items():
                    write_atomically(self.folder / "resume" / key / name, content)
            elif "weights.safetensors" not in files and json.loads(files["result.json"])["weights_sha256"]:
                for name, content in files.items():
                    write_atomically(self.folder / "without_weights" / key / name, content)
                if key not in self.state["without_weights"]:
                    self.state["without_weights"].append(key)
            else:
                store.publish(key, files)
                if store.whole(key) is None:
                    raise DamagedParcel(f"{back}: the outcome {key[:12]} is not whole")
                published += 1
                shutil.rmtree(self.folder / "resume" / key, ignore_errors=True)
        if report["slice"] not in self.state["taken"]:
            self.state["taken"].append(report["slice"])
            self.state["spent"] += report["seconds"]
        self.state |= {"held": report["held"], "waiting": len(report["waiting"])}
        self.state["failed"] |= report["failed"]
        self.save()
        print(
            f"{published} outcomes came back, {len(report['failed'])} failed, {len(report['waiting'])} are still there"
        )
        for words in report["failed"].values():
            print(f"  failed: {words}")

    def lay_out(self, groups: Sequence[Wanted], data: Path, *, limit: int, fresh: bool, done: Sequence[str]) -> int:
        """Write the queue, as much of the missing data as fits, and resume states; return the folder's bytes."""
        carry = self.folder / "carry"
        shutil.rmtree(carry, ignore_errors=True)
        (carry / "parts").mkdir(parents=True)
        if fresh:
            self.state |= {"held": [], "waiting": 0}
        self.state["slice"] += 1
        listed = {name: self._parts(name, data / name) for name in dict.fromkeys(one.dataset for one in groups)}
        queue = {
            "slice": self.state["slice"],
            "done": list(done),
            "parts": listed,
            "groups": [
                {"label": one.label, "dataset": one.dataset, "is_stack": one.is_stack, "seconds": one.seconds}
                | {"specs": [spec.to_dict() for spec in one.specs]}
                for one in groups
            ],
        }
        (carry / "queue.json").write_text(canonical_json(queue), encoding="utf-8")
        room = limit - (carry / "queue.json").stat().st_size
        keys = {spec.run_key for one in groups for spec in one.specs}
        for state in sorted((self.folder / "resume").glob("*")) if fresh else ():
            size = sum(path.stat().st_size for path in state.iterdir())
            if (state.name in keys or state.name.startswith("stack-")) and size <= room:
                shutil.copytree(state, carry / "resume" / state.name)
                room -= size
        for part in (part for parts in listed.values() for part in parts):
            if part["name"] not in self.state["held"] and part["bytes"] <= room:
                shutil.copy(self.folder / "parts" / part["name"], carry / "parts")
                room -= part["bytes"]
        self.save()
        return limit - room

    def _parts(self, name: str, folder: Path) -> list[dict[str, Any]]:
        digest = read_info(folder).digest[:12]
        index = self.folder / "parts" / f"{name}.{digest}.json"
        if not index.is_file():
            write_atomically(
                index, canonical_json(cut(folder, f"{name}.{digest}", index.parent, self.part_bytes)).encode()
            )
        found: list[dict[str, Any]] = json.loads(index.read_text(encoding="utf-8"))
        return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_campaign prepare", description=__doc__)
    parser.add_argument("experiments", nargs="*", help="default: all")
    parser.add_argument("--budget", type=float, required=True, help="seconds of the device, all slices together")
    parser.add_argument("--slice", type=float, default=500.0, help="seconds of training in one command")
    parser.add_argument("--limit", type=float, default=40.0, help="MiB that may be sent with the code")
    parser.add_argument("--part", type=float, default=20.0, help="MiB of a part of packed data, at most half the limit")
    parser.add_argument("--back", type=Path, help="the folder that the last slice brought back")
    parser.add_argument("--fresh", action="store_true", help="the next machine is another one and holds nothing")
    parser.add_argument("--rate", default="cuda", help="the kind of device in params.yaml that plans go by")
    options = parser.parse_args(arguments)
    if options.part > options.limit / 2:
        print(f"gpu_campaign: --part is {options.part} MiB; half of --limit, {options.limit / 2}, is the most")
        return 2
    campaign, store, data = (
        Campaign(FOLDER, int(options.part * MIB)),
        open_store(),
        Path("data/processed"),
    )
    try:
        if options.back is not None:
            campaign.take_back(options.back, store)
        params = load_params()
        names = options.experiments or list(params.experiments)
        skipped = {*campaign.state["failed"], *campaign.state["without_weights"]}
        groups = wanted_groups(names, params, data, options.rate, skipped)
    except (DamagedParcel, ParamsError) as error:
        print(f"gpu_campaign: {error}", file=sys.stderr)
        return 1
    left = options.budget - campaign.state["spent"]
    if left <= 0 or not (groups or campaign.state["waiting"]):
        print(
            "nothing is left to train with the data here"
            if not groups
            else f"the budget is spent; {len(groups)} groups are left"
        )
        return 0
    fitting_in = _within(groups, left)
    done = list(store.run_keys())
    done += campaign.state["without_weights"]
    size = campaign.lay_out(fitting_in, data, limit=int(options.limit * MIB), fresh=options.fresh, done=done)
    planned = sum(one.seconds for one in groups)
    print(f"{len(groups)} groups are wanted, {planned:,.0f} s are planned for them, {left:,.0f} s are left")
    for one in fitting_in[:10]:
        print(f"  {one.label}: {one.seconds:,.0f} s, {3600 * one.verdicts / one.seconds:.2f} verdicts an hour")
    print(f"{FOLDER / 'carry'}: {size / MIB:.1f} MiB.  There, with the code next to it:")
    print(f"  {COMMAND.format(carry=FOLDER / 'carry', seconds=min(options.slice, left))}")
    return 0


def _within(groups: Sequence[Wanted], seconds: float) -> list[Wanted]:
    """Return the first groups, up to twice the budget, because the plan is only an estimate."""
    found, planned = [], 0.0
    for one in groups:
        if found and planned > 2 * seconds:
            break
        found.append(one)
        planned += one.seconds
    return found
