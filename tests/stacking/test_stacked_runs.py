"""Stacks from the engine to the store: what is published, where training stops, and without a compiler."""

import dataclasses
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from stages import worker
from stages.checkpoint.predictor import load_predictor
from stages.run import ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, SplitSpec
from stages.runs.store import FolderScratch, RunStore
from stages.scheduling.engine.groups import Event, Group
from stages.scheduling.engine.local import run_groups
from stages.training.stacked import code_of_stack
from stages.worker import Job, train_run, train_stack
from tests.packed_table import pack_table

pytestmark = pytest.mark.long

PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01),
    batch_size=64,
    epochs=3,
    split=SplitSpec(kind="fraction", fraction=0.2),
    observe_test=True,
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAIMCHECK_HOME", str(tmp_path / "home"))
    features = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    pack_table(tmp_path / "line", features.numpy(), features.sum(1).numpy())
    return tmp_path / "line"


def specs(data: Path) -> tuple[RunSpec, ...]:
    model = ModelSpec(path="stages.papers.dac.mlp:MLP", arguments={"in_features": 3, "depth": 2, "width": 8})
    digest = json.loads((data / "dataset.json").read_text())["digest"]
    return tuple(
        RunSpec(model=model, protocol=PROTOCOL, data_digest=digest, replicate=Replicate(seed=seed), code={})
        for seed in (4, 2)
    )


def train(data: Path, store: Path, stop: threading.Event | None = None, stop_after: int | None = None) -> list[Event]:
    """The stack as one group; told to stop once `stop_after` epochs are reported."""
    stop = stop or threading.Event()
    events: list[Event] = []

    def report(event: Event) -> None:
        events.append(event)
        if stop_after is not None and event.progress and event.progress["epoch"] > stop_after:
            stop.set()

    group = Group(label="stack", specs=specs(data), data=data, is_stack=True)
    run_groups([group], RunStore(store), ["cpu"], report, stop)
    return events


def outcome(store: Path, spec: RunSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = RunStore(store).published(spec.run_key)
    assert folder is not None
    assert json.loads((folder / "spec.json").read_text()) == spec.to_dict()
    assert load_predictor(folder / "weights.safetensors").contract.run_key == spec.run_key
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return json.loads((folder / "result.json").read_text()), history


def test_every_run_of_a_stack_is_published_as_if_it_was_alone(data: Path, tmp_path: Path) -> None:
    store = tmp_path / "stacked" / "store"
    assert [event.kind for event in train(data, store) if event.kind != "progress"] == ["started", "finished"]
    for spec in specs(data):
        result, history = outcome(store, spec)
        single = RunStore(tmp_path / "alone" / "store")
        trained = train_run(Job(spec=spec, data=data, device="cpu"), single.scratch)
        single.publish(spec.run_key, trained.outcomes[spec.run_key])
        alone, expected = outcome(tmp_path / "alone" / "store", spec)
        assert [row.keys() for row in history] == [row.keys() for row in expected]
        for row, wanted in zip(history, expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-3)
        assert result.keys() == alone.keys() and result["status"] == alone["status"]
        code = code_of_stack(spec.model)
        stacked, single = (dict(found["environment"]) for found in (result, alone))
        process = stacked.pop("process")
        assert process != single.pop("process"), "another canary, and other fast paths"
        assert not [name for name in process["modules"] if len(name) > 50], "what Inductor compiles is no foreign code"
        assert stacked == single | {"stacked": code}, "a reader sees how it was trained"
        assert len(result["epoch_seconds"]) == 3
    assert list((store / "work").iterdir()) == []


@pytest.mark.parametrize("kind", ["stack", "alone"])
def test_denormals_are_zero_while_it_trains_and_not_afterwards(kind: str, data: Path, tmp_path: Path) -> None:
    jobs = [Job(spec=spec, data=data, device="cpu") for spec in specs(data)]
    seen = []
    probe = torch.full((64,), 1e-39)

    def look(_: object) -> None:
        seen.append(bool((probe * 1.5 == 0).all()))

    if kind == "stack":
        train_stack(jobs, FolderScratch(tmp_path / "work"), progress=look)
    else:
        train_run(jobs[0], FolderScratch(tmp_path / "work"), progress=look)
    assert seen and all(seen)
    assert (probe * 1.5 > 0).all()


@pytest.mark.parametrize("kind", ["stack", "alone"])
def test_data_that_change_meanwhile_give_no_outcome(kind: str, data: Path, tmp_path: Path) -> None:
    jobs, scratch = [Job(spec=spec, data=data, device="cpu") for spec in specs(data)], FolderScratch(tmp_path / "work")

    def change(_: object) -> None:
        os.utime(data / "train.safetensors")

    with pytest.raises(ValueError, match=r"line changed while run .* trained; nothing is published, run dvc repro"):
        train_stack(jobs, scratch, progress=change) if kind == "stack" else train_run(jobs[0], scratch, progress=change)


def test_a_stack_of_other_code_than_its_keys_name_is_not_trained(data: Path, tmp_path: Path) -> None:
    one, other = specs(data)
    other = dataclasses.replace(other, code={"stages.training.tables": "0" * 16})
    jobs = [Job(spec=spec, data=data, device="cpu") for spec in (one, other)]
    with pytest.raises(ValueError, match="asks for other code than this process has loaded"):
        train_stack(jobs, FolderScratch(tmp_path / "work"))


def test_stopped_it_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole" / "store", tmp_path / "stopped" / "store"
    train(data, whole)
    assert train(data, stopped, stop_after=1)[-1].kind == "stopped"
    assert [RunStore(stopped).published(spec.run_key) for spec in specs(data)] == [None, None]
    (folder,) = (stopped / "work").iterdir()
    assert {path.name for path in folder.iterdir()} == {"group.json", "resume.pt"}
    events = train(data, stopped)
    assert min(event.progress["epoch"] for event in events if event.progress) > 1, "not from the beginning"
    for spec in specs(data):
        (result, history), (expected, curve) = outcome(stopped, spec), outcome(whole, spec)
        assert (result["weights_sha256"], history) == (expected["weights_sha256"], curve)


def test_killed_between_two_publications_the_rest_is_published_later(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, store = tmp_path / "whole" / "store", tmp_path / "killed" / "store"
    train(data, whole)
    first, second = specs(data)
    publish = RunStore.publish

    def killed(self: RunStore, run_key: str, files: Mapping[str, bytes]) -> Path:
        if run_key == second.run_key:
            raise KeyboardInterrupt
        return publish(self, run_key, files)

    monkeypatch.setattr(RunStore, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        train(data, store)
    monkeypatch.undo()
    kept = RunStore(store).published(first.run_key)
    assert kept is not None
    before = (kept / "result.json").stat().st_mtime_ns
    assert train(data, store)[-1].kind == "finished"
    assert (kept / "result.json").stat().st_mtime_ns == before
    for spec in (first, second):
        assert outcome(store, spec)[0]["weights_sha256"] == outcome(whole, spec)[0]["weights_sha256"]


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    worker._compiles.cache_clear()
    with torch._inductor.config.patch({"cpp.cxx": ("/bin/false",)}):  # which knows how to take it back
        yield
    worker._compiles.cache_clear()


@pytest.mark.usefixtures("broken_compiler")
def test_where_nothing_can_be_compiled_they_are_trained_one_by_one(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    events = [event.kind for event in train(data, store) if event.kind != "progress"]
    assert events == ["started", "finished", "finished"]
    assert "torch.compile fails here, so networks are trained one by one" in capfd.readouterr().err
    for spec in specs(data):
        result, history = outcome(store, spec)
        assert "stacked" not in result["environment"] and len(history) == 3


def test_one_that_fails_alone_holds_up_no_other(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "can_stack", lambda device: False)
    first, second = specs(data)
    work = tmp_path / "store" / "work"
    work.mkdir(parents=True)
    (work / first.run_key).write_text("a file where its scratch folder should be")
    events = [event.kind for event in train(data, tmp_path / "store") if event.kind != "progress"]
    assert events == ["started", "failed", "finished"]
    assert RunStore(tmp_path / "store").published(second.run_key)
