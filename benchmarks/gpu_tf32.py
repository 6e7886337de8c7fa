"""Compare TF32 products on a GPU with their emulation (`stages.training.tf32`). Part of `benchmarks.gpu_check`.

Products with the identity reveal the device's rounding exactly. The emulation rounds to nearest, ties to even; devices
may round ties up or truncate. Then an operand differs from the emulated one by at most `ulps` in its tenth bit, so a
product differs by at most 2 · ulps · 2^-10 of Σ|a||b|, plus a little for another order of sums. TF32 that is silently
off fails, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.attempt import Lines, attempt
from stages.run import OptimizerSpec, Protocol
from stages.training.tf32 import products_of

PROTOCOL = Protocol(optimizer=OptimizerSpec(name="sgd", lr=0.1), batch_size=1, epochs=1, precision="tf32")
LAST = 2.0**-10
"""The last bit of the mantissa of numbers in [1, 2)."""
# Results of each rule for 1 + 0.5, 1 + 1.5 and 1 + 1.75 last bits, and its allowed distance from the emulation in last
# bits.
RULES = {(0, 2, 2): ("to nearest, ties to even", 0.0), (1, 2, 2): ("to nearest, ties up", 1.0), (0, 1, 1): ("cut", 1.0)}
ACCUMULATED = 2.0**-18
"""Relative to Σ|a||b|: float32 sums of hundreds in another order."""
Product = Callable[[Tensor, Tensor], Tensor]
PRODUCTS: dict[str, tuple[Product, Sequence[int], Sequence[int]]] = {
    "a linear layer": (F.linear, (256, 384), (512, 384)),
    "products of many matrices": (torch.bmm, (16, 64, 96), (16, 96, 128)),
    "a convolution": (partial(F.conv2d, padding=1), (16, 32, 16, 16), (64, 32, 3, 3)),
}


def products(device: torch.device) -> Lines:
    found = attempt({"check": "TF32 rounds operands to ten bits of mantissa"}, partial(rule_of, device))
    yield found
    for name, (product, *shapes) in PRODUCTS.items():
        line = {"check": f"TF32, {name} and its gradients: the device follows the emulation"}
        yield attempt(line, partial(compare_with_emulation, product, shapes, device, found.get("ulps", 1.0)))


def rule_of(device: torch.device) -> dict[str, Any]:
    """Multiply numbers just above 1 by the identity, and name the rounding rule that the results show."""
    parts = torch.tensor([0.5, 1.5, 1.75])
    given = torch.ones(128, 128)
    given[:, :3] += parts * LAST
    with products_of(PROTOCOL, device)():
        returned = given.to(device) @ torch.eye(128, device=device)
    steps = tuple(((returned[0, :3].cpu() - 1) / LAST).tolist())
    rule, ulps = RULES.get(steps, ("unknown", 1.0))  # type: ignore[call-overload]
    return {"rounding": rule, "left_of_0.5_1.5_1.75": steps, "ulps": ulps, "ok": steps in RULES}


def compare_with_emulation(
    product: Product, shapes: Sequence[Sequence[int]], device: torch.device, ulps: float
) -> dict[str, Any]:
    """Return the largest differences of product and gradients from the emulation and float32, relative to Σ|a||b|."""
    random = torch.Generator().manual_seed(0)
    operands = [torch.randn(*shape, generator=random) for shape in shapes]
    back = torch.randn(product(*operands).shape, generator=random)
    cpu = torch.device("cpu")
    emulated = results(product, operands, back, products_of(PROTOCOL, cpu), cpu)
    ours = results(product, operands, back, products_of(PROTOCOL, device), device)
    exact = results(product, [one.double() for one in operands], back.double(), products_of(PROTOCOL, cpu), cpu)
    bound = results(product, [one.double().abs() for one in operands], back.double().abs(), torch.enable_grad, cpu)
    differences, roundings = (
        [float(((a - b).abs() / c).max()) for a, b, c in zip(ours, others, bound, strict=True)]
        for others in (emulated, exact)
    )
    allowed = 2 * ulps * LAST + ACCUMULATED
    is_rounded = min(roundings) > ACCUMULATED
    ok = max(differences) <= allowed and is_rounded
    return {"differences": differences, "allowed": allowed, "from_float64": roundings, "ok": ok}


def results(
    product: Product, operands: Sequence[Tensor], back: Tensor, block: Callable[[], Any], device: torch.device
) -> list[Tensor]:
    """Return the product and its gradients for `back`, as float64 on the CPU."""
    leaves = [one.to(device).requires_grad_() for one in operands]
    with block():
        out = product(*leaves)
        made = [out.detach(), *torch.autograd.grad(out, leaves, back.to(device))]
    return [one.cpu().double() for one in made]
