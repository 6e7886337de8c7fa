"""What can be said of the paper's claims without training: the printed times, a printed gain, O(n).

FLOPs are counted from the shapes of section 4, 2 x multiply-accumulates as in `stages.evaluation.cost`: N tokens, D
token dimension, L blocks, M the hidden width of every MLP and CONV.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.finding import Finding

PATCH_SIZE, D, L, M = 4, 256, 4, 512  # section 4, items 1-4
ACCURACY = {"localvit": 77.71, "ninformer": 81.59}  # Table 2, CIFAR-10, percent
GAIN = 16  # section 4, over LocalViT, percent
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


def block_flops(arm: str, n: int) -> int:
    """One block of `arm` on n tokens."""
    mlp = 4 * n * D * M  # across channels or across tokens: the same product
    attention = 2 * n * D * 3 * D + 4 * n * n * D + 2 * n * D * D  # q, k, v; QKᵀ and its product with V; projection
    return {
        "vit": attention + mlp,
        "mlpmixer": 2 * mlp,
        "localvit": attention + mlp + 2 * 9 * n * M,  # two 1x1 convolutions cost what the MLP costs; depthwise 3x3
        "ninformer": 2 * mlp + 2 * n * D * D + mlp,  # mixer, the gate's Linear, outer MLP
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
        status="holds" if any(abs(gain - GAIN) < 1 for gain in readings.values()) else "contradicted",
        computed=readings,
        explanation="From Table 2's own CIFAR-10 accuracies.  The gains over ViT and MLP-Mixer in the same passage are "
        "relative and agree with the table; this one doesn't, in either reading.",
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


def findings() -> list[Finding]:
    """All of them, in the order of the paper."""
    times = [time_finding(dataset, arm) for dataset, row in NANOSECONDS.items() for arm in row]
    return [complexity_finding(), *times, gain_finding()]
