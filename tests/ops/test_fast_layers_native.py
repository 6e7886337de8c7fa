"""Models of fast layers train like those of PyTorch's layers, and keep all their properties."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops import batch_norm_native, native
from stages.ops.dropout_native import Dropout
from stages.ops.fast_layers_native import with_fast_layers
from stages.papers import build_model
from stages.papers.dac.layers_native import FastShortcut
from stages.run import ModelSpec

RESNET = {"depth": 8, "width": 16}
# Networks of eight layers or eighteen, and how many of their normalisations have a ReLU next.
NETWORKS: dict[str, tuple[dict[str, int], int]] = {
    "dac.resnet_v1:ResNetV1": (RESNET, 7),
    "dac.resnet_v1:DACResNetV1": (RESNET, 0),
    "dac.resnet_v1:SharedBiasResNetV1": (RESNET, 0),
    "dac.resnet_v1:MBAResNetV1": (RESNET | {"copies": 2}, 0),
    "dac.resnet_v2:ResNetV2": (RESNET, 7),
    "dac.resnet_v2:DACResNetV2": (RESNET, 1),
    "dac.resnet_v2:SharedBiasResNetV2": (RESNET, 1),
    "dac.vgg:VGG": (RESNET, 7),
    "dac.vgg:DACVGG": (RESNET, 1),
    "nmn.resnet:ResNet18": ({"width": 8}, 17),
}

pytestmark = pytest.mark.skipif(native.load_library(batch_norm_native._SOURCE) is None, reason="no C++ compiler here")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The C++ functions that normalised."""
    names: list[str] = []
    real = batch_norm_native.call
    monkeypatch.setattr(batch_norm_native, "call", lambda at, name, *rest: (names.append(name), real(at, name, *rest)))
    return names


def both(name: str) -> tuple[nn.Module, nn.Module]:
    """The plain network and one of fast layers with the same weights."""
    torch.manual_seed(0)
    sizes = {"image_size": 16, "in_channels": 3, "num_classes": 5}
    plain = build_model(ModelSpec(path=f"stages.papers.{name}", arguments=sizes | NETWORKS[name][0]))
    return plain, with_fast_layers(copy.deepcopy(plain))


def ten_steps(model: nn.Module) -> list[float]:
    """Losses on digits of noise."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(40, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 5, (40,), generator=generator)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.005), []
    for part in [slice(place, place + 8) for place in range(0, 40, 8)] * 2:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[part]), labels[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", NETWORKS)
def test_ten_steps_have_the_same_losses_and_end_at_the_same_weights(name: str, taken: list[str]) -> None:
    plain, fast = both(name)
    wanted, found = ten_steps(plain), ten_steps(fast)
    assert taken.count("forward_float") == taken.count("backward_float") == 10 * NETWORKS[name][1]
    assert found == pytest.approx(wanted, rel=1e-3)
    state = plain.state_dict()
    assert list(fast.state_dict()) == list(state)
    for key, value in fast.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=1e-2, atol=1e-3, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", NETWORKS)
def test_evaluated_it_is_the_plain_network(name: str, taken: list[str]) -> None:
    plain, fast = both(name)
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(plain.eval()(images), fast.eval()(images)) and not taken


@pytest.mark.parametrize(
    "name", ["dac.resnet_v1:ResNetV1", "dac.resnet_v2:ResNetV2", "dac.vgg:VGG", "nmn.resnet:ResNet18"]
)
def test_every_layer_that_is_watched_is_called(name: str) -> None:
    called = []
    for network in both(name):
        names: list[str] = []
        for place, layer in network.named_modules():
            layer.register_forward_hook(lambda *_, place=place, names=names: names.append(place))
        network(torch.randn(4, 3, 16, 16))
        called.append(names)
    assert sorted(called[0]) == sorted(called[1])


def test_hooks_and_layers_of_others_stay() -> None:
    class Own(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(0.2), Own(0.3), nn.Linear(2, 2))
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda layer, inputs, out: seen.append(out))
    fast = with_fast_layers(model)
    assert fast is model and [type(layer) for layer in fast] == [Dropout, Own, nn.Linear]
    fast(torch.ones(3, 2))
    assert len(seen) == 1


@pytest.mark.parametrize(("channels", "stride"), [(16, 1), (32, 2), (16, 2), (32, 1), (8, 2)])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_shortcut_takes_the_same_pixels_back_and_forth(
    channels: int, stride: int, memory_format: torch.memory_format
) -> None:
    fast, found, laid_out = FastShortcut(16, channels, stride), [], []
    for forward in (super(FastShortcut, fast).forward, fast.forward):
        x = torch.randn(2, 16, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
        inner = x.contiguous(memory_format=memory_format) * 1  # a leaf's gradient is laid out as the leaf is
        inner.register_hook(lambda grad: laid_out.append(grad.is_contiguous(memory_format=torch.channels_last)))
        out = forward(inner)
        out.backward(torch.arange(out.numel(), dtype=out.dtype).view(out.shape))
        found.append((out.detach(), x.grad))
    assert all(map(torch.equal, *found))
    changes = (channels, stride) != (16, 1)
    assert (out is inner) != changes
    if changes and channels >= 16 and memory_format == torch.channels_last:
        assert laid_out == [False, True]
