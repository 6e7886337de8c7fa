"""Check whole training steps on a GPU: eager, compiled, and compiled into CUDA graphs.

Part of `benchmarks.gpu_check`. Goals on an H100 in bfloat16: ResNet20 takes at most 1.2 ms per step of 128 images, its
DAC version 4 ms; a hundred epochs of the ViT on CIFAR take at most 90 s; GPT-2 small reaches 40 % of the tensor cores'
peak; and stacks of SGEMM's networks are at least 15 times as fast as sequential training, for 64 networks per step and
for the five seeds of a run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.arms import build
from benchmarks.attempt import Lines, attempt
from stages.papers.dac.mlp import DACMLP, MLP
from stages.papers.dac.mlp_stack import Stack
from stages.papers.dac.resnet_v1 import DACResNetV1, ResNetV1
from stages.papers.nmn.aether_gpt import AetherGPT
from stages.papers.nmn.gpt2 import GPT2
from stages.run import OptimizerSpec, Protocol, Replicate, SplitSpec
from stages.training.loop import Outcome, fit, seeded_model
from stages.training.stacked import fit_stack
from stages.training.tables import Regression, TableRows

PEAK = 989e12  # bfloat16 products on an H100, from its data sheet
# Per token, forward and backward: 6 for each weight of a product, and causal attention's halves of T x T.
GPT2_FLOPS = 6 * (12 * 12 * 768**2 + 768 * 50257 + 12 * 1024 * 768)
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "compiled": torch.compile,
    "compiled into graphs": lambda model: torch.compile(model, mode="reduce-overhead"),
}
Step = Callable[[], object]


def training_steps(device: torch.device, *, batch: int = 128, texts: int = 16, repeats: int = 20) -> Lines:
    """Return milliseconds per step of each network, eager and compiled."""
    image = {"image_size": 32, "in_channels": 3, "num_classes": 100, "depth": 20, "width": 16}
    text = {"vocabulary_size": 50257, "context": 1024, "width": 768, "depth": 12, "num_heads": 12, "dropout": 0.0}
    pictures = torch.randn(batch, 3, 32, 32), torch.randint(0, 100, (batch,))
    tokens = torch.randint(0, 50257, (texts, 1024)), torch.randint(0, 50257, (texts, 1024))
    networks: list[tuple[str, Callable[[], nn.Module], tuple[Tensor, Tensor]]] = [
        ("ResNet20", lambda: ResNetV1(**image), pictures),
        ("DAC ResNet20", lambda: DACResNetV1(**image), pictures),
        ("ViT", lambda: build("ViT"), pictures),
        ("GPT-2 small", lambda: GPT2(**text), tokens),
        ("AetherGPT", lambda: AetherGPT(**text, attention="yat", scale="guide", epsilon=0.1), tokens),
    ]
    for name, make, (inputs, targets) in networks:
        # A text model's steps are long enough to hide what graphs save.
        for way in WAYS if inputs is pictures[0] else ("eager", "compiled"):

            def measured(
                make: Callable[[], nn.Module] = make, way: str = way, rows: Any = (inputs, targets)
            ) -> dict[str, Any]:
                return {"seconds": median_seconds(whole_step(make(), way, *rows, device), device, repeats)}

            line = attempt({"measurement": "training step, bfloat16, ms", "network": name, "way": way}, measured)
            seconds = line.pop("seconds", None)
            if seconds is not None:
                line["value"] = 1000 * seconds
                if name == "ViT":
                    line["hundred_epochs_of_50000_seconds"] = 100 * 50_000 / len(inputs) * seconds
                if name == "GPT-2 small":
                    line["share_of_peak"] = GPT2_FLOPS * inputs.numel() / seconds / PEAK
            yield line


def whole_step(model: nn.Module, way: str, inputs: Tensor, targets: Tensor, device: torch.device) -> Step:
    """Return one forward pass, loss, backward pass and update."""
    model = model.to(device)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = WAYS[way](model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = forward(inputs)
        F.cross_entropy(logits.float().flatten(0, -2), targets.flatten()).backward()
        optimizer.step()

    return step


def stacks(device: torch.device, *, count: int = 64, repeats: int = 20) -> Lines:
    """Yield steps of one network per second for SGEMM's: alone, and as a stack of `count`."""
    features, targets = torch.randn(1024, 14, device=device), torch.randn(1024, device=device)
    for width in (25, 100):
        networks = [MLP(in_features=14, depth=6, width=width).to(device) for _ in range(count)]
        line = {"measurement": "SGEMM, steps of one network a second", "width": width}
        alone = 1 / median_seconds(single_step(networks[0], features, targets), device, repeats)
        yield line | {"way": "alone, eager", "value": alone}
        for way in WAYS:

            def measured(networks: list[MLP] = networks, way: str = way) -> dict[str, Any]:
                return {"seconds": median_seconds(stacked_step(networks, way, features, targets), device, repeats)}

            found = attempt(line | {"way": way, "networks": count}, measured)
            seconds = found.pop("seconds", None)
            if seconds is not None:
                found |= {"value": count / seconds, "times_alone": count / seconds / alone, "goal": 15.0}
            yield found


def trained_stacks(device: torch.device, *, count: int = 5, rows: int = 50_000) -> Lines:
    """Compare `fit_stack` with the CPU's losses, which it must follow, and with `fit` on the GPU."""
    protocol = Protocol(
        optimizer=OptimizerSpec(name="adam", lr=0.001, weight_decay=0.00002, decay="kernels"),
        batch_size=1024,
        epochs=3,
        split=SplitSpec(kind="fraction", fraction=0.17647),
    )
    replicates = [Replicate(seed=seed) for seed in range(count)]
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 14, generator=generator)
    targets = features.sum(1).sin()

    def task(place: torch.device) -> Regression:
        return Regression(TableRows(features.to(place), targets.to(place)))

    def networks(kind: type[nn.Module], place: torch.device, broken: int) -> list[nn.Module]:
        built = [seeded_model(lambda: kind(in_features=14, depth=5, width=25), one).to(place) for one in replicates]
        with torch.no_grad():
            for network in built[:broken]:
                network.get_parameter("head.weight").mul_(1e30)
        return built

    def stacked(kind: type[nn.Module], place: torch.device, broken: int, *, is_compiled: bool) -> list[Outcome]:
        built = networks(kind, place, broken)
        rows = task(place)
        trained = fit_stack(built, Stack, rows, protocol, replicates, is_compiled=is_compiled, test=rows)
        return [outcome for outcome, _ in trained]

    def follow_cpu(kind: type[nn.Module], way: str, broken: int, wanted: list[float], alone: float) -> dict[str, Any]:
        found = stacked(kind, device, broken, is_compiled=way != "eager")
        left = [one for one in found if one.history]
        difference = max(abs(ours / cpu - 1) for ours, cpu in zip(_losses(left), wanted, strict=True))
        times = len(left) * alone / sum(one.epoch_seconds[-1] for one in left)
        return {"times_alone": times, "difference": difference, "ok": difference < 0.02}

    graphs = "compiled into graphs"
    for kind in (MLP, DACMLP):
        alone = fit(networks(kind, device, 0)[0], task(device), protocol, replicates[0]).epoch_seconds[-1]
        # Once most have diverged, the rest is recompiled.
        for broken, ways in ((0, ("eager", graphs)), (count // 2 + 1, (graphs,))):
            wanted = _losses(stacked(kind, torch.device("cpu"), broken, is_compiled=False))
            for way in ways:
                line = {"check": "a stack's losses follow the CPU's", "network": kind.__name__, "networks": count}
                line |= {"diverging": broken, "way": way, "goal": 15.0, "ok": False}
                yield attempt(line, partial(follow_cpu, kind, way, broken, wanted, alone))


def _losses(outcomes: list[Outcome]) -> list[float]:
    return [row[f"{part}_loss"] for one in outcomes for row in one.history for part in ("train", "val", "test")]


def single_step(model: MLP, features: Tensor, targets: Tensor) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(features).flatten(), targets).backward()
        optimizer.step()

    return step


def stacked_step(networks: list[MLP], way: str, features: Tensor, targets: Tensor) -> Step:
    stack = Stack(networks).to(features.device)
    optimizer = torch.optim.Adam(stack.parameters(), lr=0.01, fused=True)
    losses = WAYS[way](stack.losses)
    inputs = features.expand(len(networks), *features.shape).contiguous()
    wanted = targets.expand(len(networks), *targets.shape).contiguous()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses(inputs, wanted).sum().backward()
        optimizer.step()

    return step


def median_seconds(step: Step, device: torch.device, repeats: int) -> float:
    """Return the median after three steps that compile, record graphs and warm up."""
    times = []
    for index in range(repeats + 3):
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index >= 3:
            times.append(time.perf_counter() - started)
    return statistics.median(times)
