"""Small problems for which every curvature matrix can be computed densely."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.optim.capture import LayerBatch, LayerCapture


class TokenNetwork(nn.Module):
    """A Linear on each token, tanh, mean over tokens, and a Linear head. [B, T, 3] -> [B, 3]."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 2, bias=bias)
        self.head = nn.Linear(2, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(tokens).tanh().mean(dim=1))


@dataclass
class Problem:
    """A network in float64, a batch of tokens [B, T, 3] and labels [B]."""

    network: TokenNetwork
    tokens: Tensor
    labels: Tensor

    def loss(self) -> Tensor:
        return F.cross_entropy(self.network(self.tokens), self.labels)

    def captured(self, layer: str = "mix") -> LayerBatch:
        capture = LayerCapture(self.network, (layer,))
        self.loss().backward()
        return capture.take(layer)

    def sample_gradients(self, layer: str = "mix") -> Tensor:
        """Return gradients [B, O, I] by autograd for one sample at a time, with the bias as the last column."""
        module = getattr(self.network, layer)
        gradients = []
        for tokens, label in zip(self.tokens, self.labels, strict=True):
            loss = F.cross_entropy(self.network(tokens[None]), label[None])
            parts = torch.autograd.grad(loss, [module.weight] + ([] if module.bias is None else [module.bias]))
            gradients.append(torch.cat([part.reshape(module.out_features, -1) for part in parts], dim=1))
        return torch.stack(gradients)


def make_problem(*, samples: int = 5, tokens: int = 4, bias: bool = True, seed: int = 0) -> Problem:
    torch.manual_seed(seed)
    network = TokenNetwork(bias=bias).double()
    return Problem(network, torch.randn(samples, tokens, 3, dtype=torch.float64), torch.arange(samples).remainder(3))


def dense(product: object, shape: torch.Size | tuple[int, int]) -> Tensor:
    """Return the matrix of a linear map of matrices over row-major vectors."""
    assert callable(product)
    basis = torch.eye(shape[0] * shape[1], dtype=torch.float64)
    return torch.stack([product(unit.reshape(shape)).flatten() for unit in basis], dim=1)
