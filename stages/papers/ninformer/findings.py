"""Findings on the paper's claims that need no training: less compute, O(n), the printed times, a printed gain.

FLOPs are counted from the shapes of section 4, 2 x multiply-accumulates as in `stages.evaluation.cost`: N tokens, D
token dimension, L blocks, M the hidden width of every MLP and CONV.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import count

from stages.papers.finding import Finding, Statements, prints_as
from stages.rules import Margins

state = Statements(__file__)

PATCH_SIZE, D, L, M = 4, 256, 4, 512  # section 4, items 1-4
ACCURACY = {  # Table 2, percent
    "mnist": {"mlpmixer": 97.73, "vit": 97.12, "localvit": 97.79, "ninformer": 98.61},
    "c10": {"mlpmixer": 70.12, "vit": 65.74, "localvit": 77.71, "ninformer": 81.59},
    "c100": {"mlpmixer": 39.16, "vit": 34.87, "localvit": 41.61, "ninformer": 53.78},
}
GAIN, GAIN_UNIT = 16, 1  # section 4, over LocalViT, percent
NANOSECONDS = {  # Table 3
    "mnist": {"vit": 141.62, "mlpmixer": 132.68, "localvit": 139.65, "ninformer": 135.0},
    "c10": {"vit": 142.64, "mlpmixer": 103.53, "localvit": 127.76, "ninformer": 104.64},
    "c100": {"vit": 141.07, "mlpmixer": 104.24, "localvit": 115.32, "ninformer": 105.37},
}
NANOSECONDS_ERROR = "inference times in nanoseconds"
"""One mistake, of the unit, at twelve places."""
# Section 4's RTX 2080 Ti by its data sheet: 4352 cores, one multiply-add a cycle each, 1.545 GHz boost clock; and 544
# tensor cores with 64 multiply-adds of half precision each.
PEAK_FLOPS_PER_SECOND = 4352 * 2 * 1.545e9
HALF_PRECISION_PEAK = 544 * 64 * 2 * 1.545e9
CARD_GIBIBYTES = 11
"""The RTX 2080 Ti's memory by the same sheet, which counts in powers of two."""
PRINTED_GIGABYTES, GIGABYTES_UNIT = 12, 1
TEST_IMAGES = 10_000
"""Section 4, in each of the three data sets."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Square images of `size` pixels in `channels` planes."""

    size: int
    channels: int
    classes: int

    @property
    def num_tokens(self) -> int:
        return (self.size // PATCH_SIZE) ** 2


IMAGES = {
    "mnist": Images(size=28, channels=1, classes=10),
    "c10": Images(size=32, channels=3, classes=10),
    "c100": Images(size=32, channels=3, classes=100),
}


def mlp_flops(n: int) -> int:
    """FLOPs of an MLP across channels or across tokens, which cost the same."""
    return 4 * n * D * M


def attention_flops(n: int) -> int:
    """FLOPs of q, k, v; QKᵀ and its product with V; projection."""
    return 2 * n * D * 3 * D + 4 * n * n * D + 2 * n * D * D


def gating_flops(n: int) -> int:
    """FLOPs of the part that replaces attention (eq. 8): the mixer's two MLPs and the gate's Linear."""
    return 2 * mlp_flops(n) + 2 * n * D * D


def block_flops(arm: str, n: int) -> int:
    """FLOPs of one block of `arm` on n tokens."""
    mlp = mlp_flops(n)
    return {
        "vit": attention_flops(n) + mlp,
        "mlpmixer": 2 * mlp,
        "localvit": attention_flops(n) + mlp + 2 * 9 * n * M,  # 1x1 convolutions cost what the MLP does; depthwise 3x3
        "ninformer": gating_flops(n) + mlp,
    }[arm]


def image_flops(arm: str, images: Images) -> int:
    """FLOPs of patch embedding, blocks and head."""
    n = images.num_tokens
    embedding = 2 * n * images.channels * PATCH_SIZE**2 * D
    return embedding + L * block_flops(arm, n) + 2 * D * images.classes


@cache
def least_excess() -> float:
    """Return the least multiple of the half-precision peak that any cell of Table 3 needs."""
    seconds = {(dataset, arm): time for dataset, times in NANOSECONDS.items() for arm, time in times.items()}
    needed = (image_flops(arm, IMAGES[dataset]) / (time * 1e-9) for (dataset, arm), time in seconds.items())
    return min(needed) / HALF_PRECISION_PEAK


def time_finding(dataset: str, arm: str) -> Finding:
    """Compare with the card's peak; half precision, which PyTorch uses only on request, is most favourable."""
    images = IMAGES[dataset]
    flops, seconds = image_flops(arm, images), NANOSECONDS[dataset][arm] * 1e-9
    needed = flops / seconds
    times_peak, times_half = needed / PEAK_FLOPS_PER_SECOND, needed / HALF_PRECISION_PEAK
    return state(
        f"ninformer.table3.{dataset}.{arm}",
        times_peak <= 1,
        times_half <= 1,
        contradicted=True,
        computed={
            "flops_per_image": flops,
            "tflops_per_second_needed": needed / 1e12,
            "times_peak": times_peak,
            "times_half_precision_peak": times_half,
            "share_of_peak_if_microseconds": times_peak / 1000,
            "times_peak_if_per_token": times_peak / images.num_tokens,
            "times_half_precision_peak_if_per_token": times_half / images.num_tokens,
            "milliseconds_for_all_test_images": seconds * TEST_IMAGES * 1e3,
        },
        error=NANOSECONDS_ERROR,
        excess=least_excess(),
        test_images=TEST_IMAGES,
    )


def gain_finding() -> Finding:
    def gain(dataset: str, baseline: str) -> float:
        return (ACCURACY[dataset]["ninformer"] / ACCURACY[dataset][baseline] - 1) * 100

    ours, baseline = ACCURACY["c10"]["ninformer"], ACCURACY["c10"]["localvit"]
    readings = {
        "relative_gain_percent": gain("c10", "localvit"),
        "gain_percentage_points": ours - baseline,
        "errors_avoided_percent": (ours - baseline) / (100 - baseline) * 100,
        "relative_gain_percent_mnist": gain("mnist", "localvit"),
        "relative_gain_percent_c100": gain("c100", "localvit"),
    }
    mean = sum(gain(name, "localvit") for name in ACCURACY) / len(ACCURACY)
    return state(
        "ninformer.text.c10.acc_vs_localvit",
        *((prints_as(number, GAIN, GAIN_UNIT), number / 100) for number in (*readings.values(), mean)),
        contradicted=True,
        computed=readings
        | {
            "relative_gain_percent_over_mixer": gain("c10", "mlpmixer"),
            "gain_percentage_points_over_vit": ours - ACCURACY["c10"]["vit"],
        },
        ours=readings["relative_gain_percent"] / 100,
        mean=mean,
    )


def complexity_finding() -> Finding:
    n = IMAGES["c10"].num_tokens
    block = block_flops("ninformer", n)
    ratio = block_flops("ninformer", 2 * n) / block
    return state(
        "ninformer.complexity.linear",
        ratio == 2,
        computed={
            "flops_ratio_when_tokens_double": ratio,
            "flops_ratio_when_tokens_double_vit": block_flops("vit", 2 * n) / block_flops("vit", n),
            "weights_per_token_and_block": 2 * M + 1,
        },
    )


def elementwise_finding() -> Finding:
    n = IMAGES["c10"].num_tokens
    product, gate, block = n * D, gating_flops(n), block_flops("ninformer", n)
    share, share_of_gate = product / (block + product), product / (gate + product)

    return state(
        "ninformer.elementwise",
        share > 0.5,
        gating_flops(2 * n) == 2 * gate,
        computed={"share_of_elementwise_products": share, "share_of_elementwise_products_in_the_gate": share_of_gate},
        share_percent=100 * share,
    )


def memory_finding() -> Finding:
    """Check section 4's "12 Gigabytes of VRAM"."""
    sizes = {"card_gibibytes": float(CARD_GIBIBYTES), "card_gigabytes": CARD_GIBIBYTES * 2**30 / 1e9}
    held = (prints_as(size, PRINTED_GIGABYTES, GIGABYTES_UNIT) for size in sizes.values())
    return state("ninformer.setup.vram", *held, computed=sizes)


def compute_finding() -> Finding:
    """Check the abstract and sections 1 and 3.2: less compute than the attention that the gate replaces."""
    blocks = {name: gating_flops(i.num_tokens) / attention_flops(i.num_tokens) for name, i in IMAGES.items()}
    models = {name: image_flops("ninformer", i) / image_flops("vit", i) for name, i in IMAGES.items()}
    break_even = next(n for n in count(1) if gating_flops(n) < attention_flops(n))
    doubled = [work(2 * break_even) / work(break_even) for work in (gating_flops, attention_flops)]

    return state(
        "ninformer.compute.lower",
        all(ratio < 1 for ratio in (*blocks.values(), *models.values())),
        doubled[0] <= 2 < doubled[1],
        computed={f"gating_over_attention_{name}": ratio for name, ratio in blocks.items()}
        | {f"ninformer_over_vit_{name}": ratio for name, ratio in models.items()}
        | {
            "most_tokens_of_the_papers_images": max(images.num_tokens for images in IMAGES.values()),
            "tokens_from_which_gating_is_cheaper": break_even,
            "growth_of_gating_when_those_double": doubled[0],
            "growth_of_attention_when_those_double": doubled[1],
        },
        mnist=blocks["mnist"],
        c10=blocks["c10"],
    )


def lightweight_finding() -> Finding:
    """Section 3.1, "a more lightweight variant of the original ViT", whose MLP becomes a CONV of as many channels."""
    work = {name: image_flops("localvit", images) / image_flops("vit", images) for name, images in IMAGES.items()}
    times = {name: row["localvit"] / row["vit"] for name, row in NANOSECONDS.items()}
    mlp, conv = 2 * D * M + M + D, 2 * D * M + 9 * M

    return state(
        "ninformer.localvit.lightweight",
        conv < mlp,
        all(ratio < 1 for ratio in work.values()),
        all(ratio < 1 for ratio in times.values()),
        computed={f"flops_over_vit_{name}": ratio for name, ratio in work.items()}
        | {f"printed_time_over_vit_{name}": ratio for name, ratio in times.items()}
        | {"weights_of_conv_over_mlp": conv / mlp},
        conv=conv,
        mlp=mlp,
        c10_work=work["c10"],
        printed_ratios=", ".join(f"{ratio:.2f}" for ratio in times.values()),
    )


def equalized_finding() -> Finding:
    """Check section 1's "an equalized setting", for the training and for the networks."""
    work = {
        f"{arm}_{name}": image_flops("ninformer", images) / image_flops(arm, images)
        for name, images in IMAGES.items()
        for arm in ("vit", "mlpmixer", "localvit")
    }

    return state(
        "ninformer.equalized",
        True,
        max(work.values()) < 1.1,
        computed={f"ninformer_over_{name}": ratio for name, ratio in work.items()},
        least_work=min(work.values()),
        most_work=max(work.values()),
    )


def findings(margins: Margins) -> list[Finding]:
    """Return all findings, in the order of the paper."""
    times = [time_finding(dataset, arm) for dataset, row in NANOSECONDS.items() for arm in row]
    return [
        compute_finding(),
        lightweight_finding(),
        equalized_finding(),
        complexity_finding(),
        elementwise_finding(),
        memory_finding(),
        *times,
        gain_finding(),
    ]
