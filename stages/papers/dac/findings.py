"""Findings on every claim of the DAC paper without training: sizes, operations, identities, theorems, arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from stages.ops.dac_layers import DACConv2d, DACLinear
from stages.papers.dac.counting import Operations, count_operations
from stages.papers.dac.findings_theory import EXACT, theory
from stages.papers.dac.resnet_v1 import DACResNetV1, MBAResNetV1, ResNetV1
from stages.papers.dac.resnet_v2 import DACResNetV2, ResNetV2
from stages.papers.dac.vgg import DACVGG, VGG
from stages.papers.finding import Finding, Reading, judge_readings, judged, prints_as
from stages.rules import Margins

# Numbers that the paper prints, and one unit of their last place: value and precision of data/claims.csv.
PRINTED: dict[str, tuple[float, float]] = {
    "dac.params.conv3": (0.11, 0.01),
    "dac.params.dense_x": (2, 1),
    "dac.flops.conv3": (0.055, 0.001),
    "dac.flops.conv1": (0.5, 0.01),
    "dac.flops.dense_pct": (0.5, 0.01),
    "dac.vgg.params_inc": (0.11, 0.01),
    "dac.vgg.flops_inc": (0.055, 0.001),
    "dac.wide.params": (4.3e6, 1e5),
    "dac.wide.params_inc": (0.11, 0.01),
    "dac.wide.flops_inc": (0.055, 0.001),
    "dac.table2.gflops.r20.base": (509e6, 1e6),
    "dac.table2.gflops.r20.dac": (542e6, 1e6),
    "dac.table2.gflops.r32.base": (865e6, 1e6),
    "dac.table2.gflops.r32.dac": (918e6, 1e6),
    "dac.sgemm.fail.p": (0.0063, 0.0001),
    "dac.sgemm.experiments": (1008, 0),
    "dac.image.setup.epochs_cifar": (256, 0),
    "dac.image.setup.epochs_imagenette": (259, 1),
    "dac.image.setup.steps_imagenette": (64_000, 1000),
}
# Numbers that section 5 prints for the SGEMM trainings (failed, of all) and for the image experiments.
FAILED_BASE, FAILED_DAC = (15, 576), (2, 449)
BATCH_SIZE, CIFAR_STEPS = 128, 80_000
# Four of the five folds of CIFAR's and of Imagenette's training images.
CIFAR_TRAIN, IMAGENETTE_TRAIN = 40_000, 7_575
IMAGENETTE_ALL = 13_394  # including the validation images, used as test images
SMALL = (3, 8, 8)
MOST_OUTPUTS = 256
"""Of a layer in the paper's networks, the wide ResNet20; section 4's "about" and "almost" are of many outputs."""


def findings(margins: Margins) -> list[Finding]:
    """One finding per claim."""
    return [*connections(), *image_networks(), *table_2(margins), *printed_numbers(), *theory()]


def _against(claim: str, *numbers: float, computed: dict[str, float], explanation: str, margin: float = 0.0) -> Finding:
    """`holds` if each number is the printed one, or within `margin`; ours is the one farthest from it."""
    printed, unit = PRINTED[claim]
    return Finding(
        claim=claim,
        status=judged(all(prints_as(number, printed, unit, margin) for number in numbers)),
        computed=computed,
        explanation=explanation,
        ours=max(numbers, key=lambda number: abs(number - printed)),
    )


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _connection(n: int, kernel: int | None = None) -> tuple[float, float]:
    """Parameters and operations of a DAC layer over those of its weights, the shared biases it replaces taken off.

    The text counts this way: its base is the linear map's mn (L²) weights and twice as many operations a position.
    """
    m, side = 3, 6
    layer = DACLinear(m, n) if kernel is None else DACConv2d(m, n, kernel, padding=kernel // 2)
    shape, positions = ((m,), 1) if kernel is None else ((m, side, side), side * side)
    operations = count_operations(layer, shape)
    more_operations = operations.bias_at_output - m * positions
    return (_parameters(layer) - m) / layer.weight.numel(), 1 + more_operations / operations.linear


def connections() -> list[Finding]:
    """Section 4, "Parameters and number of operations"."""
    sizes = (1, 2, 16, 64)
    dense = {n: _connection(n) for n in sizes}
    conv = {(n, L): _connection(n, L) for n in sizes for L in (1, 3, 5)}
    gaps = {
        "dac.params.dense": max(abs(dense[n][0] - (2 - 1 / n)) for n in sizes),
        "dac.params.conv": max(abs(more - (1 + 1 / L**2 - 1 / (n * L**2))) for (n, L), (more, _) in conv.items()),
        "dac.flops.dense": max(abs(dense[n][1] - (1.5 - 1 / (2 * n))) for n in sizes),
        "dac.flops.conv": max(abs(more - (1 + (1 - 1 / n) / (2 * L**2))) for (n, L), (_, more) in conv.items()),
    }
    base = (
        "Counted from layers of 1 to 64 outputs, relative to the weights and their products, as the text's formula "
        "has it."
    )
    formulas = [
        Finding(
            claim=claim,
            status=judged(gap < EXACT),
            computed={"largest_difference_from_formula": gap},
            explanation=base,
        )
        for claim, gap in gaps.items()
    ]
    ratios = {
        "dac.params.conv3": _connection(MOST_OUTPUTS, 3)[0],
        "dac.params.dense_x": _connection(MOST_OUTPUTS)[0],
        "dac.flops.conv3": _connection(MOST_OUTPUTS, 3)[1],
        "dac.flops.conv1": _connection(MOST_OUTPUTS, 1)[1],
        "dac.flops.dense_pct": _connection(MOST_OUTPUTS)[1],
    }
    return formulas + [
        _against(
            claim,
            # "Almost 2" is a factor, the others are increases.
            ratio if claim == "dac.params.dense_x" else ratio - 1,
            computed={"ratio": ratio, "increase_percent": 100 * (ratio - 1)},
            explanation=f"Counted for {MOST_OUTPUTS} outputs, the most that a layer of the paper's networks has.",
        )
        for claim, ratio in ratios.items()
    ]


def _build(kind: type[nn.Module], depth: int, width: int, **own: int) -> nn.Module:
    return kind(in_channels=3, num_classes=10, image_size=32, depth=depth, width=width, **own)


Networks = Mapping[str, tuple[nn.Module, nn.Module]]
"""Base and DAC, by what the names of their numbers end with."""


def image_networks() -> list[Finding]:
    """Section 5: sizes of VGG, the wide ResNet and the MBA networks."""
    vgg = {f"_{d}_{w}": (_build(VGG, d, w), _build(DACVGG, d, w)) for d, w in ((20, 16), (14, 32))}
    wide = _build(ResNetV2, 20, 64), _build(DACResNetV2, 20, 64)
    size = _parameters(wide[0])
    return [
        _parameter_increase("dac.vgg.params_inc", vgg),
        _operation_increase("dac.vgg.flops_inc", vgg),
        _against(
            "dac.wide.params",
            size,
            computed={"parameters": size},
            explanation="Counted with shortcuts that have no parameters; the text rounds to 0.1 million.",
        ),
        _parameter_increase("dac.wide.params_inc", {"": wide}),
        _operation_increase("dac.wide.flops_inc", {"": wide}),
        _mba_growth(),
    ]


def _parameter_increase(claim: str, networks: Networks) -> Finding:
    counts = {name: (_parameters(base), _parameters(dac)) for name, (base, dac) in networks.items()}
    computed: dict[str, float] = {}
    for name, (base, dac) in counts.items():
        computed |= {f"base{name}": base, f"dac{name}": dac, f"increase_percent{name}": 100 * (dac / base - 1)}
    return _against(
        claim,
        *(dac / base - 1 for base, dac in counts.values()),
        computed=computed,
        explanation="Counted from the networks; the shift is kept in the BN before the last ReLU.",
    )


def _operation_increase(claim: str, networks: Networks) -> Finding:
    """By section 4's rule, which decides, and as Table 2 counts."""
    computed: dict[str, float] = {}
    by_rule, as_table = [], []
    for name, pair in networks.items():
        base, dac = (count_operations(model, SMALL, scale=(32 // 8) ** 2) for model in pair)
        by_rule.append(dac.total_at_output / base.total_at_output - 1)
        as_table.append(dac.total_at_input / base.total_at_input - 1)
        computed |= {
            f"base{name}": base.total_at_output,
            f"increase_percent{name}": 100 * by_rule[-1],
            f"increase_percent_bias_at_input{name}": 100 * as_table[-1],
        }
    return _against(
        claim,
        *by_rule,
        computed=computed,
        explanation="Section 4's rule: 2 operations for each weight and BN output, an addition for each DAC bias and "
        "position of a layer's output. Counted at a layer's input, which a stride makes larger, they would make it "
        f"{' and '.join(f'{100 * increase:.1f}' for increase in as_table)} %.",
    )


def _mba_growth() -> Finding:
    """Section 5: with K copies "the number of parameters increases K-fold", where a layer reads them."""
    base = _build(ResNetV1, 20, 16)
    mba = {copies: _build(MBAResNetV1, 20, 16, copies=copies) for copies in (2, 4, 8)}
    layers = {copies: _weights_behind_the_stem(model) / _weights_behind_the_stem(base) for copies, model in mba.items()}
    return Finding(
        claim="dac.mba.params",
        status=judged(all(growth == copies for copies, growth in layers.items())),
        computed={f"growth_k{copies}": _parameters(model) / _parameters(base) for copies, model in mba.items()}
        | {f"growth_of_layers_k{copies}": growth for copies, growth in layers.items()},
        explanation="ResNet20 v1 with K copies over its baseline: all but the stem and the BNs grow K-fold.",
    )


def _weights_behind_the_stem(model: nn.Module) -> int:
    layers = [layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return sum(layers[1:])


def table_2(margins: Margins) -> list[Finding]:
    """The last rows of Table 2, operations at 80 x 80 pixels."""
    rows = []
    for depth in (20, 32):
        base, dac = (
            count_operations(_build(kind, depth, 16), SMALL, scale=(80 // 8) ** 2) for kind in (ResNetV1, DACResNetV1)
        )
        rows.append(_base_operations(f"dac.table2.gflops.r{depth}.base", base, margins))
        rows.append(_dac_operations(f"dac.table2.gflops.r{depth}.dac", dac, base, margins))
    return rows


def _base_operations(claim: str, base: Operations, margins: Margins) -> Finding:
    width, side = 16, 80
    # 1 x 1 convolutions from 16 to 32 channels at half of the side, and from 32 to 64 at a quarter.
    projections = sum(2 * (c * 2 * c) * (side * width // (2 * c)) ** 2 for c in (width, 2 * width))
    return _against(
        claim,
        base.total_at_output,
        computed={
            "gflops": base.total_at_output / 1e9,
            "gflops_with_projections": (base.total_at_output + projections) / 1e9,
        },
        explanation="Shortcuts without parameters, and 2 operations for each weight and BN output.",
        margin=margins.flops(*PRINTED[claim]),
    )


def _dac_operations(claim: str, dac: Operations, base: Operations, margins: Margins) -> Finding:
    """With a stride, a layer's input is larger than its output, and the text's words allow either."""
    printed, unit = PRINTED[claim]
    margin = margins.flops(printed, unit)

    def reading(name: str, why: str, operations: int) -> Reading:
        within = "which prints so" if prints_as(operations, printed, unit) else "within the margin of the rules"
        apart = 100 * abs(operations / printed - 1)
        return Reading(
            name=name,
            text=f"{why}: {operations / 1e9:.4f} GFLOPs for the printed {printed / 1e9:g}, {apart:.2f} % apart, "
            f"{within if prints_as(operations, printed, unit, margin) else 'beyond the margin of the rules'}.",
            holds=prints_as(operations, printed, unit, margin),
            ours=operations,
        )

    readings = (
        reading(
            "with biases added at a layer's output",
            'Section 4 counts "for an output shape of" s × t, and mnst additions for the DAC biases',
            dac.total_at_output,
        ),
        reading(
            "with biases added at a layer's input",
            'They come in place of the additions "in the post-activation of the layer before that one", and maps are '
            "activated and cached before the convolution takes every second position",
            dac.total_at_input,
        ),
    )
    return Finding(
        claim=claim,
        status=judge_readings(readings),
        computed={
            "gflops_bias_at_input": dac.total_at_input / 1e9,
            "gflops_bias_at_output": dac.total_at_output / 1e9,
            "increase_percent_bias_at_input": 100 * (dac.total_at_input / base.total_at_input - 1),
            "increase_percent_bias_at_output": 100 * (dac.total_at_output / base.total_at_output - 1),
        },
        explanation="Counted as the baseline, and an addition for each DAC bias and position of the map that it is "
        f"added to: {dac.total_at_input / 1e9:.4f} GFLOPs.",
        ours=dac.total_at_input,
        readings=readings,
    )


def printed_numbers() -> list[Finding]:
    """Findings on whether the text's own numbers agree with each other."""
    p = fisher_two_sided(*FAILED_BASE, *FAILED_DAC)
    kept = sum(total - failed for failed, total in (FAILED_BASE, FAILED_DAC))
    cifar_epochs = CIFAR_STEPS * BATCH_SIZE / CIFAR_TRAIN
    return [
        _against(
            "dac.sgemm.fail.p",
            p,
            computed={"p_value": p},
            explanation="Fisher's exact test, two-sided, on the printed counts.",
        ),
        _against(
            "dac.sgemm.experiments",
            kept,
            computed={"experiments": float(kept)},
            explanation="All trainings less the failed ones, from the counts that section 5 prints.",
        ),
        _against(
            "dac.image.setup.epochs_cifar",
            cifar_epochs,
            computed={"epochs": cifar_epochs},
            explanation="80,000 steps of 128 of 40,000 images.",
        ),
        *_imagenette(),
    ]


def _imagenette() -> list[Finding]:
    """Two numbers that hold together or not at all."""
    (steps, play), (printed_epochs, unit) = (
        PRINTED[f"dac.image.setup.{name}_imagenette"] for name in ("steps", "epochs")
    )
    fitting, per_epoch = printed_epochs * IMAGENETTE_TRAIN / steps, IMAGENETTE_TRAIN / BATCH_SIZE
    divided, looped = (printed_epochs * passes for passes in (per_epoch, math.ceil(per_epoch)))
    return [
        Finding(
            claim=f"dac.image.setup.{name}_imagenette",
            status=judge_readings(readings, contradicted=True),
            computed={
                "epochs_of_the_steps": steps * BATCH_SIZE / IMAGENETTE_TRAIN,
                "epochs_of_the_steps_with_all_images": steps * BATCH_SIZE / IMAGENETTE_ALL,
                "batch_that_fits_both": fitting,
                "steps_of_the_epochs_as_a_loop_takes_them": looped,
            },
            explanation="With the printed batch size of 128 the steps are about four times the epochs, so the three "
            f"numbers aren't of one training. Steps and epochs fit batches of about {fitting:.0f}; {printed_epochs:g} "
            f"epochs of batches of {BATCH_SIZE} are {divided:,.0f} steps, or {looped:,.0f} with each epoch's last "
            "batch, which is smaller, counted whole.",
            ours=readings[0].ours,
            readings=readings,
            error="64k steps and 259 epochs of Imagenette",
        )
        for name, readings in (
            ("epochs", _passes(steps, play, printed_epochs, unit, is_of_steps=False)),
            ("steps", _passes(steps, play, printed_epochs, unit, is_of_steps=True)),
        )
    ]


def _passes(steps: float, play: float, epochs: float, unit: float, *, is_of_steps: bool) -> tuple[Reading, ...]:
    """Number of times that `steps` batches pass over the training images, with the slack left by rounding in both."""

    def reading(name: str, why: str, images: int) -> Reading:
        least, most = ((steps + sign * play / 2) * BATCH_SIZE / images for sign in (-1, 1))
        return Reading(
            name=name,
            text=f'{why}: {steps:,.0f} steps of "batch size 128" pass {images:,} images '
            f"{steps * BATCH_SIZE / images:,.1f} times, not {epochs:g} times.",
            holds=least - unit / 2 <= epochs <= most + unit / 2,
            ours=epochs * images / BATCH_SIZE if is_of_steps else steps * BATCH_SIZE / images,
        )

    return (
        reading(
            "with the printed split",
            '"The split ratio between training and validation was set to 4:1:2 approximately", so four fifths of the '
            "training images train",
            IMAGENETTE_TRAIN,
        ),
        reading(
            "with every image that there is",
            'The split is approximate, so take all of what "comprises about 10k images", its test images too',
            IMAGENETTE_ALL,
        ),
    )


def fisher_two_sided(failed_a: int, total_a: int, failed_b: int, total_b: int) -> float:
    """Probability, given the margins, of a table no likelier than this one (Fisher's exact test)."""
    failed, total = failed_a + failed_b, total_a + total_b

    def ways(k: int) -> int:
        return math.comb(total_a, k) * math.comb(total_b, failed - k)

    observed = ways(failed_a)
    return sum(ways(k) for k in range(failed + 1) if ways(k) <= observed) / math.comb(total, failed)
