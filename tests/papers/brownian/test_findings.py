"""The paper's findings, and docs/papers/brownian.md compared with them and the code."""

import math
import re
from pathlib import Path

import pytest
import torch

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.optim.capture import select_layers
from stages.optim.preconditioned import ATTENTION_LAYERS
from stages.papers.brownian import ViT
from stages.papers.brownian.findings import (
    conjugate_gradients_reach_the_solution,
    fisher_and_its_step,
    no_matrix_is_formed,
    token_motion,
)
from stages.papers.brownian.walk import attention_transition, on_sphere
from stages.papers.finding import Finding
from stages.params.experiment import load_params
from stages.runs.evidence import EvidenceLine, read_lines


def test_all_findings_hold_some_under_a_reading(found: dict[str, Finding]) -> None:
    assert {finding.status for finding in found.values()} == {"holds", "holds under a reading"}
    read = {claim: [one.holds for one in finding.readings] for claim, finding in found.items() if finding.readings}
    assert read == {
        "brownian.identity.lnnorm": [True, False],
        "brownian.motion": [False, False, True],
        "brownian.markov.printed_sum": [True, False],
        "brownian.motion.independent": [False, True],
        "brownian.components.independent": [True, False, True],
        "brownian.heads.cost": [False, True],
        "brownian.fisher.step": [False, True],
    }


def test_dependences_equal_theory(found: dict[str, Finding]) -> None:
    times = found["brownian.motion.independent"].computed
    assert times["correlation_of_two_times"] == pytest.approx(0.5, abs=0.02), "√(s / t) of a quarter and 1"
    components = found["brownian.components.independent"].computed
    assert components["mean_correlation_after"] == pytest.approx(-1 / 63, rel=0.01)
    heads = found["brownian.heads.cost"].computed
    assert (heads["heads_over_one_full_head"], heads["heads_over_as_many_full_heads"]) == (1, 1 / 8)


def test_computed_numbers_equal_theory(found: dict[str, Finding]) -> None:
    ito = found["brownian.ito"].computed
    # The discretised integral of a smooth function errs by the root of the step: 8 = √64 from first to last.
    assert ito["rms_error_at_32_steps"] / ito["rms_error_at_2048_steps"] == pytest.approx(8, rel=0.15)
    assert abs(ito["mean_of_squared_end"] - 1) < 3 * ito["standard_error_of_it"]
    # ∫ (3B + t) dt has mean 1/2 and variance 9/3; omitting it costs its root mean square.
    assert ito["rms_error_without_the_second_order_term"] == pytest.approx(math.sqrt(9 / 3 + 1 / 4), rel=0.05)
    fisher = found["brownian.fisher.step"].computed
    assert fisher["loss_change_with_minus_sign"] < 0 < fisher["loss_change_with_plus_sign"]
    motion = found["brownian.motion"].computed
    assert motion["mean_probability_of_staying"] > 0.98 and motion["rank_in_the_limit"] == 1
    # In the long run, start and end are independent draws of a nearly uniform distribution over ten tokens 2 d apart.
    assert motion["largest_mean_squared_displacement"] == pytest.approx(2 * 64 * 9 / 10, rel=0.05)


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "papers" / "brownian.md").read_text(encoding="utf-8")
SHAPES = {"mnist": (1, 28, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}


def test_table_of_sizes_equals_the_code() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
    shown = {name: tuple(int(cell.replace(",", "")) for cell in cells) for name, *cells in rows}
    computed = {}
    for name, (channels, size, classes) in SHAPES.items():
        with torch.device("meta"):
            model = ViT(
                image_size=size,
                in_channels=channels,
                num_classes=classes,
                patch_size=4,
                dim=256,
                depth=4,
                num_heads=4,
                mlp_dim=512,
            )
        layers = select_layers(model, ATTENTION_LAYERS).values()
        moved = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
        computed[name] = count_parameters(model), moved, flops_per_sample(model, (channels, size, size))
    assert shown == computed


def test_equal_time_follows_from_the_evidence() -> None:
    """Training seconds of one revision in one environment: CG-FAC gets as many epochs as fit into Adam's 20."""
    lines = read_lines(ROOT / "data" / "evidence" / "brownian-cifar10.jsonl", EvidenceLine)
    assert len({(line.origin.revision, line.result.environment_digest) for line in lines}) == 1
    seconds = {line.result.arm: line.cost.train_seconds for line in lines}
    times = {arm: taken / seconds["adam"] for arm, taken in seconds.items()}
    experiment = load_params(ROOT).experiments["brownian-cifar10-equal-time"]
    assert experiment.arms["cg-fac"].protocol["epochs"] == int(experiment.printed.epochs / times["cg-fac"])
    assert f"{times['cg-fac']:.2f} times Adam's time, so {20 / times['cg-fac']:.1f} of its epochs" in PAGE
    assert f"SGD took {times['sgd']:.2f} times Adam's time and K-FAC {times['kfac']:.2f} times" in PAGE


def test_table_of_staying_equals_the_walks() -> None:
    """For random tokens on the sphere with Q = K: the mean diagonal of P."""
    (head,) = re.findall(r"^\| width \|(.+)\|$", PAGE, flags=re.MULTILINE)
    numbers = [int(cell.split()[0].replace(",", "")) for cell in head.split("|")]
    rows = re.findall(r"^\| (\d+) \| ([01]\.\d{3} .+)\|$", PAGE, flags=re.MULTILINE)
    assert numbers == [10, 64, 197, 1024] and [int(width) for width, _ in rows] == [32, 64, 192]
    for width, shown in rows:
        for number, cell in zip(numbers, shown.split("|"), strict=True):
            generator = torch.Generator().manual_seed(0)
            tokens = on_sphere(torch.randn(number, int(width), generator=generator, dtype=torch.float64))
            assert cell.strip() == f"{attention_transition(tokens, tokens).diagonal().mean():.3f}"


def test_numbers_in_the_text_equal_the_findings() -> None:
    motion, fisher = token_motion().computed, fisher_and_its_step()[0].computed
    solver, price = conjugate_gradients_reach_the_solution().computed, no_matrix_is_formed().computed
    assert f"with probability {motion['mean_probability_of_staying']:.3f}" in PAGE
    growth = motion["mean_squared_displacement_of_long_walk_over_linear_growth"]
    assert f"squared displacement is {growth * 100:.0f} % of linear growth" in PAGE
    assert f"differs by {fisher['relative_difference_away_from_the_optimum'] * 100:.0f} %" in PAGE
    assert f"after ten it is still {solver['kronecker_relative_error_after_10'] * 100:.0f} % off" in PAGE
    assert f"with {solver['kronecker_unknowns']:.0f} unknowns" in PAGE
    few, many = (price[f"multiplications_over_factors_with_{columns}_columns"] for columns in (64, 8192))
    assert f"{few:.2f} times the multiplications with one image of 64 tokens, {many:.0f} times with 128 images" in PAGE
    assert fisher["relative_difference_of_the_empirical_fisher"] > 1
