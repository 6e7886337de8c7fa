"""Increasing biases can be more efficient than increasing weights (Metta et al. 2024, arXiv 2301.00924v3).

Claim: activating each connection's input with a bias of its own (DAC), instead of one bias a unit, lowers the error of
MLPs, VGGs and ResNets on SGEMM, CIFAR, Imagenette, Imagewoof and ISIC 2019 (Figures 3 to 6, Tables 1 and 2) at 11 %
more parameters and 5.5 % more operations, by more than pre-activation alone (Table 3) or multi-bias activation.

The connections are in `stages.ops.dac` and `stages.ops.mba`; each file of networks holds a baseline and its
conversions, `findings` and `findings_theory` need no training.  We had no copy of the paper's code, so the text is our
only source; docs/papers/dac.md says what it leaves open.
"""

from stages.papers.dac.mlp import DACMLP, MLP
from stages.papers.dac.resnet_v1 import DACResNetV1, MBAResNetV1, ResNetV1, SharedBiasResNetV1
from stages.papers.dac.resnet_v2 import DACResNetV2, ResNetV2, SharedBiasResNetV2
from stages.papers.dac.vgg import DACVGG, VGG

__all__ = [
    "DACMLP",
    "DACVGG",
    "MLP",
    "VGG",
    "DACResNetV1",
    "DACResNetV2",
    "MBAResNetV1",
    "ResNetV1",
    "ResNetV2",
    "SharedBiasResNetV1",
    "SharedBiasResNetV2",
]
