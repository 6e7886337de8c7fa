"""Goals for DAC's layers on a CPU, forward and backward: at least 6 times faster than the convolution written with
PyTorch's grouped one, at most 5 times the time of an ordinary ReLU and convolution, at most 0.3 of the former's peak
memory; dense: 25 times, 3.5 times, and 0.1.

Sizes of the paper's networks: 16 channels of 32 x 32 and 64 of 8 x 8; the widest dense layer has 141 units.
Run: python -m benchmarks dac
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import Line, compare, milliseconds
from stages.ops.dac import dac_conv2d, dac_linear
from stages.training.environment import peak_memory_bytes, reset_peak_memory

BATCH, WIDTH, ROWS = 16, 141, 1024
MEMORY_BATCH = 64
Operator = Callable[[Tensor, Tensor, Tensor], Tensor]


def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each output channel as its own group over all inputs, activated for it: the expansion in memory."""
    out, inputs = bias.shape
    activated = (bias[:, :, None, None] + x.unsqueeze(1)).relu().reshape(len(x), out * inputs, *x.shape[2:])
    return F.conv2d(activated, weight, padding=1, groups=out)


def ordinary(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x.relu(), weight, padding=1)


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return dac_conv2d(x, weight, bias, 1, 1)


def dense_sum(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("oi,boi->bo", weight, (bias + x.unsqueeze(1)).relu())


def dense_ordinary(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.relu(), weight)


def lines(
    what: str, leaves: list[Tensor], operators: Mapping[str, tuple[Operator, float, bool]], own: Operator
) -> list[Line]:
    """One line per peer: `{name: (operator, goal, at most)}`; leaves are x, weight and bias."""

    def step(operator: Operator) -> Callable[[], None]:
        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            operator(*leaves).sum().backward()

        return run

    found = []
    for name, (operator, goal, at_most) in operators.items():
        result = compare(step(own), step(operator), repeats=5)
        found.append(
            Line(
                what=what,
                peer=f"{name}: {milliseconds(result.peer_seconds)}",
                ours=milliseconds(result.ours_seconds),
                value=1 / result.ratio if at_most else result.ratio,
                goal=goal,
                at_most=at_most,
                unit="× its time" if at_most else "× faster",
            )
        )
    return found


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def conv_leaves(batch: int, channels: int, side: int) -> list[Tensor]:
    return [draw(batch, channels, side, side), draw(channels, channels, 3, 3), draw(channels, channels)]


def dense_leaves() -> list[Tensor]:
    return [draw(ROWS, WIDTH), draw(WIDTH, WIDTH), draw(WIDTH, WIDTH)]


def added_bytes(name: str) -> int:
    """Bytes that one step adds to the peak size of this process, which has to be a fresh one."""
    operator: Operator = {"grouped": grouped, "ours": ours, "dense_sum": dense_sum, "dac_linear": dac_linear}[name]
    leaves = dense_leaves() if name in ("dense_sum", "dac_linear") else conv_leaves(MEMORY_BATCH, 16, 32)
    small = [leaf[:2].detach().requires_grad_() if place == 0 else leaf for place, leaf in enumerate(leaves)]
    operator(*small).sum().backward()  # loads everything that a first call loads
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before = peak_memory_bytes(cpu)
    operator(*leaves).sum().backward()
    return peak_memory_bytes(cpu) - before


def memory(what: str, own: str, peer: str, goal: float) -> Line:
    """One process per measurement, so that memory freed by one doesn't serve the other."""
    script = "import sys; from benchmarks.bench_dac import added_bytes; print(added_bytes(sys.argv[1]))"
    sizes = [int(subprocess.check_output([sys.executable, "-c", script, name])) for name in (own, peer)]
    shown = [f"{size / 2**20:.0f} MiB" for size in sizes]
    return Line(
        what=f"{what}, peak memory",
        peer=f"{peer}: {shown[1]}",
        ours=shown[0],
        value=sizes[0] / sizes[1],
        goal=goal,
        at_most=True,
    )


def measure() -> list[Line]:
    found = []
    for channels, side in ((16, 32), (64, 8)):
        peers = {"grouped convolution": (grouped, 6.0, False), "ReLU and convolution": (ordinary, 5.0, True)}
        what = f"DAC convolution, {channels} channels, {side} x {side}, batch {BATCH}"
        found += lines(what, conv_leaves(BATCH, channels, side), peers, ours)
    found.append(memory(f"DAC convolution, 16 channels, batch {MEMORY_BATCH}", "ours", "grouped", 0.3))
    peers = {"einsum": (dense_sum, 25.0, False), "ReLU and linear": (dense_ordinary, 3.5, True)}
    found += lines(f"DAC dense, {WIDTH} units, batch {ROWS}", dense_leaves(), peers, dac_linear)
    return [*found, memory(f"DAC dense, {WIDTH} units, batch {ROWS}", "dac_linear", "dense_sum", 0.1)]
