"""Findings on the guide's section Computational Efficiency by counting operations and kept maps, as PyTorch runs them.

B samples, d input width, n units, as in the guide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from stages.ops.yat import yat_linear, yat_linear_reference
from stages.papers.finding import Finding, Reading, Statements, prints_as
from stages.papers.nmn.aether_gpt import AetherGPT
from stages.papers.nmn.counting import count_operations, saved_bytes
from stages.papers.nmn.gpt2 import GPT2
from stages.rules import Margins

state = Statements(__file__)

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
PRINTED_SAVING, SAVING_UNIT = (0.15, 0.25), 0.01
PRINTED_WORK, PRINTED_RATIO = (4, 1), (2, 1)
"""As printed, "≈ 4Bnd" and "~2×", and a unit of the last place."""
FLOAT32, BFLOAT16 = 4, 2
"""Bytes of a number."""

IDEAL_MAPS = {
    "gpt2": {"x": 1, "norm": 1, "qkv": 3, "mixed": 1, "y": 1, "second norm": 1, "before GELU": 4, "after GELU": 4},
    "aether": {"x": 1, "qkv": 3, "mixed": 1, "y": 1, "dot product": 4, "response": 4},
}
"""What a block must keep, in maps of the model's width, if attention and every ratio had a fused kernel that works the
rest out again: the input of each matrix product, and of GELU, LayerNorm or the Yat ratio."""
NORMALISED = {"gpt2": ("x", "y"), "aether": ()}
"""Maps that a LayerNorm reads: under autocast they are float32, while the inputs of products are bfloat16."""


def work(margins: Margins) -> list[Finding]:
    """One finding per claim."""
    return [
        linear_work(),
        yat_work(margins),
        work_ratio(margins),
        complexity(),
        cached_norms(),
        kept_activations(),
        layer_memory(margins),
        model_memory(margins),
    ]


def linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


def plain_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear(x, w, b, scale=1.5)


def twofold_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Numerator and distance computed separately: the identity, without its reuse of w·x."""
    distance = w.square().sum(-1) + x.square().sum(-1, keepdim=True) - 2 * (x @ w.mT)
    return 1.5 * F.linear(x, w, b).square() / (distance.clamp(min=0) + 1e-5)


def difference_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear_reference(x, w, b, 1.5, 1e-5)


FORMS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "with one product": (
        plain_yat,
        '"we reuse computations using the algebraic identity": w·x is formed once, and all else is of order Bn, nd, Bd',
    ),
    "with two products": (
        twofold_yat,
        "w·x for the numerator and again for the distance, 2Bnd each as the row counts it for Linear. The guide says "
        '"we can reuse it for the denominator", and not that its row already does',
    ),
    "with differences": (
        difference_yat,
        "by the definition, ‖w − x‖² from differences; each subtraction, square and addition counted",
    ),
}
"""Ways to compute (1), each with why the words allow it."""


def _operands(B: int, d: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.empty(*shape, device="meta", requires_grad=True) for shape in ((B, d), (n, d), (n,)))  # type: ignore[return-value]


def _work(form: Callable[..., Tensor], **sizes: int) -> int:
    return count_operations(lambda: form(*_operands(**sizes)))


def linear_work() -> Finding:
    """2Bnd + Bn; PyTorch adds a Linear's bias inside its matrix product, so it isn't counted."""
    B, d, n = SIZES.values()
    counted, formula = _work(linear_relu, **SIZES), 2 * B * n * d + B * n
    return state(
        "nmn.flops.linear",
        counted == formula,
        computed={"counted_flops": counted, "formula_flops": formula},
        b=B,
        d=d,
        n=n,
    )


def _read_work(per: int, printed: tuple[int, int], margins: Margins, unit: str) -> tuple[Reading, ...]:
    """Each form's operations over `per`, against the printed number and half its last place, or the margin."""
    value, place = printed
    margin = margins.flops(value, place / 2)
    counted = {name: _work(form, **SIZES) / per for name, (form, _) in FORMS.items()}
    return tuple(
        Reading(
            name=name,
            text=f"{why}. {counted[name]:.2f}{unit}",
            holds=prints_as(counted[name], value, place, margin),
            ours=counted[name],
        )
        for name, (_, why) in FORMS.items()
    )


def _key(reading: Reading) -> str:
    return reading.name.removeprefix("with ").replace(" ", "_")


def yat_work(margins: Margins) -> Finding:
    B, d, n = SIZES.values()
    readings = _read_work(B * n * d, PRINTED_WORK, margins, " Bnd")
    return Finding(
        claim="nmn.flops.nmn",
        computed={f"{_key(reading)}_flops_per_Bnd": reading.ours or 0.0 for reading in readings},
        readings=readings,
        explanation="Operations of a Yat layer, each result counted once, with what is printed as the cost of two "
        "matrix products. The reuse of w·x that the guide describes beside it saves one of the two.",
    )


def work_ratio(margins: Margins) -> Finding:
    readings = _read_work(_work(linear_relu, **SIZES), PRINTED_RATIO, margins, " times Linear and ReLU")
    holding = next((reading.ours for reading in readings if reading.holds), readings[0].ours)
    return Finding(
        claim="nmn.flops.ratio",
        computed={f"{_key(reading)}_ratio": reading.ours or 0.0 for reading in readings},
        readings=readings,
        explanation="FLOPs of a Yat layer over those of Linear and ReLU at the same size; with w·x formed once the "
        "layer is cheaper than printed.",
        ours=holding,
    )


def complexity() -> Finding:
    """Doubling any of the three sizes doubles the work, up to lower-order terms."""
    base = _work(plain_yat, **SIZES)
    growth = {name: _work(plain_yat, **SIZES | {name: 2 * size}) / base for name, size in SIZES.items()}
    return state(
        "nmn.complexity",
        all(1.99 < ratio < 2.01 for ratio in growth.values()),
        computed={f"growth_with_doubled_{name}": ratio for name, ratio in growth.items()},
    )


def cached_norms() -> Finding:
    """The norms' share of the work, and how far a hidden layer's ‖x‖² differ between two batches."""
    B, d, n = SIZES.values()
    share = (2 * n * d + 2 * B * d) / _work(plain_yat, **SIZES)
    generator = torch.Generator().manual_seed(0)
    w, *batches = torch.randn(3, 16, 16, generator=generator, dtype=torch.float64)
    first, second = (plain_yat(x, w, torch.zeros(16, dtype=torch.float64)).square().sum(-1) for x in batches)
    change = ((second - first).abs().mean() / first.mean()).item()

    return state(
        "nmn.precomputed",
        change < 1e-12,
        share < 0.01,
        computed={"share_of_squared_norms": share, "change_of_hidden_norms_between_batches": change},
        share_percent=100 * share,
        b=B,
        d=d,
        n=n,
    )


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def recomputed_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    kept: Tensor = checkpoint(plain_yat, x, w, b, use_reentrant=False)
    return kept


def kept_activations() -> Finding:
    """Maps of B × n that autograd keeps for one layer; its output is the next layer's input, which is kept anyway."""
    (B, d, n), layers = SIZES.values(), (linear_relu, linear_gelu, plain_yat, recomputed_yat)
    relu, gelu, yat, again = (saved_bytes(form, *_operands(B, d, n)) / (B * n * FLOAT32) for form in layers)

    return state(
        "nmn.memory.activations",
        yat == 0,
        again == 0,
        computed={
            "linear_relu_saved_maps_of_Bn": relu,
            "linear_gelu_saved_maps_of_Bn": gelu,
            "yat_saved_maps_of_Bn": yat,
            "recomputed_yat_saved_maps_of_Bn": again,
        },
    )


def layer_memory(margins: Margins) -> Finding:
    """Section Efficiency's row "15-25% less memory" of one layer, by maps that ideal kernels keep."""
    (least, most), half = PRINTED_SAVING, SAVING_UNIT / 2
    low, high = least - margins.memory(least, half), most + margins.memory(most, half)
    yat = {"x": 1, "dot product": 1, "response": 1}
    said = {
        "over Linear and ReLU": (
            {"x": 1, "after ReLU": 1},
            'the column\'s title, "Linear + ReLU". ReLU keeps its output alone, which the next layer reads',
        ),
        "over Linear, LayerNorm and ReLU": (
            {"x": 1, "before LayerNorm": 1, "after ReLU": 1},
            'the row "Often needs BatchNorm/LayerNorm" of the same column',
        ),
        "over Linear, LayerNorm and GELU": (
            {"x": 1, "before LayerNorm": 1, "before GELU": 1, "after GELU": 1},
            'the same with the activation that the guide\'s language model replaces, "MLP + GELU"',
        ),
    }
    readings = tuple(
        Reading(
            name=name,
            text=f"{text}. Saved: {100 * (saving := 1 - len(yat) / len(maps)):.0f} %",
            holds=low <= saving <= high,
            ours=saving,
        )
        for name, (maps, text) in said.items()
    )
    return Finding(
        claim="nmn.layer.memory",
        computed={
            f"layer_reduction_{name.replace(',', '').replace(' ', '_')}": one.ours or 0.0
            for name, one in zip(said, readings, strict=True)
        },
        readings=readings,
        explanation="Maps that a layer of equal input and output width must keep for its backward pass if every step "
        "had an ideal kernel, its input and output among them. Nothing is saved where nothing but ReLU is replaced.",
        ours=next((reading.ours for reading in readings if reading.holds), readings[0].ours),
    )


def kept_bytes(arm: str, product_bytes: int) -> int:
    """Bytes kept by a block of `arm`, per number of the model's width; products are numbers of `product_bytes`."""
    return sum(maps * (FLOAT32 if name in NORMALISED[arm] else product_bytes) for name, maps in IDEAL_MAPS[arm].items())


def eager_bytes() -> dict[str, int]:
    """Bytes that autograd keeps for one context, eager, attention written as matrix products in all three."""
    tokens = torch.zeros(1, GPT2_SMALL["context"], dtype=torch.int64, device="meta")
    with torch.device("meta"):
        models = {
            "gpt2": GPT2(**GPT2_SMALL),
            "aether": AetherGPT(**GPT2_SMALL, attention="yat", scale="guide", epsilon=0.1),
            "dot": AetherGPT(**GPT2_SMALL, attention="dot", scale="guide", epsilon=0.1),
        }
    with sdpa_kernel(SDPBackend.MATH):
        return {name: saved_bytes(model, tokens) for name, model in models.items()}


def model_memory(margins: Margins) -> Finding:
    """Bytes kept for the backward pass, eager and with ideal kernels, the latter in float32 and under autocast."""
    kept, (B, d, n) = eager_bytes(), SIZES.values()
    maps = {form: saved_bytes(form, *_operands(B, d, n)) / (B * n * 4) for form in (linear_relu, plain_yat)}
    eager = 1 - kept["aether"] / kept["gpt2"]
    single, mixed = (1 - kept_bytes("aether", size) / kept_bytes("gpt2", size) for size in (FLOAT32, BFLOAT16))
    (least, most), half = PRINTED_SAVING, SAVING_UNIT / 2
    low, high = least - margins.memory(least, half), most + margins.memory(most, half)
    said = {
        "as eager float32": (eager, "what PyTorch keeps of one context of 1,024 tokens, every operation for itself"),
        "with ideal kernels, in one precision": (
            single,
            "one fused kernel for attention and for each ratio, which works the rest out again; all maps in float32, "
            "or all in bfloat16",
        ),
        "with ideal kernels, in BF16": (
            mixed,
            'the same count of maps under autocast: the section reports its GPT in "BF16", where the inputs of '
            "LayerNorms stay float32 and those of products are bfloat16",
        ),
    }
    readings = tuple(
        Reading(name=name, text=f"{text}. Saved: {100 * saving:.1f} %", holds=low <= saving <= high, ours=saving)
        for name, (saving, text) in said.items()
    )
    return Finding(
        claim="nmn.gpt.memory",
        computed={
            "gpt2_saved_bytes": kept["gpt2"],
            "aether_saved_bytes": kept["aether"],
            "reduction": eager,
            "reduction_with_gpt2_attention": 1 - kept["dot"] / kept["gpt2"],
            "reduction_with_ideal_kernels": single,
            "reduction_with_ideal_kernels_bf16": mixed,
            "linear_relu_saved_maps_of_Bn": maps[linear_relu],
            "yat_saved_maps_of_Bn": maps[plain_yat],
        },
        readings=readings,
        explanation="What is kept for the backward pass, without parameters and loss. With ideal kernels the saving is "
        "the LayerNorms', whose inputs weigh twice in BF16. A measured peak belongs to the trained pair.",
        ours=next((reading.ours for reading in readings if reading.holds), single),
    )
