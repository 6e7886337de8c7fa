"""Arms of the NiNformer paper at CIFAR-100's printed size, with random images and a short protocol."""

from __future__ import annotations

import torch
from torch import nn

from stages.papers import build_model, model_paths
from stages.run import AugmentationSpec, ModelSpec, OptimizerSpec, Precision, Protocol
from stages.training.images import LabelledImages

_SHARED = {"image_size": 32, "in_channels": 3, "num_classes": 100, "patch_size": 4, "dim": 256, "depth": 4}
ARMS = {
    "ViT": {"num_heads": 4, "mlp_dim": 512},
    "MLPMixer": {"token_dim": 512, "channel_dim": 512},
    "LocalViT": {"num_heads": 4, "channels": 512},
    "NiNformer": {"mlp_dim": 512, "token_dim": 512, "channel_dim": 512},
}


def build(name: str) -> nn.Module:
    """Build an arm of the NiNformer paper at CIFAR-100's printed size."""
    own = (path for path in model_paths() if path.startswith("stages.papers.ninformer."))
    path = next(path for path in own if path.endswith(f":{name}"))
    return build_model(ModelSpec(path=path, arguments={**_SHARED, **ARMS[name], "dropout": 0.5}))


def protocol_for(batch_size: int, steps: int, *, precision: Precision = "float32", compiled: bool = False) -> Protocol:
    """Return one epoch of `steps` steps of the printed protocol."""
    return Protocol(
        optimizer=OptimizerSpec(name="adam", lr=1e-3),
        batch_size=batch_size,
        epochs=1,
        steps_per_epoch=steps,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        precision=precision,
        augmentation=AugmentationSpec(crop_padding=4, horizontal_flip=True),
        compile=compiled,
    )


def random_images(count: int, device: torch.device) -> LabelledImages:
    """Return CIFAR-shaped noise: time doesn't depend on image content."""
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, device=device)
    return LabelledImages(images, torch.randint(0, 100, (count,), device=device))
