"""The runner trains missing runs, prints why, adopts pulled outcomes, and removes stale ones."""

import dataclasses
import json
import math
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F

from stages.evaluation.flops import FlopCounts
from stages.params.experiment import ParamsError, load_params
from stages.runs.store import RunStore, outcome_digest, read_run_list, seal
from stages.scheduling.groups import Event
from stages.scheduling.planning import longest_first
from stages.scheduling.runner import keyed_runs, slot_devices
from stages.training import canary
from tests.project import EXPERIMENT, REPOSITORY, edit, make_project, train_here


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(make_project(tmp_path / "project", epochs=1))
    return tmp_path / "project"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_project(tmp_path_factory.mktemp("trained") / "project", epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run()
    return folder


@pytest.fixture
def finished(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a copy of the trained project, with the hard links between its store and its run folders."""
    subprocess.run(["cp", "-a", str(trained), str(tmp_path / "finished")], check=True)
    monkeypatch.chdir(tmp_path / "finished")
    return tmp_path / "finished"


def run(events: list[Event] | None = None, stop: threading.Event | None = None, only: list[str] | None = None) -> bool:
    return train_here(report=[].append if events is None else events.append, stop=stop or threading.Event(), only=only)


def edit_experiment(change: Callable[[Any], None]) -> None:
    edit(Path("params") / f"{EXPERIMENT}.yaml", change)


def listed(arm: str) -> str:
    run_list = read_run_list(Path("data/runs") / EXPERIMENT)
    assert run_list is not None
    return next(run.run_key for run in run_list.runs if run.arm == arm)


def test_changed_arm_alone_is_retrained_and_its_change_is_printed(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "vit.0: taken from the store" in capsys.readouterr().out, "the store keeps pruned outcomes"


def test_pulled_outcomes_are_adopted_without_training(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("data/store")
    capsys.readouterr()
    events: list[Event] = []
    assert run(events)
    assert events == []
    assert capsys.readouterr().out.count("taken from the store") == 2


def test_failed_run_does_not_block_other_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def break_vit(content: Any) -> None:
        content["arms"]["vit"]["model"]["num_heads"] = 3  # 3 doesn't divide 16

    edit_experiment(break_vit)
    events: list[Event] = []
    assert run(events) is False
    advice = f"`claimcheck stage evaluate {EXPERIMENT}`, then `claimcheck stage record`"
    assert advice in "".join(capsys.readouterr())
    kinds = {event.label.split()[1]: event.kind for event in events if event.kind in ("failed", "finished")}
    assert kinds == {"vit.0": "failed", "ninformer.0": "finished"}
    run_list = read_run_list(Path("data/runs") / EXPERIMENT)
    assert run_list is not None and [item.arm for item in run_list.runs] == ["ninformer"]
    assert run_list.missing == ("vit.0",), "the list names the failed run as missing"
    assert len(list(Path("data/store/runs").iterdir())) == 1, "the finished run is kept"


def test_diverged_run_is_published_without_weights(project: Path) -> None:
    edit_experiment(lambda content: content["protocol"]["optimizer"].update(name="sgd", lr=1e30))
    assert run()
    folder = Path("data/runs") / EXPERIMENT / listed("vit")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "diverged"
    assert result["divergence"]["step"] > result["divergence"]["last_finite_step"] >= 0
    assert not (folder / "weights.safetensors").exists()


def test_named_runs_are_trained_regardless_of_profile_roles(project: Path) -> None:
    edit(Path("params.yaml"), lambda index: index["profiles"]["smoke"].update(roles=["baseline"]))
    assert run()
    run_list = read_run_list(Path("data/runs") / EXPERIMENT)
    assert run_list is not None and {listed.arm for listed in run_list.runs} == {"vit"}
    assert run(only=["ninf*.0"])
    run_list = read_run_list(Path("data/runs") / EXPERIMENT)
    assert run_list is not None and {listed.arm for listed in run_list.runs} == {"ninformer"}
    with pytest.raises(ParamsError, match=r"no run matches 'nin\.0'; there are ninformer\.0 to vit\.0"):
        run(only=["nin.0"])


def test_placeholder_data_are_rejected_by_a_profile_for_real_data(project: Path) -> None:
    index = Path("params.yaml")
    index.write_text(index.read_text(encoding="utf-8").replace("profile: smoke", "profile: quick"), encoding="utf-8")
    with pytest.raises(ParamsError, match="holds embedded data, the profile quick wants real data"):
        run()


@pytest.mark.parametrize("damaged", ["weights.safetensors", "spec.json"])
def test_damaged_or_mismatched_pulled_outcome_is_not_adopted(
    finished: Path, damaged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("data/runs") / EXPERIMENT / listed("vit") / damaged
    shutil.rmtree("data/store")
    content = path.read_bytes()
    path.unlink()
    spec = damaged == "spec.json"
    path.write_bytes(json.dumps(json.loads(content) | {"data_digest": "f" * 64}).encode() if spec else content[:-1])
    capsys.readouterr()
    events: list[Event] = []
    assert run(events)
    assert spec or "not a complete outcome of that run (weights.safetensors is not the file" in capsys.readouterr().out
    assert [event.label for event in events if event.kind == "finished"] == [f"{EXPERIMENT} vit.0"]
    assert path.read_bytes() == content, "the damaged file is replaced"


def test_run_list_has_a_digest_of_each_outcomes_files(finished: Path) -> None:
    """A stage that depends on the list thereby depends on every byte of the listed files."""
    path = Path("data/runs") / EXPERIMENT / "runs.json"
    before = path.read_bytes()
    assert run()
    assert path.read_bytes() == before
    rows = json.loads(before)["runs"]
    assert all(row["digest"] == outcome_digest(path.parent / row["run_key"]) for row in rows), "no weights were read"
    key = listed("vit")
    stored = Path("data/store/runs") / key
    files = {file.name: file.read_bytes() for file in stored.iterdir()}
    shutil.rmtree(stored)
    RunStore(Path("data/store")).publish(key, seal(files | {"history.jsonl": files["history.jsonl"] + b"{}\n"}))
    events: list[Event] = []
    assert run(events) and events == []
    assert path.read_bytes() != before


def test_files_are_copied_if_hard_links_fail(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hard links fail if CLAIMCHECK_HOME is on another file system."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("stages.scheduling.runner.os.link", refuse)
    assert run()
    store, folder = Path("data/store/runs") / listed("vit"), Path("data/runs") / EXPERIMENT / listed("vit")
    assert {f.name: f.read_bytes() for f in store.iterdir()} == {f.name: f.read_bytes() for f in folder.iterdir()}


def test_nonfinite_weights_after_the_last_step_count_as_divergence(project: Path) -> None:
    """The only step has a finite loss but leaves infinite weights; the run must end as diverged, not fail forever."""
    edit_experiment(lambda content: content["protocol"]["optimizer"].update(name="sgd", lr=1e38, weight_decay=1e38))
    edit(Path("params.yaml"), lambda index: index["profiles"]["smoke"]["overrides"].update(steps_per_epoch=1))
    assert run()
    folder = Path("data/runs") / EXPERIMENT / listed("vit")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["divergence"]["step"]) == ("diverged", 1)
    assert 0 < result["divergence"]["last_finite_loss"] < 100
    row = json.loads((folder / "history.jsonl").read_text(encoding="utf-8"))
    assert "test_loss" not in row and row["train_loss"] > 0


def test_run_whose_state_has_another_canary_starts_over(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are identical only within one environment, and a mixed run would be labelled with the last one."""
    straight = make_project(project.parent / "straight", epochs=6)
    shutil.copy(straight / "params.yaml", project)
    stop = threading.Event()
    events: list[Event] = []

    def report(event: Event) -> None:
        events.append(event)
        if event.kind == "progress" and event.progress is not None and event.progress["epoch"] == 3:
            stop.set()

    assert not train_here(report=report, stop=stop)
    plain = F.gelu
    monkeypatch.setattr(F, "gelu", lambda x: plain(x) / 2)
    monkeypatch.setattr(canary, "_known", {})  # a new process would have no cached canary
    capsys.readouterr()
    events.clear()
    assert run(events)
    assert "other fast paths, or another canary); starting over" in capsys.readouterr().err
    first = next(event.progress for event in events if event.progress is not None)
    assert first["epoch"] == 1


@pytest.mark.parametrize("file", ["weights.safetensors", "history.jsonl", "result.json", "spec.json"])
def test_damaged_outcome_is_set_aside_and_retrained(
    finished: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = listed("vit")
    stored = Path("data/store/runs") / key
    whole = {path.name: path.read_bytes() for path in stored.iterdir()}
    damaged = whole[file].replace(b"1", b"2", 1) if file.endswith("json") else whole[file][:-1] + b"?"
    stored.joinpath(file).chmod(0o644)
    stored.joinpath(file).write_bytes(damaged)  # in place, so the hard link in the run folder is damaged, too
    cached = Path(".dvc/cache/files/md5/ab/cd")
    cached.parent.mkdir(parents=True)
    cached.hardlink_to(stored / file)
    capsys.readouterr()
    events: list[Event] = []
    assert run(events)
    assert [event.kind for event in events if event.kind != "progress"] == ["started", "finished"]
    assert f"{key[:12]}: the outcome in the store is damaged: " in capsys.readouterr().err
    (aside,) = Path("data/store/damaged").iterdir()
    assert aside.name.startswith(key) and (aside / file).read_bytes() == damaged
    assert not cached.exists(), "DVC would restore its damaged object"
    for folder in (stored, Path("data/runs") / EXPERIMENT / key):
        repaired = {path.name: path.read_bytes() for path in folder.iterdir()}
        for name in ("spec.json", "history.jsonl", "weights.safetensors"):
            assert repaired[name] == whole[name], name


def test_intact_copy_repairs_a_damaged_store_without_training(finished: Path) -> None:
    stored = Path("data/store/runs") / listed("vit") / "history.jsonl"
    content = stored.read_bytes()
    stored.unlink()
    stored.write_bytes(content + b"{}\n")  # a separate file, so the run folder keeps the intact one
    events: list[Event] = []
    assert run(events) and events == []
    assert stored.read_bytes() == content


def test_outcome_stored_under_another_key_is_rejected(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, foreign = listed("vit"), listed("ninformer")
    store = Path("data/store/runs")
    shutil.rmtree(store / mine)
    shutil.rmtree(Path("data/runs") / EXPERIMENT / mine)
    shutil.copytree(store / foreign, store / mine)
    events: list[Event] = []
    assert run(events)
    assert [event.kind for event in events if event.kind != "progress"] == ["started", "finished"]
    assert f"is of run {foreign[:12]}, not {mine[:12]}" in capsys.readouterr().err


def test_published_files_are_read_only(finished: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in Path("data/store/runs").glob("*/*")}
    assert modes == {0o444}


def test_longest_run_starts_first_and_unbuildable_run_can_be_sorted(project: Path) -> None:
    edit_experiment(lambda content: content["arms"]["vit"]["model"].update(dim=256, depth=2))
    params, events = load_params(), list[Event]()
    order = longest_first(params, "auto", FlopCounts().count)
    train_here(report=events.append, order=order)
    assert [event.label.split()[1] for event in events if event.kind == "started"] == ["vit.0", "ninformer.0"]
    edit_experiment(lambda content: content["arms"]["vit"]["model"].update(num_heads=3))
    unbuilt = next(
        run
        for run in keyed_runs(load_params().experiments[EXPERIMENT], load_params(), "0" * 64)
        if run.name.cell == "vit.0"
    )
    assert order([unbuilt], 1) == -math.inf


@pytest.mark.parametrize(
    ("named", "slots", "engine", "devices"),
    [
        ("cpu", None, "local", ["cpu"] * 6),
        ("cpu", 2, "local", ["cpu"] * 2),
        ("cpu", None, "ray", ["cpu"]),
        ("cuda", None, "local", ["cuda"]),
        ("cuda:0,cuda:1", None, "local", ["cuda:0", "cuda:1"]),
        ("cpu+cpu", None, "local", ["cpu+cpu"]),
    ],
)
def test_cpu_has_one_slot_per_core_unless_the_profile_sets_slots(
    monkeypatch: pytest.MonkeyPatch, named: str, slots: int | None, engine: str, devices: list[str]
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    params = load_params(REPOSITORY)
    profile = dataclasses.replace(params.profiles["paper"], slots=slots)
    params = dataclasses.replace(params, profiles={"paper": profile}, profile_name="paper")
    assert slot_devices(named, params, engine) == devices
    assert params.profiles["paper"].slots == slots


def test_run_retrained_alone_keeps_its_thread_count(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another number of threads, the only missing run would get other weights than before."""
    monkeypatch.setattr("os.cpu_count", lambda: 6)  # three threads each: neither one nor all

    def weights_and_threads(key: str) -> tuple[str, int]:
        result = json.loads((Path("data/store/runs") / key / "result.json").read_text(encoding="utf-8"))
        return result["weights_sha256"], result["environment"]["threads"]

    assert train_here(devices=["cpu", "cpu"])
    key = listed("vit")
    before = weights_and_threads(key)
    assert before[1] == 3
    shutil.rmtree(Path("data/store/runs") / key)
    shutil.rmtree("data/runs")
    assert train_here(devices=["cpu", "cpu"])
    assert weights_and_threads(key) == before
