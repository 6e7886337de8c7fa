"""One seed for each purpose, so that parts of a training never share a stream of random numbers."""

from __future__ import annotations

import hashlib

import torch

from stages.run import Replicate


def derive_seed(replicate: Replicate, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose of one replicate, e.g. `derive_seed(r, "augment", epoch, step)`."""
    text = "/".join(str(part) for part in (replicate.seed, replicate.fold, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


CPU = torch.device("cpu")


def generator_for(replicate: Replicate, *purpose: str | int, device: torch.device = CPU) -> torch.Generator:
    """Return a generator for one purpose; the CPU's draws the same numbers whatever device the training runs on."""
    return torch.Generator(device).manual_seed(derive_seed(replicate, *purpose))
