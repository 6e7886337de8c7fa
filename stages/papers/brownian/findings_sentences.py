"""Computed findings on sentences of the paper that can be read in more than one way: sums, independence, heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stages.papers.brownian.walk import attention_transition, on_sphere
from stages.papers.finding import Finding, Statements

state = Statements(__file__)

ROUNDING = 1e-10
WIDTHS = (64, 768)
NUM_TOKENS = 10


def sentence_findings() -> list[Finding]:
    """One finding per sentence."""
    return [printed_row_sum(), independent_times(), independent_components(), heads_cost()]


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def printed_row_sum() -> Finding:
    """Section 2.2 prints Σᵢ M_ij = 1, with i the row in equation 3."""
    q, k = _draw(2, NUM_TOKENS, 64, seed=1)
    transition = attention_transition(q, k)
    rows, columns = (_largest(transition.sum(dim=axis) - 1) for axis in (1, 0))

    return state(
        "brownian.markov.printed_sum",
        rows < ROUNDING,
        columns < ROUNDING,
        computed={"largest_row_sum_error": rows, "largest_column_sum_error": columns},
    )


def independent_times() -> Finding:
    """Section 2.4, second property: exact moments of B_s and B_t, s = 1/4 and t = 1, from 20,000 simulated paths."""
    paths = 20_000
    increments = _draw(paths, 2, seed=6) * torch.tensor([0.25, 0.75], dtype=torch.float64).sqrt()
    early, late = increments[:, 0], increments.sum(dim=1)
    correlation, of_increments = (
        torch.corrcoef(torch.stack(pair))[0, 1].item() for pair in ((early, late), (early, late - early))
    )
    noise = 4 / math.sqrt(paths)

    return state(
        "brownian.motion.independent",
        abs(correlation) < noise,
        abs(of_increments) < noise,
        computed={"correlation_of_two_times": correlation, "correlation_of_increments": of_increments},
    )


def independent_components() -> Finding:
    """Section 3.2, first observation, before and after the LayerNorm of the second one."""
    width, tokens = WIDTHS[0], 20_000
    raw = _draw(tokens, width, seed=7)

    def mean_correlation(v: Tensor) -> float:
        correlations = torch.corrcoef(v.T)
        return ((correlations.sum() - width) / (width * (width - 1))).item()

    before, after = mean_correlation(raw), mean_correlation(on_sphere(raw))
    error = 4 * math.sqrt(2 / tokens) / width

    return state(
        "brownian.components.independent",
        abs(before) < error,
        abs(after) < error,
        1 / (WIDTHS[-1] - 1) < 0.01,
        computed={"mean_correlation_before": before, "mean_correlation_after": after},
        widest_correlation=-1 / (WIDTHS[-1] - 1),
        widest=WIDTHS[-1],
        tokens=tokens,
        width=width,
    )


def heads_cost() -> Finding:
    """Section 3.4.1: FLOPs of attention's products over a layer of width 256 with 64 tokens, as PyTorch counts them."""
    tokens, width, many = 64, 256, 8

    def products(heads: int, head_width: int) -> float:
        q = torch.empty(1, heads, tokens, head_width, device="meta")
        with FlopCounterMode(display=False) as counter:
            (q @ q.mT).softmax(-1) @ q
        return float(counter.get_total_flops())

    one, split, whole = products(1, width), products(many, width // many), products(many, width)

    return state(
        "brownian.heads.cost",
        split < one,
        split < whole,
        computed={"heads_over_one_full_head": split / one, "heads_over_as_many_full_heads": split / whole},
        many=many,
        tokens=tokens,
        width=width,
    )
