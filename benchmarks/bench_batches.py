"""Goal: augmented CIFAR batches at least 15 times faster than torchvision's Dataset and DataLoader with 2 workers.

Both sides crop (4 pixels of padding), flip and normalise 12,800 images in batches of 128.
Run: python -m benchmarks batches
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.bench_loop import protocol_for, random_images
from benchmarks.timing import Line, compare
from stages.training.images import ImageClassification

GOAL, IMAGES, BATCH = 15.0, 12_800, 128
MEAN = STD = (0.5, 0.5, 0.5)


class Transformed(Dataset[Tensor]):
    """The usual way: one image at a time through torchvision's transforms."""

    def __init__(self, images: Tensor) -> None:
        self.images = [transforms.functional.to_pil_image(image) for image in images]
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(self.images[index])


def measure() -> list[Line]:
    data = random_images(IMAGES, torch.device("cpu"))
    task = ImageClassification(data, protocol_for(BATCH, IMAGES // BATCH))
    loader = DataLoader(Transformed(data.images), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    generator = torch.Generator().manual_seed(0)

    def ours() -> None:
        for rows in torch.randperm(IMAGES, generator=generator).split(BATCH):
            task.training_batch(rows, generator)

    def peer() -> None:
        for _ in loader:
            pass

    # The loader's work is done by other processes, whose processor time isn't ours.
    result = compare(ours, peer, repeats=5, wall=True)
    return [
        Line(
            what="augmented CIFAR batches, wall",
            peer=f"Dataset and DataLoader, 2 workers: {IMAGES / result.peer_seconds:,.0f} images/s",
            ours=f"{IMAGES / result.ours_seconds:,.0f} images/s",
            value=result.ratio,
            goal=GOAL,
        )
    ]
