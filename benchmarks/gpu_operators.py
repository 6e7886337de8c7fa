"""Check DAC's convolution and Yat attention on a GPU: values, gradients, time and memory next to the plain form.

Part of `benchmarks.gpu_check`. Goals, forward and backward: DAC at batch 128 takes at most 4 times ReLU and convolution
at 16 channels of 32 x 32, 8 times at 64 of 8 x 8, and 1.3 times the memory; Yat attention at GPT-2's sizes takes at
most 1.2 times PyTorch's plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import timing
from benchmarks.attempt import Lines, attempt
from stages.ops.dac import dac_conv2d, dac_conv2d_reference
from stages.ops.yat_attention import yat_attention
from stages.training.process import peak_memory_bytes, reset_peak_memory

Operator = Callable[..., Tensor]
ERRORS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest value: eight bits of mantissa, sums of hundreds


def leaves(shapes: Sequence[tuple[int, ...]], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]


def value_and_gradients(operator: Operator, tensors: list[Tensor]) -> list[Tensor]:
    out = operator(*tensors)
    return [out.detach(), *torch.autograd.grad(out.float().square().mean(), tensors)]


def masked_yat_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Use the plain form, because no fast path handles a mask."""
    return yat_attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril())


def correctness(device: torch.device) -> Lines:
    """Return the largest relative errors of the result and its gradients against float64 on the CPU."""
    for dtype, allowed in ERRORS.items():
        cases: list[tuple[str, Sequence[tuple[int, ...]], Operator, Operator]] = [
            (
                f"DAC, stride {stride}",
                [(2, 20, 9, 9), (20, 20, 3, 3), (20, 20)],
                lambda *tensors, stride=stride: dac_conv2d(*tensors, stride, 1),
                lambda *tensors, stride=stride: dac_conv2d_reference(*tensors, stride, 1),
            )
            for stride in (1, 2)
        ]
        cases.append(
            (
                "Yat attention, causal",
                [(2, 3, 130, 64)] * 3,
                lambda *tensors: yat_attention(*tensors, is_causal=True),
                masked_yat_attention,
            )
        )
        for name, shapes, fast, plain in cases:
            line = {"check": f"{name}: the device equals float64", "dtype": str(dtype)}
            yield attempt(line, partial(errors_of, fast, plain, leaves(shapes, device, dtype), allowed))


def errors_of(fast: Operator, plain: Operator, tensors: list[Tensor], allowed: float) -> dict[str, Any]:
    doubles = [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]
    pairs = zip(value_and_gradients(fast, tensors), value_and_gradients(plain, doubles), strict=True)
    errors = [float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in pairs]
    return {"errors": errors, "ok": max(errors) <= allowed}


@dataclass(frozen=True)
class Race:
    """Our operator and the plain one on the same leaves, in bfloat16; goals are multiples of the plain one's cost."""

    name: str
    shapes: Sequence[tuple[int, ...]]
    ours: Operator
    plain: Operator
    goal: float
    memory_goal: float


def races(batch: int = 128, tokens: int = 1024) -> list[Race]:
    def dac(channels: int, side: int, goal: float) -> Race:
        return Race(
            f"DAC convolution against ReLU and convolution, {channels} channels of {side} x {side}",
            [(batch, channels, side, side), (channels, channels, 3, 3), (channels, channels)],
            lambda x, w, b: dac_conv2d(x, w, b, 1, 1),
            lambda x, w, b: F.conv2d(x.relu(), w, None, 1, 1),
            goal,
            1.3,
        )

    attention = Race(
        f"Yat attention against scaled_dot_product_attention, causal, 12 heads of 64, {tokens:,} tokens",
        [(max(1, batch // 8), 12, tokens, 64)] * 3,
        lambda q, k, v: yat_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        1.2,
        1.3,
    )
    return [dac(16, 32, 4.0), dac(64, 8, 8.0), attention]


def speed(device: torch.device, *, batch: int = 128, tokens: int = 1024, repeats: int = 30) -> Lines:
    for race in races(batch, tokens):
        yield attempt({"measurement": f"{race.name}, bfloat16"}, partial(run_race, race, device, repeats))


def run_race(race: Race, device: torch.device, repeats: int) -> dict[str, Any]:
    tensors = leaves(race.shapes, device, torch.bfloat16)
    ours, plain = (step(operator, tensors) for operator in (race.ours, race.plain))
    result = timing.race({"ours": ours}, {"plain": plain}, rounds=repeats, clock=timing.clock_of(device))
    memory = added_bytes(ours, device) / max(1, added_bytes(plain, device))
    times = {"ours_ms": 1000 * result.ours["ours"], "peer_ms": 1000 * result.peers["plain"]}
    return times | {"value": 1 / result.ratio, "goal": race.goal, "memory": memory, "memory_goal": race.memory_goal}


def step(operator: Operator, tensors: list[Tensor]) -> Callable[[], None]:
    """Return one forward and backward pass."""

    def run() -> None:
        for tensor in tensors:
            tensor.grad = None
        out = operator(*tensors)
        out.backward(torch.ones_like(out))

    return run


def added_bytes(run: Callable[[], None], device: torch.device) -> int:
    reset_peak_memory(device)
    before = peak_memory_bytes(device)
    run()
    return peak_memory_bytes(device) - before
