"""Every claim of the DAC paper that needs no training: sizes, operations, identities, theorems, arithmetic."""

from __future__ import annotations

import math

from torch import nn

from stages.finding import Finding, Status
from stages.ops.dac import DACConv2d, DACLinear
from stages.papers.dac.counting import Operations, count_operations
from stages.papers.dac.findings_theory import EXACT, judged, theory
from stages.papers.dac.resnet_v1 import DACResNetV1, MBAResNetV1, ResNetV1
from stages.papers.dac.resnet_v2 import DACResNetV2, ResNetV2
from stages.papers.dac.vgg import DACVGG, VGG

# What section 5 prints of the SGEMM trainings (failed, of all) and of the image experiments.
FAILED_BASE, FAILED_DAC = (15, 576), (2, 449)
BATCH_SIZE, CIFAR_STEPS, IMAGENETTE_STEPS = 128, 80_000, 64_000
# Four of the five folds of CIFAR's and of Imagenette's training images.
CIFAR_TRAIN, IMAGENETTE_TRAIN = 40_000, 7_575
SMALL = (3, 8, 8)


def findings() -> list[Finding]:
    """One finding for each claim."""
    return [*connections(), *image_networks(), *table_2(), *printed_numbers(), *theory()]


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _connection(n: int, kernel: int | None = None) -> tuple[float, float]:
    """Parameters and operations of a DAC layer over those of its weights, the shared biases it replaces taken off.

    The text counts so: its base is the linear map's mn (L²) weights and twice as many operations a position.
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
    wide = 512
    percents = {
        "dac.params.conv3": _connection(wide, 3)[0],
        "dac.params.dense_x": _connection(wide)[0],
        "dac.flops.conv3": _connection(wide, 3)[1],
        "dac.flops.conv1": _connection(wide, 1)[1],
        "dac.flops.dense_pct": _connection(wide)[1],
    }
    return formulas + [
        Finding(
            claim=claim,
            status="holds",
            computed={"ratio": ratio, "increase_percent": 100 * (ratio - 1)},
            explanation=f"Counted for {wide} outputs, near the limit that the text rounds.",
        )
        for claim, ratio in percents.items()
    ]


def _build(kind: type[nn.Module], depth: int, width: int, **own: int) -> nn.Module:
    return kind(in_channels=3, num_classes=10, image_size=32, depth=depth, width=width, **own)


def _parameter_increase(base: nn.Module, dac: nn.Module) -> dict[str, float]:
    counts = _parameters(base), _parameters(dac)
    return {"base": counts[0], "dac": counts[1], "increase_percent": 100 * (counts[1] / counts[0] - 1)}


def _operation_increase(base: nn.Module, dac: nn.Module) -> dict[str, float]:
    plain, unshared = (count_operations(model, SMALL, scale=(32 // 8) ** 2) for model in (base, dac))
    return {
        "base": plain.total_at_output,
        "increase_percent": 100 * (unshared.total_at_output / plain.total_at_output - 1),
        "increase_percent_bias_at_input": 100 * (unshared.total_at_input / plain.total_at_input - 1),
    }


def image_networks() -> list[Finding]:
    """Section 5: sizes of VGG, the wide ResNet and the MBA networks."""
    small, large = ((_build(VGG, *size), _build(DACVGG, *size)) for size in ((20, 16), (14, 32)))
    wide = _build(ResNetV2, 20, 64), _build(DACResNetV2, 20, 64)
    resnet = _parameters(_build(ResNetV1, 20, 16))
    growth = {f"growth_k{k}": _parameters(_build(MBAResNetV1, 20, 16, copies=k)) / resnet for k in (2, 4, 8)}

    def finding(claim: str, computed: dict[str, float], explanation: str) -> Finding:
        return Finding(claim=claim, status="holds", computed=computed, explanation=explanation)

    def both(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
        return {f"{key}_20_16": v for key, v in first.items()} | {f"{key}_14_32": v for key, v in second.items()}

    sizes = "Counted from the networks; the shift is kept in the BN before the last ReLU."
    work = (
        "2 operations for each weight and BN output, DAC biases at the resolution of a layer's output, as in section "
        "4. No operations of a VGG are printed; by Table 2's way to count, biases at the input, they would rise by "
        "6.4 and 7.0 %."
    )
    copies = "ResNet20 v1 with K copies over its baseline: all but the stem and the BNs grow K-fold."
    plain = "Counted with shortcuts that have no parameters; the text rounds to 0.1 million."
    return [
        finding("dac.vgg.params_inc", both(_parameter_increase(*small), _parameter_increase(*large)), sizes),
        finding("dac.vgg.flops_inc", both(_operation_increase(*small), _operation_increase(*large)), work),
        finding("dac.wide.params", {"parameters": _parameters(wide[0])}, plain),
        finding("dac.wide.params_inc", _parameter_increase(*wide), sizes),
        _wide_operations(_operation_increase(*wide)),
        finding("dac.mba.params", growth, copies),
    ]


def _wide_operations(computed: dict[str, float]) -> Finding:
    """The printed increase against Table 2's own rows of ResNet20, whose last digits leave some play."""
    base, dac, half_unit = 0.509, 0.542, 0.0005
    least, most = (dac - half_unit) / (base + half_unit) - 1, (dac + half_unit) / (base - half_unit) - 1
    return Finding(
        claim="dac.wide.flops_inc",
        status="contradicted",
        computed=computed
        | {
            "table_2_increase_percent": 100 * (dac / base - 1),
            "table_2_increase_percent_at_least": 100 * least,
            "table_2_increase_percent_at_most": 100 * most,
        },
        explanation="Table 2 has ResNet20 rise from 0.509 to 0.542: 0.542 / 0.509 - 1 = 6.5 %, by the rounding at "
        "least 6.3 %, and four times the width changes that by 0.1 points. 5.5 % is what section 4's rule gives, which "
        "counts the biases at a layer's output; Table 2's numbers count them at its input. So the two exclude each "
        "other.",
    )


def table_2() -> list[Finding]:
    """The last rows of Table 2, operations at 80 x 80 pixels."""
    rows = []
    for depth in (20, 32):
        base, dac = (
            count_operations(_build(kind, depth, 16), SMALL, scale=(80 // 8) ** 2) for kind in (ResNetV1, DACResNetV1)
        )
        rows.append(_gflops(f"dac.table2.gflops.r{depth}.base", base, base))
        rows.append(_gflops(f"dac.table2.gflops.r{depth}.dac", dac, base))
    return rows


def _gflops(claim: str, operations: Operations, base: Operations) -> Finding:
    width, side = 16, 80
    # 1 x 1 convolutions from 16 to 32 channels at half of the side, and from 32 to 64 at a quarter.
    projections = sum(2 * (c * 2 * c) * (side * width // (2 * c)) ** 2 for c in (width, 2 * width))
    computed = {
        "gflops": operations.total_at_input / 1e9,
        "gflops_bias_at_output": operations.total_at_output / 1e9,
        "gflops_with_projections": (operations.total_at_input + projections) / 1e9,
        "increase_percent": 100 * (operations.total_at_input / base.total_at_input - 1),
    }
    return Finding(
        claim=claim,
        status="holds",
        computed=computed,
        explanation="Shortcuts without parameters, BN with 2 operations an output and DAC biases at the resolution of "
        "a layer's input agree with the print to 0.001; so Table 2's increase is above the 5.5 % that the text "
        "repeats.",
    )


def printed_numbers() -> list[Finding]:
    """What the text's own numbers say of each other."""
    kept = sum(total - failed for failed, total in (FAILED_BASE, FAILED_DAC))
    cifar_epochs = CIFAR_STEPS * BATCH_SIZE / CIFAR_TRAIN
    imagenette = {
        "epochs_of_the_steps": IMAGENETTE_STEPS * BATCH_SIZE / IMAGENETTE_TRAIN,
        "steps_an_epoch": IMAGENETTE_TRAIN / BATCH_SIZE,
    }
    contradiction = (
        "64,000 steps of 128 images pass four fifths of Imagenette's training images more than a thousand times, not "
        "259 times; the two numbers fit a batch of about 32."
    )
    return [
        Finding(
            claim="dac.sgemm.fail.p",
            status="holds",
            computed={"p_value": fisher_two_sided(*FAILED_BASE, *FAILED_DAC)},
            explanation="Fisher's exact test, two-sided, on the printed counts.",
        ),
        Finding(
            claim="dac.sgemm.experiments",
            status="holds",
            computed={"experiments": float(kept)},
            explanation="All trainings less the failed ones, from the counts that section 5 prints.",
        ),
        _epochs(
            "dac.image.setup.epochs_cifar", "holds", {"epochs": cifar_epochs}, "80,000 steps of 128 of 40,000 images."
        ),
        _epochs("dac.image.setup.epochs_imagenette", "contradicted", imagenette, contradiction),
        _epochs("dac.image.setup.steps_imagenette", "contradicted", imagenette, contradiction),
    ]


def _epochs(claim: str, status: Status, computed: dict[str, float], explanation: str) -> Finding:
    return Finding(claim=claim, status=status, computed=computed, explanation=explanation)


def fisher_two_sided(failed_a: int, total_a: int, failed_b: int, total_b: int) -> float:
    """Chance, given the margins, of a table no likelier than this one (Fisher's exact test)."""
    failed, total = failed_a + failed_b, total_a + total_b

    def ways(k: int) -> int:
        return math.comb(total_a, k) * math.comb(total_b, failed - k)

    observed = ways(failed_a)
    return sum(ways(k) for k in range(failed + 1) if ways(k) <= observed) / math.comb(total, failed)
