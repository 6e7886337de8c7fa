"""TF32 products, emulated on a CPU."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu, wilcoxon
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.dac import DACConv2d, DACLinear
from stages.papers.dac.mlp import MLP
from stages.papers.dac.mlp_stack import Stack
from stages.papers.dac.resnet_v1 import DACResNetV1
from stages.papers.hyperbf.hyperbf import HyperBF
from stages.papers.ninformer.ninformer import NiNformer
from stages.papers.nmn.aether_resnet import AetherResNet18
from stages.run import OptimizerSpec, Precision, Protocol, Replicate, SplitSpec
from stages.training import loop
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import fit, measure, seeded_model
from stages.training.stacked import fit_stack
from stages.training.tables import Regression, TableRows
from stages.training.tf32 import RoundedOperands, is_emulated, products_of, round_to_tf32
from tests.soak import write_soak_report

CPU = torch.device("cpu")
REPLICATE = Replicate(seed=3)
TF32 = Protocol(optimizer=OptimizerSpec(name="adam", lr=1e-3), batch_size=8, epochs=2, mean=(0.5,) * 3, std=(0.2,) * 3)
TF32 = dataclasses.replace(TF32, precision="tf32", steps_per_epoch=3)
FLOAT32 = dataclasses.replace(TF32, precision="float32")


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (1 + 2**-12, 1.0),
        (1 + 2**-11, 1.0),
        (1 + 3 * 2**-11, 1 + 2**-9),
        (-1 - 2**-11 - 2**-20, -1 - 2**-10),
        (2 - 2**-20, 2.0),
        (2.0**-130, 2.0**-130),
        (3.4028235e38, math.inf),
        (-math.inf, -math.inf),
        (0.0, 0.0),
    ],
)
def test_rounding_keeps_ten_mantissa_bits_and_ties_to_even(x: float, rounded: float) -> None:
    assert round_to_tf32(torch.tensor([x])).item() == rounded


def test_nan_propagates() -> None:
    nans = torch.tensor([0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert round_to_tf32(nans).isnan().all()


def test_rounding_agrees_with_half_precision_in_its_range() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).clamp(-60000, 60000)
    x = x[x.abs() > 2**-14]
    assert torch.equal(round_to_tf32(x), x.half().float())


def rounded_product(f: Callable[..., Tensor], *operands: Tensor) -> list[Tensor]:
    """Return a product of rounded operands and its gradients with rounded operands, in float64."""
    doubles = [round_to_tf32(one).double().requires_grad_() for one in operands]
    out = f(*doubles)
    back = round_to_tf32(torch.ones_like(out).float().mul(1 + 2**-12)).double()
    return [out.detach(), *torch.autograd.grad(out, doubles, back)]


CONVOLUTION = (torch.Size([2, 6, 7, 7]), torch.Size([4, 3, 3, 3]))
PRODUCTS: dict[str, tuple[Callable[..., Tensor], torch.Size, torch.Size]] = {
    "mm": (torch.mm, torch.Size([5, 7]), torch.Size([7, 3])),
    "linear": (F.linear, torch.Size([2, 5, 7]), torch.Size([3, 7])),
    "bmm": (torch.bmm, torch.Size([2, 5, 7]), torch.Size([2, 7, 3])),
    "einsum": (lambda a, b: torch.einsum("nk,mk->nm", a, b), torch.Size([5, 7]), torch.Size([3, 7])),
    "convolution": (lambda a, b: F.conv2d(a, b, None, 2, 1, groups=2), *CONVOLUTION),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_operands_but_not_sums_are_rounded_forwards_and_backwards(name: str) -> None:
    f, *shapes = PRODUCTS[name]
    random = torch.Generator().manual_seed(1)
    leaves = [torch.randn(shape, generator=random, requires_grad=True) for shape in shapes]
    with RoundedOperands():
        out = f(*leaves)
        found = [out.detach(), *torch.autograd.grad(out, leaves, torch.full_like(out, 1 + 2**-12))]
    for ours, expected in zip(found, rounded_product(f, *leaves), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[0], f(*leaves), rtol=1e-5, atol=1e-5), "float32 differs"


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("what is added to a product", lambda x: torch.addmm(x, torch.zeros(4, 4), torch.zeros(4, 4))),
        ("sums and products of numbers", lambda x: (x * x).sum(0) + x.exp()),
        ("a depthwise convolution", lambda x: F.conv2d(x.view(1, 4, 2, 2), x.view(4, 1, 2, 2), groups=4)),
        ("other types of number", lambda x: x.double() @ x.double()),
        ("DAC's sums", DACLinear(4, 4)),
        ("DAC's convolution", lambda x: DACConv2d(1, 2, 3, padding=1)(x.view(1, 1, 4, 4))),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_nothing_else_is_rounded(name: str, f: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(0)
    plain = f(x)
    torch.manual_seed(0)
    with RoundedOperands():
        assert torch.equal(f(x), plain)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 5))


def task(protocol: Protocol) -> ImageClassification:
    random = torch.Generator().manual_seed(4)
    images = torch.randint(0, 256, (24, 3, 32, 32), dtype=torch.uint8, generator=random)
    return ImageClassification(LabelledImages(images, torch.randint(0, 5, (24,), generator=random)), protocol)


def test_tf32_training_is_close_to_float32_but_not_equal() -> None:
    losses = []
    for protocol in (FLOAT32, TF32):
        outcome = fit(seeded_model(small, REPLICATE), task(protocol), protocol, REPLICATE)
        losses.append([row["train_loss"] for row in outcome.history])
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=5e-3)


def test_networks_train_in_tf32_and_are_measured_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    model, is_inside, seen = seeded_model(small, REPLICATE), [False], set[tuple[bool, bool]]()

    @contextmanager
    def products() -> Iterator[None]:
        is_inside[0] = True
        yield
        is_inside[0] = False

    monkeypatch.setattr(loop, "products_of", lambda protocol, device: products)
    model.register_forward_hook(lambda *call: seen.add((model.training, is_inside[0])))
    protocol = dataclasses.replace(TF32, split=SplitSpec(kind="fraction", fraction=0.25))
    fit(model, task(protocol), protocol, REPLICATE, observe=lambda model: measure(model, task(TF32)))
    assert seen == {(True, True), (False, False)}, "in training inside; validation and curves outside"


def test_tf32_stack_follows_its_single_networks() -> None:
    protocol = dataclasses.replace(TF32, mean=(), std=(), batch_size=32, epochs=3, steps_per_epoch=None)
    features = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    rows = Regression(TableRows(features, features.sum(1).sin()))
    replicates = [Replicate(seed=seed) for seed in range(2)]

    def networks() -> list[nn.Module]:
        return [seeded_model(lambda: MLP(in_features=6, depth=3, width=12), one) for one in replicates]

    def losses(protocol: Protocol, *, is_compiled: bool) -> list[float]:
        stacked = fit_stack(networks(), Stack, rows, protocol, replicates, is_compiled=is_compiled)
        return [row["train_loss"] for outcome, _ in stacked for row in outcome.history]

    alone = [
        row["train_loss"]
        for network, one in zip(networks(), replicates, strict=True)
        for row in fit(network, rows, protocol, one).history
    ]
    rounded = losses(protocol, is_compiled=True)  # emulation is never compiled
    np.testing.assert_allclose(rounded, alone, rtol=1e-2)
    assert rounded != losses(dataclasses.replace(protocol, precision="float32"), is_compiled=False)


def test_compiling_is_refused_if_tf32_is_emulated() -> None:
    with pytest.raises(ValueError, match="set compile: false"):
        products_of(dataclasses.replace(TF32, compile=True), CPU)


@pytest.mark.parametrize(("capability", "ok"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_gpu_needs_tf32_support(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], ok: bool) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    gpu, matmul, cudnn = torch.device("cuda"), torch.backends.cuda.matmul, torch.backends.cudnn
    assert not is_emulated(TF32, gpu) and is_emulated(TF32, CPU) and not is_emulated(FLOAT32, CPU)
    if not ok:
        with pytest.raises(ValueError, match=r"a GPU \(compute capability 7.5\) has none; expected 8.0 at least"):
            products_of(TF32, gpu)
        return
    monkeypatch.setattr(cudnn, "allow_tf32", False)
    with products_of(TF32, gpu)():
        assert matmul.allow_tf32 and cudnn.allow_tf32
    assert not matmul.allow_tf32 and not cudnn.allow_tf32
    with products_of(FLOAT32, gpu)():
        assert not matmul.allow_tf32 and not cudnn.allow_tf32


SEEDS, ALPHA, NOTICEABLE = 10, 0.01, 0.02
ADAM = OptimizerSpec(name="adam", lr=3e-3)
DIGITS = {"image_size": 8, "in_channels": 1, "num_classes": 10}
TOKENS = {**DIGITS, "patch_size": 2, "dim": 32, "depth": 2}
MIXER = {"mlp_dim": 64, "token_dim": 32, "channel_dim": 64, "dropout": 0.1}
RBF: dict[str, Any] = {"kernel": "gaussian", "attention_metric": "factored", "feedforward_metric": "euclidean"}
RBF |= {"num_centers": 20, "feedforward_beta": 0.02, "feedforward_bias": False, "feedforward_normalised": False}
YAT: dict[str, Any] = {"features": 32, "scale": "guide", "epsilon": 0.007}


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    epochs: int


CASES = {
    "NiNformer": Case(lambda: NiNformer(**TOKENS, **MIXER), 8),
    "HyperBF": Case(lambda: HyperBF(**TOKENS, **RBF, num_heads=4), 12),
    "NMN, AetherResNet-18": Case(lambda: AetherResNet18(**DIGITS, **YAT, width=8), 10),
    "DAC, ResNet-8": Case(lambda: DACResNetV1(**DIGITS, depth=8, width=8), 8),
}


def tasks(protocol: Protocol) -> Iterator[ImageClassification]:
    """Return a task on training digits, and one on the others."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels * 15, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    for part in (order[:1200], order[1200:]):
        yield ImageClassification(LabelledImages(images[part], torch.tensor(labels)[part]), protocol)


def scores(name: str, precision: Precision) -> dict[str, list[float]]:
    """Return loss and accuracy on digits not used for training, by seed."""
    case = CASES[name]
    shared = {"batch_size": 64, "epochs": case.epochs, "mean": (0.5,), "std": (0.5,), "precision": precision}
    protocol = Protocol(optimizer=ADAM, **shared)
    training, test = tasks(protocol)
    found: dict[str, list[float]] = {"loss": [], "accuracy": []}
    for replicate in [Replicate(seed=seed) for seed in range(SEEDS)]:
        model = seeded_model(case.build, replicate)
        fit(model, training, protocol, replicate)
        for score, value in measure(model, test).items():
            found[score].append(value)
    return found


def p_of(some: list[float], others: list[float]) -> dict[str, float]:
    """Return the p-values of the difference: between distributions, and seed by seed."""
    tests = {"distributions": mannwhitneyu(some, others), "pairs": wilcoxon(some, others, zero_method="zsplit")}
    return {name: round(float(test.pvalue), 6) for name, test in tests.items()}


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(3000)
def test_accuracies_of_tf32_and_float32_are_indistinguishable() -> None:
    report: dict[str, Any] = {"seeds": SEEDS}
    report["data"] = "1,797 digits of 8 x 8, 1,200 to train on; TF32 emulated on a CPU"
    for name in CASES:
        rounded, printed = scores(name, "tf32"), scores(name, "float32")
        assert set(rounded["loss"]).isdisjoint(printed["loss"]), f"{name}: nothing was rounded"
        tf32, float32 = rounded["accuracy"], printed["accuracy"]
        difference = fmean(tf32) - fmean(float32)
        apart = [[value + difference + shift for value in float32] for shift in (-NOTICEABLE, NOTICEABLE)]
        report[name] = {
            "epochs": CASES[name].epochs,
            "tf32": [round(value, 4) for value in tf32],
            "float32": [round(value, 4) for value in float32],
            "mean_difference": round(difference, 4),
            "p": p_of(tf32, float32),
            "p_were_they_two_points_apart": [p_of(tf32, others) for others in apart],
        }
        write_soak_report("tf32-and-float32", report)
    for name in CASES:
        assert min(report[name]["p"].values()) > ALPHA, name
        for seen in report[name]["p_were_they_two_points_apart"]:
            assert min(seen.values()) < ALPHA, f"{name}: too noisy to detect two points"
