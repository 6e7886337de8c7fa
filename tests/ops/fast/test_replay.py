"""CUDA graph replay, rehearsed on the CPU by calling the loop's function again instead of recording.

Batches are copied to fixed tensors, gradients stay in place, and training equals the plain loop bit for bit wherever it
is stopped. Steps that can't be recorded or differ stay eager with a reason.
"""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.ops.fast import replay
from stages.ops.fast.replay import Recorder, Replayed, is_wanted, replayed, why_not
from stages.optim.capture import LayerCapture
from stages.run import AugmentationSpec, OptimizerSpec, Protocol, Replicate, ScheduleSpec
from stages.training import loop
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import TrainingState, TrainingStopped, fit, seeded_model

CPU, REPLICATE = torch.device("cpu"), Replicate(seed=1)
# 30 images in batches of 8: an epoch's last batch has 6.
PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adamw", lr=0.01, weight_decay=0.01),
    batch_size=8,
    epochs=3,
    mean=(0.5,) * 3,
    std=(0.2,) * 3,
    schedule=ScheduleSpec(name="cosine", warmup_steps=3),
    augmentation=AugmentationSpec(crop_padding=2, horizontal_flip=True),
)
STEPS = 4


class Rehearsed:
    """Acts as a graph: repeats the work and copies its results to the first results' tensors."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.parameters, self.replays = list(model.parameters()), 0

    def record(self, work: Callable[[], Tensor]) -> Tensor:
        self.work, self.sums = work, work()
        self.gradients = [parameter.grad for parameter in self.parameters]
        return self.sums

    def replay(self) -> None:
        self.replays += 1
        self.sums.copy_(self.work())
        for gradient, parameter in zip(self.gradients, self.parameters, strict=True):
            if gradient is not None and parameter.grad is not None:
                gradient.copy_(parameter.grad)


def network() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Linear(64, 5))


def images() -> ImageClassification:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8, generator=random)
    return ImageClassification(LabelledImages(pixels, torch.randint(0, 5, (30,), generator=random)), PROTOCOL)


@dataclasses.dataclass
class Run:
    model: nn.Module
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    state: TrainingState | None = None
    passes: Any = None


def train(
    monkeypatch: pytest.MonkeyPatch,
    make_recorder: Callable[[nn.Module, torch.device], Recorder] | None = None,
    *,
    optimizer: OptimizerSpec = PROTOCOL.optimizer,
    state: TrainingState | None = None,
    stop_after: int | None = None,
) -> Run:
    """Train with plain or replayed passes, optionally up to a stop."""
    run, steps = Run(seeded_model(network, REPLICATE)), iter(range(1000))
    if make_recorder is not None:

        def stand_in(gradients: Any, model: nn.Module, device: torch.device) -> Replayed:
            run.passes = Replayed(gradients, model, device, partial(make_recorder, model))
            return run.passes

        monkeypatch.setattr(loop, "replayed", stand_in)
    saved: list[TrainingState] = []
    protocol = dataclasses.replace(PROTOCOL, optimizer=optimizer)
    try:
        run.history = fit(
            run.model,
            images(),
            protocol,
            REPLICATE,
            state=state,
            save=saved.append,
            should_stop=lambda: stop_after is not None and next(steps) >= stop_after,
        ).history
    except TrainingStopped:
        run.state = saved[-1]
    monkeypatch.undo()
    return run


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_replayed_training_equals_the_plain_one_bit_for_bit(monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    optimizer = OptimizerSpec(name=name, lr=0.01, momentum=0.9 if name == "sgd" else 0.0)
    plain, ours = train(monkeypatch, optimizer=optimizer), train(monkeypatch, Rehearsed, optimizer=optimizer)
    assert ours.history == plain.history and same_weights(ours.model, plain.model)
    # Three full batches in each of three epochs, plus one for comparison; smaller last batches are eager.
    assert ours.passes.recorded.recorder.replays == 3 * (STEPS - 1) + 1


@pytest.mark.parametrize("stop_after", range(1, 3 * STEPS - 1, 3))
def test_replayed_training_resumes_at_any_step(monkeypatch: pytest.MonkeyPatch, stop_after: int) -> None:
    plain = train(monkeypatch)
    first = train(monkeypatch, Rehearsed, stop_after=stop_after)
    assert first.state is not None
    for recorder in (Rehearsed, None):
        rest = train(monkeypatch, recorder, state=copy.deepcopy(first.state))
        assert rest.history == plain.history and same_weights(rest.model, plain.model)


class Broken(Rehearsed):
    def record(self, work: Callable[[], Tensor]) -> Tensor:
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors …")


class Unlike(Rehearsed):
    def replay(self) -> None:
        super().replay()
        assert self.gradients[0] is not None
        self.gradients[0].mul_(1 + 1e-5)


class Stale(Rehearsed):
    """Draws the same numbers at each replay, like a graph whose generator isn't registered."""

    def replay(self) -> None:
        state = torch.get_rng_state()
        super().replay()
        torch.set_rng_state(state)


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (Broken, "steps stay eager, operation not permitted when stream is capturing\n"),
        (Unlike, "of its values from an eager one, which repeats itself within 0.0e+00"),
        (Stale, "of its values from an eager one"),
    ],
)
def test_failing_or_different_replay_falls_back_to_eager_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorder: type[Rehearsed], reason: str
) -> None:
    plain, ours = train(monkeypatch), train(monkeypatch, recorder)
    assert ours.passes.recorded is None
    assert ours.history == plain.history and same_weights(ours.model, plain.model)
    said = capsys.readouterr().err
    assert said.count("steps stay eager") == 1 and reason in said


def test_replay_is_used_only_on_request_and_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, passes = torch.device("cuda"), lambda inputs, targets: inputs
    monkeypatch.delenv(replay.SETTING, raising=False)
    assert not is_wanted(gpu) and replayed(passes, network(), gpu) is passes
    monkeypatch.setenv(replay.SETTING, "1")
    assert is_wanted(gpu) and not is_wanted(CPU) and replayed(passes, network(), CPU) is passes
    assert isinstance(replayed(passes, network(), gpu), Replayed)


def test_layers_watched_by_an_optimiser_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, passes = network(), lambda inputs, targets: inputs
    assert why_not(model) is None
    LayerCapture(model, ["5"])
    monkeypatch.setenv(replay.SETTING, "1")
    assert replayed(passes, model, torch.device("cuda")) is passes
    assert "something watches its layer 5, as CG-FAC and K-FAC do" in capsys.readouterr().err
