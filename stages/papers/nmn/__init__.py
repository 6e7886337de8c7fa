"""NMN Architecture Guide: neural-matter networks with the Yat product (authors of the package nmn, 2025).

Claim: networks whose units respond with alignment over distance need neither activations nor normalisation layers;
AetherResNet-18 beats ResNet-18 on CIFAR-100, STL-10 and Tiny-ImageNet, and AetherGPT has a validation loss 11.2 %
below GPT-2's in BF16, with 15-25 % less memory at 4 % less speed.

The guide has no numbered tables: its numbers are in the sections AetherResNet, AetherGPT and Computational Efficiency.
One architecture per file; equations are in `stages.ops.yat*`.  If the guide is silent or disagrees with the authors'
public code, both readings are implemented; docs/papers/nmn.md explains each deviation.
"""

from stages.papers.nmn.aether_resnet import AetherResNet18, PrintedAetherResNet18
from stages.papers.nmn.gpt import GPT2, AetherGPT, PostNormGPT, YatGPT
from stages.papers.nmn.prototypes import DotPrototypes, YatPrototypes
from stages.papers.nmn.resnet import ResNet18
from stages.papers.nmn.yat_mlp import YatMLP

__all__ = [
    "GPT2",
    "AetherGPT",
    "AetherResNet18",
    "DotPrototypes",
    "PostNormGPT",
    "PrintedAetherResNet18",
    "ResNet18",
    "YatGPT",
    "YatMLP",
    "YatPrototypes",
]
