"""Random faults in a finished project are reported, repaired by `dvc repro`, or harmless: no number changes silently.

A fault flips a bit, truncates a file, swaps two files or changes a digit in code, parameters, data, the run store,
DVC's cache, results, evidence or the database. `claimcheck verify` and `dvc repro` follow. Then a number may differ
from the undisturbed one only if it belongs to a run with another key, or if a message reports it. Changed code and
parameters are legitimate changes: once they are restored, the old numbers must be back.

Edits of published files (environments, evidence, claims, released models, equivalences, registrations), resealed and
often committed as a forger would, must be reported by `record` or `verify`.

`CLAIMCHECK_SOAK_FAULTS` and `CLAIMCHECK_SOAK_EDITS` set their number; `CLAIMCHECK_SOAK_SEED` sets the first seed.
"""

import csv
import hashlib
import io
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stages.claims import ClaimsError
from stages.recording.append_only import read_versions, retract
from stages.recording.builder import record
from stages.recording.sources import RecordError
from stages.run import canonical_json, environment_digest
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.evidence import EvidenceError, pack_correct, seal, unpack_correct
from stages.upkeep.verifying import verify
from tests import checkout
from tests.checkout import DVC, make_checkout, repro
from tests.project import EXPERIMENT, REPOSITORY, git

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(6 * 3600)]

FAULTS = int(os.environ.get("CLAIMCHECK_SOAK_FAULTS", "500"))
EDITED = int(os.environ.get("CLAIMCHECK_SOAK_EDITS", "500"))
SEED = int(os.environ.get("CLAIMCHECK_SOAK_SEED", "0"))
LANES = max(1, min(4, os.cpu_count() or 2))
PLACES = {
    "code": ("stages/**/*.py",),
    "params": ("params.yaml", "params/*.yaml"),
    "graph": ("dvc.yaml", "dvc.lock", "data/inputs/*"),
    "data": ("data/raw/**/*", "data/processed/**/*"),
    "store": ("data/store/**/*",),
    "runs": ("data/runs/**/*",),
    "cache": (".dvc/cache/**/*",),
    "results": ("data/results/*", "data/metrics/*", "data/plots/*", "data/findings.jsonl", "data/report/**/*"),
    "evidence": ("data/evidence/*.jsonl",),
    "claims": ("data/claims.csv", "data/claims-history.jsonl", "data/registrations/*.json"),
    "database": ("data/results.db",),
}
ASKED = ("code", "params", "graph", "claims")
"""Files in git that people edit on purpose: changes to them are legitimate."""
PUBLISHED = "data/evidence/ninformer-mnist.jsonl"
Numbers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project whose pipeline has run, with evidence of one experiment."""
    folder = make_checkout(tmp_path_factory.mktemp("finished") / "project")
    lines = map(
        json.loads,
        (REPOSITORY / "data" / "evidence" / "ninformer-mnist.jsonl").read_text(encoding="utf-8").splitlines(),
    )
    published = []
    for line in lines:
        if line["result"]["arm"] in ("vit", "ninformer"):
            for part in ("result", "cost"):
                line[part]["experiment"] = EXPERIMENT
            line.pop("release", None)
            published.append(canonical_json(seal(line)))
    (folder / "data" / "evidence" / f"{EXPERIMENT}.jsonl").write_text(
        "".join(f"{line}\n" for line in published), encoding="utf-8"
    )
    repro(folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "finished")
    return folder


def call(folder: Path, *command: str) -> tuple[int, str]:
    done = checkout.call(folder, *command)
    return done.returncode, done.stdout + done.stderr


def numbers_of(folder: Path) -> Numbers:
    """Return metrics by run key and source, and verdicts; omit times and costs."""
    database = sqlite3.connect(f"file:{folder / 'data' / 'results.db'}?mode=ro", uri=True)
    try:
        found: Numbers = {"results": {}, "verdicts": {}}
        rows = database.execute(
            "SELECT r.run_key, r.source, m.metric, m.split, m.value FROM results r JOIN metrics m ON m.result_id = r.id"
        )
        for key, source, metric, split, value in rows:
            found["results"].setdefault(f"{key} {source}", {})[f"{metric} {split}"] = value
        verdicts = database.execute("SELECT claim, status, explanation, ours, estimate, low, high FROM verdicts")
        found["verdicts"] = {claim: row for claim, *row in verdicts}
    finally:
        database.close()
    return found


def disturb(folder: Path, seed: int) -> tuple[str, str, list[Path]]:
    """Apply one fault; return its place, description and files."""
    rng = random.Random(seed)
    place = rng.choice(list(PLACES))
    files = sorted(
        {
            path
            for pattern in PLACES[place]
            for path in folder.glob(pattern)
            if path.is_file() and not path.is_symlink() and path.stat().st_size and "__pycache__" not in path.parts
        }
    )
    path = rng.choice(files)
    kind = rng.choice(["flip", "cut", "swap", "digit"])
    content = path.read_bytes()
    digits = [index for index, byte in enumerate(content) if byte in b"0123456789"]
    changed = [path]
    if kind == "swap" and len(files) > 1:
        other = rng.choice([one for one in files if one != path])
        write(path, other.read_bytes())
        write(other, content)
        changed.append(other)
        what = f"{path.relative_to(folder)} and {other.relative_to(folder)} swapped"
    elif kind == "cut":
        length = rng.randrange(len(content))
        write(path, content[:length])
        what = f"{path.relative_to(folder)} cut to {length} of {len(content)} bytes"
    elif kind == "digit" and digits:
        index = rng.choice(digits)
        digit = rng.choice([one for one in b"0123456789" if one != content[index]])
        write(path, content[:index] + bytes([digit]) + content[index + 1 :])
        what = f"{path.relative_to(folder)}: digit at {index} {chr(content[index])} -> {chr(digit)}"
    else:
        index, bit = rng.randrange(len(content)), rng.randrange(8)
        write(path, content[:index] + bytes([content[index] ^ 1 << bit]) + content[index + 1 :])
        what = f"{path.relative_to(folder)}: bit {bit} of byte {index} of {len(content)} flipped"
    return place, what, changed


def write(path: Path, content: bytes) -> None:
    """Write in place, so that all hard links to the file get the fault."""
    mode = path.stat().st_mode
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(mode)


def names_a_file(output: str, files: list[Path], folder: Path) -> bool:
    """Return True if a message mentions the file, its folder (a run or data set) or its name."""
    names = {str(path.relative_to(folder)) for path in files} | {path.stem for path in files}
    names |= {path.parent.name[:12] for path in files if len(path.parent.name) >= 12}
    return any(name in output for name in names)


def try_fault(finished: Path, folder: Path, seed: int, expected: Numbers) -> str:
    """Apply the fault of a seed; return what is wrong afterwards, if anything."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["cp", "-a", str(finished), str(folder)], check=True)  # with hard links
    place, what, files = disturb(folder, seed)
    verified, verify_output = call(folder, sys.executable, "-m", "stages.cli", "verify")
    done, output = call(folder, *DVC, "repro")
    wrong, is_another_run = list[str](), False
    if place not in ("code", "graph") and "Traceback" in verify_output + output:
        wrong.append("a traceback")
    if done:
        is_named = names_a_file(output, files, folder) or (verified and names_a_file(verify_output, files, folder))
        if not is_named:
            wrong.append(f"repro stops without naming the file: {output[-300:]}")
    elif (numbers := numbers_of(folder)) != expected:
        again, _ = call(folder, sys.executable, "-m", "stages.cli", "verify")
        is_another_run = place in ASKED
        if not (is_another_run or again):
            wrong.append("numbers differ without a message")
        same_runs = numbers["results"].keys() & expected["results"].keys()
        different = [key for key in same_runs if numbers["results"][key] != expected["results"][key] and not again]
        wrong += [f"run {key[:12]} has other numbers under its key" for key in different]
    if place in ASKED and (done or is_another_run):
        wrong += put_back(folder, expected)
    return f"seed {seed}, {what}: {'; '.join(wrong)}" if wrong else ""


def put_back(folder: Path, expected: Numbers) -> list[str]:
    """Restore the files in git, run repro again, and return any remaining fault."""
    git(folder, "checkout", "-q", "--", ".")
    done, output = call(folder, *DVC, "repro")
    if done:
        return [f"put back, repro still stops: {output[-300:]}"]
    return [] if numbers_of(folder) == expected else ["put back, the numbers are not those of before"]


def test_random_faults_change_no_number_silently(finished: Path, tmp_path: Path) -> None:
    expected = numbers_of(finished)
    assert len(expected["results"]) == 6 and len(expected["verdicts"]) > 300

    def work(lane: int) -> list[str]:
        seeds = range(SEED + lane, SEED + FAULTS, LANES)
        return [try_fault(finished, tmp_path / f"lane-{lane}", seed, expected) for seed in seeds]

    with ThreadPoolExecutor(LANES) as pool:
        assert [wrong for found in pool.map(work, range(LANES)) for wrong in found if wrong] == []


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with one experiment's evidence and a recorded database."""
    root = tmp_path_factory.mktemp("published") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(root)], check=True)
    for path in (root / PUBLISHED).parent.glob("*.jsonl"):
        if path.name not in (Path(PUBLISHED).name, EQUIVALENCES.name):
            path.unlink()
    retract(root, read_versions(root), date="2026-01-01", why="A small record is faster")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "A small record")
    record(root, "data/results.db", evidence_only=True)
    return root


def edit_line(root: Path, rng: random.Random, change: Callable[[dict[str, Any]], str]) -> str:
    """Change a published line and reseal it as a forger would."""
    path = root / PUBLISHED
    lines = [json.loads(text) for text in path.read_bytes().splitlines()]
    line = rng.choice(lines)
    what = change(line)
    path.write_text("".join(f"{canonical_json(seal(line))}\n" for line in lines), encoding="utf-8")
    return what


def edit_environment(root: Path, rng: random.Random) -> str:
    def change(line: dict[str, Any]) -> str:
        facts = line["result"]["environment"]
        name = rng.choice(sorted(facts))
        facts[name] = "another" if rng.random() < 0.5 or not isinstance(facts[name], int) else facts[name] + 1
        for part in ("result", "cost"):
            line[part]["environment_digest"] = environment_digest(facts)
        return f"environment: {name}"

    return edit_line(root, rng, change)


def edit_evidence(root: Path, rng: random.Random) -> str:
    path = root / PUBLISHED
    lines = path.read_bytes().splitlines(keepends=True)
    if rng.random() < 0.2:
        del lines[rng.randrange(len(lines))]
        path.write_bytes(b"".join(lines))
        return "a line deleted"

    def change(line: dict[str, Any]) -> str:
        result, cost = line["result"], line["cost"]
        kind = rng.choice(["bits", "cost", "origin", "metric", "curve", "seed"])
        if kind == "bits":
            n = result["data"]["test_images"]
            correct = unpack_correct(result["correct"], n)
            wrong = [index for index in range(n) if not correct[index]]
            correct[rng.sample(wrong, rng.randint(1, len(wrong)))] = True
            result["correct"] = pack_correct(correct)
            result.pop("confusion")
            for row in result["metrics"]:
                if row["metric"] == "accuracy":
                    row["value"] = float(correct.mean())
        elif kind == "cost":
            cost["epoch_seconds"] = [round(seconds / 10, 4) for seconds in cost["epoch_seconds"]]
            cost["train_seconds"] = sum(cost["epoch_seconds"])
        elif kind == "origin":
            line["origin"]["published"] = f"2026-11-{rng.randint(1, 20):02}T00:00:00Z"
        elif kind == "metric":
            rng.choice(result["metrics"])["value"] *= rng.uniform(0.5, 1.5)
        elif kind == "curve":
            rng.choice([column for name, column in result["curves"].items() if name.endswith("loss")])[0] *= 0.5
        else:
            result["spec"]["replicate"]["seed"] += rng.randint(1, 99)
            key = hashlib.sha256(canonical_json(result["spec"]).encode()).hexdigest()
            result["run_key"] = cost["run_key"] = key
        return f"evidence: {kind}"

    return edit_line(root, rng, change)


def edit_claims(root: Path, rng: random.Random) -> str:
    name = rng.choice(["claims.csv", "claims-history.jsonl"])
    path = root / "data" / name
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    number = rng.randrange(1, len(lines))
    kind = rng.choice(["deleted", "changed"])
    if kind == "deleted":
        del lines[number]
    elif name == "claims.csv":
        cells = next(csv.reader([lines[number]]))
        cells[7 if cells[7] else 2] += "1"  # the value or its place in the paper
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerow(cells)
        lines[number] = written.getvalue()
    else:
        line = json.loads(lines[number])
        lines[number] = canonical_json(line | {"after_evidence": not line["after_evidence"]}) + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    return f"{name}: line {number + 1} {kind}"


def edit_release(root: Path, rng: random.Random) -> str:
    models = sorted((root / "data" / "models").glob("ninformer-mnist.*.safetensors"))
    path, other = rng.sample(models, 2)
    kind = rng.choice(["deleted", "replaced", "flipped", "header", "line"])
    content = path.read_bytes()
    if kind == "deleted":
        path.unlink()
    elif kind == "replaced":
        path.write_bytes(other.read_bytes())
    elif kind == "flipped":
        index = rng.randrange(len(content))
        path.write_bytes(content[:index] + bytes([content[index] ^ 1 << rng.randrange(8)]) + content[index + 1 :])
    elif kind == "header":
        path.write_bytes(content.replace(b"run_key", b"run_kex", 1))
    else:

        def change(line: dict[str, Any]) -> str:
            line["release"] = line.get("release", {}) | {"sha256": f"{rng.getrandbits(256):064x}"}
            return "release"

        edit_line(root, rng, change)
    return f"{path.name} {kind}"


def edit_proof(root: Path, rng: random.Random) -> str:
    """Delete an equivalence, change its digest, or change a digit of a registration."""
    path = rng.choice([root / EQUIVALENCES, *sorted((root / "data" / "registrations").glob("*.json"))])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        index = rng.choice([place for place, letter in enumerate(text) if letter.isdigit()])
        path.write_text(f"{text[:index]}{(int(text[index]) + 1) % 10}{text[index + 1 :]}", encoding="utf-8")
        return f"{path.name}: digit at {index}"
    lines = text.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    line = json.loads(lines.pop(number))
    if changed := rng.random() < 0.7:
        rng.choice(rng.choice(line["proofs"])["compared"])["path"] = f"{rng.getrandbits(64):016x}"
        lines.insert(number, f"{canonical_json(seal(line))}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return f"{path.name}: line {number + 1} {'changed' if changed else 'deleted'}"


def commit(root: Path, published: Path) -> None:
    """Commit everything as a forger would, in a copy of the clone's history."""
    (root / ".git").unlink()
    subprocess.run(["cp", "-al", str(published / ".git"), str(root / ".git")], check=True)
    git(root, "-c", "core.logAllRefUpdates=false", "commit", "-qam", "forged")


EDITS = {
    "environment": edit_environment,
    "evidence": edit_evidence,
    "claims": edit_claims,
    "releases": edit_release,
    "proofs": edit_proof,
}


def name_edit(root: Path) -> str:
    """Return the output of `record` or, if that passes, of `verify`."""
    try:
        record(root, "data/results.db", evidence_only=True)
    except (ClaimsError, EvidenceError, RecordError) as error:
        return str(error)
    recorded, trails = verify(root, str(root / "data" / "results.db"))
    links = [recorded, *(link for trail in trails for link in trail.links)]
    return "; ".join(link.detail for link in links if link.status == "broken")


def test_every_edit_of_published_files_is_reported(published: Path, tmp_path: Path) -> None:
    assert name_edit(published) == ""
    unnoticed = []
    for seed in range(SEED, SEED + EDITED):
        rng, root = random.Random(seed), tmp_path / "clone"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(published, root, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        (root / ".git").symlink_to(published / ".git")
        kind = rng.choice(list(EDITS))
        what = EDITS[kind](root, rng)
        if rng.random() < 0.5:
            commit(root, published)
            what += ", committed"
        if not name_edit(root):
            unnoticed.append(f"seed {seed}, {kind}: {what}")
    assert unnoticed == []
