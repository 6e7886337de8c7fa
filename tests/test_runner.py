"""The runner trains what the store lacks, says why, adopts what was pulled, and leaves no stale run behind."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.engine.local import Event
from stages.experiment import ParamsError, load_params
from stages.runlist import read_run_list
from stages.runner import train_experiment
from tests.project import EXPERIMENT, make_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(make_project(tmp_path / "project", epochs=1))
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    return tmp_path / "project"


def run(events: list[Event] | None = None, stop: threading.Event | None = None) -> bool:
    return train_experiment(
        EXPERIMENT,
        load_params(),
        data=Path("data"),
        devices=["cpu"],
        report=(events if events is not None else []).append,
        stop=stop or threading.Event(),
    )


def edit_experiment(change: Callable[[Any], None]) -> None:
    path = Path("params") / f"{EXPERIMENT}.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def listed(arm: str) -> str:
    run_list = read_run_list(Path("data/runs") / EXPERIMENT)
    assert run_list is not None
    return next(run.run_key for run in run_list.runs if run.arm == arm)


def test_second_time_everything_comes_from_the_store(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run()
    assert capsys.readouterr().out.count("to train, new") == 2
    events: list[Event] = []
    assert run(events)
    assert events == []
    assert capsys.readouterr().out.count("taken from the store") == 2


def test_a_change_trains_only_what_it_touches_and_says_why(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run()
    before = {arm: listed(arm) for arm in ("vit", "ninformer")}
    edit_experiment(lambda content: content["arms"]["vit"]["model"].update(mlp_dim=24))
    capsys.readouterr()
    assert run()
    output = capsys.readouterr().out
    assert "vit.0: to train, model.arguments.mlp_dim: 16 -> 24" in output
    assert "ninformer.0: taken from the store" in output
    assert listed("ninformer") == before["ninformer"] and listed("vit") != before["vit"]
    assert not (Path("data/runs") / EXPERIMENT / before["vit"]).exists(), "pruned"
    edit_experiment(lambda content: content["arms"]["vit"]["model"].update(mlp_dim=16))
    capsys.readouterr()
    assert run()
    assert "vit.0: taken from the store" in capsys.readouterr().out, "the store keeps what was pruned"


def test_titles_and_comments_retrain_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run()
    edit_experiment(lambda content: content["arms"]["vit"].update(title="Vision Transformer"))
    capsys.readouterr()
    assert run()
    assert "to train" not in capsys.readouterr().out.replace("0 to train", "")


def test_pulled_outcomes_are_adopted_without_training(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run()
    shutil.rmtree("data/store")
    capsys.readouterr()
    events: list[Event] = []
    assert run(events)
    assert events == []
    assert capsys.readouterr().out.count("taken from the store") == 2


def test_a_pulled_outcome_under_a_wrong_key_is_not_adopted(project: Path) -> None:
    assert run()
    folder = Path("data/runs") / EXPERIMENT / listed("vit")
    shutil.rmtree("data/store")
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").unlink()
    (folder / "spec.json").write_text(json.dumps(spec | {"data_digest": "f" * 64}))
    events: list[Event] = []
    assert run(events)
    assert [event.kind for event in events if event.kind != "progress"] == ["started", "finished"]


def test_a_failed_run_does_not_hold_up_the_rest(project: Path) -> None:
    def break_vit(content: Any) -> None:
        content["arms"]["vit"]["model"]["num_heads"] = 3  # 16 is no multiple of it

    edit_experiment(break_vit)
    events: list[Event] = []
    assert run(events) is False
    kinds = {event.label.split()[1]: event.kind for event in events if event.kind in ("failed", "finished")}
    assert kinds == {"vit.0": "failed", "ninformer.0": "finished"}
    assert read_run_list(Path("data/runs") / EXPERIMENT) is None, "no folder pretends to be complete"
    assert len(list(Path("data/store/runs").iterdir())) == 1, "what finished is kept"


def test_a_diverged_run_is_an_outcome_without_weights(project: Path) -> None:
    edit_experiment(lambda content: content["protocol"]["optimizer"].update(name="sgd", lr=1e30))
    assert run()
    folder = Path("data/runs") / EXPERIMENT / listed("vit")
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "diverged"
    assert result["divergence"]["step"] > result["divergence"]["last_finite_step"] >= 0
    assert not (folder / "weights.safetensors").exists()


def test_unknown_experiment_lists_the_known(project: Path) -> None:
    with pytest.raises(ParamsError, match=f"no experiment 'lost'; known: {EXPERIMENT}"):
        train_experiment(
            "lost",
            load_params(),
            data=Path("data"),
            devices=["cpu"],
            report=lambda event: None,
            stop=threading.Event(),
        )


def test_stand_ins_are_no_data_for_a_profile_that_wants_real_ones(project: Path) -> None:
    index = Path("params.yaml")
    index.write_text(index.read_text().replace("profile: smoke", "profile: quick"))
    with pytest.raises(ParamsError, match="holds embedded data, the profile quick wants real data"):
        run()
