"""Goals for DAC's layers on a CPU, forward and backward, compared with the fastest PyTorch implementation.

The convolution must be 5 times as fast with at most 0.3 of the peak memory, the dense layer 3 times as fast. Compared
with an ordinary ReLU and layer, which compute something else, they may take at most 5 and 3.5 times as long.

The convolution's peers are depthwise convolutions in a loop over inputs, ordinary ones in a loop over outputs with
channels last, and a grouped convolution over the expansion. With 16 channels they are also compiled, which gains a
twentieth; with 64 the compiler takes many minutes. The dense layer's peer is a compiled multiplication and sum, which
uncompiled is as slow as einsum. Sizes are from the paper's networks: 16 channels of 32 x 32, 64 of 8 x 8, and a widest
dense layer of 141 units.
Run: python -m benchmarks dac
"""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import Line, eager_and_compiled, passes, race, setting
from stages.ops.dac import dac_conv2d, dac_linear
from stages.training.process import peak_memory_bytes, reset_peak_memory

BATCH, WIDTH, ROWS = 16, 141, 1024
MEMORY_BATCH = 64


def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Use each output channel as its own group over all activated inputs, with the expansion in memory."""
    out, inputs = bias.shape
    activated = (bias[:, :, None, None] + x.unsqueeze(1)).relu().reshape(len(x), out * inputs, *x.shape[2:])
    return F.conv2d(activated, weight, padding=1, groups=out)


def by_input(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Use a depthwise convolution for each input channel, activated for all outputs."""
    out = torch.zeros(())
    for j in range(bias.shape[1]):
        activated = (x[:, j : j + 1] + bias[:, j, None, None]).relu()
        out = out + F.conv2d(activated, weight[:, j : j + 1], padding=1, groups=len(bias))
    return out


def by_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Use an ordinary convolution for each output channel on inputs activated for it, with channels last."""
    x = x.contiguous(memory_format=torch.channels_last)
    maps = [F.conv2d((x + bias[i, :, None, None]).relu(), weight[i : i + 1], padding=1) for i in range(len(bias))]
    return torch.cat(maps, dim=1)


def ordinary(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x.relu(), weight, padding=1)


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return dac_conv2d(x, weight, bias, 1, 1)


def dense_sum(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (weight * (bias + x.unsqueeze(1)).relu()).sum(-1)


def dense_ordinary(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.relu(), weight)


CONVOLUTIONS = {"depthwise by input": by_input, "channels last by output": by_output, "grouped": grouped}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def conv_leaves(batch: int, channels: int, side: int) -> list[Tensor]:
    return [draw(batch, channels, side, side), draw(channels, channels, 3, 3), draw(channels, channels)]


def convolution(channels: int, side: int) -> list[Line]:
    leaves = conv_leaves(BATCH, channels, side)
    what = f"DAC convolution, {channels} channels, {side} x {side}, batch {BATCH}"
    own = passes({"ours": ours}, leaves)
    peers = dict(CONVOLUTIONS)
    if channels == 16:
        peers |= {f"{name}, compiled": torch.compile(peer) for name, peer in CONVOLUTIONS.items()}
    plain = passes(eager_and_compiled("ReLU and convolution", ordinary), leaves)
    return [
        race(own, passes(peers, leaves), rounds=15).line(what, 5.0),
        race(own, plain, rounds=41).cost(f"{what}, against an ordinary layer", 5.0),
    ]


def dense() -> list[Line]:
    leaves = [draw(ROWS, WIDTH), draw(WIDTH, WIDTH), draw(WIDTH, WIDTH)]
    what = f"DAC dense, {WIDTH} units, batch {ROWS}"
    own = passes({"ours": dac_linear}, leaves)
    peer = passes({"multiplication and sum, compiled": torch.compile(dense_sum)}, leaves)
    plain = passes(eager_and_compiled("ReLU and linear", dense_ordinary), leaves)
    return [
        race(own, peer, rounds=41).line(what, 3.0),
        race(own, plain, rounds=41).cost(f"{what}, against an ordinary layer", 3.5),
    ]


def added_bytes(name: str) -> int:
    """Return the bytes that one step adds to the peak memory of this process, which must be new."""
    operator = {"ours": ours, **CONVOLUTIONS}[name]
    leaves = conv_leaves(MEMORY_BATCH, 16, 32)
    small = [leaf[:2].detach().requires_grad_() if place == 0 else leaf for place, leaf in enumerate(leaves)]
    operator(*small).sum().backward()  # load everything that a first call loads
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before = peak_memory_bytes(cpu)
    operator(*leaves).sum().backward()
    return peak_memory_bytes(cpu) - before


def memory() -> Line:
    """Measure in one process per case, so that memory freed by one doesn't serve the next."""
    script = "import sys; from benchmarks.bench_dac import added_bytes; print(added_bytes(sys.argv[1]))"
    sizes = {
        name: int(subprocess.check_output([sys.executable, "-c", script, name])) for name in ("ours", *CONVOLUTIONS)
    }
    own = sizes.pop("ours")
    least = min(sizes, key=lambda name: sizes[name])
    return Line(
        what=f"DAC convolution, 16 channels, batch {MEMORY_BATCH}, peak memory",
        peer=f"{least}: {sizes[least] / 2**20:.0f} MiB",
        ours=f"{own / 2**20:.0f} MiB",
        value=own / sizes[least],
        goal=0.3,
        at_most=True,
        setting=setting("float32"),
    )


def measure() -> list[Line]:
    return [*convolution(16, 32), *convolution(64, 8), memory(), *dense()]
