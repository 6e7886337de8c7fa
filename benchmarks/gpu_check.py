"""Check on a GPU, in a few minutes, everything that training and operators rely on:

    python -m benchmarks.gpu_check [--out results.jsonl]

Needs only torch (at least 2.11), numpy and safetensors. Within the first minute, every network takes a step in every
planned precision. Then it compares operators with float64, TF32 products with their emulation, ten steps of each arm of
the NiNformer paper with the CPU's, and stacks with single networks. Finally it measures images/s in float32, TF32,
bfloat16 and compiled, and peak memory.

Writes one JSON line per measurement. Failures don't stop other checks: all are listed at the end, with exit status 1.
Only an error that breaks the GPU for the whole process, such as an illegal memory access, makes later checks fail, too:
read the first one. On a CPU (`--device cpu`) all sizes are small, so times are meaningless.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_operators, gpu_stacks, gpu_steps, gpu_tf32, planned
from benchmarks.arms import ARMS, build, protocol_for, random_images
from benchmarks.attempt import Lines, attempt, guarded
from stages.device import pick_device
from stages.run import AugmentationSpec, Precision, Protocol, Replicate
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import fit, seeded_model
from stages.training.process import describe_environment, peak_memory_bytes, reset_peak_memory

TOLERANCE = 2e-2  # relative, on the mean loss of ten steps: dropout draws differ between devices
REPLICATE = Replicate(seed=0)
CPU = torch.device("cpu")
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")
Part = tuple[str, Callable[[], Lines]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Amounts to measure; None means everything planned, as printed."""

    step: int | None = None
    batch: int = 128
    rows: int = 50_000
    steps: int = 100


REHEARSAL = Sizes(step=2, batch=2, rows=3000, steps=1)


def train_loss(name: str, data: LabelledImages, protocol: Protocol, device: torch.device) -> float:
    """Return the mean loss of one epoch from the replicate's initial weights."""
    on_device = LabelledImages(data.images.to(device), data.labels.to(device))
    model = seeded_model(lambda: build(name), REPLICATE).to(device)
    return float(fit(model, ImageClassification(on_device, protocol), protocol, REPLICATE).history[0]["train_loss"])


def follows_the_cpu(name: str, device: torch.device) -> dict[str, Any]:
    """Compare the mean loss of ten steps with the CPU's, without crops and flips, which each device draws itself."""
    data = random_images(80, CPU)
    protocol = dataclasses.replace(protocol_for(8, 10), augmentation=AugmentationSpec())
    ours, cpu = (train_loss(name, data, protocol, place) for place in (device, CPU))
    return {"ours": ours, "cpu": cpu, "ok": abs(ours - cpu) <= TOLERANCE * abs(cpu)}


def losses(device: torch.device) -> Lines:
    for name in ARMS:
        yield attempt({"check": "loss follows the CPU's", "arm": name}, partial(follows_the_cpu, name, device))


def images_per_second(
    name: str, device: torch.device, precision: Precision, compiled: bool, sizes: Sizes
) -> dict[str, Any]:
    """Return images per second in the second of two epochs, which excludes compiling and warming up."""
    batch, steps = sizes.batch, sizes.steps
    data = random_images(batch * steps, device)
    protocol = dataclasses.replace(protocol_for(batch, steps, precision=precision, compiled=compiled), epochs=2)
    reset_peak_memory(device)
    model = seeded_model(lambda: build(name), REPLICATE).to(device)
    outcome = fit(model, ImageClassification(data, protocol), protocol, REPLICATE)
    return {
        "value": batch * steps / outcome.epoch_seconds[1],
        "warm_up_seconds": outcome.epoch_seconds[0],
        "peak_memory_bytes": peak_memory_bytes(device),
    }


def rates(device: torch.device, sizes: Sizes) -> Lines:
    for name in ARMS:
        for precision in PRECISIONS:
            for way in ("eager", "compiled"):
                line = {"measurement": "training images/s", "arm": name, "precision": precision, "way": way}
                yield attempt(
                    line, partial(images_per_second, name, device, precision, compiled=way != "eager", sizes=sizes)
                )


def parts(device: torch.device, sizes: Sizes, steps: Sequence[planned.Planned]) -> list[Part]:
    """Return the parts, required checks first."""
    return [
        ("environment", lambda: iter([{"environment": describe_environment(device)}])),
        ("planned steps", lambda: gpu_steps.every_step(device, steps, batch=sizes.step)),
        ("operators", lambda: gpu_operators.correctness(device)),
        ("tf32", lambda: gpu_tf32.products(device)),
        ("losses", lambda: losses(device)),
        ("stacks", lambda: gpu_stacks.trained_stacks(device, rows=sizes.rows)),
        ("rates", lambda: rates(device, sizes)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=Path, default=planned.PATH, help="what is planned (benchmarks.planned)")
    parser.add_argument("--parts", nargs="+", default=[""], help="only parts whose name begins so")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    sizes = REHEARSAL if device.type == "cpu" else Sizes()
    failures, count = [], 0
    with options.out.open("w", encoding="utf-8") as file:
        for name, part in parts(device, sizes, planned.read(options.steps)):
            if not name.startswith(tuple(options.parts)):
                continue
            for line in guarded(name, part):
                count += 1
                text = json.dumps(line)
                print(text, file=file, flush=True)
                print(text, flush=True)
                if not line.get("ok", True):
                    failures.append(text)
    verdict = f"{len(failures)} FAILED:" if failures else "all checks hold"
    print("\n".join([f"{options.out}: {count} lines, {verdict}", *failures]))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
