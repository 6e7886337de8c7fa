"""Speed settings change no verdict: networks of fast layers learn what networks of the printed equations learn.

The modules of the layers hold the fast functions; the plain side puts the references in their place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops import dac, dac_layers, rbf_layers, yat, yat_attention, yat_conv
from stages.ops.rbf import rbf_attention_reference, rbf_feedforward_reference
from tests.soak import write_soak_report

SEEDS, EPOCHS, BATCH, ALPHA, NOTICEABLE = 12, 12, 64, 0.01, 0.02


class Tokens(nn.Module):
    """Rows of an 8 x 8 digit as tokens, mixed by `attention` and then by `feedforward`, each with a residual."""

    def __init__(self, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.embed, self.attention, self.feedforward = nn.Linear(8, 16), attention, feedforward
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(2)])
        self.classify = nn.Linear(8 * 16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.squeeze(1))
        x = x + self.attention(self.norms[0](x))
        x = x + self.feedforward(self.norms[1](x))
        return self.classify(x.flatten(1))


def dac_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        dac_layers.DACConv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.Flatten(),
        dac_layers.DACLinear(256, 10),
    )


def yat_net() -> nn.Module:
    return nn.Sequential(
        yat_conv.YatConv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        yat_conv.YatConv2d(8, 16, 3, stride=2, padding=1),
        nn.Flatten(),
        yat.YatLinear(256, 32),
        nn.Linear(32, 10),
    )


def yat_tokens() -> nn.Module:
    return Tokens(yat_attention.YatAttention(16, 4), nn.Sequential(yat.YatLinear(16, 32), nn.Linear(32, 16)))


def hyperbf_net() -> nn.Module:
    return Tokens(rbf_layers.RBFAttention(16, 4), rbf_layers.RBFFeedForward(16, 32, 16, beta=0.02))


def plain_yat_linear(x: Tensor, weight: Tensor, bias: Tensor, *, scale: Any, epsilon: Any) -> Tensor:
    return yat.yat_linear_reference(x, weight, bias, scale, epsilon)


def plain_yat_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any, dilation: Any, groups: int, **factors: Any
) -> Tensor:
    shape = {"stride": stride[0], "padding": padding[0], "dilation": dilation[0], "groups": groups}
    return yat_conv.yat_conv2d_reference(x, weight, bias, factors["scale"], factors["epsilon"], **shape)


def plain_yat_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **factors: Any) -> Tensor:
    return yat_attention.yat_attention_reference(query, key, value, factors["scale"], factors["epsilon"])


def plain_rbf_unit(unit: rbf_layers.RBFAttention, x: Tensor) -> Tensor:
    q, k, v = unit.qkv(x).unflatten(-1, (3, unit.num_heads, -1)).permute(2, 0, 3, 1, 4)
    assert unit.metric_factor is not None
    mixed = rbf_attention_reference(q, k, v, (2 * unit.beta).rsqrt(), unit.metric_factor)
    return unit.projection(mixed.transpose(1, 2).flatten(2))


def plain_rbf_feedforward(x: Tensor, t: Tensor, weight: Tensor, bias: Tensor, *, beta: Tensor, **_: Any) -> Tensor:
    return rbf_feedforward_reference(x, t, weight.T, beta, torch.eye(t.shape[1], dtype=t.dtype)) + bias


@dataclass(frozen=True)
class Case:
    network: Callable[[], nn.Module]
    plain: tuple[tuple[Any, str, Callable[..., Tensor]], ...]


CASES = {
    "dac": Case(
        dac_net,
        (
            (dac_layers, "dac_conv2d", dac.dac_conv2d_reference),
            (dac_layers, "dac_linear", dac.dac_linear_reference),
        ),
    ),
    "yat": Case(yat_net, ((yat, "yat_linear", plain_yat_linear), (yat_conv, "yat_conv2d", plain_yat_conv2d))),
    "yat-attention": Case(
        yat_tokens, ((yat, "yat_linear", plain_yat_linear), (yat_attention, "yat_attention", plain_yat_attention))
    ),
    "hyperbf": Case(
        hyperbf_net,
        (
            (rbf_layers.RBFAttention, "forward", plain_rbf_unit),
            (rbf_layers, "rbf_feedforward", plain_rbf_feedforward),
        ),
    ),
}


@contextmanager
def printed(case: Case) -> Iterator[list[str]]:
    """Put the printed equations in place of the fast functions; the list says which of them were called."""
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name, reference in case.plain:

            def noted(*arguments: Any, _name: str = name, _reference: Any = reference, **options: Any) -> Tensor:
                called.append(_name)
                return _reference(*arguments, **options)

            patch.setattr(module, name, noted)
        yield called


def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def start(case: Case, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    network = case.network()
    return network, torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)


def accuracy(case: Case, seed: int) -> float:
    """Accuracy on digits that weren't trained on, after `EPOCHS` epochs."""
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(7))
    train, test = order[:1200], order[1200:]
    network, optimizer = start(case, seed)
    for _ in range(EPOCHS):
        for part in train[torch.randperm(len(train))].split(BATCH):
            loss = F.cross_entropy(network(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    with torch.inference_mode():
        return float((network(images[test]).argmax(1) == labels[test]).float().mean())


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(3000)
def test_accuracies_over_seeds_cannot_be_told_apart() -> None:
    report: dict[str, Any] = {"seeds": SEEDS, "epochs": EPOCHS, "data": "1,797 digits of 8 x 8, 1,200 to train on"}
    for name, case in CASES.items():
        fast = [accuracy(case, seed) for seed in range(SEEDS)]
        with printed(case) as called:
            plain = [accuracy(case, 1000 + seed) for seed in range(SEEDS)]
        assert set(called) == {name for _, name, _ in case.plain}
        worse = [value - NOTICEABLE for value in plain]
        report[name] = {
            "fast": [round(value, 4) for value in fast],
            "plain": [round(value, 4) for value in plain],
            "p": round(float(mannwhitneyu(fast, plain).pvalue), 4),
            "p_were_fast_two_points_better": round(float(mannwhitneyu(fast, worse).pvalue), 6),
        }
        write_soak_report("fast-and-plain", report)
    for name in CASES:
        assert report[name]["p"] > ALPHA, name
        assert report[name]["p_were_fast_two_points_better"] < ALPHA, f"{name}: too noisy to tell two points"
