"""Write dac_resnet.npz: small ResNets v1 and v2 with option A shortcuts, with outputs and gradients in float64.

Origin: torchvision's BasicBlock and timm's PreActBasic (versions inside), not our code. `v1/<name>` and `v2/<name>` use
the module names below. Run from the repository root: python tests/golden/make_dac_resnet.py
"""

from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
from timm.layers import BatchNormAct2d
from timm.models.resnetv2 import PreActBasic
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock

PATH = Path(__file__).with_name("dac_resnet.npz")
WIDTH, NUM_CLASSES, IMAGE_SIZE = 8, 5, 9
SIZES = [(WIDTH, WIDTH, 1), (WIDTH, 2 * WIDTH, 2), (2 * WIDTH, 4 * WIDTH, 2)]


class OptionA(nn.Module):
    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return torch.cat([x, x.new_zeros(len(x), self.new_channels, *x.shape[2:])], 1)


class V1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTH)
        self.blocks = nn.ModuleList(
            BasicBlock(i, o, stride=s, downsample=OptionA(o - i, s) if o > i else None) for i, o, s in SIZES
        )
        self.fc = nn.Linear(4 * WIDTH, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))


class V2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
        plain = partial(nn.Conv2d, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            PreActBasic(i, o, stride=s, conv_layer=plain, norm_layer=BatchNormAct2d) for i, o, s in SIZES
        )
        self.bn = nn.BatchNorm2d(4 * WIDTH)
        self.fc = nn.Linear(4 * WIDTH, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        for block, (i, o, s) in zip(self.blocks, SIZES, strict=True):
            # timm's own shortcut takes the activated input, the DAC paper's takes the input.
            x = block.conv2(block.norm2(block.conv1(block.norm1(x)))) + OptionA(o - i, s)(x)
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


def make_vectors() -> dict[str, np.ndarray]:
    """Return all arrays of the file, with random weights and running statistics to exercise every BN."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    images, upstream = draw(3, 3, IMAGE_SIZE, IMAGE_SIZE), draw(3, NUM_CLASSES)
    vectors = {
        "origin": np.array(f"torchvision {torchvision.__version__}, timm {timm.__version__}"),
        "images": images.numpy(),
        "logit_weights": upstream.numpy(),
    }
    for name, model in {"v1": V1(), "v2": V2()}.items():
        model.double().eval()
        with torch.no_grad():
            for key, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    tensor.copy_(draw(*tensor.shape) * 0.3)
                    if key.endswith("running_var"):
                        tensor.abs_().add_(0.5)
        leaf = images.clone().requires_grad_()
        logits = model(leaf)
        (logits * upstream).sum().backward()
        vectors[f"{name}_logits"] = logits.detach().numpy()
        vectors[f"{name}_image_gradients"] = leaf.grad.numpy()
        vectors |= {f"{name}/{key}": value.numpy() for key, value in model.state_dict().items()}
    return vectors


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
