"""`claimcheck next` proposes runs, and `--run` trains only those."""

import json
from pathlib import Path

import pytest

from stages.runs.store import RunStore
from tests.commands.waiting import ORDER, VALUE, claimcheck, claimcheck_alone, make_waiting
from tests.project import EXPERIMENT, edit

pytestmark = pytest.mark.slow

CHOSEN = [[f"{EXPERIMENT}.{arm}.{n}" for arm in ("ninformer", "vit") for n in range(5)]]
"""Return the runs of the order's final analysis, most likely to decide it; they complete the value's analysis, too."""


@pytest.mark.timeout(300)
def test_next_proposes_runs_that_complete_analyses_and_trains_only_those(tmp_path: Path) -> None:
    project = make_waiting(tmp_path)
    proposed = json.loads(claimcheck(project, "next", "--budget", "1h", "--json").stdout)
    chosen = [step["runs"] for step in proposed["steps"]]
    assert chosen == CHOSEN
    claims = {one["claim"]: one for step in proposed["steps"] for one in step["claims"]}
    assert all(0 <= one["chance"] <= 1 and one["weight"] == 0.5 for one in claims.values())
    assert (claims[VALUE]["look"], claims[ORDER]["look"], claims[ORDER]["planned"]) == (5, 5, 5)
    assert 0 < claims[VALUE]["power"]["reproduced"] < 1 and claims[VALUE]["power"]["supported"] is None
    assert proposed["seconds"] == pytest.approx(sum(step["seconds"] for step in proposed["steps"]))

    least = min(step["seconds"] for step in proposed["steps"])
    nothing = claimcheck(project, "next", "--budget", f"{least / 100:.6f}s")
    assert nothing.stdout.startswith("nothing fits in ") and nothing.returncode == 0

    done = claimcheck_alone(project, "next", "--budget", "1h", "--run", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == proposed | {"is_trained": True}
    assert len(list(RunStore(project / "data" / "store").run_keys())) == 10
    assert not (project / "data" / "runs").exists(), "the stage itself updates an experiment's folder"
    again = claimcheck(project, "next", "--budget", "1h")
    assert again.stdout.splitlines() == [
        "2 claims at an interim analysis with complete trainings: run `make repro` to judge them",
        "no claim needs a training",
    ]
    brought = json.loads(claimcheck(project, "status", "--watch", "--json").stdout)["trainings"]["brought"]
    assert {(one["claim"], one["look"], one["there"], one["needed"]) for one in brought} == {
        (VALUE, 5, 5, 5),
        (ORDER, 3, 6, 6),
    }


def test_run_is_refused_under_profiles_that_decide_nothing(tmp_path: Path) -> None:
    project = make_waiting(tmp_path)
    edit(project / "params.yaml", lambda p: p.update(profile="smoke"))
    done = claimcheck(project, "next", "--budget", "1h", "--run")
    said = "claimcheck next: params.yaml has the profile smoke; first: claimcheck profile paper\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            "--budget soon",
            2,
            "argument --budget: 'soon' isn't a duration; expected a number with s, min, h or d, as in 2h",
        ),
        (
            "--budget 0h",
            2,
            "argument --budget: '0h' isn't a duration; expected a number with s, min, h or d, as in 2h",
        ),
        ("--budget 1h --device cud", 1, "params.yaml: rates has no device 'cud'; did you mean cuda?"),
        ("--budget 1h tiny-mnits", 1, "params.yaml: no experiment 'tiny-mnits'; did you mean tiny-mnist?"),
        ("--budget 1h --run --engine rays", 1, "no engine 'rays'; known: local, ray (--engine or CLAIMCHECK_ENGINE"),
    ],
)
def test_mistake_is_one_line(tmp_path: Path, words: str, code: int, said: str) -> None:
    done = claimcheck(make_waiting(tmp_path), "next", *words.split())
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(f"claimcheck next: {said}")
