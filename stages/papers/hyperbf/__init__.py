"""A Homogeneous Transformer Architecture (Gan and Poggio 2023): HyperBF units in place of attention and MLP.

Claim: a transformer of HyperBF units alone is comparable in accuracy to a ViT with as many parameters on CIFAR-10,
CIFAR-100 and Tiny ImageNet (Table 2), since normalised HyperBF units are softmax attention (section 2.2.1).

One architecture per file; both share patch embedding, class token, learned positions, four blocks of equation 1, a last
LayerNorm and a Linear head.  docs/papers/hyperbf.md explains each deviation from the text and the authors' code.
"""

from stages.papers.hyperbf.hyperbf import HyperBF, HyperBFAsWritten
from stages.papers.hyperbf.vit import ViT

__all__ = ["HyperBF", "HyperBFAsWritten", "ViT"]
