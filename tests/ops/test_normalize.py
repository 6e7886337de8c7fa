"""Every pixel value is normalised by the equation, at any image size."""

import torch

from stages.ops.normalize import Normalization

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
VALUES = torch.arange(256, dtype=torch.uint8)
CPU = torch.device("cpu")


def test_every_value_equals_the_equation_within_rounding() -> None:
    images = VALUES.view(1, 1, 8, 32).repeat(2, 3, 1, 1)
    found = Normalization(MEAN, STD, (3, 8, 32), CPU)(images)
    mean, std = (torch.tensor(numbers, dtype=torch.float64).view(3, 1, 1) for numbers in (MEAN, STD))
    wanted = (images.double() / 255 - mean) / std
    scaled = images.double() / 255 / std
    rounded = 2 * scaled + mean / std + wanted.abs()  # scale, product (not in an FMA), shift and result, once each
    assert torch.all((found.double() - wanted).abs() <= 2**-24 * rounded)


def test_value_does_not_depend_on_its_position() -> None:
    alone = torch.cat([Normalization(MEAN, STD, (3, 1, 1), CPU)(value.expand(1, 3, 1, 1)) for value in VALUES])
    among = Normalization(MEAN, STD, (3, 7, 11), CPU)(VALUES.view(-1, 1, 1, 1).expand(-1, 3, 7, 11))
    assert torch.equal(among, alone.expand_as(among))
