"""The worker: published outcome, resuming, and environment."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stages.checkpoint.predictor import load_predictor
from stages.datasets.packed import ImageSet, PackedInfo
from stages.device import pick_device
from stages.ops.fast import cpp, dropout
from stages.papers.ninformer import MLPMixer
from stages.run import OptimizerSpec, Protocol, environment_digest
from stages.runs.store import FolderScratch, RunStore
from stages.training import process
from stages.training.canary import STEPS
from stages.training.loop import TrainingState
from stages.training.process import describe_environment, peak_memory_bytes
from stages.training.resuming import EnergyMeter, ResumeState, energy_joules
from stages.worker import Job, _prepare, train_run
from tests.packed_table import pack_images
from tests.project import make_spec


def pack_noise(folder: Path, **fields: Any) -> PackedInfo:
    """Twelve images of 16 x 16 for training and four for testing."""
    draw = np.random.default_rng(0)
    train, test = (
        ImageSet(images=draw.integers(0, 256, (count, 3, 16, 16), dtype=np.uint8), labels=np.arange(count) % 2)
        for count in (12, 4)
    )
    return pack_images(folder, "noise", train, test, "ab", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), **fields)


@pytest.mark.skipif(cpp.load_library(dropout._SOURCE) is None, reason="no C++ compiler here")
def test_worker_uses_cpp_dropout_and_publishes_the_plain_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    assert dropout._draws_alike(torch.float32)
    taken: list[str] = []
    real = dropout.call
    monkeypatch.setattr(dropout, "call", lambda at, name, *rest: (taken.append(name), real(at, name, *rest)))
    info = pack_noise(tmp_path / "noise")
    sizes = {"image_size": 16, "in_channels": 3, "num_classes": 2, "patch_size": 8, "dim": 8, "depth": 1}
    arguments = sizes | {"token_dim": 4, "channel_dim": 4, "dropout": 0.5}
    adam = OptimizerSpec(name="adam", lr=0.001)
    protocol = Protocol(optimizer=adam, batch_size=4, epochs=2, mean=info.mean, std=info.std)
    spec = make_spec("stages.papers.ninformer.mlp_mixer:MLPMixer", arguments, protocol, digest=info.digest)
    trained = train_run(Job(spec=spec, data=tmp_path / "noise", device="cpu"), FolderScratch(tmp_path / "work"))
    published = RunStore(tmp_path / "store").publish(spec.run_key, trained.outcomes[spec.run_key])
    layers = sum(type(layer) is nn.Dropout for layer in MLPMixer(**arguments).modules())
    # Each layer twice in each of three steps of two epochs, none in evaluation; fewer steps than a canary's have none.
    assert STEPS > 3 * 2
    assert layers and taken.count("dropout_forward") == layers * 2 * 3 * 2 and "dropout_backward" in taken
    network = load_predictor(published / "weights.safetensors").network
    assert type(network) is MLPMixer and not any(isinstance(layer, dropout.Dropout) for layer in network.modules())
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == tmp_path / "compiled", "by processor"


def resume_state(folder: Path, *, joules: list | None = None, is_stopping: bool = False) -> ResumeState:
    counter = iter(joules or [])
    return ResumeState(
        scratch=FolderScratch(folder),
        work="k",
        kind=TrainingState,
        environment="e",
        epochs=3,
        energy=EnergyMeter(lambda: next(counter, None)),
        should_stop=lambda: is_stopping,
    )


def test_finished_training_saves_no_state(tmp_path: Path) -> None:
    resume = resume_state(tmp_path)
    resume.save(TrainingState(epoch=3))
    assert resume.load() is None
    resume.save(TrainingState(epoch=2))
    assert resume.load().epoch == 2


@pytest.mark.parametrize(("is_stopping", "epoch"), [(False, 1), (True, 2)])
def test_slow_states_are_saved_rarely_and_on_stopping(tmp_path: Path, is_stopping: bool, epoch: int) -> None:
    resume = resume_state(tmp_path, is_stopping=is_stopping)
    resume.save(TrainingState(epoch=1))
    resume.took = 60.0
    resume.save(TrainingState(epoch=2))
    assert resume.load().epoch == epoch


@pytest.mark.parametrize(("before", "used"), [([100.0, 130.0], 34.0), (None, None)], ids=["known", "unknown"])
def test_energy_includes_all_attempts(tmp_path: Path, before: list[float] | None, used: float | None) -> None:
    resume_state(tmp_path, joules=before).save(TrainingState(epoch=1))
    second = resume_state(tmp_path, joules=[500.0, 504.0])
    second.load()
    assert second.energy.used() == used


@pytest.mark.parametrize("counts", [[None], [100.0, None], [None, 100.0]])
def test_energy_is_unknown_if_the_device_was_silent_once(counts: list) -> None:
    counter = iter(counts)
    assert EnergyMeter(lambda: next(counter, None)).used() is None


def test_cpu_reports_no_energy() -> None:
    assert energy_joules(torch.device("cpu")) is None


def flip(content: bytes) -> bytes:
    """Flip one bit of a tensor's bytes, which `torch.load` alone doesn't detect."""
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip, "damaged"),
        (lambda content: content[:-9], "damaged"),
        (lambda content: content[32:], "of an older version"),
        (lambda content: b"", "damaged"),
    ],
    ids=["bit-flipped", "truncated", "older", "empty"],
)
def test_damaged_or_older_state_is_reported_and_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes], why: str
) -> None:
    resume = resume_state(tmp_path)
    resume.save(TrainingState(epoch=2, model={"w": torch.ones(100_000)}))
    path = tmp_path / "k" / "resume.pt"
    path.write_bytes(damage(path.read_bytes()))
    assert resume.load() is None
    assert "run k: resume state can't be used" in (said := capsys.readouterr().err) and why in said


def test_state_of_another_run_is_reported_and_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume_state(tmp_path).save(TrainingState(epoch=2))
    (tmp_path / "k").rename(tmp_path / "other")
    foreign = dataclasses.replace(resume_state(tmp_path), work="other")
    assert foreign.load() is None
    assert "it belongs to another run); starting over" in capsys.readouterr().err


ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def test_peak_memory_is_at_least_the_resident_memory() -> None:
    held = np.ones(2**24, dtype=np.uint8)
    resident = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert len(held) < 0.99 * resident <= peak_memory_bytes(CPU) < 20 * resident


def test_only_a_gpu_records_its_augmentation_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "device_name", lambda device: "a GPU")
    facts, own = describe_environment(torch.device("cuda")), describe_environment(CPU)
    assert facts["augmentation_generator"] == "cuda"
    assert facts.keys() - own.keys() == {"augmentation_generator"}


@pytest.mark.slow(hours=True)
def test_peak_memory_excludes_the_parent_process() -> None:
    """This large process starts a small one."""
    code = (
        "import torch; from stages.training.process import peak_memory_bytes;"
        "print(peak_memory_bytes(torch.device('cpu')))"
    )
    ballast = np.ones(2**30, dtype=np.uint8)
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(finished.stdout) < len(ballast) < peak_memory_bytes(CPU)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux can reset the peak")
def test_peak_memory_is_that_of_the_run_alone(tmp_path: Path) -> None:
    """Even a training of few steps is measured by itself, unless its data are placeholders."""
    info = pack_noise(tmp_path / "noise", provenance="full", source="official")
    protocol = Protocol(optimizer=OptimizerSpec(name="adam", lr=0.001), batch_size=4, epochs=2)
    spec = make_spec(protocol=protocol, digest=info.digest)
    ballast = np.ones(2**26, dtype=np.uint8)
    before = peak_memory_bytes(CPU)
    del ballast
    _prepare(Job(spec=spec, data=tmp_path / "noise", device="cpu"))
    assert peak_memory_bytes(CPU) < before - 2**25


def test_environment_digest_depends_on_threads_but_not_key_order() -> None:
    facts = describe_environment(CPU)
    assert environment_digest(facts) == environment_digest(dict(reversed(facts.items())))
    assert environment_digest(facts | {"threads": facts["threads"] + 1}) != environment_digest(facts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_refused_with_alternatives() -> None:
    assert pick_device("auto") == CPU
    with pytest.raises(ValueError, match="sees 0 CUDA devices here; use cpu"):
        pick_device("cuda")
