"""One training from spec to published outcome; needs torch, numpy and safetensors only, no DVC, YAML, SQL or schema.

Engines start it; nobody imports it.  `python -m stages.worker` reads one job as JSON from standard input and writes an
event a line: `{"event": "progress" | "finished" | "stopped" | "failed", ...}`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.checkpoint import InputContract, dump_checkpoint
from stages.datasets.packed import PackedInfo, Split, read_images, read_info
from stages.papers import build_model
from stages.run import RunSpec, canonical_json
from stages.store import RunStore, write_atomically
from stages.training.environment import (
    describe_environment,
    environment_digest,
    peak_memory_bytes,
    pick_device,
    reset_peak_memory,
)
from stages.training.loop import (
    LabelledImages,
    Observer,
    Outcome,
    Progress,
    TrainingState,
    TrainingStopped,
    fit,
    measure,
    seeded_model,
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to train: its spec, the packed data it reads, the store it publishes to and the device it uses."""

    spec: RunSpec
    data: Path
    store: Path
    device: str


def train_run(
    job: Job,
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    publishing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Path:
    """Train `job.spec` (or go on where an earlier attempt was cut off) and publish the outcome.

    `publishing` is entered around the publication; an engine raises in it where the run is no longer its own.

    Raises:
        ValueError: the packed data are not those of the spec.
        TrainingStopped: asked to stop; the resume state is saved.
    """
    info = read_info(job.data)
    if info.digest != job.spec.data_digest:
        raise ValueError(
            f"{job.data}: packed data have digest {info.digest[:12]}, the run asks for {job.spec.data_digest[:12]}"
        )
    store, run_key, device = RunStore(job.store), job.spec.run_key, pick_device(job.device)
    reset_peak_memory(device)
    train_set, test_set = _on_device(job.data, "train", device), _on_device(job.data, "test", device)
    model = seeded_model(lambda: build_model(job.spec.model), job.spec.replicate).to(device)
    resume = store.work(run_key) / "resume.pt"
    started = time.monotonic()
    outcome = fit(
        model,
        train_set,
        job.spec.protocol,
        job.spec.replicate,
        state=_load_state(resume, run_key),
        save=lambda state: _save_state(resume, run_key, state),
        observe=_test_observer(job.spec, test_set) if job.spec.protocol.observe_test else None,
        progress=progress,
        should_stop=should_stop,
    )
    files = _published_files(job, info, model, outcome, device, time.monotonic() - started)
    with publishing():
        return store.publish(run_key, files)


def _on_device(folder: Path, split: Split, device: torch.device) -> LabelledImages:
    images = read_images(folder, split)
    return LabelledImages(torch.from_numpy(images.images).to(device), torch.from_numpy(images.labels).to(device))


def _test_observer(spec: RunSpec, test_set: LabelledImages) -> Observer:
    def observe(model: nn.Module) -> dict[str, float]:
        loss, accuracy = measure(model, test_set, spec.protocol)
        return {"test_loss": loss, "test_accuracy": accuracy}

    return observe


def _save_state(path: Path, run_key: str, state: TrainingState) -> None:
    buffer = io.BytesIO()
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    torch.save({"run_key": run_key, **fields}, buffer)
    write_atomically(path, buffer.getvalue())


def _load_state(path: Path, run_key: str) -> TrainingState | None:
    """The resume state of this very run; anything else is dropped and said so, and the run starts over."""
    if not path.is_file():
        return None
    try:
        fields = torch.load(path, weights_only=True, map_location="cpu")
        if fields.pop("run_key") != run_key:
            raise ValueError("it belongs to another run")
        return TrainingState(**fields)
    except Exception as error:  # noqa: BLE001  (torch.load raises almost anything on a damaged file)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        print(f"run {run_key[:12]}: resume state can't be used ({reason}); starting over", file=sys.stderr)
        path.unlink()
        return None


def _published_files(
    job: Job, info: PackedInfo, model: nn.Module, outcome: Outcome, device: torch.device, seconds: float
) -> dict[str, bytes]:
    environment = describe_environment(device)
    train_seconds = sum(outcome.epoch_seconds) or seconds
    result: dict[str, Any] = {
        "run_key": job.spec.run_key,
        "status": "finished" if outcome.divergence is None else "diverged",
        "divergence": outcome.divergence,
        "environment": environment,
        "environment_digest": environment_digest(environment),
        "epoch_seconds": outcome.epoch_seconds,
        "train_seconds": train_seconds,
        "samples_per_second": outcome.samples / train_seconds,
        "peak_memory_bytes": peak_memory_bytes(device),
        "weights_sha256": None,
    }
    files = {
        "spec.json": canonical_json(job.spec.to_dict()).encode(),
        "history.jsonl": "".join(canonical_json(row) + "\n" for row in outcome.history).encode(),
    }
    if outcome.divergence is None:
        weights = dump_checkpoint(model, _contract(job.spec, info))
        result["weights_sha256"] = hashlib.sha256(weights).hexdigest()
        files["weights.safetensors"] = weights
    files["result.json"] = canonical_json(result).encode()
    return files


def _contract(spec: RunSpec, info: PackedInfo) -> InputContract:
    return InputContract(
        model=spec.model,
        shape=info.shape,
        mean=spec.protocol.mean,
        std=spec.protocol.std,
        classes=info.classes,
        run_key=spec.run_key,
        dataset=info.dataset,
        data_digest=info.digest,
    )


def main() -> int:
    job = json.load(sys.stdin)

    def emit(event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}), flush=True)

    try:
        folder = train_run(
            Job(
                spec=RunSpec.from_dict(job["spec"]),
                data=Path(job["data"]),
                store=Path(job["store"]),
                device=job.get("device", "auto"),
            ),
            progress=lambda progress: emit("progress", **dataclasses.asdict(progress)),
        )
    except TrainingStopped as stop:
        emit("stopped", message=str(stop))
        return os.EX_TEMPFAIL
    emit("finished", folder=str(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
