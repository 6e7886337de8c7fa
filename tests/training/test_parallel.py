"""A run trained by several processes or devices equals one device's, and resumes as a whole."""

import json
import multiprocessing
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.datasets.packed import TokenSet, write_packed
from stages.device import devices_of
from stages.papers import build_model
from stages.run import OptimizerSpec, Protocol, RunSpec
from stages.runs.store import STATE, RunStore
from stages.scheduling.groups import Event, Group
from stages.scheduling.leases import Leases
from stages.scheduling.local import run_groups
from stages.training.loop import Outcome, seeded_model
from stages.training.parallel import Rank, SharedTask, Tell, agreed, joined, refuse_unlike, run_together, share
from stages.training.session import Session
from stages.training.tokens import NextToken, TokenWindows
from stages.worker import Job, Trained, TrainingStopped, can_stack, train_run
from tests.packed_table import describe
from tests.small_gpt import CONTEXT, MODELS, PROTOCOL, VOCABULARY, WINDOWS, spec_of

pytestmark = pytest.mark.slow


def task_of(protocol: Protocol) -> NextToken:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (WINDOWS * CONTEXT + 1,), generator=draw).to(torch.uint16)
    return NextToken(TokenWindows(tokens, CONTEXT), protocol)


def session_of(spec: RunSpec) -> Session:
    """Return a session on random text; GPT-2 gets a matrix that no step uses, like HyperBF's."""
    model = seeded_model(lambda: build_model(spec.model), spec.replicate)
    if spec.model.path.endswith("GPT2"):
        model.register_parameter("unused", nn.Parameter(torch.ones(3, 3)))
    return Session(spec, model, task_of(spec.protocol), None)


def train(session: Session) -> Outcome:
    return session.train(
        state=None, save=lambda state: None, progress=lambda progress: None, should_stop=agreed_or_never()
    )


def agreed_or_never() -> Any:
    return agreed(lambda: False) if torch.distributed.is_initialized() else lambda: False


def train_share(spec: RunSpec, rank: Rank, tell: Tell, should_stop: Any) -> Any:
    session = session_of(spec)
    with joined(rank.number, rank.size, torch.device("cpu"), rank.port):
        outcome = train(share(session))
    return outcome.history, {name: value.numpy() for name, value in session.model.state_dict().items()}


class BackToFront(NextToken):
    """The same task with each batch's rows reversed, which changes only rounding."""

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return super().training_batch(rows.flip(0), generator)


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


@pytest.mark.parametrize("model", MODELS, ids=["GPT2", "AetherGPT"])
def test_two_processes_train_the_same_network_as_one(model: str) -> None:
    """Losses agree within 1e-6, and weights as well as those of one process with reversed batches.

    Gradients are sums in another order, and Adam amplifies those that are pure rounding, such as the keys' biases'.
    """
    spec = spec_of(model)
    history, arrays = run_together(partial(train_share, spec), ("cpu", "cpu"), tell=print, should_stop=lambda: False)
    alone, reordered = session_of(spec), session_of(spec)
    reordered = replace(reordered, task=BackToFront(task_of(spec.protocol).data, spec.protocol))
    for ours, theirs in zip(history, train(alone).history, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6), "losses of training and validation, rows, steps"
    train(reordered)
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    one = alone.model.state_dict()
    assert 0 < furthest(weights, one) < 5 * furthest(reordered.model.state_dict(), one)


def shares(rows: int, size: int) -> Iterator[tuple[SharedTask, int]]:
    for rank in range(size):
        task = SharedTask(task_of(PROTOCOL), rank, size)
        _, targets = task.training_batch(torch.arange(rows), torch.Generator())
        yield task, len(targets)


@pytest.mark.parametrize(("rows", "size", "expected"), [(8, 2, [4, 4]), (8, 3, [2, 3, 3]), (2, 3, [2, 2, 2])])
def test_ranks_divide_a_batch_and_weight_their_parts(rows: int, size: int, expected: list[int]) -> None:
    """If there are fewer rows than ranks, every rank gets all rows."""
    found = list(shares(rows, size))
    assert [count for _, count in found] == expected
    assert sum(task.weight for task, _ in found) == pytest.approx(1)
    assert all(task.weight == pytest.approx(count / sum(expected)) for task, count in found)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)


@pytest.mark.parametrize(
    ("model", "protocol", "why"),
    [
        (build_model(spec_of(MODELS[0], dropout=0.1).model), PROTOCOL, "draws random numbers"),
        (Normalised(), PROTOCOL, "normalises over the batch"),
        (build_model(spec_of(MODELS[0]).model), replace(PROTOCOL, optimizer=OptimizerSpec(name="kfac", lr=1)), "kfac"),
    ],
    ids=["dropout", "batch norm", "K-FAC"],
)
def test_training_that_would_change_is_refused(model: nn.Module, protocol: Protocol, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*name one device"):
        refuse_unlike(model, task_of(protocol), protocol)


TOGETHER = "cpu+cpu"
SPEC = replace(spec_of(MODELS[1]), data_digest="d")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, WINDOWS * CONTEXT + 1, dtype=np.uint16)
    counts = {"train_images": len(tokens), "test_images": len(tokens), "vocabulary": VOCABULARY}
    info = describe("noise", kind="text", shape=(CONTEXT,), **counts)
    write_packed(folder, {"train": TokenSet(tokens), "test": TokenSet(tokens)}, info)
    return folder


def longer(epochs: int) -> RunSpec:
    return replace(SPEC, protocol=replace(PROTOCOL, epochs=epochs))


def files_of(trained: Trained) -> dict[str, bytes]:
    (files,) = trained.outcomes.values()
    return dict(files)


def test_shared_run_has_the_same_key_and_records_the_sharing(data: Path, tmp_path: Path) -> None:
    scratch = RunStore(tmp_path).scratch
    together = files_of(train_run(Job(spec=SPEC, data=data, device=TOGETHER), scratch))
    alone = files_of(train_run(Job(spec=SPEC, data=data, device="cpu"), scratch))
    assert together["spec.json"] == alone["spec.json"], "one run key"
    ours, theirs = (json.loads(files["result.json"])["environment"] for files in (together, alone))
    shared = ours.pop("data_parallel")
    assert shared | {"code": ""} == {"world_size": 2, "backend": "gloo", "global_batch": 7, "code": ""}
    theirs["process"]["modules"] = {}  # only this process has loaded the tests
    assert ours == theirs | {"threads": ours["threads"]}
    for line, expected in zip(together["history.jsonl"].splitlines(), alone["history.jsonl"].splitlines(), strict=True):
        assert json.loads(line) == pytest.approx(json.loads(expected), rel=1e-6)


def test_shared_run_resumes_bitwise(data: Path, tmp_path: Path) -> None:
    spec, stop = longer(12), threading.Event()
    job, store = Job(spec=spec, data=data, device=TOGETHER), RunStore(tmp_path)
    undisturbed = files_of(train_run(job, store.scratch))
    with pytest.raises(TrainingStopped, match="stopped after"):
        train_run(job, store.scratch, progress=lambda progress: stop.set(), should_stop=stop.is_set)
    assert store.scratch.holds(f"{spec.run_key}/{STATE}")
    resumed_at: list[int] = []
    resumed = files_of(train_run(job, store.scratch, progress=lambda progress: resumed_at.append(progress.step)))
    assert resumed_at[0] > 1, "it resumed from the state"
    assert [resumed[name] for name in ("weights.safetensors", "history.jsonl")] == [
        undisturbed[name] for name in ("weights.safetensors", "history.jsonl")
    ]


def test_killed_process_ends_the_others_with_a_reason(data: Path, tmp_path: Path) -> None:
    store, events = RunStore(tmp_path), list[Event]()
    others = set(multiprocessing.active_children())

    def report(event: Event) -> None:
        events.append(event)
        if event.kind == "progress":
            for process in multiprocessing.active_children():
                if process.name == "rank-1":
                    process.kill()

    group = Group(label="gpt", specs=(longer(400),), data=data)
    assert not run_groups([group], store, [TOGETHER], report, threading.Event())
    assert not set(multiprocessing.active_children()) - others, "nothing trains any more"
    reason = "rank 1 of 2 (cpu) was killed by SIGKILL, so the others were ended"
    assert events[-1].kind == "failed" and events[-1].message.startswith(reason)
    (attempt,) = Leases(store).attempts(group.run_keys[0])
    assert attempt.end == "failed" and attempt.reason is not None and attempt.reason.startswith(reason)


def test_error_of_all_ranks_is_reported_once(data: Path, tmp_path: Path) -> None:
    spec = replace(spec_of(MODELS[0], dropout=0.1), data_digest="d")
    with pytest.raises(ValueError, match="draws random numbers"):
        train_run(Job(spec=spec, data=data, device=TOGETHER), RunStore(tmp_path).scratch)


@pytest.mark.slow(hours=True)
def test_several_slots_of_several_devices_train_concurrently(data: Path, tmp_path: Path) -> None:
    groups = [
        Group(label=f"gpt.{seed}", specs=(replace(SPEC, replicate=replace(SPEC.replicate, seed=seed)),), data=data)
        for seed in range(2)
    ]
    assert run_groups(groups, RunStore(tmp_path), [TOGETHER] * 2, lambda event: None, threading.Event())


def test_devices_of_a_shared_run_are_listed_individually(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices_of("cpu") == ("cpu",) and devices_of(TOGETHER) == ("cpu", "cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices_of("cuda+cuda:1") == ("cuda:0", "cuda:1")
    for wanted, why in [("cuda+cuda:0", "only once"), ("cpu+cuda:0", "all GPUs, or all cpu"), ("cpu+", "known: auto")]:
        with pytest.raises(ValueError, match=why):
            devices_of(wanted)


def test_stacks_are_not_shared_by_devices() -> None:
    assert not can_stack(TOGETHER)
