"""Computed findings on sentences of the paper that can be read in more than one way: sums, independence, heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stages.papers.brownian.walk import attention_transition, on_sphere
from stages.papers.finding import Finding, Reading

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
    readings = (
        Reading(
            name="of the words",
            text='"Each row summing of M is 1", M_ij being the "probability Pr(j|i) of moving from state i to state '
            'j": a sum over j',
            holds=rows < ROUNDING,
        ),
        Reading(
            name="of the index",
            text="Σᵢ as printed, which adds the rows of a column: columns sum to 1 in doubly stochastic chains only",
            holds=columns < ROUNDING,
        ),
    )
    return Finding(
        claim="brownian.markov.printed_sum",
        computed={"largest_row_sum_error": rows, "largest_column_sum_error": columns},
        readings=readings,
        explanation="Sums of P = softmax(QKᵀ/√d) for ten random tokens, over j and over i. The index is a slip of the "
        "pen: everything after it uses rows.",
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
    readings = (
        Reading(
            name="of the values at two times",
            text='"For each t, B_t is normally distributed with expected value 0 and variance t, and they are '
            'independent of each other": the covariance of B_s and B_t is the smaller of s and t',
            holds=abs(correlation) < noise,
        ),
        Reading(
            name="of what is added",
            text="the increments, as the next property has it, B_{t+s} − B_s and B_s",
            holds=abs(of_increments) < noise,
        ),
    )
    return Finding(
        claim="brownian.motion.independent",
        computed={"correlation_of_two_times": correlation, "correlation_of_increments": of_increments},
        readings=readings,
        explanation="Correlations over 20,000 paths: of B at a quarter and at 1, where theory has 0.5, and of the "
        "increments. The third property is the one that the paper needs.",
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
    readings = (
        Reading(
            name="of the token, as an assumption",
            text='"As pointed in [29], each components of token v_i is independent random variable": it is assumed of '
            "what enters, so the tokens here are drawn like that, and nothing excludes it",
            holds=abs(before) < error,
        ),
        Reading(
            name="also of the token after LayerNorm",
            text='the next sentence, "After layer normalization, these variables are points on the hyper-sphere", '
            "doesn't repeat it, but the analysis goes on with these: components that sum to 0 and whose squares sum to "
            "d are not independent; any two correlate by −1 / (d − 1)",
            holds=abs(after) < error,
        ),
        Reading(
            name="nearly, after LayerNorm in wide networks",
            text=f"−1 / (d − 1) is {-1 / (WIDTHS[-1] - 1):.4f} at width {WIDTHS[-1]}",
            holds=1 / (WIDTHS[-1] - 1) < 0.01,
        ),
    )
    return Finding(
        claim="brownian.components.independent",
        computed={"mean_correlation_before": before, "mean_correlation_after": after},
        readings=readings,
        explanation=f"Mean correlation of two components over {tokens:,} tokens of width {width} whose components are "
        "drawn independently, before LayerNorm and after it.",
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
    readings = (
        Reading(
            name="than one head of the full width",
            text='"The complex structure of multi-head is just to reduce the total computational cost and get more '
            'parallelism": heads share the width, so their products cost what those of one full head do, and their '
            "softmaxes more",
            holds=split < one,
        ),
        Reading(
            name="than as many heads of the full width",
            text="that heads are narrower than the model is what keeps their cost down",
            holds=split < whole,
        ),
    )
    return Finding(
        claim="brownian.heads.cost",
        computed={"heads_over_one_full_head": split / one, "heads_over_as_many_full_heads": split / whole},
        readings=readings,
        explanation=f"FLOPs of QKᵀ and PV with {many} heads at {tokens} tokens of width {width}. Whether heads serve "
        "another purpose is no question of cost, and parallelism wasn't measured. The text quotes [38] on heads that "
        '"can be removed at test time", after training.',
    )
