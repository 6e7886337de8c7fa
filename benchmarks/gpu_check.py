"""Everything that a GPU must show for the training core and its operators, in one command that takes a few minutes:

    python -m benchmarks.gpu_check [--data data/processed/cifar100] [--out results.jsonl]

Needs torch (2.11 at least), numpy and safetensors only.  Checks, for each arm of the NiNformer paper, that the loss
curve on the GPU follows the CPU's over ten steps; then measures images/s in float32, bfloat16 and compiled, and peak
memory.  Writes a JSON line a measurement and ends with status 1 if a check fails.  With `--data`, trains the ViT ten
epochs on real data.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_operators, gpu_training
from benchmarks.bench_loop import ARMS, build, protocol_for, random_images
from stages.datasets.packed import read_images
from stages.device import pick_device
from stages.run import Protocol, Replicate
from stages.training.environment import describe_environment, peak_memory_bytes, reset_peak_memory
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import fit, measure, seeded_model

TOLERANCE = 2e-2  # relative, on the mean loss of ten steps: dropout draws differ between devices
REPLICATE = Replicate(seed=0)


def train_loss(name: str, data: LabelledImages, protocol: Protocol, device: torch.device) -> float:
    """Mean loss of one epoch, starting from the replicate's initial weights."""
    on_device = LabelledImages(data.images.to(device), data.labels.to(device))
    model = seeded_model(lambda: build(name), REPLICATE).to(device)
    return float(fit(model, ImageClassification(on_device, protocol), protocol, REPLICATE).history[0]["train_loss"])


def images_per_second(name: str, device: torch.device, *, precision: str, compiled: bool, steps: int) -> dict[str, Any]:
    """Images per second in the second of two epochs, so that compiling and warming up are not counted."""
    data = random_images(128 * steps, device)
    protocol = dataclasses.replace(protocol_for(128, steps, precision=precision, compiled=compiled), epochs=2)
    reset_peak_memory(device)
    model = seeded_model(lambda: build(name), REPLICATE).to(device)
    outcome = fit(model, ImageClassification(data, protocol), protocol, REPLICATE)
    return {
        "measurement": "training images/s",
        "arm": name,
        "precision": precision,
        "compile": compiled,
        "value": 128 * steps / outcome.epoch_seconds[1],
        "warm_up_seconds": outcome.epoch_seconds[0],
        "peak_memory_bytes": peak_memory_bytes(device),
    }


def real_epochs(folder: Path, device: torch.device) -> dict[str, Any]:
    """Ten printed epochs of the ViT on real images: seconds, and the accuracy and loss reached."""
    sets = [read_images(folder, "train"), read_images(folder, "test")]
    protocol = dataclasses.replace(protocol_for(128, 1), epochs=10, steps_per_epoch=None)
    train_task, test_task = (
        ImageClassification(
            LabelledImages(torch.from_numpy(s.images).to(device), torch.from_numpy(s.labels).to(device)), protocol
        )
        for s in sets
    )
    model = seeded_model(lambda: build("ViT"), REPLICATE).to(device)
    started = time.monotonic()
    fit(model, train_task, protocol, REPLICATE)
    scores = measure(model, test_task)
    return {
        "measurement": "ten epochs of CIFAR-100, ViT",
        "value": time.monotonic() - started,
        "test_loss": scores["loss"],
        "test_accuracy": scores["accuracy"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    options = parser.parse_args()
    device = pick_device(options.device)
    failed, count = False, 0
    with options.out.open("w") as file:
        for line in lines(device, options.steps, options.data):
            print(json.dumps(line), file=file, flush=True)
            print(json.dumps(line), flush=True)
            failed |= not line.get("ok", True)
            count += 1
    print(f"{options.out}: {count} lines, {'a check FAILED' if failed else 'all checks hold'}")
    return int(failed)


def lines(device: torch.device, steps: int, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Yield one by one, so that finished measurements survive if the rest is cut off."""
    yield {"environment": describe_environment(device)}
    yield from gpu_operators.correctness(device)
    yield from gpu_operators.speed(device)
    data = random_images(80, torch.device("cpu"))
    for name in ARMS:
        ours, reference = (train_loss(name, data, protocol_for(8, 10), d) for d in (device, torch.device("cpu")))
        agrees = abs(ours - reference) <= TOLERANCE * abs(reference)
        yield {"check": "loss follows the CPU's", "arm": name, "ours": ours, "cpu": reference, "ok": agrees}
    yield from gpu_training.stacks(device)
    yield from gpu_training.trained_stacks(device)
    yield from gpu_training.training_steps(device)
    if folder:
        yield real_epochs(folder, device)
    for name in ARMS:
        for precision, compiled in (("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)):
            yield images_per_second(name, device, precision=precision, compiled=compiled, steps=steps)


if __name__ == "__main__":
    sys.exit(main())
