"""Goals on a CPU, in images per second of a whole training, against the same model eager in float32 on one fixed batch,
without our C++: ViT 2.0 times, Mixer and NiNformer 3.2, HyperBF 2.0, ResNet20 1.6.

They are for a processor with matrix units for bfloat16.  Ours is `fit` with augmentation and all, in float32 (as
evidence is trained) and in bfloat16 where the processor has it, eager and compiled (in float32 only where there is no
bfloat16); the best one counts.  Compiling isn't in the rate.
Run: python -m benchmarks training
"""

from __future__ import annotations

import time

import torch
from torch import nn

from benchmarks.bench_loop import protocol_for, random_images
from benchmarks.timing import Comparison, Line, compare, has_bfloat16, pytorch_alone, training_step
from stages.ops.fast.dropout import with_fast_dropout
from stages.ops.fast.wide_attention import use_wide_attention
from stages.papers import build_model
from stages.params.budget import plan_runs
from stages.params.experiment import load_params
from stages.run import Protocol, Replicate
from stages.training.images import ImageClassification
from stages.training.loop import fit
from stages.training.optimizer import build_optimizer

BATCH, STEPS, REPEATS = 32, 4, 3
# Goals for networks as their papers ran them on CIFAR-100.
GOALS = {
    "ninformer-cifar100.vit": 2.0,
    "ninformer-cifar100.mlp-mixer": 3.2,
    "ninformer-cifar100.ninformer": 3.2,
    "hyperbf-cifar100.hyperbf": 2.0,
    "dac-resnet-cifar100.resnet20-v1": 1.6,
}


def measure() -> list[Line]:
    return [beside_the_plain_model(name) for name in GOALS]


def network(name: str) -> nn.Module:
    experiment, arm = name.split(".")
    params = load_params()
    source = params.datasets[params.experiments[experiment].dataset]
    runs = plan_runs(params.experiments[experiment], params.profiles["paper"], source)
    torch.manual_seed(0)
    return build_model(next(run.model for run in runs if run.arm == arm))


def ways() -> dict[str, Protocol]:
    found = {"eager": protocol_for(BATCH, STEPS)}
    if not has_bfloat16():
        return found | {"compiled": protocol_for(BATCH, STEPS, compiled=True)}
    return found | {
        f"{way}, bfloat16": protocol_for(BATCH, STEPS, precision="bfloat16", compiled=way == "compiled")
        for way in ("eager", "compiled")
    }


def beside_the_plain_model(name: str) -> Line:
    results = {way: against_eager(name, protocol) for way, protocol in ways().items()}
    best = max(results, key=lambda way: results[way][0].ratio)
    result, warm_up = results[best]
    images = BATCH * STEPS
    others = ", ".join(f"{way} {results[way][0].ratio:.2f} ×" for way in results if way != best)
    return Line(
        what=f"training {name}, batches of {BATCH}",
        peer=f"forward, backward, step alone, eager: {images / result.peer_seconds:,.0f} images/s",
        ours=f"{best}: {images / result.ours_seconds:,.0f} images/s, ready after {warm_up:.0f} s; {others}",
        value=result.ratio,
        goal=GOALS[name],
    )


def against_eager(name: str, protocol: Protocol) -> tuple[Comparison, float]:
    """Time both in turn; also returns the wall-clock seconds of our first step."""
    torch.compiler.reset()
    if protocol.precision == "bfloat16":
        use_wide_attention()  # leaves the peer's float32 as it is
    data = random_images(BATCH * STEPS, torch.device("cpu"))
    task = ImageClassification(data, protocol)
    model, plain = with_fast_dropout(network(name)), network(name)
    step = training_step(plain, build_optimizer(plain, protocol.optimizer), batch=BATCH, classes=100)

    def bare() -> None:
        with pytorch_alone():
            for _ in range(STEPS):
                step()

    def ours() -> None:
        fit(model, task, protocol, Replicate(seed=0))

    started = time.perf_counter()
    ours()
    warm_up = time.perf_counter() - started
    return compare(ours, bare, repeats=REPEATS), warm_up
