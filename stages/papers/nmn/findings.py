"""What the NMN guide's claims come to without training: work, memory, identities, shapes, and what a layer can't do.

B samples, d input width, n units, as in the guide's section Computational Efficiency.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from stages.finding import Finding, judged, prints_as
from stages.ops.yat import YatLinear, yat_linear, yat_linear_reference
from stages.ops.yat_conv import YatConv2d
from stages.papers.nmn.aether_gpt import AetherGPT
from stages.papers.nmn.counting import count_operations, saved_bytes
from stages.papers.nmn.gpt2 import GPT2
from stages.rules import Margins

SIZES = {"B": 4096, "d": 768, "n": 3072}
"""One feed-forward of GPT-2 small on four contexts of tokens."""
GPT2_SMALL: dict[str, Any] = {
    "vocabulary_size": 50257,
    "context": 1024,
    "width": 768,
    "depth": 12,
    "num_heads": 12,
    "dropout": 0.0,
}
PRINTED_LOSSES = {"aether": 2.69, "gpt2": 3.03}
"""Of the section AetherGPT; inputs of the relative improvement that it prints beside them."""
PRINTED_IMPROVEMENT = 0.112, 0.001
PRINTED_SAVING = 0.15, 0.25
PRINTED_WORK, PRINTED_RATIO = (4, 1), (2, 1)
"""As printed, "≈ 4Bnd" and "~2×", and a unit of the last place."""


def findings(margins: Margins) -> list[Finding]:
    """One finding a claim; the same numbers on every call."""
    return [
        linear_work(),
        yat_work(),
        work_ratio(),
        complexity(),
        distance_identity(),
        far_response(),
        model_memory(),
        dense_shape(),
        conv_shape(),
        relative_improvement(),
        universal_approximation(),
        exclusive_or(),
    ]


def _linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


def _plain_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear(x, w, b, scale=1.5)


def _difference_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear_reference(x, w, b, 1.5, 1e-5)


def _operands(B: int, d: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.empty(*shape, device="meta", requires_grad=True) for shape in ((B, d), (n, d), (n,)))  # type: ignore[return-value]


def _work(form: Callable[..., Tensor], **sizes: int) -> int:
    return count_operations(lambda: form(*_operands(**sizes)))


def _per_product(operations: int, sizes: dict[str, int]) -> float:
    """Operations as a multiple of Bnd, the guide's unit."""
    return operations / (sizes["B"] * sizes["n"] * sizes["d"])


def linear_work() -> Finding:
    """2Bnd + Bn; the bias of a Linear is inside its matrix product in PyTorch, so that it isn't counted."""
    B, d, n = SIZES.values()
    counted, formula = _work(_linear_relu, **SIZES), 2 * B * n * d + B * n
    return Finding(
        claim="nmn.flops.linear",
        status="holds" if counted == formula else "fails",
        computed={"counted_flops": counted, "formula_flops": formula},
        explanation=f"Linear and ReLU at B, d, n = {B}, {d}, {n}, every operation counted as PyTorch runs it.",
    )


def yat_work() -> Finding:
    reused, explicit = (_per_product(_work(form, **SIZES), SIZES) for form in (_plain_yat, _difference_yat))
    return Finding(
        claim="nmn.flops.nmn",
        status="holds" if prints_as(reused, *PRINTED_WORK) else "contradicted",
        computed={"reused_flops_per_Bnd": reused, "explicit_differences_flops_per_Bnd": explicit},
        explanation="With the guide's own reuse identity a Yat layer needs one matrix product and terms of order "
        "Bn, nd and Bd, so about 2Bnd; only forming the differences w - x, which it avoids, takes 4Bnd or more.",
    )


def work_ratio() -> Finding:
    baseline = _work(_linear_relu, **SIZES)
    ratio, explicit = (_work(form, **SIZES) / baseline for form in (_plain_yat, _difference_yat))
    return Finding(
        claim="nmn.flops.ratio",
        status="holds" if prints_as(ratio, *PRINTED_RATIO) else "contradicted",
        computed={"reused_ratio": ratio, "explicit_differences_ratio": explicit},
        explanation="FLOPs of a Yat layer over those of Linear and ReLU at the same size; the reuse identity leaves "
        "the ratio near 1.",
    )


def complexity() -> Finding:
    """Doubling any of the three sizes doubles the work, up to the lower terms."""
    base = _work(_plain_yat, **SIZES)
    growth = {name: _work(_plain_yat, **SIZES | {name: 2 * size}) / base for name, size in SIZES.items()}
    return Finding(
        claim="nmn.complexity",
        status="holds" if all(1.99 < ratio < 2.01 for ratio in growth.values()) else "fails",
        computed={f"growth_with_doubled_{name}": ratio for name, ratio in growth.items()},
        explanation="Counted FLOPs of a Yat layer when one of B, d, n doubles: linear in each, so Theta(Bnd).",
    )


def distance_identity() -> Finding:
    """Both sides in float64, and what float32 makes of the right side where w = x."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 256, 768, generator=generator, dtype=torch.float64).unbind()
    expanded = w.square().sum(-1) + x.square().sum(-1) - 2 * (w * x).sum(-1)
    error = ((w - x).square().sum(-1) / expanded - 1).abs().max().item()
    single = x.float()
    at_meeting = 2 * single.square().sum(-1) - 2 * (single @ single.T).diagonal()
    return Finding(
        claim="nmn.identity.distance",
        status="holds" if error < 1e-12 else "fails",
        computed={
            "largest_relative_error_float64": error,
            "largest_error_float32_where_w_is_x": at_meeting.abs().max().item(),
            "negative_share_float32_where_w_is_x": (at_meeting < 0).double().mean().item(),
        },
        explanation="256 pairs of 768 normal numbers. True as algebra; in float32 it cancels where w nears x, gives "
        "negative squares and errs by more than an epsilon of 1e-5, so the operators clamp it at 0.",
    )


def far_response() -> Finding:
    """Along a direction u, (w·tu)² / (‖w − tu‖² + ε) goes to (w·u)²; a Gaussian's exp(−‖w − tu‖² / 2‖w‖²) goes to 0."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, 27, generator=generator, dtype=torch.float64)  # 3 x 3 pixels in three planes
    size, no_bias = w.norm(), torch.zeros(1, dtype=torch.float64)
    directions = {
        "any_direction": F.normalize(torch.randn(1000, 27, generator=generator, dtype=torch.float64)),
        "own_direction": F.normalize(w),
    }
    computed: dict[str, float] = {}
    decays = []
    for name, u in directions.items():
        limit = (u @ w.T).square().mean()
        near, far = (yat_linear_reference(times * size * u, w, no_bias, 1.0, 1e-5).mean() for times in (10, 1e6))
        computed |= {f"{name}_10_times": (near / limit).item(), f"{name}_1e6_times": (far / limit).item()}
        decays.append((far < 0.01 * near).item())
    gaussian = torch.exp(-(w - 10 * size * directions["own_direction"]).square().sum() / (2 * size**2)).item()
    return Finding(
        claim="nmn.theory.decay",
        status=judged(all(decays)),
        computed=computed | {"gaussian_10_times": gaussian},
        explanation="Response of a kernel of 3 x 3 pixels in three planes to patches along 1,000 random directions u "
        "and along its own, 10 and a million times as long as it, as a share of (w·u)². It peaks beside the kernel and "
        "levels off at (w·u)², which the patch's direction alone decides, where a radial basis kernel goes to 0. Yat "
        "attention has the same ratio of queries and keys, so distant pairs aren't suppressed either.",
    )


IDEAL_MAPS = {
    "gpt2": {"x": 1, "norm": 1, "qkv": 3, "mixed": 1, "y": 1, "second norm": 1, "before GELU": 4, "after GELU": 4},
    "aether": {"x": 1, "qkv": 3, "mixed": 1, "y": 1, "dot product": 4, "response": 4},
}
"""What a block must keep, in maps of the model's width, if attention and every ratio had a fused kernel that works the
rest out again: the input of each matrix product, and of GELU or the Yat ratio."""


def model_memory() -> Finding:
    """Bytes that autograd keeps for the backward pass of one context, attention written as matrix products in both."""
    tokens = torch.zeros(1, GPT2_SMALL["context"], dtype=torch.int64, device="meta")
    with torch.device("meta"):
        gpt2 = GPT2(**GPT2_SMALL)
        aether = AetherGPT(**GPT2_SMALL, attention="yat", scale="guide", epsilon=0.1)
        ablation = AetherGPT(**GPT2_SMALL, attention="dot", scale="guide", epsilon=0.1)
    with sdpa_kernel(SDPBackend.MATH):
        kept = {name: saved_bytes(m, tokens) for name, m in (("gpt2", gpt2), ("aether", aether), ("dot", ablation))}
    B, d, n = SIZES.values()
    maps = {form: saved_bytes(form, *_operands(B, d, n)) / (B * n * 4) for form in (_linear_relu, _plain_yat)}
    ideal = {name: sum(block.values()) for name, block in IDEAL_MAPS.items()}
    reduction, bound = 1 - kept["aether"] / kept["gpt2"], 1 - ideal["aether"] / ideal["gpt2"]
    least, most = PRINTED_SAVING
    return Finding(
        claim="nmn.gpt.memory",
        status=judged(any(least <= saving <= most for saving in (reduction, bound))),
        computed={
            "gpt2_saved_bytes": kept["gpt2"],
            "aether_saved_bytes": kept["aether"],
            "reduction": reduction,
            "reduction_with_gpt2_attention": 1 - kept["dot"] / kept["gpt2"],
            "reduction_with_ideal_kernels": bound,
            "linear_relu_saved_maps_of_Bn": maps[_linear_relu],
            "yat_saved_maps_of_Bn": maps[_plain_yat],
        },
        explanation="What autograd keeps of one context of 1,024 tokens in float32, eager, without parameters and "
        "loss; and what is left if every operator were one fused kernel. There the saving is the LayerNorms', and "
        "short of 15 %. The claimed cause isn't there: the ratio's derivative needs the dot product, as GELU's needs "
        "its input, and ReLU's needs only its output. A measured peak belongs to the trained pair.",
        ours=bound,
    )


def dense_shape() -> Finding:
    """The guide's first example; the sum over i that its definition prints would leave one number a sample."""
    shape = YatLinear(64, 128)(torch.zeros(32, 64)).shape
    return Finding(
        claim="nmn.usage.dense",
        status="holds" if shape == (32, 128) else "fails",
        computed={"rows": shape[0], "columns": shape[1], "columns_with_the_printed_sum": 1},
        explanation="One output for each unit, as in the released package. The printed sum over i contradicts it; the "
        "class NMNLayer of the example exists in no release that was inspected.",
    )


def conv_shape() -> Finding:
    with torch.device("meta"):
        shape = YatConv2d(in_channels=3, out_channels=64, kernel_size=3)(torch.zeros(1, 3, 224, 224)).shape
    return Finding(
        claim="nmn.usage.conv",
        status="holds" if shape == (1, 64, 222, 222) else "fails",
        computed=dict(zip(("samples", "channels", "height", "width"), map(float, shape), strict=True)),
        explanation="The guide's second example; the package's class is YatConv2D in its torch part.",
    )


def relative_improvement() -> Finding:
    improvement = 1 - PRINTED_LOSSES["aether"] / PRINTED_LOSSES["gpt2"]
    return Finding(
        claim="nmn.gpt.valloss.rel",
        status=judged(prints_as(improvement, *PRINTED_IMPROVEMENT)),
        computed={"relative_improvement_percent": 100 * improvement},
        explanation="From the two validation losses printed beside it; whether they can be had is another claim.",
        ours=improvement,
    )


def universal_approximation() -> Finding:
    """The layer of the printed definition, h = s times a sum of squares over positive numbers, is never negative."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(10_000, 4, generator=generator, dtype=torch.float64) * 2 - 1
    w, b = torch.randn(64, 4, generator=generator, dtype=torch.float64), torch.randn(64, generator=generator).double()
    least = yat_linear_reference(x, w, b, 1.0, 1e-5).sum(-1).min().item()
    return Finding(
        claim="nmn.theory.uat",
        status="fails" if least >= 0 else "holds",
        computed={"least_output": least, "error_to_the_function_minus_one": least + 1},
        explanation="As printed the layer is a positive scale times a sum of squares over positive numbers, so it "
        "is at least 1 away from the continuous function f = -1 everywhere. With a Linear after it, as in both "
        "networks, this counterexample falls; the cited proof is not in the guide.",
    )


def exclusive_or() -> Finding:
    """One unit w = (1, -1), no bias: 0 on equal inputs, positive on different ones."""
    epsilon = 1e-5
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    h = yat_linear(x, torch.tensor([[1.0, -1]], dtype=torch.float64), epsilon=epsilon).flatten().tolist()
    printed = [0.0, 1 / (5 + epsilon), 1 / (1 + epsilon), 0.0]
    exact = max(abs(a - b) for a, b in zip(h, printed, strict=True)) < 1e-12
    return Finding(
        claim="nmn.ext.xor",
        status="holds" if exact else "fails",
        computed={f"response_{a}{b}": value for (a, b), value in zip(((0, 0), (0, 1), (1, 0), (1, 1)), h, strict=True)},
        explanation="The four responses of the unit, with epsilon 1e-5.",
    )
