"""Goal: augmented CIFAR batches 5 times as fast as the fastest peer.

Peers: torchvision's Dataset and DataLoader with 2 workers, and a gather of unfolded windows with `torch.where` for
flips, eager and compiled. All sides crop (4 pixels of padding), flip and normalise 12,800 images in batches of 128;
loader processes count. Limit: a batch that is only a conversion of its bytes to float32.
Run: python -m benchmarks batches
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.arms import protocol_for, random_images
from benchmarks.timing import Line, race
from stages.training.images import ImageClassification

GOAL, IMAGES, BATCH = 5.0, 12_800, 128
MEAN = STD = (0.5, 0.5, 0.5)


class Transformed(Dataset[Tensor]):
    """The usual method: one image at a time through torchvision's transforms."""

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


def with_workers() -> float:
    """Return the CPU seconds of this process and its children, the latter rounded to hundredths."""
    return time.process_time() + sum(sum(one.cpu_times()[:2]) for one in psutil.Process().children(recursive=True))


def windows(images: Tensor) -> Tensor:
    """Return all crops of all images, [N, C, 9, 9, 32, 32], without a copy."""
    return F.pad(images, [4] * 4).unfold(2, 32, 1).unfold(3, 32, 1)


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw each image's crop position and flip for a batch."""
    top, left = torch.randint(0, 9, (2, count), generator=generator)
    return top, left, torch.rand(count, generator=generator) < 0.5


def cropped(crops: Tensor, rows: Tensor, top: Tensor, left: Tensor, flipped: Tensor) -> Tensor:
    """Make a batch by one gather, float32 [B, C, 32, 32]."""
    batch = crops[rows, :, top, left]
    batch = torch.where(flipped[:, None, None, None], batch.flip(-1), batch)
    return batch.float().div_(255).sub_(MEAN[0]).div_(STD[0])


def measure() -> list[Line]:
    data = random_images(IMAGES, torch.device("cpu"))
    task = ImageClassification(data, protocol_for(BATCH, IMAGES // BATCH))
    loader = DataLoader(Transformed(data.images), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    generator = torch.Generator().manual_seed(0)
    crops = windows(data.images)

    def ours() -> None:
        for rows in torch.randperm(IMAGES, generator=generator).split(BATCH):
            task.training_batch(rows, generator)

    def through_loader() -> None:
        for _ in loader:
            pass

    def gathered(way: Callable[..., Tensor]) -> Callable[[], None]:
        def run() -> None:
            for rows in torch.randperm(IMAGES, generator=generator).split(BATCH):
                way(crops, rows, *drawn(len(rows), generator)), data.labels[rows]

        return run

    peers = {
        "unfold and where, eager": gathered(cropped),
        "unfold and where, compiled": gathered(torch.compile(cropped)),
        "Dataset and DataLoader, 2 workers": through_loader,
    }
    result = race({"ours": ours}, peers, rounds=7, clock=with_workers)
    line = result.line("augmented CIFAR batches", GOAL, dtype="uint8 to float32", images=IMAGES)
    return [dataclasses.replace(line, most=min(result.peers.values()) / seconds_of_writing(data.images))]


def seconds_of_writing(images: Tensor) -> float:
    """Return the median CPU time of seven conversions of all batches from uint8 to float32."""
    taken = []
    for _ in range(7):
        began = time.process_time()
        for batch in images.split(BATCH):
            batch.float()
        taken.append(time.process_time() - began)
    return statistics.median(taken)
