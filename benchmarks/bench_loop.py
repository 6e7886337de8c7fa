"""Goal: at most 5 % of a training's time goes into anything other than forward, backward and optimiser step.

Peer: the bare three on one fixed batch.  Ours: `fit` with augmentation, loss sums, progress and state, per step.
Run: python -m benchmarks loop
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.timing import Line, compare, setting, training_step
from stages.ops.fast.dropout import with_fast_dropout
from stages.papers import build_model, model_paths
from stages.run import AugmentationSpec, ModelSpec, OptimizerSpec, Precision, Protocol, Replicate
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import fit
from stages.training.optimizer import build_optimizer

GOAL = 0.05
_SHARED = {"image_size": 32, "in_channels": 3, "num_classes": 100, "patch_size": 4, "dim": 256, "depth": 4}
ARMS = {
    "ViT": {"num_heads": 4, "mlp_dim": 512},
    "MLPMixer": {"token_dim": 512, "channel_dim": 512},
    "LocalViT": {"num_heads": 4, "channels": 512},
    "NiNformer": {"mlp_dim": 512, "token_dim": 512, "channel_dim": 512},
}


def build(name: str) -> nn.Module:
    """An arm of the NiNformer paper at CIFAR-100's printed size."""
    own = (path for path in model_paths() if path.startswith("stages.papers.ninformer."))
    path = next(path for path in own if path.endswith(f":{name}"))
    return build_model(ModelSpec(path=path, arguments={**_SHARED, **ARMS[name], "dropout": 0.5}))


def protocol_for(batch_size: int, steps: int, *, precision: Precision = "float32", compiled: bool = False) -> Protocol:
    """One epoch of `steps` steps of the printed protocol."""
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
    """CIFAR-shaped noise: time doesn't depend on the content of the images."""
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, device=device)
    return LabelledImages(images, torch.randint(0, 100, (count,), device=device))


def measure() -> list[Line]:
    return [beside_the_bare_loop(name) for name in ARMS]


def beside_the_bare_loop(name: str, batch_size: int = 16, steps: int = 3) -> Line:
    """Time an arm's training against its bare forward, backward and step."""
    data = random_images(batch_size * steps, torch.device("cpu"))
    protocol = protocol_for(batch_size, steps)
    task = ImageClassification(data, protocol)
    model = with_fast_dropout(build(name))
    step = training_step(model, build_optimizer(model, protocol.optimizer), batch=batch_size, classes=100)

    def bare() -> None:
        for _ in range(steps):
            step()

    def ours() -> None:
        fit(model, task, protocol, Replicate(seed=0))

    result = compare(ours, bare, repeats=7)
    return Line(
        what=f"share of a training beside forward, backward, step: {name}",
        peer=f"these three on one batch: {batch_size * steps / result.peer_seconds:,.0f} images/s",
        ours=f"{batch_size * steps / result.ours_seconds:,.0f} images/s",
        value=100 * (1 - result.ratio),
        goal=100 * GOAL,
        at_most=True,
        unit="%",
        setting=setting("float32"),
    )
