"""Findings on the NMN guide's claims that need no training: identities, shapes and a printed ratio.

Work and memory are in `findings_work`, the abilities of a unit in `findings_theory`.
"""

from __future__ import annotations

import torch

from stages.ops.yat import YatLinear
from stages.ops.yat_conv import YatConv2d
from stages.papers.finding import Finding, Statements, prints_as
from stages.papers.nmn.findings_theory import EPSILON, theory
from stages.papers.nmn.findings_work import work
from stages.papers.nmn.yat_mlp import YatMLP
from stages.rules import Margins

state = Statements(__file__)

PRINTED_LOSSES = {"aether": 2.69, "gpt2": 3.03}
"""Of the section AetherGPT; inputs of the relative improvement that it prints beside them."""
PRINTED_IMPROVEMENT = 0.112, 0.001
PRINTED_PARAMETERS = 235_148
"""Parameters of the perceptron, as the authors' page on frameworks prints them."""


def findings(margins: Margins) -> list[Finding]:
    """One finding per claim; the same numbers on every call."""
    return [
        *work(margins),
        distance_identity(),
        guarded_division(),
        *theory(),
        dense_shape(),
        conv_shape(),
        relative_improvement(),
        size_of_perceptron(),
    ]


def distance_identity() -> Finding:
    """Both sides in float64, and the right side in float32 where w = x."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 256, 768, generator=generator, dtype=torch.float64).unbind()
    expanded = w.square().sum(-1) + x.square().sum(-1) - 2 * (w * x).sum(-1)
    error = ((w - x).square().sum(-1) / expanded - 1).abs().max().item()
    single = x.float()
    at_meeting = 2 * single.square().sum(-1) - 2 * (single @ single.T).diagonal()
    return state(
        "nmn.identity.distance",
        error < 1e-12,
        computed={
            "largest_relative_error_float64": error,
            "largest_error_float32_where_w_is_x": at_meeting.abs().max().item(),
            "negative_share_float32_where_w_is_x": (at_meeting < 0).double().mean().item(),
        },
    )


def guarded_division() -> Finding:
    """The denominators where w = x, by differences and by the identity that the guide reuses w·x in, in float32."""
    x = torch.randn(256, 768, generator=torch.Generator().manual_seed(0))
    differences = (x - x).square().sum(-1) + EPSILON
    expanded = 2 * x.square().sum(-1) - 2 * (x @ x.T).diagonal() + EPSILON
    share = float(f"{(expanded <= 0).double().mean().item():.1g}")  # further digits depend on the processor

    return state(
        "nmn.epsilon",
        bool((differences > 0).all()),
        share == 0,
        computed={"share_of_denominators_not_positive": share},
        share_percent=100 * share,
    )


def dense_shape() -> Finding:
    """The guide's first example; the sum over i that its definition prints would leave one number per sample."""
    shape = YatLinear(64, 128)(torch.zeros(32, 64)).shape
    return state(
        "nmn.usage.dense",
        shape == (32, 128),
        computed={"rows": shape[0], "columns": shape[1], "columns_with_the_printed_sum": 1},
    )


def conv_shape() -> Finding:
    with torch.device("meta"):
        shape = YatConv2d(in_channels=3, out_channels=64, kernel_size=3)(torch.zeros(1, 3, 224, 224)).shape
    return state(
        "nmn.usage.conv",
        shape == (1, 64, 222, 222),
        computed=dict(zip(("samples", "channels", "height", "width"), map(float, shape), strict=True)),
    )


def relative_improvement() -> Finding:
    improvement = 1 - PRINTED_LOSSES["aether"] / PRINTED_LOSSES["gpt2"]
    return state(
        "nmn.gpt.valloss.rel",
        prints_as(improvement, *PRINTED_IMPROVEMENT),
        computed={"relative_improvement_percent": 100 * improvement},
        ours=improvement,
    )


def size_of_perceptron() -> Finding:
    """784 pixels -> 256 -> 128 -> 10 classes; each Yat layer has a bias and one α."""
    with torch.device("meta"):
        model = YatMLP(
            image_size=28, in_channels=1, num_classes=10, hidden1=256, hidden2=128, scale="multiplier", epsilon=1e-5
        )
    counted = sum(parameter.numel() for parameter in model.parameters())
    return state(
        "nmn.ext.mnist.parameters", counted == PRINTED_PARAMETERS, computed={"parameters": counted}, ours=counted
    )
