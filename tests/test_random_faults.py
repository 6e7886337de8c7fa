"""Random faults in a finished project are reported, repaired by `dvc repro`, or harmless: no number changes silently.

A fault flips a bit, truncates a file, swaps two files or changes a digit in code, parameters, data, the run store,
DVC's cache, results, evidence or the database. `claimcheck verify` and `dvc repro` follow. Then a number may differ
from the undisturbed one only if it belongs to a run with another key, or if a message reports it. Changed code and
parameters are legitimate changes: once they are restored, the old numbers must be back.

`CLAIMCHECK_SOAK_FAULTS` sets their number, `CLAIMCHECK_SOAK_SEED` the first seed. Edits that a forger would make to
published lines are in tests/test_append_only.py, tests/test_consistency.py and tests/test_verifying.py.
"""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stages.run import canonical_json
from stages.runs.evidence import seal
from tests import checkout
from tests.checkout import DVC, make_checkout, repro
from tests.project import EXPERIMENT, REPOSITORY, git

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(6 * 3600)]

FAULTS = int(os.environ.get("CLAIMCHECK_SOAK_FAULTS", "500"))
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
