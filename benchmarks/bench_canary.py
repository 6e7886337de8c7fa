"""Goal: no arm's canary takes more than a second (decision 0078).

A process trains the canary before the first run of an arm. There is no peer. Covers one arm of `params/` per model and
optimiser.
Run: python -m benchmarks canary
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.timing import Line, setting
from stages.datasets.packed import PackedInfo
from stages.datasets.prepare import class_names
from stages.params.experiment import load_params, plan_runs
from stages.training.canary import Canary, canary_of

ROOT = Path(__file__).resolve().parent.parent


def measure() -> list[Line]:
    measured = list(canaries())
    name, _, seconds = max(measured, key=lambda item: item[2])
    return [
        Line(
            what=f"slowest canary of {len(measured)} models, {name}",
            peer="–",
            ours=f"{seconds:.2g} s",
            value=seconds,
            goal=1.0,
            at_most=True,
            unit=" s",
            setting=setting("float32"),
        )
    ]


def canaries() -> Iterator[tuple[str, Canary, float]]:
    """Yield name, canary and CPU seconds of one arm per model and optimiser; networks of tables also in a stack."""
    params, seen = load_params(ROOT), set()
    for experiment in params.experiments.values():
        source = params.datasets[experiment.dataset]
        info = PackedInfo(
            dataset=experiment.dataset,
            provenance="embedded",
            digest="",
            classes=class_names(source.classes),
            shape=source.shape,
            train_images=0,
            test_images=0,
            test_rows=None,
            excluded_test_images=0,
            source="embedded",
            kind=source.kind,
        )
        for run in plan_runs(experiment, params.profiles["paper"], source, every_role=True):
            for is_stacked in (False, True) if source.kind == "table" else (False,):
                kind = run.spec.model.path, run.spec.protocol.optimizer.name, is_stacked
                if kind not in seen:
                    seen.add(kind)
                    began = time.process_time()
                    canary = canary_of(run.spec, info, torch.device("cpu"), is_stacked=is_stacked)
                    name = f"{experiment.name}.{run.name.arm}{' in a stack' if is_stacked else ''}"
                    yield name, canary, time.process_time() - began
