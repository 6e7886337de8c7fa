"""Crop, flip and normalise batches on a CPU in one pass (`crops.cpp`), bit-identical to PyTorch.

N images in all, B in a batch, C channels, H x W pixels.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stages.ops.fast.cpp import agrees_here, call, is_plain, load_library
from stages.ops.normalize import Normalization

_SOURCE = Path(__file__).with_suffix(".cpp")
_BYTES_AT_ONCE = 16  # pixel values per probe, one image each


class Crops:
    """Normalised crops of `images`, uint8 [N, C, H, W] on a CPU, that begin up to `padding` pixels outside each."""

    def __init__(self, images: Tensor, padding: int, normalization: Normalization) -> None:
        self.images, self.padding = images, padding
        self._normals = torch.stack([normalization.scale[:, 0, 0], normalization.shift[:, 0, 0]])

    def __call__(self, rows: Tensor, offsets: Tensor | None, flipped: Tensor | None) -> Tensor:
        """Return float32 [B, C, H, W], the crops of the images in `rows`, int64 [B].

        offsets: int64 [2, B], top and left edges of windows in the padded image, 0 to twice the padding; flipped:
        bool [B].  None means no cropping, or no flipping.

        Raises:
            IndexError: a row is out of range.
        """
        out = torch.empty(len(rows), *self.images.shape[1:], dtype=torch.float32, device="cpu")
        given = [None if tensor is None else tensor.contiguous() for tensor in (rows, offsets, flipped)]
        sizes = (len(rows), *self.images.shape, self.padding)

        if call(_SOURCE, "crop", self.images, *given, self._normals, out, sizes):
            raise IndexError(f"rows are {int(rows.min())} to {int(rows.max())}, of {len(self.images)} images")
        return out


def crops_of(images: Tensor, padding: int, normalization: Normalization) -> Crops | None:
    """Return `Crops`, or None on a GPU, without a compiler, or if the results would differ from PyTorch's."""
    if not is_plain(images, dtype=torch.uint8) or not images.is_contiguous() or load_library(_SOURCE) is None:
        return None
    return Crops(images, padding, normalization) if _is_alike(normalization) else None


def _is_alike(normalization: Normalization) -> bool:
    """True if every byte becomes the same number as in PyTorch, at any position in an image."""
    shape = normalization.scale.shape
    probes = [
        values.view(-1, 1, 1, 1).expand(-1, *shape).contiguous()
        for values in torch.arange(256, dtype=torch.uint8, device="cpu").split(_BYTES_AT_ONCE)
    ]
    normals = [maps[:, 0, 0].tolist() for maps in (normalization.scale, normalization.shift)]
    return agrees_here(
        f"images of {[*shape]} normalised by {normals}",
        lambda: (Crops(probe, 0, normalization)(torch.arange(len(probe)), None, None) for probe in probes),
        lambda: (normalization(probe) for probe in probes),
    )
