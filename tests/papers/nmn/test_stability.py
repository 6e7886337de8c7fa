"""Networks without normalisation train for 200 steps without a non-finite value."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.nmn import AetherGPT, AetherResNet18

CHANNEL_MEAN, CHANNEL_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def train(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], steps: int, *, rate: float = 0.003
) -> tuple[list[float], list[float]]:
    """Return losses and gradient norms of `steps` steps of the authors' AdamW, up to the first non-finite one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    losses, norms = [], []
    for _, (inputs, targets) in zip(range(steps), batches, strict=False):
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
        if not np.isfinite([losses[-1], norms[-1]]).all():
            break
        optimizer.step()
    return losses, norms


def repeated_text() -> Iterator[tuple[Tensor, Tensor]]:
    """Make synthetic text: each token is the previous one plus a step that is fixed per text."""
    generator = torch.Generator().manual_seed(0)
    while True:
        start, step = torch.randint(31, (2, 8, 1), generator=generator)
        text = (start + step * torch.arange(17)) % 31
        yield text[:, :-1], text[:, 1:]


def cifar10_batches(mirror: Path, size: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of `size` normalised training images in file order."""
    folder = mirror / "cifar10" / "cifar-10-batches-bin"
    rows = np.fromfile(folder / "data_batch_1.bin", dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, std = (torch.tensor(t).view(3, 1, 1) for t in (CHANNEL_MEAN, CHANNEL_STD))
    labels = torch.from_numpy(rows[:, 0].astype(np.int64))
    yield from zip(((images - mean) / std).split(size), labels.split(size), strict=True)


def full_size(scale: str, seed: int) -> AetherResNet18:
    torch.manual_seed(seed)
    return AetherResNet18(
        image_size=32, in_channels=3, num_classes=10, width=64, features=256, scale=scale, epsilon=0.007
    )


@pytest.mark.parametrize("attention", ["yat", "dot"])
def test_full_depth_aether_gpt_stays_finite_on_synthetic_text(attention: str) -> None:
    torch.manual_seed(0)
    model = AetherGPT(
        vocabulary_size=31,
        context=16,
        width=24,
        depth=12,
        num_heads=3,
        dropout=0.0,
        attention=attention,
        scale="guide",
        epsilon=0.1,
    )
    losses, norms = train(model, repeated_text(), 25)
    assert np.isfinite(losses + norms).all()


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_rate_of_the_script_collapses_features_to_one_direction(seed: int, real_mirror: Path) -> None:
    """Checks the features before the last layer, whose output depends on little else if they are large."""
    found = {}
    for rate in (0.003, 0.0003):
        model = full_size("guide", seed)
        batches = cifar10_batches(real_mirror, 32)
        train(model, batches, 20, rate=rate)
        images = torch.cat([next(batches)[0] for _ in range(3)])
        with torch.no_grad():
            features = model.features(model.blocks(model.stem(images)).mean(dim=(2, 3)))
            spread = model.head(features).std(dim=0).mean().item()
        cosines = F.cosine_similarity(features[:, None], features[None], dim=-1)
        found[rate] = features.square().mean().sqrt().item(), cosines.mean().item(), spread
    print(found)  # root mean square, cosine, deviation of a logit over images
    assert found[0.003][0] > 100 and found[0.003][1] > 0.999 and found[0.003][2] < 0.01
    assert found[0.0003][0] < 1 and found[0.0003][1] < 0.95 and found[0.0003][2] > 0.03
