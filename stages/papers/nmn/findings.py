"""Findings on the NMN guide's claims that need no training: identities, shapes and a printed ratio.

Work and memory are in `findings_work`, the abilities of a unit in `findings_theory`.
"""

from __future__ import annotations

import torch

from stages.ops.yat import YatLinear
from stages.ops.yat_conv import YatConv2d
from stages.papers.finding import Finding, Reading, prints_as
from stages.papers.nmn.findings_theory import EPSILON, theory
from stages.papers.nmn.findings_work import work
from stages.papers.nmn.yat_mlp import YatMLP
from stages.rules import Margins

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
    return Finding(
        claim="nmn.identity.distance",
        holds=error < 1e-12,
        computed={
            "largest_relative_error_float64": error,
            "largest_error_float32_where_w_is_x": at_meeting.abs().max().item(),
            "negative_share_float32_where_w_is_x": (at_meeting < 0).double().mean().item(),
        },
        explanation="256 pairs of 768 normal numbers. In float32 it cancels where w nears x, gives negative squares "
        "and errs by more than an epsilon of 1e-5, so the operators clamp it at 0.",
    )


def guarded_division() -> Finding:
    """The denominators where w = x, by differences and by the identity that the guide reuses w·x in, in float32."""
    x = torch.randn(256, 768, generator=torch.Generator().manual_seed(0))
    differences = (x - x).square().sum(-1) + EPSILON
    expanded = 2 * x.square().sum(-1) - 2 * (x @ x.T).diagonal() + EPSILON
    share = float(f"{(expanded <= 0).double().mean().item():.1g}")  # further digits depend on the processor
    readings = (
        Reading(
            name="by the definition",
            text="‖w − x‖² + ε with ‖w − x‖² from differences is at least ε",
            holds=bool((differences > 0).all()),
        ),
        Reading(
            name="by the identity, in float32",
            text='"we reuse computations using the algebraic identity": ‖w‖² + ‖x‖² − 2w·x rounds to less than −ε, '
            f"so that {100 * share:.0f} % of the denominators aren't positive",
            holds=share == 0,
        ),
    )
    return Finding(
        claim="nmn.epsilon",
        computed={"share_of_denominators_not_positive": share},
        readings=readings,
        explanation="256 units of 768 normal numbers that meet their own weights, with the released package's epsilon "
        "of 1e-5. A clamp of the distance at 0, which the guide doesn't mention, makes ε enough.",
    )


def dense_shape() -> Finding:
    """The guide's first example; the sum over i that its definition prints would leave one number per sample."""
    shape = YatLinear(64, 128)(torch.zeros(32, 64)).shape
    return Finding(
        claim="nmn.usage.dense",
        holds=shape == (32, 128),
        computed={"rows": shape[0], "columns": shape[1], "columns_with_the_printed_sum": 1},
        explanation="One output for each unit, as in the released package, where the class is YatNMN; the sum over i "
        "of the definition, to the letter, would leave one number a sample.",
    )


def conv_shape() -> Finding:
    with torch.device("meta"):
        shape = YatConv2d(in_channels=3, out_channels=64, kernel_size=3)(torch.zeros(1, 3, 224, 224)).shape
    return Finding(
        claim="nmn.usage.conv",
        holds=shape == (1, 64, 222, 222),
        computed=dict(zip(("samples", "channels", "height", "width"), map(float, shape), strict=True)),
        explanation="The guide's second example; the package's class is YatConv2D in its torch part.",
    )


def relative_improvement() -> Finding:
    improvement = 1 - PRINTED_LOSSES["aether"] / PRINTED_LOSSES["gpt2"]
    return Finding(
        claim="nmn.gpt.valloss.rel",
        holds=prints_as(improvement, *PRINTED_IMPROVEMENT),
        computed={"relative_improvement_percent": 100 * improvement},
        explanation="From the two validation losses printed beside it; whether they can be had is another claim.",
        ours=improvement,
    )


def size_of_perceptron() -> Finding:
    """784 pixels -> 256 -> 128 -> 10 classes; each Yat layer has a bias and one α."""
    with torch.device("meta"):
        model = YatMLP(
            image_size=28, in_channels=1, num_classes=10, hidden1=256, hidden2=128, scale="multiplier", epsilon=1e-5
        )
    counted = sum(parameter.numel() for parameter in model.parameters())
    return Finding(
        claim="nmn.ext.mnist.parameters",
        holds=counted == PRINTED_PARAMETERS,
        computed={"parameters": counted},
        explanation="Weights, biases and one learned scale for each of the two Yat layers, counted.",
        ours=counted,
    )
