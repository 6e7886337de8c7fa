"""`dvc plots show` with real DVC: one line per arm, with a band over its replicates."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runs.evidence import COLUMNS
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project

ARMS, REPLICATES, EPOCHS = ("vit", "ninformer", "ninformer-wide"), 3, 4


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of this repository's pipeline with made-up curves."""
    folder = make_project(tmp_path_factory.mktemp("plots"))
    shutil.copy(REPOSITORY / "dvc.yaml", folder)

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run("git", "init", "-q")
    shutil.copytree(REPOSITORY / ".dvc" / "plots", folder / ".dvc" / "plots")
    shutil.copy(REPOSITORY / ".dvc" / "config", folder / ".dvc" / "config")
    plots = folder / "data" / "plots"
    plots.mkdir()
    with (plots / f"{EXPERIMENT}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "replicate", *COLUMNS])
        for number, arm in enumerate(ARMS):
            for replicate in range(REPLICATES):
                for epoch in range(1, EPOCHS + 1):
                    loss = 2.0 + number - 0.3 * epoch + 0.05 * replicate
                    writer.writerow([arm, replicate, epoch, 4 * epoch, 0.001, loss, *[""] * 5])
    run(sys.executable, "-m", "dvc", "plots", "show")
    return folder / "dvc_plots" / "index.html"


def test_plots_page_has_a_chart_per_experiment_with_coloured_arms(page: Path) -> None:
    found = re.findall(r"var spec = (\{.*?\});\n", page.read_text(encoding="utf-8"), re.DOTALL)
    (spec,) = map(json.loads, found)
    assert spec["title"] == EXPERIMENT
    assert spec["encoding"]["color"]["field"] == "arm" and spec["encoding"]["x"]["field"] == "epoch"
    band, line = spec["layer"]
    assert (band["mark"]["type"], line["mark"]["type"]) == ("errorband", "line")
    assert line["encoding"]["y"] == {
        "aggregate": "mean",
        "field": "train_loss",
        "type": "quantitative",
        "title": "train_loss",
    }
    assert len(spec["data"]["values"]) == len(ARMS) * REPLICATES * EPOCHS
