"""Metrics, costs, and evaluation during the next training."""

import math
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from stages.device import device_name
from stages.evaluate import main
from stages.evaluation import cost
from stages.evaluation.cost import (
    Stopwatch,
    count_parameters,
    flops_per_sample,
)
from stages.evaluation.flops import MeasurementCache
from stages.evaluation.scores import (
    CALIBRATION_BINS,
    accuracy,
    auroc,
    confusion_matrix,
    correctness,
    cross_entropy,
    expected_calibration_error,
    macro_f1,
)
from stages.papers.ninformer import ViT
from stages.params.experiment import load_params
from stages.scheduling.runner import train_experiment
from stages.training.process import peak_memory_bytes
from tests.project import EXPERIMENT, make_project

Scored = tuple[np.ndarray, np.ndarray]


@st.composite
def scored(draw: st.DrawFn) -> Scored:
    """Draw float32 probabilities [n, K] and labels [n], including ties and classes without images."""
    n, classes = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    weights = draw(hnp.arrays(np.int64, (n, classes), elements=st.integers(0, 20))) + np.eye(classes, dtype=int)[0]
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32), labels


def test_confidence_on_a_bin_edge_belongs_to_the_lower_bin() -> None:
    # (0, 1/2] contains the certain coin (right), (1/2, 1] the certain image (wrong).
    probabilities, labels = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])
    assert expected_calibration_error(probabilities, labels, bins=2) == pytest.approx((0.5 + 1.0) / 2, rel=1e-12)


def test_zero_probability_has_a_finite_loss() -> None:
    loss = cross_entropy(np.array([[1.0, 0.0]], dtype=np.float32), np.array([1]))
    assert loss == pytest.approx(126 * math.log(2), rel=1e-12)


def test_tied_probabilities_select_the_lowest_class() -> None:
    assert correctness(np.full((1, 4), 0.25), np.array([0])).all()


@given(scored())
def test_metrics_equal_scikit_learn(arrays: Scored) -> None:
    probabilities, labels = arrays
    predicted, classes = probabilities.argmax(axis=1), range(probabilities.shape[1])
    assert accuracy(probabilities, labels) == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    confusion = confusion_matrix(probabilities, labels)
    assert np.array_equal(confusion, sklearn_metrics.confusion_matrix(labels, predicted, labels=classes))
    expected = sklearn_metrics.f1_score(labels, predicted, labels=classes, average="macro", zero_division=0)
    assert macro_f1(confusion) == pytest.approx(expected)
    if len(np.unique(labels)) < probabilities.shape[1]:
        assert auroc(probabilities, labels) is None
        return
    by_class = [sklearn_metrics.roc_auc_score(labels == one, probabilities[:, one]) for one in classes]
    assert auroc(probabilities, labels) == pytest.approx(np.mean(by_class))


def test_loss_and_calibration_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(10), size=500)
    labels = generator.integers(0, 10, size=500)
    by_sklearn = sklearn_metrics.log_loss(labels, probabilities, labels=range(10))
    assert cross_entropy(probabilities, labels) == pytest.approx(by_sklearn, rel=1e-12)

    correct, confidence = correctness(probabilities, labels), probabilities.max(axis=1)
    share_right, mean_confidence = calibration_curve(correct, confidence, n_bins=CALIBRATION_BINS)
    in_bin = np.histogram(confidence, bins=CALIBRATION_BINS, range=(0, 1))[0]
    by_sklearn = np.abs(share_right - mean_confidence) @ in_bin[in_bin > 0] / 500
    assert expected_calibration_error(probabilities, labels) == pytest.approx(by_sklearn, rel=1e-12)


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.ones((2, 2)) / 2, np.array([0]), r"shape \[2, 2\] and labels \[1\]"),
        (np.ones(2) / 2, np.array([0, 1]), r"expected \[n, K\]"),
        (np.ones((0, 2)), np.array([], dtype=int), "at least one image"),
        (np.ones((1, 2)) / 2, np.array([2]), "expected integers from 0 to 1"),
        (np.ones((1, 2)) / 2, np.array([-1]), "expected integers from 0 to 1"),
        (np.ones((1, 2)) / 2, np.array([0.0]), "expected integers"),
        (np.array([[0.5, 0.5], [3.0, -2.0]]), np.array([0, 0]), "row 1 of the probabilities"),
        (np.array([[2.0, 1.0]]), np.array([0]), "sum to 1"),
        (np.array([[np.nan, 1.0]]), np.array([0]), "row 0 of the probabilities"),
    ],
)
def test_invalid_scores_are_refused(probabilities: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accuracy(probabilities, labels)


def build_vit() -> ViT:
    """Build the model as printed for CIFAR-10."""
    sizes = {"image_size": 32, "in_channels": 3, "num_classes": 10, "patch_size": 4, "dim": 256, "depth": 4}
    return ViT(**sizes, num_heads=4, mlp_dim=512, dropout=0.0)


class Composed(nn.Module):
    """Operations that may be decomposed before counting: einsum, bilinear, grouped and transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 6, 3, groups=2, padding=1)
        self.transposed = nn.ConvTranspose2d(6, 2, 2, stride=2)
        self.bilinear = nn.Bilinear(8, 8, 3)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.transposed(self.grouped(images)).mean(dim=1)  # [B, 8, 8]
        mixed = torch.einsum("bij,bkj->bik", rows, rows)
        return self.bilinear(mixed, F.scaled_dot_product_attention(mixed, rows, rows))


def test_flops_equal_torchs_counter() -> None:
    model, images = Composed(), torch.zeros(1, 4, 4, 4)
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert flops_per_sample(model, (4, 4, 4)) == counter.get_total_flops() > 0


def test_flops_do_not_depend_on_mode_or_dtype() -> None:
    model = build_vit()
    flops = flops_per_sample(model.train(), (3, 32, 32))
    assert flops_per_sample(model.double().eval(), (3, 32, 32)) == flops


def test_counting_and_timing_do_not_change_the_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 2)).train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    flops_per_sample(model, (3, 2, 2))
    Stopwatch((3, 2, 2), batch_size=4, warmup=1, repeats=2).time("a", model)
    assert torch.equal(torch.rand(1), expected), "the global generator is untouched"
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_shared_parameters_count_once_if_trainable() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert count_parameters(model) == 12 + 6 + 12
    model[2].weight = model[0].weight
    assert count_parameters(model) == 12 + 6 + 3
    model[1].requires_grad_(False)
    assert count_parameters(model) == 12 + 3


class Clocked(nn.Module):
    """A network whose passes take `seconds` on its own clock, one after another."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seconds = seconds
        self.batch_sizes: list[int] = []

    def perf_counter(self) -> float:
        return sum(self.seconds[: len(self.batch_sizes)])

    def forward(self, images: Tensor) -> Tensor:
        self.batch_sizes.append(len(images))
        return images * self.scale


def test_latency_is_the_median_per_sample_without_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Clocked([9.0, 9.0, 0.25, 3.0, 9.0, 9.0, 0.5, 0.75])
    monkeypatch.setattr(cost, "time", model)
    watch = Stopwatch((1, 2, 2), batch_size=10, warmup=2, repeats=4)
    assert watch.rounds == 2
    watch.time("a", model)
    assert watch.latencies() == {}, "not timed in all rounds"
    watch.time("a", model)
    latency = watch.latencies()["a"]
    assert model.batch_sizes == [10] * 8
    assert latency.seconds_per_sample == pytest.approx(0.0625)
    stated = (latency.batch_size, latency.warmup, latency.repeats, latency.device)
    assert stated == (10, 2, 4, device_name(torch.device("cpu")))


@pytest.mark.parametrize(("repeats", "counted"), [(1, [1]), (2, [2]), (7, [3, 2, 2]), (30, [10, 10, 10])])
def test_passes_are_divided_between_rounds(repeats: int, counted: list[int]) -> None:
    watch, model = Stopwatch((1, 2, 2), batch_size=3, warmup=1, repeats=repeats), nn.Linear(2, 2)
    assert watch.rounds == len(counted)
    for _ in range(watch.rounds):
        watch.time("a", model)
    assert [len(timings) for timings in watch.seconds["a"]] == counted
    assert watch.latencies()["a"].batch_size == 3


@pytest.mark.parametrize(("batch_size", "warmup", "repeats"), [(0, 1, 1), (1, -1, 1), (1, 0, 0)])
def test_empty_measurement_is_refused(batch_size: int, warmup: int, repeats: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1, 0, 1"):
        Stopwatch((1, 2, 2), batch_size=batch_size, warmup=warmup, repeats=repeats)


@pytest.mark.needs(gpu=True)
def test_gpu_flops_latency_and_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = build_vit()
    on_cpu = flops_per_sample(model, (3, 32, 32))
    model.cuda()
    assert flops_per_sample(model, (3, 32, 32)) == on_cpu
    watch = Stopwatch((3, 32, 32), device="cuda", batch_size=128, warmup=3, repeats=10)
    for _ in range(watch.rounds):
        watch.time("vit", model)
    latency = watch.latencies()["vit"]
    assert latency.device == torch.cuda.get_device_name()
    assert latency.seconds_per_sample > on_cpu / 1e15, "no device does a quadrillion float32 operations a second"
    torch.cuda.reset_peak_memory_stats()
    held = torch.zeros(2**26, dtype=torch.uint8, device="cuda")
    assert peak_memory_bytes(torch.device("cuda")) >= held.nbytes + sum(p.nbytes for p in model.parameters())


RESULTS = Path("data/results") / f"{EXPERIMENT}.jsonl"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_project(tmp_path))
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    monkeypatch.setenv("CLAIMCHECK_DEVICE", "cpu")
    assert train_experiment(
        EXPERIMENT, load_params(), devices=["cpu"], report=lambda event: None, stop=threading.Event()
    )


@pytest.mark.usefixtures("trained")
def test_stage_writes_cached_measurements_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([EXPERIMENT]) == 0
    alone = RESULTS.read_bytes()
    for folder in ("data/results", "data/store/evaluated", "data/store/timed"):
        shutil.rmtree(folder)
    assert main([EXPERIMENT, "--ahead"]) == 0
    assert not Path("data/results").exists()
    monkeypatch.setattr("stages.evaluation.experiment.score", None)  # it would fail
    monkeypatch.setattr("stages.evaluation.cost.Stopwatch.time", None)
    assert main([EXPERIMENT]) == 0
    assert RESULTS.read_bytes() == alone


@pytest.mark.usefixtures("trained")
def test_stage_waits_for_background_evaluation_but_not_vice_versa() -> None:
    with ThreadPoolExecutor() as pool:
        with MeasurementCache("timed").held(EXPERIMENT) as is_ours:
            assert is_ours
            assert main([EXPERIMENT, "--ahead"]) == 0
            stage = pool.submit(main, [EXPERIMENT])
            with pytest.raises(TimeoutError):
                stage.result(1)
            assert not Path("data/store/evaluated").exists()
        assert stage.result(60) == 0 and RESULTS.exists()
