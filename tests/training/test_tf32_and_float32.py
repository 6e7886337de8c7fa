"""The claim of the profile `paper-tf32`: networks trained in it end where they end as printed, in float32.

Small networks of four papers, on real digits, from the same seeds, TF32 emulated.  Accuracies over the seeds can't be
told apart, neither as two distributions nor seed by seed, and with their means two points apart they would be.
(The fifth paper's network, a ViT without positions, ends four points apart from seed to seed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pytest
import torch
from scipy.stats import mannwhitneyu, wilcoxon
from sklearn.datasets import load_digits
from torch import nn

from stages.papers.dac.resnet_v1 import DACResNetV1
from stages.papers.hyperbf.hyperbf import HyperBF
from stages.papers.ninformer.ninformer import NiNformer
from stages.papers.nmn.aether_resnet import AetherResNet18
from stages.run import OptimizerSpec, Precision, Protocol, Replicate
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import fit, measure, seeded_model
from tests.soak import write_soak_report

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
    """Digits to train on, and the others."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels * 15, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    for part in (order[:1200], order[1200:]):
        yield ImageClassification(LabelledImages(images[part], torch.tensor(labels)[part]), protocol)


def scores(name: str, precision: Precision) -> dict[str, list[float]]:
    """Loss and accuracy on digits that weren't trained on, by seed."""
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
    """How likely they would be this far apart by chance: as two distributions, and seed by seed."""
    tests = {"distributions": mannwhitneyu(some, others), "pairs": wilcoxon(some, others, zero_method="zsplit")}
    return {name: round(float(test.pvalue), 6) for name, test in tests.items()}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_accuracies_over_seeds_cannot_be_told_apart() -> None:
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
            assert min(seen.values()) < ALPHA, f"{name}: too noisy to tell two points"
