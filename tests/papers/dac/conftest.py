"""The paper's image networks at test size: 12 pixels, width 4, three blocks or five convolutions."""

from torch import nn

from stages.papers.dac import (
    DACVGG,
    VGG,
    DACResNetV1,
    DACResNetV2,
    MBAResNetV1,
    ResNetV1,
    ResNetV2,
    SharedBiasResNetV1,
    SharedBiasResNetV2,
)

SMALL = {"image_size": 12, "in_channels": 3, "num_classes": 5, "width": 4}
OWN: dict[str, tuple[type[nn.Module], dict[str, int]]] = {
    "ResNetV1": (ResNetV1, {"depth": 8}),
    "DACResNetV1": (DACResNetV1, {"depth": 8}),
    "SharedBiasResNetV1": (SharedBiasResNetV1, {"depth": 8}),
    "MBAResNetV1": (MBAResNetV1, {"depth": 8, "copies": 2}),
    "ResNetV2": (ResNetV2, {"depth": 8}),
    "DACResNetV2": (DACResNetV2, {"depth": 8}),
    "SharedBiasResNetV2": (SharedBiasResNetV2, {"depth": 8}),
    "VGG": (VGG, {"depth": 5}),
    "DACVGG": (DACVGG, {"depth": 5}),
}
TABLE = {"in_features": 14, "depth": 3, "width": 12, "last_width": 12}
