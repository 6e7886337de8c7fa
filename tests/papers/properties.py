"""Images for the tests of every paper, and a comparison with another library's network."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn


def draw_images(n: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal noise [n, 3, 12, 12], the same in each call."""
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(1)).to(dtype)


def renamed(vectors: Mapping[str, np.ndarray], prefix: str, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return arrays under our names; `names` maps parts of theirs to ours."""
    found = {}
    for name, array in vectors.items():
        if name.startswith(prefix):
            ours = name.removeprefix(prefix)
            for theirs, replacement in names.items():
                ours = ours.replace(theirs, replacement)
            found[ours] = torch.from_numpy(array)
    return found


def assert_equals(model: nn.Module, vectors: Mapping[str, np.ndarray], prefix: str = "") -> None:
    """Check that `model` gives the stored logits and image gradients."""
    images = torch.from_numpy(vectors["images"]).requires_grad_()
    logits = model(images)
    (logits * torch.from_numpy(vectors["logit_weights"])).sum().backward()
    assert images.grad is not None
    np.testing.assert_allclose(logits.detach().numpy(), vectors[f"{prefix}logits"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(images.grad.numpy(), vectors[f"{prefix}image_gradients"], rtol=1e-9, atol=1e-9)
