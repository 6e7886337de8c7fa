"""Findings on the NMN guide's claims that need no training: identities, shapes, abilities of a unit, work and memory.

Operations and stored maps are counted as PyTorch runs them, but on the meta device, without computing anything.
B samples, d input width, n units, as in the guide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from stages.ops.yat import YatConv2d, YatLinear, yat_linear, yat_linear_reference
from stages.papers.finding import Finding, Statements, prints_as
from stages.papers.nmn.gpt import GPT2, AetherGPT
from stages.papers.nmn.yat_mlp import YatMLP
from stages.rules import Margins

_ELEMENTWISE = {"add", "sub", "mul", "div", "pow", "relu", "clamp", "clamp_min", "rsub", "reciprocal"}
_REDUCTIONS = {"sum"}


class _Counter(TorchDispatchMode):
    """Counts 2 x multiply-accumulates of matrix products, and one operation per element of other arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func.overloadpacket in flop_registry:
            self.operations += int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=result))
        elif name in _ELEMENTWISE:
            self.operations += result.numel()
        elif name in _REDUCTIONS:
            self.operations += args[0].numel()
        return result


def count_operations(compute: Callable[[], Tensor]) -> int:
    """Count operations of `compute()`: matrix products, sums and elementwise arithmetic, each result once."""
    with torch.no_grad(), _Counter() as counter:
        compute()
    return counter.operations


def saved_bytes(model: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Count bytes that autograd keeps for the backward pass of `model(*inputs)`, each storage once.

    Parameters and leaves that need a gradient don't count: they exist anyway.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        owner = tensor if tensor._base is None else tensor._base
        if not (owner.is_leaf and owner.requires_grad):
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage  # held, so that no other storage takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(*inputs)
    return sum(storage.nbytes() for storage in storages.values())


state = Statements(__file__)

PRINTED_LOSSES = {"aether": 2.69, "gpt2": 3.03}
"""Of the section AetherGPT; inputs of the relative improvement that it prints beside them."""
PRINTED_IMPROVEMENT = 0.112, 0.001
PRINTED_PARAMETERS = 235_148
"""Parameters of the perceptron, as the authors' page on frameworks prints them."""


def findings(margins: Margins) -> list[Finding]:
    """Return one finding per claim, with the same numbers on every call."""
    return [
        linear_work(),
        yat_work(margins),
        work_ratio(margins),
        complexity(),
        cached_norms(),
        kept_activations(),
        layer_memory(margins),
        model_memory(margins),
        distance_identity(),
        guarded_division(),
        far_response(),
        opposite_response(),
        universal_approximation(),
        exclusive_or(),
        dense_shape(),
        conv_shape(),
        relative_improvement(),
        size_of_perceptron(),
    ]


def distance_identity() -> Finding:
    """Compare both sides in float64, and evaluate the right side in float32 at w = x."""
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
    """Check denominators at w = x in float32, from differences and from the identity that reuses w·x."""
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
    """Check the guide's first example; its definition's printed sum over i would leave one number per sample."""
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


EPSILON = 1e-5
"""The released package's; the guide has "stability constant"."""
VANISHED = 0.01
"""A response below this share of another has decayed beside it."""
ROUNDING = 1e-12
HIDDEN = (8, 32, 128)
"""Units with which a function is approximated."""


def _respond(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear_reference(x, w, b, 1.0, EPSILON)


def far_response() -> Finding:
    """Along a direction u, (w·tu)² / (‖w − tu‖² + ε) goes to (w·u)²; a Gaussian's exp(−‖w − tu‖² / 2‖w‖²) goes to 0."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, 27, generator=generator, dtype=torch.float64)  # 3 x 3 pixels in three planes
    size, no_bias = w.norm(), torch.zeros(1, dtype=torch.float64)
    own = F.normalize(w)
    directions = {
        "any_direction": F.normalize(torch.randn(1000, 27, generator=generator, dtype=torch.float64)),
        "own_direction": own,
    }
    computed: dict[str, float] = {}
    vanish, highest = [], 0.0
    for name, u in directions.items():
        limit = (u @ w.T).square().mean()
        near, far = (_respond(times * size * u, w, no_bias) for times in (10, 1e6))
        computed |= {f"{name}_10_times": (near.mean() / limit).item(), f"{name}_1e6_times": (far.mean() / limit).item()}
        vanish.append((far.mean() < VANISHED * near.mean()).item())
        highest = max(highest, near.max().item(), far.max().item())
    beside_kernel = highest / _respond(w, w, no_bias).item()
    lengths = torch.tensor([[10.0], [1e6]], dtype=torch.float64) * size
    over_dot = (_respond(lengths * own, w, no_bias) / (lengths * own @ w.T)).flatten().tolist()
    suppressed = over_dot[1] / over_dot[0]
    gaussian = torch.exp(-(w - 10 * size * own).square().sum() / (2 * size**2)).item()

    return state(
        "nmn.theory.decay",
        all(vanish),
        beside_kernel < VANISHED,
        suppressed < VANISHED,
        computed=computed
        | {
            "gaussian_10_times": gaussian,
            "farthest_over_response_to_the_kernel": beside_kernel,
            "over_dot_product_1e6_times_to_10_times": suppressed,
        },
    )


def opposite_response() -> Finding:
    """ⵟ(w, −w) = ‖w‖⁴ / (4‖w‖² + ε), about ‖w‖² / 4: the numerator's square forgets the sign."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, 64, generator=generator, dtype=torch.float64)  # a head of GPT-2 small
    across = torch.randn(1, 64, generator=generator, dtype=torch.float64)
    across = w.norm() * F.normalize(across - (across @ w.T) / w.square().sum() * w)
    no_bias = torch.zeros(1, dtype=torch.float64)
    same, opposite, orthogonal = (_respond(x, w, no_bias).item() for x in (w, -w, across))
    quarter = w.square().sum().item() / 4

    return state(
        "nmn.theory.aligned",
        opposite <= orthogonal + ROUNDING,
        opposite < VANISHED * same,
        computed={
            "response_to_the_opposite": opposite,
            "quarter_of_the_squared_norm": quarter,
            "response_to_an_orthogonal": orthogonal,
            "opposite_over_response_to_the_kernel": opposite / same,
        },
    )


def _fit(hidden: int, generator: torch.Generator) -> float:
    """Fit cos(3x + y) y − 1 by a Linear after `hidden` units; return the largest error at 2,000 points of [-1, 1]²."""
    x = torch.rand(2000, 2, generator=generator, dtype=torch.float64) * 2 - 1
    w = 2 * F.normalize(torch.randn(hidden, 2, generator=generator, dtype=torch.float64))
    b = torch.randn(hidden, generator=generator, dtype=torch.float64)
    wanted = (torch.cos(3 * x[:, 0] + x[:, 1]) * x[:, 1] - 1).unsqueeze(-1)
    h = _respond(x, w, b)
    readout = torch.linalg.lstsq(h, wanted, driver="gelsd").solution
    return float(f"{(h @ readout - wanted).abs().max().item():.1g}")  # further digits depend on the processor


def universal_approximation() -> Finding:
    """Check that the layer is never negative, and that a Linear of its units gives any radial 1 / (‖w − x‖² + ε)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(10_000, 4, generator=generator, dtype=torch.float64) * 2 - 1
    w, b = torch.randn(64, 4, generator=generator, dtype=torch.float64), torch.randn(64, generator=generator).double()
    least = _respond(x, w, b).sum(-1).min().item()
    least_relu = F.relu(x @ w.T + b).sum(-1).min().item()
    one = torch.ones(64, dtype=torch.float64)
    second_difference = (_respond(x, w, one) + _respond(x, w, -one)) / 2 - _respond(x, w, 0 * one)
    radial = 1 / ((w - x.unsqueeze(-2)).square().sum(-1) + EPSILON)
    error = (second_difference / radial - 1).abs().max().item()
    fits = {hidden: _fit(hidden, generator) for hidden in HIDDEN}
    falls = fits[HIDDEN[0]] > 10 * fits[HIDDEN[-1]]

    return state(
        "nmn.theory.uat",
        least < 0,
        error < ROUNDING * 1e3 and falls,
        computed={
            "least_output": least,
            "least_output_of_linear_and_relu": least_relu,
            "largest_relative_error_of_three_units_to_the_radial_one": error,
        }
        | {f"largest_error_with_{hidden}_units_and_readout": value for hidden, value in fits.items()},
    )


def exclusive_or() -> Finding:
    """One unit w = (1, -1), no bias: 0 on equal inputs, positive on different ones."""
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    h = yat_linear(x, torch.tensor([[1.0, -1]], dtype=torch.float64), epsilon=EPSILON).flatten().tolist()
    printed = [0.0, 1 / (5 + EPSILON), 1 / (1 + EPSILON), 0.0]
    exact = max(abs(a - b) for a, b in zip(h, printed, strict=True)) < ROUNDING
    return state(
        "nmn.ext.xor",
        exact,
        computed={f"response_{a}{b}": value for (a, b), value in zip(((0, 0), (0, 1), (1, 0), (1, 1)), h, strict=True)},
    )


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


def linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


def plain_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear(x, w, b, scale=1.5)


def twofold_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Compute numerator and distance separately: the identity, without its reuse of w·x."""
    distance = w.square().sum(-1) + x.square().sum(-1, keepdim=True) - 2 * (x @ w.mT)
    return 1.5 * F.linear(x, w, b).square() / (distance.clamp(min=0) + 1e-5)


def difference_yat(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear_reference(x, w, b, 1.5, 1e-5)


FORMS: dict[str, Callable[..., Tensor]] = {
    "one_product": plain_yat,
    "two_products": twofold_yat,
    "differences": difference_yat,
}
"""Ways to compute (1)."""


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


def _form_finding(claim: str, unit: str, per: int, printed: tuple[int, int], margins: Margins) -> Finding:
    """Compare each form's operations over `per` with the printed number, within half its last digit or the margin."""
    value, place = printed
    counted = {name: _work(form, **SIZES) / per for name, form in FORMS.items()}
    held = [(prints_as(number, value, place, margins.flops(value, place / 2)), number) for number in counted.values()]
    is_ratio = unit == "ratio"
    return state(
        claim,
        *held,
        computed={f"{name}_{unit}": number for name, number in counted.items()},
        ours=next((number for holds, number in held if holds), held[0][1]) if is_ratio else None,
        of=" times Linear and ReLU" if is_ratio else " Bnd",
        **counted,  # type: ignore[arg-type]
    )


def yat_work(margins: Margins) -> Finding:
    B, d, n = SIZES.values()
    return _form_finding("nmn.flops.nmn", "flops_per_Bnd", B * n * d, PRINTED_WORK, margins)


def work_ratio(margins: Margins) -> Finding:
    return _form_finding("nmn.flops.ratio", "ratio", _work(linear_relu, **SIZES), PRINTED_RATIO, margins)


def complexity() -> Finding:
    """Check that doubling any of the three sizes doubles the work, up to lower-order terms."""
    base = _work(plain_yat, **SIZES)
    growth = {name: _work(plain_yat, **SIZES | {name: 2 * size}) / base for name, size in SIZES.items()}
    return state(
        "nmn.complexity",
        all(1.99 < ratio < 2.01 for ratio in growth.values()),
        computed={f"growth_with_doubled_{name}": ratio for name, ratio in growth.items()},
    )


def cached_norms() -> Finding:
    """Compute the norms' share of the work, and how much a hidden layer's ‖x‖² differ between two batches."""
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
    """Count B × n maps that autograd keeps for one layer; its output is the next layer's input, kept anyway."""
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


def _within_printed_saving(savings: Iterable[float], margins: Margins) -> list[tuple[bool, float]]:
    """Return whether each saving lies in the printed range, widened by the margin of its ends, and the saving."""
    (least, most), half = PRINTED_SAVING, SAVING_UNIT / 2
    low, high = least - margins.memory(least, half), most + margins.memory(most, half)
    return [(low <= saving <= high, saving) for saving in savings]


def layer_memory(margins: Margins) -> Finding:
    """Check section Efficiency's "15-25% less memory" for one layer, by the maps that ideal kernels keep.

    A Yat layer keeps x, the dot product and the response; the others x, the input of each LayerNorm or GELU, and the
    output.
    """
    maps = {"Linear_and_ReLU": 2, "Linear_LayerNorm_and_ReLU": 3, "Linear_LayerNorm_and_GELU": 4}
    held = _within_printed_saving((1 - 3 / others for others in maps.values()), margins)
    return state(
        "nmn.layer.memory",
        *held,
        computed={f"layer_reduction_over_{name}": saving for name, (_, saving) in zip(maps, held, strict=True)},
        ours=next((saving for holds, saving in held if holds), held[0][1]),
        percent=[100 * saving for _, saving in held],
    )


def kept_bytes(arm: str, product_bytes: int) -> int:
    """Return bytes that a block of `arm` keeps per number of the model's width; products take `product_bytes` each."""
    return sum(maps * (FLOAT32 if name in NORMALISED[arm] else product_bytes) for name, maps in IDEAL_MAPS[arm].items())


def eager_bytes() -> dict[str, int]:
    """Return bytes that eager autograd keeps for one context, with attention as matrix products in all three models."""
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
    """Compare bytes kept for the backward pass: eager, and with ideal kernels in float32 and under autocast."""
    kept, (B, d, n) = eager_bytes(), SIZES.values()
    maps = {form: saved_bytes(form, *_operands(B, d, n)) / (B * n * 4) for form in (linear_relu, plain_yat)}
    eager = 1 - kept["aether"] / kept["gpt2"]
    single, mixed = (1 - kept_bytes("aether", size) / kept_bytes("gpt2", size) for size in (FLOAT32, BFLOAT16))
    held = _within_printed_saving((eager, single, mixed), margins)
    return state(
        "nmn.gpt.memory",
        *held,
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
        ours=next((saving for holds, saving in held if holds), single),
        percent=[100 * saving for _, saving in held],
    )
