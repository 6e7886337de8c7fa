from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stages.checkpoint.contract import CheckpointError
from stages.checkpoint.predictor import load_predictor
from stages.evaluation.cost import flops_per_sample
from stages.evaluation.flops import FlopCounts
from stages.evaluation.scores import score
from stages.papers.dac.mlp import MLP
from stages.run import EarlyStopSpec, ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, SplitSpec
from stages.runs.store import RunStore
from stages.training.kinds import read_rows
from stages.training.loop import fit, measure, seeded_model
from stages.training.tables import Regression, TableRows
from stages.worker import Job, count_flops, train_run
from tests.packed_table import pack_table

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


def test_loss_is_the_mean_square_of_every_row() -> None:
    task = Regression(line(5000))
    zero = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(zero.weight), torch.nn.init.zeros_(zero.bias)
    expected = float((task.data.targets.double() ** 2).mean())
    assert measure(zero, task)["loss"] == pytest.approx(expected, rel=1e-6), "5000 rows are two parts"
    assert measure(zero, task, torch.arange(10))["loss"] == pytest.approx(float((task.data.targets[:10] ** 2).mean()))


def test_training_learns_a_line_and_validates_on_rows_it_did_not_train_on() -> None:
    task = Regression(line(1000))
    model = seeded_model(lambda: MLP(**ARGUMENTS), Replicate(seed=0))
    outcome = fit(model, task, PROTOCOL, Replicate(seed=0))
    assert outcome.samples == 30 * 800
    assert outcome.history[-1]["val_loss"] < 0.05 * outcome.history[0]["train_loss"]


def test_training_stops_early_once_validation_no_longer_falls() -> None:
    stop = EarlyStopSpec(from_epoch=2, patience=3, min_delta=1000.0)
    protocol = Protocol(**{**vars(PROTOCOL), "early_stop": stop})
    outcome = fit(MLP(**ARGUMENTS), Regression(line(200)), protocol, Replicate(seed=0))
    # The first epoch looked at is better than none; three more are not better by 1000.
    assert len(outcome.history) == 2 + 1 + 3


@pytest.fixture
def packed(tmp_path):
    rows = line(300)
    info = pack_table(tmp_path / "line", rows.features.numpy(), rows.targets.numpy())
    return tmp_path / "line", info


def test_worker_trains_a_table_and_its_checkpoint_is_scored_by_mean_square(tmp_path, packed) -> None:
    folder, info = packed
    spec = RunSpec(
        model=ModelSpec(path="stages.papers.dac.mlp:MLP", arguments=ARGUMENTS),
        protocol=PROTOCOL,
        data_digest=info.digest,
        replicate=Replicate(seed=0),
        code={},
    )
    store = RunStore(tmp_path / "store")
    trained = train_run(Job(spec=spec, data=folder, device="cpu"), store.scratch)
    published = store.publish(spec.run_key, trained.outcomes[spec.run_key])
    count_flops(spec, folder, tmp_path / "flops.json")
    predictor = load_predictor(published / "weights.safetensors")
    counts = FlopCounts(tmp_path / "flops.json")
    flops = counts.count(spec.model, info.shape, None)
    assert (flops, counts.added) == (flops_per_sample(predictor.network, info.shape), 0), "counted by the training"
    scores = score(predictor, read_rows(folder, info, "test"), info, PROTOCOL, [], flops)
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
    watched = score(predictor, read_rows(folder, info, "test"), info, PROTOCOL, epochs, flops)
    selected = {measurement.metric: measurement.value for measurement in watched.metrics}
    assert (selected["selected_mse"], selected["selected_log_mse"]) == (0.3, math.log(0.3)), "not the least test error"
    assert selected["mse"] == values["mse"].value
    assert values["flops_per_row"].value == 2 * (3 * 16 + 16 * 16 + 16)
    assert scores.correct is scores.confusion is None
    with pytest.raises(CheckpointError, match="answers to a table, not to images"):
        predictor.probabilities(np.zeros((1, 3, 2, 2), dtype=np.uint8))
