"""Trainings on tables and texts."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.checkpoint.contract import CheckpointError
from stages.checkpoint.predictor import load_predictor
from stages.evaluation.cost import flops_per_sample
from stages.evaluation.flops import FlopCounts
from stages.evaluation.scores import score
from stages.papers.dac.mlp import MLP
from stages.papers.nmn import GPT2
from stages.run import OptimizerSpec, Protocol, Replicate, SplitSpec
from stages.runs.store import RunStore
from stages.training.kinds import read_rows
from stages.training.loop import fit, measure, seeded_model
from stages.training.tables import Regression, TableRows
from stages.training.tokens import NextToken, TokenWindows
from stages.worker import Job, count_flops, train_run
from tests.packed_table import pack_table
from tests.project import make_spec

PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01),
    batch_size=64,
    epochs=30,
    split=SplitSpec(kind="fraction", fraction=0.2),
    observe_test=False,
)
ARGUMENTS = {"in_features": 3, "depth": 2, "width": 16}


def line(rows: int) -> TableRows:
    features = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    return TableRows(features, features @ torch.tensor([1.0, -2.0, 0.5]) + 3)


def test_loss_is_the_mean_square_over_all_rows() -> None:
    task = Regression(line(5000))
    zero = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(zero.weight), torch.nn.init.zeros_(zero.bias)
    expected = float((task.data.targets.double() ** 2).mean())
    assert measure(zero, task)["loss"] == pytest.approx(expected, rel=1e-6), "5000 rows are two parts"
    assert measure(zero, task, torch.arange(10))["loss"] == pytest.approx(float((task.data.targets[:10] ** 2).mean()))


def test_training_learns_a_line_and_validates_on_held_out_rows() -> None:
    task = Regression(line(1000))
    model = seeded_model(lambda: MLP(**ARGUMENTS), Replicate(seed=0))
    outcome = fit(model, task, PROTOCOL, Replicate(seed=0))
    assert outcome.samples == 30 * 800
    assert outcome.history[-1]["val_loss"] < 0.05 * outcome.history[0]["train_loss"]


@pytest.fixture
def packed(tmp_path):
    rows = line(300)
    info = pack_table(tmp_path / "line", rows.features.numpy(), rows.targets.numpy())
    return tmp_path / "line", info


def test_worker_trains_a_table_whose_checkpoint_is_scored_by_mean_square(tmp_path, packed) -> None:
    folder, info = packed
    spec = make_spec("stages.papers.dac.mlp:MLP", ARGUMENTS, PROTOCOL, digest=info.digest)
    store = RunStore(tmp_path / "store")
    trained = train_run(Job(spec=spec, data=folder, device="cpu"), store.scratch)
    published = store.publish(spec.run_key, trained.outcomes[spec.run_key])
    count_flops(spec, folder, tmp_path / "flops.json")
    predictor = load_predictor(published / "weights.safetensors")
    counts = FlopCounts(tmp_path / "flops.json")
    flops = counts.count(spec.model, info.shape, None)
    assert (flops, counts.added) == (flops_per_sample(predictor.network, info.shape), 0), "counted by the training"
    scores = score(predictor, read_rows(folder, info, "test"), info, spec, [], flops)
    values = {measurement.metric: measurement for measurement in scores.metrics}
    rows = line(300)
    with torch.inference_mode():
        outputs = predictor.network(rows.features[:40] * 2).squeeze(1)
    expected = float(((outputs - rows.targets[:40]) ** 2).mean())
    assert values["mse"].value == pytest.approx(expected, rel=1e-5)
    assert values["log_mse"].value == pytest.approx(math.log(expected), rel=1e-5)
    assert values["mse"].n == 40
    assert "selected_mse" not in values
    epochs = [
        {"val_loss": 0.2, "test_loss": 0.1},
        {"val_loss": 0.1, "test_loss": 0.3},
        {"val_loss": 0.3, "test_loss": 0.2},
    ]
    watched = score(predictor, read_rows(folder, info, "test"), info, spec, epochs, flops)
    selected = {measurement.metric: measurement.value for measurement in watched.metrics}
    assert (selected["selected_mse"], selected["selected_log_mse"]) == (0.3, math.log(0.3)), "not the lowest test error"
    assert selected["mse"] == values["mse"].value
    assert values["flops_per_row"].value == 2 * (3 * 16 + 16 * 16 + 16)
    assert scores.correct is scores.confusion is None
    with pytest.raises(CheckpointError, match="is for table data; it has no classes of images"):
        predictor.probabilities(np.zeros((1, 3, 2, 2), dtype=np.uint8))


REPLICATE = Replicate(seed=3)


def as_tokens(text: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.uint16))


def make_protocol(**changes: Any) -> Protocol:
    fields: dict[str, Any] = {
        "optimizer": OptimizerSpec(name="adamw", lr=1e-2),
        "batch_size": 4,
        "epochs": 2,
        "mean": (),
        "std": (),
    }
    return Protocol(**fields | changes)


def build_gpt2(context: int = 8, dropout: float = 0.1) -> nn.Module:
    return GPT2(vocabulary_size=256, context=context, width=16, depth=1, num_heads=2, dropout=dropout)


def test_window_predicts_each_next_token() -> None:
    data = TokenWindows(as_tokens(b"abcdefghij"), 3)
    inputs, targets = data.pick(torch.tensor([2, 0]))
    assert [bytes(row) for row in inputs.to(torch.uint8).tolist()] == [b"ghi", b"abc"]
    assert [bytes(row) for row in targets.to(torch.uint8).tolist()] == [b"hij", b"bcd"]
    assert (len(data), inputs.dtype, targets.dtype) == (3, torch.int64, torch.int64)


@pytest.mark.parametrize("length", [17, 20, 29, 33])
def test_no_token_is_predicted_twice_and_less_than_a_window_remains(length: int) -> None:
    data = TokenWindows(torch.arange(length).to(torch.uint16), 4)
    inputs, targets = data.pick(torch.arange(len(data)))
    assert inputs.flatten().tolist() == list(range(4 * len(data)))
    assert targets.flatten().tolist() == list(range(1, 4 * len(data) + 1))
    assert length - 1 - targets.numel() < 4


@pytest.mark.parametrize(("length", "window"), [(4, 4), (0, 1), (9, 0)])
def test_text_shorter_than_a_window_is_refused(length: int, window: int) -> None:
    with pytest.raises(ValueError, match=f"the text has {length} tokens; a window of {window} needs one more"):
        TokenWindows(torch.zeros(length, dtype=torch.uint16), window)


def test_token_ids_beyond_int16_are_preserved() -> None:
    ids = [50_256, 7, 40_000, 65_535]
    inputs, targets = TokenWindows(torch.from_numpy(np.array(ids, dtype=np.uint16)), 3).pick(torch.tensor([0]))
    assert (inputs.tolist(), targets.tolist()) == ([ids[:3]], [ids[1:]])


def test_loss_is_the_mean_negative_log_probability_per_token() -> None:
    task = NextToken(TokenWindows(as_tokens(b"abcabc"), 2), make_protocol())
    probabilities = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]])
    targets = torch.tensor([[0, 2]])
    expected = -(math.log(0.5) + math.log(0.1)) / 2
    loss = task.loss(probabilities.log(), targets)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert task.sums(probabilities.log(), targets, loss).tolist() == pytest.approx([expected])
    half = task.loss(probabilities.log().bfloat16(), targets)
    assert half.dtype == torch.float32


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_measured_loss_does_not_depend_on_the_batches(batch_size: int) -> None:
    task = NextToken(TokenWindows(as_tokens(bytes(range(200))), 8), make_protocol())
    model = seeded_model(build_gpt2, REPLICATE)
    inputs, targets = task.data.pick(torch.arange(len(task)))
    expected = torch.nn.functional.cross_entropy(model.eval()(inputs).flatten(0, 1), targets.flatten()).item()
    assert measure(model, task, batch_size=batch_size)["loss"] == pytest.approx(expected, rel=1e-5)


def test_measuring_covers_windows_in_order_in_batches_up_to_trainings() -> None:
    task = NextToken(TokenWindows(torch.arange(60).to(torch.uint16), 5), make_protocol(batch_size=4))
    batches = [inputs for inputs, _ in task.plain_batches(torch.arange(len(task)), 256)]
    assert [len(inputs) for inputs in batches] == [4, 4, 3]
    assert torch.cat(batches).flatten().tolist() == list(range(55))


def test_epoch_uses_every_training_window_once_and_no_validation_window() -> None:
    protocol = make_protocol(split=SplitSpec(kind="fraction", fraction=0.25, seed=1), epochs=1)
    seen: list[int] = []

    class Watched(NextToken):
        def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            seen.extend(rows.tolist())
            return super().training_batch(rows, generator)

    task = Watched(TokenWindows(as_tokens(bytes(range(161))), 8), protocol)
    outcome = fit(seeded_model(build_gpt2, REPLICATE), task, protocol, REPLICATE)
    assert (len(task), len(seen), len(set(seen))) == (20, 15, 15)
    assert outcome.history[0]["samples"] == 15
    assert math.isfinite(outcome.history[0]["val_loss"])
