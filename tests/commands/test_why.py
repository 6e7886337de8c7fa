"""`claimcheck why` explains each reason for a run, by label and by key."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from stages.runs.store import RunStore
from tests.commands.waiting import ORDER, VALUE, claimcheck, make_waiting
from tests.project import EXPERIMENT, REPOSITORY, edit, start_training, train

pytestmark = pytest.mark.slow

RUN = f"{EXPERIMENT}.ninformer.0"


def why(project: Path, run: str) -> dict[str, Any]:
    done = claimcheck(project, "why", run, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


@pytest.mark.timeout(300)
def test_run_is_new_then_trained_then_changed(tmp_path: Path) -> None:
    project = make_waiting(tmp_path)
    new = why(project, RUN)
    assert new["reason"] == "to be trained: nothing was trained for this cell before"
    assert {one["claim"]: one["look"]["lacking"] for one in new["claims"]} == {VALUE: 5, ORDER: 6}
    assert (new["attempts"], new["outcome"], new["changed"]) == ([], None, [])

    train(project, "--runs", "ninformer.0")
    trained = why(project, RUN)
    assert trained["reason"] == "not trained again: its outcome is in the store"
    assert trained["outcome"]["status"] == "finished" and trained["run_key"] == new["run_key"]
    assert {one["claim"]: one["look"]["lacking"] for one in trained["claims"]} == {VALUE: 4, ORDER: 5}
    (attempt,) = trained["attempts"]
    assert attempt["end"] == "published" and attempt["owner"].startswith("process ")
    by_key = why(project, new["run_key"][:9])
    assert (by_key["run"], by_key["reason"]) == (RUN, trained["reason"])

    edit(project / "params" / f"{EXPERIMENT}.yaml", lambda p: p["protocol"]["optimizer"].update(lr=0.5))
    changed = why(project, RUN)
    assert changed["reason"] == "to be trained: 1 parts of its key have changed"
    (part,) = changed["changed"]
    assert part.startswith("protocol.optimizer.lr: ") and part.endswith(" -> 0.5")
    assert changed["against"]["run_key"] == new["run_key"]
    shown = claimcheck(project, "why", RUN).stdout.splitlines()
    assert (
        f"changed    {part}" in shown and f"against    run {new['run_key'][:12]}, data/runs/{EXPERIMENT}/" in shown[2]
    )


@pytest.mark.timeout(300)
def test_killed_attempt_is_explained(tmp_path: Path) -> None:
    project = make_waiting(tmp_path)
    edit(project / "params.yaml", lambda p: p["profiles"]["paper"].update(overrides={"epochs": 3000, "batch_size": 16}))
    process = start_training(project, "--runs", "ninformer.0")
    try:
        while not (attempts := why(project, RUN)["attempts"]):
            assert process.poll() is None
        assert [one["end"] for one in attempts] == ["training"]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    (attempt,) = why(project, RUN)["attempts"]
    assert attempt["end"] == "lost"


def test_published_run_is_explained_in_a_fresh_clone(tmp_path: Path) -> None:
    """Without data and store it uses evidence; equivalent code is no change."""
    (tmp_path / "data").mkdir()
    for part in (
        "params",
        "params.yaml",
        "data/claims.csv",
        "data/claims-history.jsonl",
        "data/evidence",
        "data/models",
    ):
        (tmp_path / part).symlink_to(REPOSITORY / part)
    (tmp_path / "here").mkdir()
    label = "dac-sgemm.mlp-25x5.0"
    answer = why(tmp_path, label)
    assert answer["run_key"] is None and answer["reason"].endswith("(its key is unknown until its data are packed)")
    assert {part.partition(":")[0] for part in answer["changed"]} <= {
        *("protocol.batch_size", "protocol.epochs", "protocol.observe_test", "protocol.steps_per_epoch"),
    }
    published = why(tmp_path, answer["against"]["run_key"][:10])
    assert published["published"][0]["where"].startswith("data/evidence/dac-sgemm.jsonl, line ")
    assert published["run"] == label and published["reason"].startswith("kept: ")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("tiny-mnist.ninformr.0", "no run 'tiny-mnist.ninformr.0'; did you mean tiny-mnist.ninformer.0? (a run is "),
        ("tiny-mnits.vit.0", "no run 'tiny-mnits.vit.0'; did you mean tiny-mnist? (a run is "),
        ("tiny-mnist.vit.9", "no run 'tiny-mnist.vit.9'; did you mean tiny-mnist.vit."),
        ("abc", "no run 'abc'; known: tiny-mnist"),
        ("abcdef0123", "no run has a key that begins with abcdef0123: not in the params, the store or the evidence"),
    ],
)
def test_mistyped_run_gets_the_nearest_name(tmp_path: Path, run: str, said: str) -> None:
    done = claimcheck(make_waiting(tmp_path), "why", run)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"claimcheck why: {said}")


def test_key_of_several_runs_is_refused(tmp_path: Path) -> None:
    project, store = make_waiting(tmp_path), tmp_path / "data" / "store"
    for key in ("abcdef01" + "0" * 56, "abcdef02" + "0" * 56):
        RunStore(store).publish(key, {"spec.json": b"{}", "result.json": b"{}"})
    done = claimcheck(project, "why", "abcdef")
    said = "claimcheck why: 2 runs have a key that begins with abcdef: abcdef0100000000, abcdef0200000000\n"
    assert (done.returncode, done.stderr) == (1, said)
