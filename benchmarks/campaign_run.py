"""`run`, on the GPU machine: train a queue until the slice is over, and write the results to send back.

Needs only torch, numpy and safetensors. Everything is kept below `--work`, so the same command resumes there; another
machine resumes from the transferred resume states.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.attempt import in_words
from benchmarks.campaign_parcels import join, pack_back, take_in
from stages.device import pick_device
from stages.run import RunSpec
from stages.runs.store import RunStore, find_fault
from stages.worker import Job, TrainingStopped, can_stack, train_run, train_stack


class Slice:
    """The time available to one command."""

    def __init__(self, seconds: float) -> None:
        self.began, self.seconds, self.is_ended = time.monotonic(), seconds, False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.is_ended = True

    def is_over(self) -> bool:
        return self.is_ended or time.monotonic() - self.began > self.seconds


def run(carried: Path, work: Path, out: Path, seconds: float, device: str) -> int:
    """Train until the slice is over; return 1 if a training failed."""
    piece = Slice(seconds)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    queue = json.loads((carried / "queue.json").read_text(encoding="utf-8"))
    store = RunStore(work / "data" / "store")
    take_in(carried / "parts", work / "parts", queue["parts"])
    _take_resume_states(carried / "resume", store)
    report: dict[str, Any] = {"slice": queue["slice"], "failed": {}, "lacking": [], "results": []}
    can_train_stacks: bool | None = None
    for group in queue["groups"]:
        if piece.is_over():
            break
        specs = [RunSpec.from_dict(spec) for spec in group["specs"]]
        if all(store.published(spec.run_key) for spec in specs):
            continue
        data = work / "data" / "processed" / group["dataset"]
        data.parent.mkdir(parents=True, exist_ok=True)
        if not join(queue["parts"][group["dataset"]], work / "parts", data):
            if group["dataset"] not in report["lacking"]:
                report["lacking"].append(group["dataset"])
            continue
        if group["is_stack"] and can_train_stacks is None:
            can_train_stacks = can_stack(device)
        jobs = [Job(spec=spec, data=data, device=device) for spec in specs]
        as_stack = group["is_stack"] and can_train_stacks
        for part in [jobs] if as_stack else [[job] for job in jobs if store.published(job.spec.run_key) is None]:
            if not _train(group["label"], part, as_stack, store, piece, report):
                break
    _lay_out(queue, store, work, out, piece, report)
    return int(bool(report["failed"]))


def _train(label: str, jobs: list[Job], as_stack: bool, store: RunStore, piece: Slice, report: dict[str, Any]) -> bool:
    """Train one run or stack; return False if the slice ended first."""
    began = time.monotonic()
    try:
        if as_stack:
            published = [job.spec.run_key for job in jobs if store.has(job.spec.run_key)]
            trained = train_stack(jobs, store.scratch, published=published, should_stop=piece.is_over)
        else:
            trained = train_run(jobs[0], store.scratch, should_stop=piece.is_over)
        for run_key, files in trained.outcomes.items():
            if fault := find_fault(files, run_key):
                raise ValueError(f"the outcome of run {run_key[:12]} isn't whole: {fault}; nothing is published")
            store.publish(run_key, files)
        store.scratch.drop(trained.work)
    except TrainingStopped as stopped:
        print(f"{label}: {stopped}", flush=True)
        return False
    except Exception as error:  # noqa: BLE001  (the next training is wanted, whatever this one raised)
        traceback.print_exc()
        report["failed"] |= {job.spec.run_key: f"{label}: {in_words(error)}" for job in jobs}
    else:
        print(f"{label}: trained, {time.monotonic() - began:.1f} s", flush=True)
    return True


def _take_resume_states(carried: Path, store: RunStore) -> None:
    for folder in sorted(carried.glob("*")):
        if store.published(folder.name) is None and not (store.root / "work" / folder.name / "resume.pt").is_file():
            for file in folder.iterdir():
                store.scratch.save(f"{folder.name}/{file.name}", file.read_bytes())


def _lay_out(
    queue: Mapping[str, Any], store: RunStore, work: Path, out: Path, piece: Slice, report: dict[str, Any]
) -> None:
    """Write outcomes that may not have been received yet, then resume states and report.json."""
    out.mkdir(parents=True, exist_ok=True)
    done = {*queue["done"]}
    labels = {RunSpec.from_dict(spec).run_key: group["label"] for group in queue["groups"] for spec in group["specs"]}
    outcomes = [
        folder
        for folder in sorted((store.root / "runs").glob("*"), key=lambda path: path.stat().st_mtime_ns)
        if folder.name not in done
    ]
    begun = [path.parent for path in sorted((store.root / "work").glob("*/resume.pt"))]
    archives, waiting, too_large = pack_back([*outcomes, *begun], out)
    for folder in outcomes:
        rows = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        result = json.loads((folder / "result.json").read_bytes())
        kept = {name: result[name] for name in ("run_key", "status", "train_seconds", "environment_digest")}
        last = json.loads(rows[-1]) if rows else None
        report["results"].append({"label": labels.get(folder.name, ""), "epochs": len(rows), "last": last} | kept)
    report |= {
        "archives": archives,
        "waiting": [folder.name for folder in waiting],
        "too_large": too_large,
        "held": sorted(path.name for path in (work / "parts").glob("[!.]*")),
        "seconds": time.monotonic() - piece.began,
    }
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(
        f"{len(outcomes)} outcomes, {len(begun)} begun, {len(report['failed'])} failed, {len(waiting)} wait for the "
        f"next way back; {report['seconds']:.0f} s",
        flush=True,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_campaign run", description=__doc__)
    parser.add_argument("carried", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0, help="of this slice, without start and way back")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    try:
        pick_device(options.device)
    except ValueError as error:
        print(f"gpu_campaign: {error}", file=sys.stderr)
        return 2
    return run(options.carried, options.work, options.out, options.seconds, options.device)
