"""What grows how, with 10 and 100 times as many experiments, claims, results and runs: the last table of docs/scale.md.

A checkout whose index has each experiment many times under other names, each copy with its own claims and its own
evidence, which together are as many results as the plan has runs; and a store with as many outcomes.  Times are
processor time of a command and all that it starts, or of one answer of the service.
Run: python -m benchmarks.growth [1 10 100] [record graph store objects]
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gc
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from fastapi.testclient import TestClient

from benchmarks.bench_pipeline import DVC, make_checkout, run
from benchmarks.bench_recording import copies
from benchmarks.bench_results import seconds_of
from service.app import create_app
from service.settings import Settings
from stages.run import canonical_json
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines, write_lines
from stages.runs.object_store import ObjectStore, Record
from tests.object_server import BUCKET, ObjectServer

REPLICATES = 10
"""Copies of each published line at size 1."""
RUNS = 1360
ADDRESSES = ("/", "/claims", "/leaderboard", "/papers/dac", "/experiments/dac-sgemm", "/compare", "/api/v1/runs")


def enlarge(folder: Path, times: int, *, with_evidence: bool) -> None:
    """Write a checkout of this clone below `folder`, every experiment in it `times` times."""
    for name in ("stages", "params", "data/models", "data/registrations"):
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".dvcignore", ".gitignore", "dvc.yaml", "data/claims-history.jsonl"):
        shutil.copy(name, folder / name)
    (folder / ".dvc").mkdir()
    shutil.copy(".dvc/config", folder / ".dvc" / "config")
    with contextlib.suppress(FileNotFoundError):
        shutil.copy("data/flops.json", folder / "data" / "flops.json")
    index = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    experiments = index["experiments"]
    index["experiments"] = {_named(name, copy): item for copy in range(times) for name, item in experiments.items()}
    (folder / "params.yaml").write_text(yaml.safe_dump(index, sort_keys=False), encoding="utf-8")
    for copy in range(1, times):
        for name in experiments:
            content = yaml.safe_load((Path("params") / f"{name}.yaml").read_text(encoding="utf-8"))
            if "like" in content:
                content["like"] = _named(content["like"], copy)
            (folder / "params" / f"{_named(name, copy)}.yaml").write_text(
                yaml.safe_dump(content, sort_keys=False), encoding="utf-8"
            )
    _enlarge_claims(folder / "data" / "claims.csv", times)
    (folder / "data" / "evidence").mkdir()
    for path in evidence_files(Path("data/evidence")) if with_evidence else ():
        published = [one for line in read_lines(path, EvidenceLine) for one in copies(line, REPLICATES)]
        for copy in range(times):
            lines = [_moved(line, copy) for line in published]
            (folder / "data" / "evidence" / f"{_named(path.stem, copy)}.jsonl").write_bytes(write_lines(lines))


def _named(name: str, copy: int) -> str:
    return f"c{copy:03}-{name}" if copy else name


def _enlarge_claims(target: Path, times: int) -> None:
    """Claims that are measured belong to a copy; what is computed of a paper stays once."""
    with open("data/claims.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    measured = [row for row in rows if row["experiment"] or row["family"]]
    more = [
        row | {name: _named(row[name], copy) for name in ("id", "experiment", "family") if row[name]}
        for copy in range(1, times)
        for row in measured
    ]
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows + more)


def _moved(line: EvidenceLine, copy: int) -> EvidenceLine:
    """The line under the copy's experiment, with a seed and a run key of its own."""
    if not copy:
        return line
    replicate = dict(line.result.spec["replicate"])
    spec = dict(line.result.spec) | {"replicate": replicate | {"seed": replicate["seed"] + 100_000 * copy}}
    own = {
        "run_key": hashlib.sha256(canonical_json(spec).encode()).hexdigest(),
        "experiment": _named(line.result.experiment, copy),
    }
    result = dataclasses.replace(line.result, spec=spec, **own)
    return dataclasses.replace(
        line, result=result, cost=dataclasses.replace(line.cost, **own), release=None, digest=None
    )


def fill_store(folder: Path, runs: int) -> None:
    """Outcomes of `runs` runs, of small files."""
    for number in range(runs):
        outcome = folder / "data" / "store" / "runs" / hashlib.sha256(str(number).encode()).hexdigest()
        outcome.mkdir(parents=True)
        for name in ("spec.json", "history.jsonl", "weights.safetensors", "result.json"):
            (outcome / name).write_text("{}", encoding="utf-8")


def measure(times: int, parts: Collection[str]) -> Iterator[tuple[str, float]]:
    """Each figure of `parts` as soon as it is known, with its name; seconds but for the sizes."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        (root / "data").mkdir(parents=True)
        enlarge(root, times, with_evidence={"record", "verify"} & {*parts} != set())
        for part in parts:
            yield from PARTS[part](root, times)


def _record(root: Path, _: int) -> Iterator[tuple[str, float]]:
    claimcheck = (sys.executable, "-m", "stages.cli")
    yield "`stages.inputs`", run(root, sys.executable, "-m", "stages.inputs")
    yield "`claimcheck plan`", run(root, *claimcheck, "plan", "--json")
    yield from _verify(root, _)
    yield from _answers(root)


def _verify(root: Path, _: int) -> Iterator[tuple[str, float]]:
    """In a repository, as `verify` compares with its history."""
    for command in (["init", "-q"], ["add", "-f", "data/evidence", "data/claims.csv", "data/claims-history.jsonl"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "All"], cwd=root, check=True)
    yield "`record`", run(root, sys.executable, "-m", "stages.record")
    yield "database, MB", (root / "data" / "results.db").stat().st_size / 1e6
    process = subprocess.Popen([sys.executable, "-m", "stages.cli", "verify"], cwd=root)
    _, _, usage = os.wait4(process.pid, 0)
    yield "`claimcheck verify`", usage.ru_utime + usage.ru_stime
    yield "memory of `claimcheck verify`, MB", usage.ru_maxrss / 1024


def _graph(root: Path, _: int) -> Iterator[tuple[str, float]]:
    idle = root.parent / "checkout"
    with contextlib.chdir(root):
        make_checkout(idle)
    yield "stages", len(list((idle / "data" / "inputs").glob("*.json"))) + 1
    yield "`dvc repro`, nothing to do", run(idle, *DVC, "repro", "-q")
    yield "`dvc repro` of an experiment, nothing to do", run(idle, *DVC, "repro", "-q", "evaluate@dac-sgemm")
    yield "`dvc status`", run(idle, *DVC, "status", "-q")


def _store(root: Path, times: int) -> Iterator[tuple[str, float]]:
    fill_store(root, RUNS * times)
    yield "`claimcheck gc`", run(root, sys.executable, "-m", "stages.cli", "gc")
    yield "`claimcheck du`", run(root, sys.executable, "-m", "stages.cli", "du")


def _objects(root: Path, times: int) -> Iterator[tuple[str, float]]:
    """Requests, which are what a store far away takes its time for, and wall time with moto's S3 on this machine."""
    keys = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(RUNS * times)]
    with ObjectServer() as server:
        os.environ |= server.environment
        store = ObjectStore(f"s3://{BUCKET}/growth", root / "read")
        asked, ask = list[Any](), store.bucket._call
        store.bucket._call = lambda request: asked.append(request) or ask(request)  # type: ignore[method-assign,func-returns-value]
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(lambda key: store.mend(key, Record()), keys):
                pass
            for _ in pool.map(lambda key: store.write(key, Record(is_published=True), None), keys):
                pass
        for what, look in {
            "which runs are there": store.run_keys,
            "which files have an owner": store.named_blobs,
        }.items():
            asked.clear()
            began = time.monotonic()
            for _ in look():
                pass
            yield f"{what}, {len(keys):,} runs, wall", time.monotonic() - began
            yield f"{what}, {len(keys):,} runs, requests", len(asked)


PARTS = {"record": _record, "verify": _verify, "graph": _graph, "store": _store, "objects": _objects}


def _answers(root: Path) -> Iterator[tuple[str, float]]:
    client = TestClient(create_app(Settings(root=root, database="data/results.db")), base_url="http://127.0.0.1")
    client.get("/api/v1/papers")
    gc.collect()
    gc.freeze()
    for path in ADDRESSES:
        first, *others = [seconds_of(client, path) for _ in range(6)]
        yield f"`{path}`, first", first
        yield f"`{path}`", statistics.median(others)


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:] if word.isdecimal()] or [1, 10]
    chosen = [word for word in sys.argv[1:] if not word.isdecimal()] or [*PARTS]
    for size in sizes:
        for what, value in measure(size, chosen):
            print(f"{size:>4} ×  {what:40} {value:10.3f}", flush=True)
