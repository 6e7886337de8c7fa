"""Write fisher_curvlinops.npz: curvature matrices of a layer with tokens, from an independent library.

pip install curvlinops-for-pytorch==3.0.1        (not in the lock)
python tests/golden/make_fisher_curvlinops.py

`kronecker` is K-FAC's "expand" form with the empirical Fisher, `per_sample` the empirical Fisher matrix. Both cover the
parameters of the first Linear layer in float64: the weight row by row, then the bias.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from curvlinops import EFLinearOperator, KFACLinearOperator
from torch import Tensor, nn


class MeanOverTokens(nn.Module):
    """[B, T, D] -> [B, D]."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(dim=1)


def make_vectors() -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), MeanOverTokens(), nn.Linear(2, 3)).double()
    tokens, labels = torch.randn(6, 4, 3, dtype=torch.float64), torch.arange(6).remainder(3)
    first = network[0]
    assert isinstance(first, nn.Linear)
    problem = (network, nn.CrossEntropyLoss(), [first.weight, first.bias], [(tokens, labels)])
    kronecker = KFACLinearOperator(
        *problem, fisher_type="empirical", kfac_approx="expand", separate_weight_and_bias=False
    )
    unit = torch.eye(8, dtype=torch.float64)
    vectors = {f"weights/{name}": value.numpy() for name, value in network.state_dict().items()}
    return vectors | {
        "tokens": tokens.numpy(),
        "labels": labels.numpy(),
        "kronecker": (kronecker @ unit).detach().numpy(),
        "per_sample": (EFLinearOperator(*problem) @ unit).detach().numpy(),
        "origin": np.array(f"curvlinops-for-pytorch {version('curvlinops-for-pytorch')}, torch {torch.__version__}"),
    }


if __name__ == "__main__":
    np.savez(Path(__file__).with_name("fisher_curvlinops.npz"), **make_vectors())
