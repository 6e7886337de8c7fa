"""Goals: whole trainings on a CPU never slower than the fastest script, ResNet20 and HyperBF 1.2 times as fast.

Compares images per second of the same model in the same type; the factor of 1.2 applies in float32. Ours is `fit`,
eager and compiled. A script uses crops gathered from unfolded windows, forward, backward, a fused Adam and sums of
losses and correct answers with PyTorch alone, eager and compiled; ResNet20 also with channels last, HyperBF with
attention by products, NiNformer's arms with a faster dropout. Types are
float32, as in evidence, and bfloat16 if the processor supports it. The rate excludes compiling. Limit: all but the
script's products and convolutions costs nothing.
Run: python -m benchmarks training
"""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.arms import protocol_for, random_images
from benchmarks.timing import Line, Step, compiled_apart, has_bfloat16, race, without_cpp
from stages.ops import rbf
from stages.ops.fast.dropout import with_fast_dropout
from stages.ops.fast.wide_attention import use_wide_attention
from stages.papers import build_model
from stages.params.experiment import load_params, plan_runs
from stages.run import Replicate
from stages.training.images import ImageClassification
from stages.training.loop import fit
from stages.training.protocol import build_optimizer

BATCH, ROUNDS = 32, 5
# Enough steps to make one-time costs of a training negligible; an epoch of CIFAR has about 1,500.
STEPS, STEPS_OF_SMALL = 8, 96
SMALL = ("dac-resnet-cifar100.resnet20-v1",)
# Goals for networks as their papers ran them on CIFAR-100.
GOALS = {
    "ninformer-cifar100.vit": 1.0,
    "ninformer-cifar100.mlp-mixer": 1.0,
    "ninformer-cifar100.ninformer": 1.0,
    "hyperbf-cifar100.hyperbf": 1.2,
    "dac-resnet-cifar100.resnet20-v1": 1.2,
}


def measure() -> list[Line]:
    types = ("float32", "bfloat16") if has_bfloat16() else ("float32",)
    return [compare_with_scripts(name, dtype) for dtype in types for name in GOALS]


def network(name: str) -> nn.Module:
    experiment, arm = name.split(".")
    params = load_params()
    source = params.datasets[params.experiments[experiment].dataset]
    runs = plan_runs(params.experiments[experiment], params.profiles["paper"], source)
    torch.manual_seed(0)
    return build_model(next(run.spec.model for run in runs if run.name.arm == arm))


def steps_of(name: str) -> int:
    return STEPS_OF_SMALL if name in SMALL else STEPS


def windows(images: Tensor) -> Tensor:
    """Return all crops of all images, [N, C, 9, 9, 32, 32], without a copy."""
    return F.pad(images, [4] * 4).unfold(2, 32, 1).unfold(3, 32, 1)


def cropped(crops: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """Crop and flip a batch at random by one gather, float32 [B, C, 32, 32]."""
    top, left = torch.randint(0, 9, (2, len(rows)), generator=generator)
    batch = crops[rows, :, top, left]
    is_flipped = torch.rand(len(rows), generator=generator) < 0.5
    batch = torch.where(is_flipped[:, None, None, None], batch.flip(-1), batch)
    return batch.float().div_(255).sub_(0.5).div_(0.5)


def as_trained(name: str, dtype: str, way: str) -> Step:
    """Run some steps of a complete training."""
    steps = steps_of(name)
    protocol = protocol_for(BATCH, steps, precision=dtype, compiled=way == "compiled")
    task = ImageClassification(random_images(BATCH * steps, torch.device("cpu")), protocol)
    return partial(fit, with_fast_dropout(network(name)), task, protocol, Replicate(seed=0))


class ByteDropout(nn.Dropout):
    """Dropout that compares one random byte per element, eight times as fast to draw as PyTorch's numbers."""

    def forward(self, x: Tensor) -> Tensor:
        draws = torch.empty(x.numel() // 8 + 1, dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
        kept = draws[: x.numel()].view_as(x) < round(256 * (1 - self.p))
        return x * kept / (1 - self.p)


def attention_by_products(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *metrics: Tensor | None) -> Tensor:
    """HyperBF attention by a product, a softmax, and a product; terms of the query alone cancel."""
    assert metrics == (None, None)
    return (beta * (2 * q @ k.mT - k.square().sum(-1).unsqueeze(-2))).softmax(-1).to(v.dtype) @ v


def as_a_script(name: str, dtype: str, way: str, memory_format: torch.memory_format, *, has_tricks: bool) -> Step:
    """Run as many steps with PyTorch alone; `has_tricks`: with `ByteDropout` and `attention_by_products`."""
    model = network(name).to(memory_format=memory_format)
    for module in model.modules() if has_tricks else ():
        if type(module) is nn.Dropout:
            module.__class__ = ByteDropout
    adam = build_optimizer(model, protocol_for(BATCH, steps_of(name)).optimizer, fused=True)
    forward = compiled_apart(model) if way == "compiled" else model
    data = random_images(BATCH * steps_of(name), torch.device("cpu"))
    crops, generator = windows(data.images), torch.Generator().manual_seed(0)

    def epoch() -> float:
        losses, right = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for rows in torch.randperm(len(data.images), generator=generator).split(BATCH):
            images = cropped(crops, rows, generator).contiguous(memory_format=memory_format)
            adam.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                outputs = forward(images)
                loss = F.cross_entropy(outputs, data.labels[rows])
            loss.backward()
            adam.step()
            losses += loss.detach()
            right += (outputs.detach().argmax(1) == data.labels[rows]).sum()
        return losses.item() + right.item()

    def with_products() -> float:
        with patch.object(rbf, "gaussian_attention", attention_by_products):
            return epoch()

    return without_cpp(with_products if has_tricks else epoch)


def compare_with_scripts(name: str, dtype: str) -> Line:
    torch.compiler.reset()
    if dtype == "bfloat16":
        use_wide_attention()  # also for scripts, because it can't be turned off again
    scripts = {"": partial(as_a_script, memory_format=torch.contiguous_format, has_tricks=False)}
    if "resnet" in name:
        scripts[", channels last"] = partial(as_a_script, memory_format=torch.channels_last, has_tricks=False)
    else:
        words = "attention by products" if "hyperbf" in name else "dropout by bytes"
        scripts[f", {words}"] = partial(as_a_script, memory_format=torch.contiguous_format, has_tricks=True)
    ways = ("eager", "compiled")
    ours = {way: as_trained(name, dtype, way) for way in ways}
    peers = {f"script, {way}{words}": script(name, dtype, way) for way in ways for words, script in scripts.items()}
    goal = GOALS[name] if dtype == "float32" else 1.0
    result = race(ours, peers, rounds=ROUNDS)
    return result.line(
        f"training {name}, batches of {BATCH}", goal, dtype=dtype, images=BATCH * steps_of(name), same_products=True
    )
