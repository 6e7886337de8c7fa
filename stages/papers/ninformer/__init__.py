"""NiNformer: A Network in Network Transformer with Token Mixing Generated Gating Function (Abdullah and Aydin, arXiv
2403.02411).

Claim: replacing attention by a gate that an MLP-Mixer sub-unit generates beats ViT, MLP-Mixer and LocalViT in accuracy
on MNIST, CIFAR-10 and CIFAR-100 (Table 2), at the inference time of the MLP-Mixer (Table 3).

One architecture per file.  ViT, MLPMixer, LocalViT and NiNformer are those of section 3; the other four are
sensitivity arms that each change one part of one of them.  All share (Procedures 1-4): patch embedding, blocks, mean
over tokens, Linear head; no class token, no LayerNorm after the last block, and no position embedding except
PositionedViT's.  Models return logits: the softmax of step 6 is in the loss and in the predictor.
docs/papers/ninformer.md explains each deviation from the text and the authors' code.
"""

from stages.papers.ninformer.local_vit import LocalViT, SqueezeExciteLocalViT
from stages.papers.ninformer.mlp_mixer import MLPMixer
from stages.papers.ninformer.ninformer import NiNformer, SharedNormNiNformer
from stages.papers.ninformer.separable_local_vit import SeparableLocalViT
from stages.papers.ninformer.vit import PositionedViT, ViT

__all__ = [
    "LocalViT",
    "MLPMixer",
    "NiNformer",
    "PositionedViT",
    "SeparableLocalViT",
    "SharedNormNiNformer",
    "SqueezeExciteLocalViT",
    "ViT",
]
