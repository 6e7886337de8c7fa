"""Stacking changes no verdict: over twelve seeds, stacks end where singly trained networks of the equations do."""

from typing import Any

import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.datasets import load_digits
from torch import Tensor, nn

from stages.ops import dac
from stages.papers.dac.mlp import DACMLP, MLP
from stages.papers.dac.mlp_stack import Stack
from stages.run import OptimizerSpec, Protocol, Replicate
from stages.training.loop import fit, seeded_model
from stages.training.stacked import fit_stack
from stages.training.tables import Regression, TableRows
from tests.soak import write_soak_report

SEEDS, ALPHA, NOTICEABLE = 12, 0.01, 0.3  # nats of an error
PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adam", lr=0.01, weight_decay=0.00002, decay="kernels"),
    batch_size=64,
    epochs=20,
    observe_test=False,
)


def digits() -> tuple[Tensor, Tensor]:
    """Return pixels, and the digit as a number to predict."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    return torch.tensor(pixels / 8 - 1, dtype=torch.float32)[order], torch.tensor(labels, dtype=torch.float32)[order]


FEATURES, NUMBERS = digits()
TASK = Regression(TableRows(FEATURES[:1200], NUMBERS[:1200]))


def networks(kind: type[MLP | DACMLP], replicates: list[Replicate]) -> list[nn.Module]:
    return [seeded_model(lambda: kind(in_features=64, depth=3, width=16), one) for one in replicates]


def log_errors(trained: list[nn.Module]) -> list[float]:
    """Return the errors on digits not used for training."""
    with torch.inference_mode():
        predictions = [network.eval()(FEATURES[1200:]).squeeze(1) for network in trained]
    return [round(float((one - NUMBERS[1200:]).square().mean().log()), 4) for one in predictions]


@pytest.mark.slow(hours=True)
def test_errors_of_stacked_and_single_networks_are_indistinguishable(monkeypatch: pytest.MonkeyPatch) -> None:
    report: dict[str, Any] = {"seeds": SEEDS, "epochs": PROTOCOL.epochs, "data": "1,797 digits, 1,200 to train on"}
    seeds = [Replicate(seed=seed) for seed in range(SEEDS)]
    others = [Replicate(seed=1000 + seed) for seed in range(SEEDS)]
    for kind in (MLP, DACMLP):
        stacked, alone = networks(kind, seeds), networks(kind, others)
        fit_stack(stacked, Stack, TASK, PROTOCOL, seeds, is_compiled=True)  # type: ignore[arg-type]
        fast = log_errors(stacked)
        with monkeypatch.context() as patch:
            patch.setattr(dac, "dac_linear", dac.dac_linear_reference)
            for network, replicate in zip(alone, others, strict=True):
                fit(network, TASK, PROTOCOL, replicate)
            plain = log_errors(alone)
        worse = [error + NOTICEABLE for error in plain]
        report[kind.__name__] = {
            "stacked": fast,
            "plain": plain,
            "p": round(float(mannwhitneyu(fast, plain).pvalue), 4),
            "p_were_stacked_better_by_a_third": round(float(mannwhitneyu(fast, worse).pvalue), 6),
        }
        write_soak_report("stacked-and-plain", report)
    for name in ("MLP", "DACMLP"):
        assert report[name]["p"] > ALPHA, name
        assert report[name]["p_were_stacked_better_by_a_third"] < ALPHA, f"{name}: too noisy to detect a third"
