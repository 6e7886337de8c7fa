"""The missing trainings of several experiments, as one list."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.evaluation.flops import FlopCounts
from stages.params.experiment import load_params
from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore
from stages.scheduling.together import line_up, longest_first
from tests.project import EXPERIMENT, edit, environment, make_project

pytestmark = pytest.mark.long

OTHER = "tiny-other"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the other experiment's two arms one is the first experiment's, the other one is wide."""
    folder = make_project(tmp_path / "project", epochs=1)
    content = yaml.safe_load((folder / "params" / f"{EXPERIMENT}.yaml").read_text())
    content["arms"]["ninformer"]["model"]["dim"] = 1024
    (folder / "params" / f"{OTHER}.yaml").write_text(yaml.safe_dump(content))
    edit(
        folder / "params.yaml",
        lambda index: index["experiments"].update({OTHER: {"paper": "ninformer", "dataset": "mnist"}}),
    )
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    return folder


def claimcheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stages.cli", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_longest_comes_first_and_a_shared_training_once(project: Path) -> None:
    params, store = load_params(), RunStore(Path("data/store"))
    order = longest_first(params, "cpu", FlopCounts().count)
    queue = line_up({EXPERIMENT: None, OTHER: None}, params, Path("data"), store, order)
    labels = [group.label for group in queue.groups]
    assert labels[0] == f"{OTHER} ninformer.0"
    assert sorted(labels[1:]) == [f"{EXPERIMENT} ninformer.0", f"{EXPERIMENT} vit.0"]
    assert sorted(queue.names.values()) == [
        f"{EXPERIMENT}.ninformer.0",
        f"{EXPERIMENT}.vit.0",
        f"{OTHER}.ninformer.0",
    ]
    assert queue.held == {EXPERIMENT: 0, OTHER: 0}


def test_chosen_runs_begin_in_the_order_that_is_asked_for(
    project: Path, object_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, store = load_params(), ObjectStore(object_url, project / "read")
    ask, asked = store.bucket._call, list[object]()
    monkeypatch.setattr(store.bucket, "_call", lambda request: asked.append(request) or ask(request))
    places = {f"{EXPERIMENT}.vit": 1.0, f"{OTHER}.ninformer": 0.0}
    queue = line_up(
        {EXPERIMENT: ["vit.0"], OTHER: ["ninformer.0"]},
        params,
        Path("data"),
        store,
        lambda name, runs, together: places[f"{name}.{runs[0].planned.arm}"],
    )
    assert [group.label for group in queue.groups] == [f"{OTHER} ninformer.0", f"{EXPERIMENT} vit.0"]
    assert len(asked) == 3, "one listing of all outcomes, and one of states for each experiment"


def test_what_was_trained_together_is_taken_from_the_store(project: Path) -> None:
    done = claimcheck(project, "run", "--all", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("3 of 3 missing runs trained; `make repro` evaluates and records them\n")
    again = claimcheck(project, "run", EXPERIMENT, "--device", "cpu")
    assert again.stdout.count("taken from the store") == 2
    assert again.stdout.endswith("0 of 0 missing runs trained; `make repro` evaluates and records them\n")


@pytest.mark.parametrize("words", [["run"], ["run", "--all", EXPERIMENT]])
def test_it_wants_experiments_or_all_of_them(project: Path, words: list[str]) -> None:
    done = claimcheck(project, *words)
    assert done.returncode == 2
    assert done.stderr == "claimcheck run: name experiments, or say --all (see claimcheck run --help)\n"


def test_data_that_are_not_packed_are_named_with_what_packs_them(project: Path) -> None:
    shutil.rmtree(project / "data" / "processed")
    done = claimcheck(project, "run", EXPERIMENT, "--device", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "claimcheck run: mnist: not packed in data/processed as the profile smoke wants them (embedded data); "
        "`dvc repro preprocess` packs them\n"
    )


def test_stand_ins_are_named_where_the_profile_wants_real_data_and_others_are_left_out(project: Path) -> None:
    edit(
        project / "params.yaml",
        lambda index: index["experiments"].update({"tiny-far": {"paper": "ninformer", "dataset": "cifar10"}}),
    )
    content = yaml.safe_load((project / "params" / f"{OTHER}.yaml").read_text())
    content["protocol"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    (project / "params" / "tiny-far.yaml").write_text(yaml.safe_dump(content))
    done = claimcheck(project, "run", EXPERIMENT, "--profile", "quick", "--device", "cpu")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the profile quick wants them (real data); `dvc repro preprocess@mnist` packs them" in done.stderr
