"""What can be said of the paper's claims without training: less compute, O(n), the printed times, a printed gain.

FLOPs are counted from the shapes of section 4, 2 x multiply-accumulates as in `stages.evaluation.cost`: N tokens, D
token dimension, L blocks, M the hidden width of every MLP and CONV.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from stages.finding import Finding, judged, prints_as
from stages.rules import Margins

PATCH_SIZE, D, L, M = 4, 256, 4, 512  # section 4, items 1-4
ACCURACY = {"localvit": 77.71, "ninformer": 81.59}  # Table 2, CIFAR-10, percent
GAIN, GAIN_UNIT = 16, 1  # section 4, over LocalViT, percent
NANOSECONDS = {  # Table 3
    "mnist": {"vit": 141.62, "mlpmixer": 132.68, "localvit": 139.65, "ninformer": 135.0},
    "c10": {"vit": 142.64, "mlpmixer": 103.53, "localvit": 127.76, "ninformer": 104.64},
    "c100": {"vit": 141.07, "mlpmixer": 104.24, "localvit": 115.32, "ninformer": 105.37},
}
# Section 4's RTX 2080 Ti by its data sheet: 4352 cores, one multiply-add a cycle each, 1.545 GHz boost clock.
PEAK_FLOPS_PER_SECOND = 4352 * 2 * 1.545e9


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
    """Across channels or across tokens: the same product."""
    return 4 * n * D * M


def attention_flops(n: int) -> int:
    """q, k, v; QKᵀ and its product with V; projection."""
    return 2 * n * D * 3 * D + 4 * n * n * D + 2 * n * D * D


def gating_flops(n: int) -> int:
    """What stands in attention's place (eq. 8): the mixer's two MLPs and the gate's Linear."""
    return 2 * mlp_flops(n) + 2 * n * D * D


def block_flops(arm: str, n: int) -> int:
    """One block of `arm` on n tokens."""
    mlp = mlp_flops(n)
    return {
        "vit": attention_flops(n) + mlp,
        "mlpmixer": 2 * mlp,
        "localvit": attention_flops(n) + mlp + 2 * 9 * n * M,  # 1x1 convolutions cost what the MLP does; depthwise 3x3
        "ninformer": gating_flops(n) + mlp,
    }[arm]


def image_flops(arm: str, images: Images) -> int:
    """Patch embedding, blocks and head."""
    n = images.num_tokens
    embedding = 2 * n * images.channels * PATCH_SIZE**2 * D
    return embedding + L * block_flops(arm, n) + 2 * D * images.classes


def time_finding(dataset: str, arm: str) -> Finding:
    flops = image_flops(arm, IMAGES[dataset])
    needed = flops / (NANOSECONDS[dataset][arm] * 1e-9)
    times_peak = needed / PEAK_FLOPS_PER_SECOND
    return Finding(
        claim=f"ninformer.table3.{dataset}.{arm}",
        status="contradicted" if times_peak > 1 else "holds",
        computed={
            "flops_per_image": flops,
            "tflops_per_second_needed": needed / 1e12,
            "times_peak": times_peak,
            "share_of_peak_if_microseconds": times_peak / 1000,
        },
        explanation="FLOPs of one image from section 4's shapes, over the printed time, against the float32 peak of "
        "section 4's GPU, which can't do this work in nanoseconds.  Microseconds would be possible.",
    )


def gain_finding() -> Finding:
    ours, baseline = ACCURACY["ninformer"], ACCURACY["localvit"]
    readings = {"relative_gain_percent": (ours / baseline - 1) * 100, "gain_percentage_points": ours - baseline}
    return Finding(
        claim="ninformer.text.c10.acc_vs_localvit",
        status="holds" if any(prints_as(gain, GAIN, GAIN_UNIT) for gain in readings.values()) else "contradicted",
        computed=readings,
        explanation="From Table 2's own CIFAR-10 accuracies.  The gains over ViT and MLP-Mixer in the same passage are "
        "relative and agree with the table; this one doesn't, in either reading.",
        ours=ours / baseline - 1,
    )


def complexity_finding() -> Finding:
    n = IMAGES["c10"].num_tokens
    block = block_flops("ninformer", n)
    ratio = block_flops("ninformer", 2 * n) / block
    return Finding(
        claim="ninformer.complexity.linear",
        status="holds" if ratio == 2 else "fails",
        computed={
            "flops_ratio_when_tokens_double": ratio,
            "flops_ratio_when_tokens_double_vit": block_flops("vit", 2 * n) / block_flops("vit", n),
            "share_of_elementwise_products": n * D / (block + n * D),
            "weights_per_token_and_block": 2 * M + 1,
        },
        explanation="Linear, but not for the printed reason: matrix products are nearly all of the work, and they are "
        "linear in the tokens only while the token MLP's hidden width is fixed.  That MLP has weights for each token, "
        "so a trained model is bound to one number of tokens.",
    )


def compute_finding() -> Finding:
    """Abstract and section 1: less compute than the attention that the gate replaces, in what the paper runs."""
    blocks = {name: gating_flops(i.num_tokens) / attention_flops(i.num_tokens) for name, i in IMAGES.items()}
    models = {name: image_flops("ninformer", i) / image_flops("vit", i) for name, i in IMAGES.items()}
    break_even = next(n for n in count(1) if gating_flops(n) < attention_flops(n))
    return Finding(
        claim="ninformer.compute.lower",
        status=judged(all(ratio < 1 for ratio in (*blocks.values(), *models.values()))),
        computed={f"gating_over_attention_{name}": ratio for name, ratio in blocks.items()}
        | {f"ninformer_over_vit_{name}": ratio for name, ratio in models.items()}
        | {
            "most_tokens_of_the_papers_images": max(images.num_tokens for images in IMAGES.values()),
            "tokens_from_which_gating_is_cheaper": break_even,
        },
        explanation="FLOPs of the gating unit over those of the attention that it replaces, and of an image through "
        "the whole networks, from section 4's shapes. The mixer's two MLPs cost more than attention until there are "
        "many more tokens than the paper's images have. Table 1 says itself that the \"low compute requirement is not "
        'fully met".',
    )


def findings(margins: Margins) -> list[Finding]:
    """All of them, in the order of the paper."""
    times = [time_finding(dataset, arm) for dataset, row in NANOSECONDS.items() for arm in row]
    return [compute_finding(), complexity_finding(), *times, gain_finding()]
