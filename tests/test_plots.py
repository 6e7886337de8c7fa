"""`dvc plots show` by real DVC: one line per arm, with a band over its replicates."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from stages.report import write_chart_scripts
from stages.runs.curves import COLUMNS
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project
from tests.service.browsing import CHROMIUM, chromium

ARMS, REPLICATES, EPOCHS = ("vit", "ninformer", "ninformer-wide"), 3, 4


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, for the graph of this repository and made-up curves."""
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


@pytest.fixture(scope="module")
def specs(page: Path) -> list[dict[str, Any]]:
    """What the page draws."""
    return [
        json.loads(text) for text in re.findall(r"var spec = (\{.*?\});\n", page.read_text(encoding="utf-8"), re.DOTALL)
    ]


def test_the_page_has_a_chart_an_experiment_with_arms_in_colours(specs: list[dict[str, Any]]) -> None:
    (spec,) = specs
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


def test_drawn_it_is_a_line_and_a_band_an_arm(specs: list[dict[str, Any]]) -> None:
    """By Vega itself, without a browser or a network."""
    svg = vl_convert.vegalite_to_svg(specs[0], vl_version="5.20")
    lines, bands = (re.findall(rf'class="mark-{kind} .*?d="(M[^"]+)"', svg, re.DOTALL) for kind in ("line", "area"))
    assert len(lines) == len(bands) == len(ARMS)
    assert all(path.count("L") == EPOCHS - 1 for path in lines), "the mean over replicates, epoch by epoch"
    assert all(path.count("L") == 2 * EPOCHS - 1 for path in bands), "to and fro"
    colours = re.findall(r'class="mark-line .*?stroke="([^"]+)"', svg, re.DOTALL)
    assert len(set(colours)) == len(ARMS)


@pytest.mark.slow
@pytest.mark.needs(browser=True)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt install chromium)")
def test_the_page_draws_without_a_network_and_says_what_it_lacks(page: Path) -> None:
    scripts = page.parent.parent / "data" / "report" / "vega.js"
    scripts.parent.mkdir()
    with chromium() as browser, browser.new_context(offline=True) as context:
        shown = context.new_page()
        asked: list[str] = []
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto(page.as_uri())
        assert "`python -m stages.report` writes them" in shown.inner_text("body")
        write_chart_scripts(scripts)
        shown.reload()
        shown.locator("canvas, svg").first.wait_for()
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)
