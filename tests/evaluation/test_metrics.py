"""Metrics, costs, and evaluation while the next run trains."""

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
from stages.evaluation.flops import Kept
from stages.evaluation.scores import (
    CALIBRATION_BINS,
    accuracy,
    confusion_matrix,
    correctness,
    cross_entropy,
    expected_calibration_error,
)
from stages.papers.ninformer import LocalViT, MLPMixer, NiNformer, ViT
from stages.params.experiment import load_params
from stages.scheduling.runner import train_experiment
from stages.training.process import peak_memory_bytes
from tests.project import EXPERIMENT, make_project

Scored = tuple[np.ndarray, np.ndarray]

# Four images, three classes: right at 0.8, wrong at 0.6, right at 0.5, wrong at 0.9.
PROBABILITIES = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.25, 0.25, 0.5], [0.05, 0.9, 0.05]])
LABELS = np.array([0, 1, 2, 2])


@st.composite
def scored(draw: st.DrawFn) -> Scored:
    """Float32 probabilities [n, K] and labels [n], classes without images and ties included."""
    n, classes = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    weights = draw(hnp.arrays(np.int64, (n, classes), elements=st.integers(0, 20))) + np.eye(classes, dtype=int)[0]
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32), labels


def test_hand_worked_accuracy() -> None:
    assert correctness(PROBABILITIES, LABELS).tolist() == [True, False, True, False]
    assert accuracy(PROBABILITIES, LABELS) == 0.5


def test_hand_worked_cross_entropy() -> None:
    expected = -(math.log(0.8) + math.log(0.3) + math.log(0.5) + math.log(0.05)) / 4
    assert cross_entropy(PROBABILITIES, LABELS) == pytest.approx(expected, rel=1e-12)


def test_hand_worked_calibration_error() -> None:
    # Bins of 1/15: 0.8 and 0.5 miss by 0.2 and 0.5 below their accuracy 1; 0.6 and 0.9 are above their accuracy 0.
    assert expected_calibration_error(PROBABILITIES, LABELS) == pytest.approx((0.2 + 0.6 + 0.5 + 0.9) / 4, rel=1e-12)


def test_hand_worked_calibration_error_within_one_bin() -> None:
    # Ten images at 0.7, seven of them right, are calibrated; with one bin the four above give |0.5 - 0.7|.
    probabilities = np.tile([0.7, 0.3], (10, 1))
    labels = np.array([0] * 7 + [1] * 3)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0, abs=1e-12)
    assert expected_calibration_error(PROBABILITIES, LABELS, bins=1) == pytest.approx(0.2, rel=1e-12)


def test_confidence_on_a_bin_edge_belongs_to_the_lower_bin() -> None:
    # (0, 1/2] holds the sure coin (right), (1/2, 1] the certain image (wrong).
    probabilities, labels = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])
    assert expected_calibration_error(probabilities, labels, bins=2) == pytest.approx((0.5 + 1.0) / 2, rel=1e-12)


def test_hand_worked_confusion() -> None:
    confusion = confusion_matrix(PROBABILITIES, LABELS)
    assert confusion.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 1]]


def test_a_probability_of_zero_costs_a_finite_loss() -> None:
    loss = cross_entropy(np.array([[1.0, 0.0]], dtype=np.float32), np.array([1]))
    assert loss == pytest.approx(126 * math.log(2), rel=1e-12)


def test_of_equal_probabilities_the_lowest_class_counts() -> None:
    assert correctness(np.full((1, 4), 0.25), np.array([0])).all()


@given(scored())
def test_metrics_equal_scikit_learn(arrays: Scored) -> None:
    probabilities, labels = arrays
    predicted, classes = probabilities.argmax(axis=1), range(probabilities.shape[1])
    assert accuracy(probabilities, labels) == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    confusion = confusion_matrix(probabilities, labels)
    assert np.array_equal(confusion, sklearn_metrics.confusion_matrix(labels, predicted, labels=classes))


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
def test_arrays_that_are_no_scores_are_refused(probabilities: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accuracy(probabilities, labels)


ROOT = Path(__file__).parents[2]

# As printed for CIFAR-10: patches of side P, N tokens of D numbers, M hidden units everywhere, L blocks, K classes.
P, N, D, M, L, K = 4, 64, 256, 512, 4, 10
COMMON = {"image_size": 32, "in_channels": 3, "num_classes": K, "patch_size": P, "dim": D, "depth": L, "dropout": 0.0}

PATCHES = N * 3 * P * P * D
HEAD = D * K
ATTENTION = N * D * 3 * D + 2 * N * N * D + N * D * D  # qkv, scores and weighted sum, projection
MLP = 2 * N * D * M
MIXER = 2 * D * N * M + MLP
CONV = N * D * M + 9 * N * M + N * M * D


@pytest.mark.parametrize(
    ("model", "of_a_block"),
    [
        (ViT(**COMMON, num_heads=4, mlp_dim=M), ATTENTION + MLP),
        (MLPMixer(**COMMON, token_dim=M, channel_dim=M), MIXER),
        (LocalViT(**COMMON, num_heads=4, channels=M), ATTENTION + CONV),
        (NiNformer(**COMMON, mlp_dim=M, token_dim=M, channel_dim=M), MIXER + N * D * D + MLP),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_flops_are_twice_the_multiply_accumulates_counted_by_hand(model: nn.Module, of_a_block: int) -> None:
    assert flops_per_sample(model, (3, 32, 32)) == 2 * (PATCHES + L * of_a_block + HEAD)


class Composed(nn.Module):
    """Operations that reach the counter whole or in parts: einsum, bilinear, grouped and transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 6, 3, groups=2, padding=1)
        self.transposed = nn.ConvTranspose2d(6, 2, 2, stride=2)
        self.bilinear = nn.Bilinear(8, 8, 3)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.transposed(self.grouped(images)).mean(dim=1)  # [B, 8, 8]
        mixed = torch.einsum("bij,bkj->bik", rows, rows)
        return self.bilinear(mixed, F.scaled_dot_product_attention(mixed, rows, rows))


def test_flops_equal_torchs_own_counter() -> None:
    model, images = Composed(), torch.zeros(1, 4, 4, 4)
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert flops_per_sample(model, (4, 4, 4)) == counter.get_total_flops() > 0


def test_flops_do_not_depend_on_mode_or_dtype() -> None:
    model = ViT(**COMMON, num_heads=4, mlp_dim=M)
    flops = flops_per_sample(model.train(), (3, 32, 32))
    assert flops_per_sample(model.double().eval(), (3, 32, 32)) == flops


def test_counting_and_timing_leave_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 2)).train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    flops_per_sample(model, (3, 2, 2))
    Stopwatch((3, 2, 2), batch_size=4, warmup=1, repeats=2).time("a", model)
    assert torch.equal(torch.rand(1), expected), "no number was drawn from the global generator"
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_parameters_count_once_and_only_where_they_train() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert count_parameters(model) == 12 + 6 + 12
    model[2].weight = model[0].weight
    assert count_parameters(model) == 12 + 6 + 3
    model[1].requires_grad_(False)
    assert count_parameters(model) == 12 + 3


class Clocked(nn.Module):
    """Its passes take `seconds` by its own clock, one after the other."""

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


def test_latency_is_the_median_per_sample_without_the_warmup_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_empty_measurement_is_refused(batch_size: int, warmup: int, repeats: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1, 0, 1"):
        Stopwatch((1, 2, 2), batch_size=batch_size, warmup=warmup, repeats=repeats)


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="resident size is read from Linux's /proc")
@pytest.mark.needs(gpu=True)
def test_gpu_flops_latency_and_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = ViT(**COMMON, num_heads=4, mlp_dim=M)
    on_cpu = flops_per_sample(model, (3, 32, 32))
    model.cuda()
    assert flops_per_sample(model, (3, 32, 32)) == on_cpu
    watch = Stopwatch((3, 32, 32), device="cuda", batch_size=128, warmup=3, repeats=10)
    for _ in range(watch.rounds):
        watch.time("vit", model)
    latency = watch.latencies()["vit"]
    assert latency.device == torch.cuda.get_device_name()
    assert latency.seconds_per_sample > on_cpu / 1e15, "no device does a quadrillion operations a second in float32"
    torch.cuda.reset_peak_memory_stats()
    held = torch.zeros(2**26, dtype=torch.uint8, device="cuda")
    assert peak_memory_bytes(torch.device("cuda")) >= held.nbytes + sum(p.nbytes for p in model.parameters())


RESULTS = Path("data/results") / f"{EXPERIMENT}.jsonl"


@pytest.fixture(autouse=True)
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_project(tmp_path))
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    monkeypatch.setenv("CLAIMCHECK_DEVICE", "cpu")
    assert train_experiment(
        EXPERIMENT, load_params(), data=Path("data"), devices=["cpu"], report=lambda event: None, stop=threading.Event()
    )


def test_the_stage_writes_what_was_measured_ahead_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_stage_waits_for_what_is_measured_ahead_and_not_the_other_way_round() -> None:
    with ThreadPoolExecutor() as pool:
        with Kept("timed").held(EXPERIMENT) as is_ours:
            assert is_ours
            assert main([EXPERIMENT, "--ahead"]) == 0
            stage = pool.submit(main, [EXPERIMENT])
            with pytest.raises(TimeoutError):
                stage.result(1)
            assert not Path("data/store/evaluated").exists()
        assert stage.result(60) == 0 and RESULTS.exists()
