"""Write nmn_yat.npz: layers of the released package nmn in float64, and its example's networks at full size.

Origin: nmn 0.3.5 from the package registry (version inside), torch sub-package; its example script also imports wandb,
datasets, matplotlib and seaborn. Layers have `<case>/<parameter>` with the package's names, `<case>/inputs`,
`<case>/outputs`, `<case>/upstream` and the gradients of sum(outputs · upstream). Networks have only logits and image
gradients, because `fill` regenerates their 11 million weights. Run from the repository root with these packages
installed: python tests/golden/make_nmn_yat.py
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

PATH = Path(__file__).with_name("nmn_yat.npz")
WIDE = torch.float64


def fill(parameters: Iterable[Tensor], seed: int) -> None:
    """Fill with normal weights of deviation 1 / √fan_in in the order given; vectors are between 0.5 and 1.5."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.ndim < 2:
                parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=WIDE) + 0.5)
            else:
                draw = torch.randn(parameter.shape, generator=generator, dtype=WIDE)
                parameter.copy_(draw / parameter[0].numel() ** 0.5)


def make_layers() -> dict[str, tuple[nn.Module, tuple[int, ...], dict[str, Tensor]]]:
    """Return case -> (layer of the package, shape of its input, further keywords of its forward)."""
    from nmn.torch import MultiHeadYatAttention, YatConv2D, YatNMN

    causal = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5)
    keyless = causal.clone()
    keyless[1, 0, 2] = False
    attention = {"embed_dim": 6, "num_heads": 2, "dtype": WIDE}
    conv = {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "dtype": WIDE}
    return {
        "dense": (YatNMN(5, 7, param_dtype=WIDE), (3, 5), {}),
        "dense_plain": (YatNMN(5, 7, bias=False, alpha=False, epsilon=0.007, param_dtype=WIDE), (3, 5), {}),
        "dense_constant": (YatNMN(5, 7, constant_alpha=True, param_dtype=WIDE), (2, 3, 5), {}),
        "dense_learned_epsilon": (YatNMN(5, 7, learnable_epsilon=True, epsilon=0.1, param_dtype=WIDE), (3, 5), {}),
        "conv": (YatConv2D(**conv), (2, 4, 6, 7), {}),
        "conv_full": (YatConv2D(**conv, stride=2, padding=(1, 2), dilation=2, groups=2), (2, 4, 9, 8), {}),
        "conv_same": (YatConv2D(**conv, padding="same", bias=False, epsilon=0.007), (2, 4, 5, 6), {}),
        "conv_reflect": (YatConv2D(**conv, padding=1, padding_mode="reflect"), (1, 4, 5, 6), {}),
        "attention": (MultiHeadYatAttention(**attention), (2, 5, 6), {}),
        "attention_causal": (MultiHeadYatAttention(**attention, epsilon=0.1), (2, 5, 6), {"mask": causal}),
        "attention_keyless": (MultiHeadYatAttention(**attention, bias=False), (2, 5, 6), {"mask": keyless}),
        "attention_spherical": (MultiHeadYatAttention(**attention, spherical=True, epsilon=0.1), (2, 5, 6), {}),
    }


def make_networks() -> dict[str, nn.Module]:
    from nmn.torch.examples.vision import resnet_training as example

    return {
        "aether": example.YATConvNet(example.BasicYATBlock, [2, 2, 2, 2], num_classes=10),
        "resnet": example.StandardConvNet(example.BasicStandardBlock, [2, 2, 2, 2], num_classes=10),
    }


def make_vectors() -> dict[str, np.ndarray]:
    import nmn

    vectors = {"origin": np.array(f"nmn {nmn.__version__}, torch {torch.__version__}")}
    generator = torch.Generator().manual_seed(1)
    for case, (layer, shape, keywords) in make_layers().items():
        fill(layer.parameters(), seed=2)
        inputs = torch.randn(shape, generator=generator, dtype=WIDE).requires_grad_()
        outputs = layer(inputs, **keywords)
        upstream = torch.randn(outputs.shape, generator=generator, dtype=WIDE)
        (outputs * upstream).sum().backward()
        tensors = {
            "inputs": inputs,
            "outputs": outputs,
            "upstream": upstream,
            "input_gradients": inputs.grad,
            **keywords,
        }
        for name, parameter in layer.named_parameters():
            tensors[name], tensors[f"{name}_gradients"] = parameter, parameter.grad
        vectors |= {f"{case}/{name}": tensor.detach().numpy() for name, tensor in tensors.items()}
    for name, network in make_networks().items():
        network.double().eval()
        fill(network.parameters(), seed=3)
        images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4), dtype=WIDE).requires_grad_()
        logits = network(images)
        logits.square().sum().backward()
        vectors[f"{name}/logits"] = logits.detach().numpy()
        vectors[f"{name}/image_gradients"] = images.grad.numpy()
    return vectors


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
