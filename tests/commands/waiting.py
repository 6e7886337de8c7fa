"""A small project with claims: two tiny arms with five seeds under the `paper` profile on placeholder data."""

import csv
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from stages.cli import main
from stages.params.experiment import load_params
from tests.project import EXPERIMENT, REPOSITORY, edit, environment, make_project

VALUE, ORDER = "ninformer.tiny.value", "ninformer.tiny.order"
REPLICATES = 5


def make_waiting(folder: Path) -> Path:
    """Create the project: a value of one arm, judged at five replicates, and an order of both, at three and five."""
    project = make_project(folder, epochs=1, steps_per_epoch=1)
    edit(project / "params.yaml", lambda p: p.update(profile="paper"))
    tiny = {"epochs": 1, "steps_per_epoch": 1, "batch_size": 16}
    edit(project / "params.yaml", lambda p: p["profiles"]["paper"].update(data="embedded", overrides=tiny))
    assert load_params(project).experiments[EXPERIMENT].replicates == REPLICATES
    with (REPOSITORY / "data" / "claims.csv").open() as file:
        names = csv.DictReader(file).fieldnames or ()
    row = dict.fromkeys(names, "") | {"paper": "ninformer", "place": "x", "metric": "accuracy", "unit": "fraction"}
    row |= {"experiment": EXPERIMENT, "arm": "ninformer", "precision": "0.001", "better": "higher"}
    value = row | {"id": VALUE, "kind": "value", "value": "0.9"}
    order = row | {"id": ORDER, "kind": "order", "value": "0.02", "baseline_arm": "vit"}
    with (project / "data" / "claims.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows([value, order])
    shutil.copy(REPOSITORY / "data" / "claims-history.jsonl", project / "data")
    return project


def claimcheck(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which has loaded everything already."""
    output, errors = StringIO(), StringIO()
    with chdir(project), redirect_stdout(output), redirect_stderr(errors):
        code = main(list(words))
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def claimcheck_alone(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process."""
    command = [sys.executable, "-m", "stages.cli", *words]
    return subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
