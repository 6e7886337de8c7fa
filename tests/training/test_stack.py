"""A stack compared with the same networks trained one by one, from the engine to the store."""

import dataclasses
import io
import json
import os
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stages import worker
from stages.checkpoint.predictor import load_predictor
from stages.ops.fast import dense_stack
from stages.ops.fast.cpp import keep_compiled_steps_apart
from stages.papers.dac.mlp import DACMLP, MLP
from stages.papers.dac.mlp_stack import Stack
from stages.run import EarlyStopSpec, ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, SplitSpec
from stages.runs.store import FolderScratch, RunStore
from stages.scheduling.groups import Event, Group
from stages.scheduling.local import run_groups
from stages.training.loop import Outcome, TrainingStopped, fit, measure, seeded_model
from stages.training.stacked import StackState, code_of_stack, files_of_stack, fit_stack
from stages.training.tables import Regression, TableRows
from stages.worker import Job, train_run, train_stack
from tests.packed_table import pack_table
from tests.project import make_spec

pytestmark = pytest.mark.slow

NETWORKS = pytest.mark.parametrize("network", [MLP, DACMLP])
PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01, weight_decay=0.01, decay="kernels"),
    batch_size=32,
    epochs=4,
    split=SplitSpec(kind="fraction", fraction=0.2, seed=0),
    observe_test=False,
)
REPLICATES = [Replicate(seed=seed) for seed in range(3)]
# Equal sizes below, so that compiling is done once; each further layer takes seconds.
COMPILED = {"depth": 2, "width": 8, "last_width": None}
COMPILED_PROTOCOL = dataclasses.replace(PROTOCOL, batch_size=64)
COMPILED_REPLICATES = REPLICATES[:2]


def table(rows: int = 500) -> Regression:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 3, generator=generator)
    return Regression(TableRows(features, (features.sum(1) + features[:, 0].abs()).sin()))


def networks(
    kind: type[MLP | DACMLP], replicates: list[Replicate] = REPLICATES, **sizes: int | None
) -> list[MLP | DACMLP]:
    arguments: dict[str, Any] = {"depth": 3, "width": 9, "last_width": 5} | sizes
    built = [seeded_model(lambda: kind(in_features=3, **arguments), one) for one in replicates]
    assert all(isinstance(network, kind) for network in built)
    return built  # type: ignore[return-value]


def alone(kind: type[MLP | DACMLP], protocol: Protocol = PROTOCOL) -> tuple[list[Outcome], list[nn.Module]]:
    built = networks(kind)
    return [fit(network, table(), protocol, one) for network, one in zip(built, REPLICATES, strict=True)], built


def assert_like(ours: list[tuple[Outcome, float]], expected: list[Outcome], relative: float) -> None:
    for (stacked, seconds), single in zip(ours, expected, strict=True):
        assert seconds == pytest.approx(sum(stacked.epoch_seconds))
        assert len(stacked.history) == len(single.history) == len(stacked.epoch_seconds)
        assert (stacked.samples, stacked.divergence) == (single.samples, single.divergence)
        for row, wanted in zip(stacked.history, single.history, strict=True):
            assert row == pytest.approx(wanted, rel=relative)


@NETWORKS
def test_outputs_gradients_and_statistics_equal_single_networks(network: type[MLP | DACMLP]) -> None:
    built = [one.double() for one in networks(network)]
    stack = Stack(built)
    features = torch.randn(3, 40, 3, dtype=torch.float64)
    targets = torch.randn(3, 40, dtype=torch.float64)
    losses = stack.losses(features, targets)
    losses.sum().backward()
    losses = losses.detach()
    gradients = {name: parameter.grad for name, parameter in stack.named_parameters()}
    for place, one in enumerate(built):
        loss = nn.functional.mse_loss(one(features[place]).squeeze(1), targets[place])
        loss.backward()
        assert float(losses[place]) == pytest.approx(float(loss.detach()), rel=1e-12)
        for name, parameter in one.named_parameters():
            torch.testing.assert_close(gradients[name.replace(".", "/")][place], parameter.grad, rtol=1e-9, atol=1e-12)
        state = one.state_dict()
        ours = stack.weights(place)
        assert {name: value.dtype for name, value in ours.items()} == {k: value.dtype for k, value in state.items()}
        for name, value in state.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-14)
    stack.eval()
    for place, one in enumerate(built):
        torch.testing.assert_close(stack(features)[place], one.eval()(features[place]).squeeze(1))


@pytest.mark.skipif(not dense_stack.is_available(), reason="no C++ compiler here")
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_base_networks_use_cpp_steps_in_float32(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    call = dense_stack.call
    monkeypatch.setattr(dense_stack, "call", lambda *arguments: calls.append(arguments[1]) or call(*arguments))
    built = networks(MLP, COMPILED_REPLICATES, **COMPILED)
    fit_stack(built, Stack, table(300), COMPILED_PROTOCOL, COMPILED_REPLICATES, is_compiled=is_compiled)
    # 240 rows in batches of 64 are four steps; 60 rows are one batch to measure
    assert calls == COMPILED_PROTOCOL.epochs * (["dense_stack_step"] * 4 + ["dense_stack_predict"])


def test_other_networks_or_a_missing_compiler_use_no_cpp_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_dense(place: int, layer: nn.Module) -> bool:
        built = networks(MLP)
        for one in built:
            one.layers[place] = layer
        return Stack(built).is_dense

    units = networks(MLP)[0].layers[0].out_features
    assert Stack(networks(MLP)).is_dense == dense_stack.is_available()
    assert not is_dense(0, nn.Linear(3, units))
    assert not is_dense(1, nn.BatchNorm1d(units, eps=1e-3))
    assert not is_dense(1, nn.BatchNorm1d(units, affine=False))
    assert not Stack(networks(DACMLP)).is_dense
    monkeypatch.setattr(dense_stack, "load_library", lambda source: None)
    assert not Stack(networks(MLP)).is_dense


def test_files_of_stack_lists_code_that_run_keys_omit() -> None:
    names = {path.name for path in files_of_stack(ModelSpec(path="stages.papers.dac.mlp:DACMLP", arguments={}))}
    assert {"stacked.py", "mlp_stack.py", "dac_stack.py", "dac.py", "dac.cpp"} <= names
    assert {"dense_stack.py", "dense_stack.cpp"} <= names


@NETWORKS
def test_stack_trains_like_single_networks(network: type[MLP | DACMLP]) -> None:
    expected, singles = alone(network)
    built = networks(network)
    outcomes = fit_stack(built, Stack, table(), PROTOCOL, REPLICATES, is_compiled=False)
    assert_like(outcomes, expected, relative=2e-3)
    for one, single in zip(built, singles, strict=True):
        for name, value in single.state_dict().items():
            torch.testing.assert_close(one.state_dict()[name], value, rtol=0.05, atol=0.005)


@pytest.fixture(autouse=True, scope="module")
def own_folder_for_compiled_code() -> None:
    """Fresh cache folder, which the worker would normally set."""
    keep_compiled_steps_apart()


def compiled(kind: type[MLP | DACMLP], test: Regression | None = None) -> list[tuple[Outcome, float]]:
    return fit_stack(
        networks(kind, COMPILED_REPLICATES, **COMPILED),
        Stack,
        table(300),
        COMPILED_PROTOCOL,
        COMPILED_REPLICATES,
        is_compiled=True,
        test=test,
    )


@NETWORKS
def test_compiled_stack_trains_like_single_networks(network: type[MLP | DACMLP]) -> None:
    expected = [
        fit(single, table(300), COMPILED_PROTOCOL, one)
        for single, one in zip(networks(network, COMPILED_REPLICATES, **COMPILED), COMPILED_REPLICATES, strict=True)
    ]
    assert_like(compiled(network), expected, relative=2e-3)


def test_observing_the_test_set_changes_only_the_curves() -> None:
    test = table(40)
    watched, unwatched = compiled(MLP, test), compiled(MLP)
    singles = networks(MLP, COMPILED_REPLICATES, **COMPILED)
    for (outcome, _), (without, _), single, replicate in zip(
        watched, unwatched, singles, COMPILED_REPLICATES, strict=True
    ):
        observed = fit(
            single,
            table(300),
            COMPILED_PROTOCOL,
            replicate,
            observe=lambda model: {"test_loss": measure(model, test)["loss"]},
        )
        for row, expected in zip(outcome.history, observed.history, strict=True):
            assert row["test_loss"] == pytest.approx(expected["test_loss"], rel=2e-3)
            assert list(row) == list(expected)
        assert [row | {"test_loss": None} for row in outcome.history] == [
            row | {"test_loss": None} for row in without.history
        ]


def test_each_network_stops_early_by_its_own_losses() -> None:
    stopping = dataclasses.replace(
        PROTOCOL, epochs=40, early_stop=EarlyStopSpec(from_epoch=1, patience=1, min_delta=0.005)
    )
    expected, singles = alone(MLP, stopping)
    lengths = [len(outcome.history) for outcome in expected]
    assert len(set(lengths)) == 3 and max(lengths) < 40, "all stop at different epochs, so the stack shrinks"
    built = networks(MLP)
    assert_like(fit_stack(built, Stack, table(), stopping, REPLICATES, is_compiled=False), expected, relative=0.02)
    for one, single in zip(built, singles, strict=True):
        torch.testing.assert_close(one.head.weight, single.get_parameter("head.weight"), rtol=0.1, atol=0.02)


def test_diverging_network_is_reported_without_affecting_others() -> None:
    built = networks(MLP)
    expected, _ = alone(MLP)
    with torch.no_grad():
        built[1].head.weight.mul_(1e30)
    outcomes = fit_stack(built, Stack, table(), PROTOCOL, REPLICATES, is_compiled=False)
    diverged, seconds = outcomes[1]
    assert diverged.divergence == {"step": 1, "last_finite_step": 0, "last_finite_loss": None}
    assert diverged.history == diverged.epoch_seconds == []
    assert 0 < seconds < outcomes[0][1], "its cost is its share of the one epoch"
    assert_like([outcomes[0], outcomes[2]], [expected[0], expected[2]], relative=2e-3)


def test_stack_resumes_bitwise_at_any_step() -> None:
    stopping = dataclasses.replace(
        PROTOCOL, epochs=12, early_stop=EarlyStopSpec(from_epoch=1, patience=1, min_delta=0.005)
    )
    whole = networks(MLP)
    expected = fit_stack(whole, Stack, table(), stopping, REPLICATES, is_compiled=False)
    saved: list[StackState] = []
    built = networks(MLP)
    steps = 0

    def should_stop() -> bool:
        nonlocal steps
        steps += 1
        return steps % 31 == 0

    def save(state: StackState) -> None:
        saved[:] = [torch.load(_stored(state), weights_only=True)]

    outcomes = None
    while outcomes is None:
        try:
            state = StackState(**saved[-1]) if saved else None  # type: ignore[arg-type]
            outcomes = fit_stack(
                built,
                Stack,
                table(),
                stopping,
                REPLICATES,
                is_compiled=False,
                state=state,
                save=save,
                should_stop=should_stop,
            )
        except TrainingStopped:
            built = networks(MLP)
    assert steps > 62, "it was stopped at least twice"
    assert [outcome.history for outcome, _ in outcomes] == [outcome.history for outcome, _ in expected]
    for one, other in zip(built, whole, strict=True):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def _stored(state: StackState) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save({field.name: getattr(state, field.name) for field in dataclasses.fields(state)}, buffer)
    buffer.seek(0)
    return buffer


def test_unsupported_layer_is_refused() -> None:
    built = networks(MLP)
    for one in built:
        one.layers[2] = nn.GELU()
    with pytest.raises(TypeError, match=r"layers/2 is a GELU"):
        Stack(built)


def test_last_batch_of_one_row_is_refused_as_for_single_networks() -> None:
    train = partial(fit_stack, networks(MLP), Stack, table(321))
    with pytest.raises(ValueError, match="257 rows in batches of 32 leave one for the last"):
        train(PROTOCOL, REPLICATES, is_compiled=False)
    cut = dataclasses.replace(PROTOCOL, steps_per_epoch=3)
    assert [outcome.samples for outcome, _ in train(cut, REPLICATES, is_compiled=False)] == [4 * 96] * 3


PROTOCOL_RUNS = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01),
    batch_size=64,
    epochs=3,
    split=SplitSpec(kind="fraction", fraction=0.2),
    observe_test=True,
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAIMCHECK_HOME", str(tmp_path / "home"))
    return pack_line(tmp_path / "line")


def pack_line(folder: Path) -> Path:
    features = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    pack_table(folder, features.numpy(), features.sum(1).numpy())
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an uninterrupted stack."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAIMCHECK_HOME", str(folder / "home"))
        events = train(pack_line(folder / "line"), folder / "store")
    assert [event.kind for event in events if event.kind != "progress"] == ["started", "finished"]
    return folder / "store"


def specs(data: Path) -> tuple[RunSpec, ...]:
    sizes = {"in_features": 3, "depth": 2, "width": 8}
    digest = json.loads((data / "dataset.json").read_text(encoding="utf-8"))["digest"]
    return tuple(
        make_spec("stages.papers.dac.mlp:MLP", sizes, PROTOCOL_RUNS, digest=digest, seed=seed) for seed in (4, 2)
    )


def train(data: Path, store: Path, stop: threading.Event | None = None, stop_after: int | None = None) -> list[Event]:
    """Train the stack as one group; request a stop after `stop_after` epochs are reported."""
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
    assert json.loads((folder / "spec.json").read_text(encoding="utf-8")) == spec.to_dict()
    assert load_predictor(folder / "weights.safetensors").contract.run_key == spec.run_key
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    return json.loads((folder / "result.json").read_text(encoding="utf-8")), history


def test_every_run_of_a_stack_is_published_like_a_single_run(data: Path, whole: Path, tmp_path: Path) -> None:
    for spec in specs(data):
        result, history = outcome(whole, spec)
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
        assert not [name for name in process["modules"] if len(name) > 50], "generated code isn't foreign"
        assert stacked == single | {"stacked": code}, "the environment states how it was trained"
        assert len(result["epoch_seconds"]) == 3
    assert list((whole / "work").iterdir()) == []


@pytest.mark.parametrize("kind", ["stack", "alone"])
def test_denormals_are_flushed_only_during_training(kind: str, data: Path, tmp_path: Path) -> None:
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
def test_data_changed_during_training_give_no_outcome(kind: str, data: Path, tmp_path: Path) -> None:
    jobs, scratch = [Job(spec=spec, data=data, device="cpu") for spec in specs(data)], FolderScratch(tmp_path / "work")

    def change(_: object) -> None:
        os.utime(data / "train.safetensors")

    with pytest.raises(ValueError, match=r"line changed while run .* trained; nothing is published, run dvc repro"):
        train_stack(jobs, scratch, progress=change) if kind == "stack" else train_run(jobs[0], scratch, progress=change)


def test_stack_of_outdated_code_is_not_trained(data: Path, tmp_path: Path) -> None:
    one, other = specs(data)
    other = dataclasses.replace(other, code={"stages.training.tables": "0" * 16})
    jobs = [Job(spec=spec, data=data, device="cpu") for spec in (one, other)]
    with pytest.raises(ValueError, match="asks for other code than this process has loaded"):
        train_stack(jobs, FolderScratch(tmp_path / "work"))


def test_stopped_stack_resumes(data: Path, whole: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped" / "store"
    assert train(data, stopped, stop_after=1)[-1].kind == "stopped"
    assert [RunStore(stopped).published(spec.run_key) for spec in specs(data)] == [None, None]
    (folder,) = (stopped / "work").iterdir()
    assert {path.name for path in folder.iterdir()} == {"group.json", "resume.pt"}
    events = train(data, stopped)
    assert min(event.progress["epoch"] for event in events if event.progress) > 1, "not from the beginning"
    for spec in specs(data):
        (result, history), (expected, curve) = outcome(stopped, spec), outcome(whole, spec)
        assert (result["weights_sha256"], history) == (expected["weights_sha256"], curve)


def test_stack_killed_while_publishing_publishes_the_rest_later(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "killed" / "store"
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
    with torch._inductor.config.patch({"cpp.cxx": ("/bin/false",)}):  # monkeypatch can undo it
        yield
    worker._compiles.cache_clear()


@pytest.mark.usefixtures("broken_compiler")
def test_networks_are_trained_singly_without_a_compiler(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    events = [event.kind for event in train(data, store) if event.kind != "progress"]
    assert events == ["started", "finished", "finished"]
    assert "torch.compile fails here, so networks are trained one by one" in capfd.readouterr().err
    for spec in specs(data):
        result, history = outcome(store, spec)
        assert "stacked" not in result["environment"] and len(history) == 3


def test_failing_single_network_does_not_block_others(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "can_stack", lambda device: False)
    first, second = specs(data)
    work = tmp_path / "store" / "work"
    work.mkdir(parents=True)
    (work / first.run_key).write_text("a file where its scratch folder should be", encoding="utf-8")
    events = [event.kind for event in train(data, tmp_path / "store") if event.kind != "progress"]
    assert events == ["started", "failed", "finished"]
    assert RunStore(tmp_path / "store").published(second.run_key)
