"""What a GPU must show for DAC's convolution: values and gradients, time and memory beside ReLU and convolution.

Goals at batch 128, forward and backward: at most 4 times the plain one's time at 16 channels of 32 x 32, 8 times at 64
of 8 x 8, and 1.3 times its memory.  Part of `benchmarks.gpu_check`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import compare
from stages.ops.dac import dac_conv2d, dac_conv2d_reference
from stages.training.environment import peak_memory_bytes, reset_peak_memory

SHAPES = ((16, 32, 4.0), (64, 8, 8.0))  # channels, side, goal of time
MEMORY_GOAL = 1.3
ERRORS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest value: eight bits of mantissa, sums of hundreds


def leaves(batch: int, channels: int, side: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, channels, side, side), (channels, channels, 3, 3), (channels, channels)
    return [torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in shapes]


def value_and_gradients(operator: Callable[..., Tensor], tensors: list[Tensor], stride: int) -> list[Tensor]:
    out = operator(*tensors, stride, 1)
    return [out.detach(), *torch.autograd.grad(out.float().square().mean(), tensors)]


def correctness(device: torch.device) -> list[dict[str, Any]]:
    """Largest error against float64 on the CPU, relative to the largest value, of the result and each gradient."""
    lines = []
    for dtype, allowed in ERRORS.items():
        for stride in (1, 2):
            tensors = leaves(2, 20, 9, device, dtype)
            doubles = [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]
            pairs = zip(
                value_and_gradients(dac_conv2d, tensors, stride),
                value_and_gradients(dac_conv2d_reference, doubles, stride),
                strict=True,
            )
            errors = [float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in pairs]
            found = {"check": "DAC on the device equals float64", "dtype": str(dtype), "stride": stride}
            lines.append(found | {"errors": errors, "ok": max(errors) <= allowed})
    return lines


def added_bytes(run: Callable[[], None], device: torch.device) -> int:
    reset_peak_memory(device)
    before = peak_memory_bytes(device)
    run()
    return peak_memory_bytes(device) - before


def speed(device: torch.device, batch: int = 128, repeats: int = 30) -> list[dict[str, Any]]:
    lines = []
    for channels, side, goal in SHAPES:
        tensors = leaves(batch, channels, side, device, torch.bfloat16)

        def step(operator: Callable[..., Tensor], tensors: list[Tensor] = tensors) -> Callable[[], None]:
            def run() -> None:
                for tensor in tensors:
                    tensor.grad = None
                out = operator(*tensors)
                out.backward(torch.ones_like(out))

            return run

        ours, plain = (
            step(lambda x, w, b: dac_conv2d(x, w, b, 1, 1)),
            step(lambda x, w, b: F.conv2d(x.relu(), w, None, 1, 1)),
        )
        result = compare(ours, plain, repeats=repeats, device=device)
        memory = added_bytes(ours, device) / max(1, added_bytes(plain, device))
        found = {"measurement": "DAC convolution beside ReLU and convolution, bfloat16", "channels": channels}
        times = {"ours_ms": 1000 * result.ours_seconds, "peer_ms": 1000 * result.peer_seconds}
        ratios = {"value": 1 / result.ratio, "goal": goal, "memory": memory, "memory_goal": MEMORY_GOAL}
        lines.append(found | times | ratios)
    return lines
