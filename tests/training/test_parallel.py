"""A language model trained by two processes is the one that a single process trains, except for rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from stages.papers import build_model
from stages.run import ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, SplitSpec
from stages.training.loop import Outcome, TrainingState, seeded_model
from stages.training.parallel import agreed, joined, share
from stages.training.ranks import Rank, Tell, run_together
from stages.training.session import Session
from stages.training.tokens import NextToken, TokenWindows

CPU = torch.device("cpu")
TWO = ("cpu", "cpu")
VOCABULARY, CONTEXT, WINDOWS = 50, 16, 41
MODELS = ("stages.papers.nmn.gpt2:GPT2", "stages.papers.nmn.aether_gpt:AetherGPT")
# As printed (params/nmn-gpt.yaml), made small; 33 windows train, so that the last batch has fewer rows than ranks.
PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adamw", lr=0.001, weight_decay=0.1, betas=(0.9, 0.95), decay="kernels"),
    batch_size=8,
    epochs=3,
    split=SplitSpec(kind="fraction", fraction=0.2),
)


def spec_of(model: str, protocol: Protocol = PROTOCOL, *, dropout: float = 0.0) -> RunSpec:
    arguments = {"vocabulary_size": VOCABULARY, "context": CONTEXT, "width": 16, "depth": 2, "num_heads": 2}
    if model.endswith("AetherGPT"):
        arguments |= {"attention": "yat", "scale": "guide", "epsilon": 0.1}
    model_spec = ModelSpec(path=model, arguments=arguments | {"dropout": dropout})
    return RunSpec(model=model_spec, protocol=protocol, data_digest="", replicate=Replicate(seed=0), code={})


def session_of(spec: RunSpec) -> Session:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (WINDOWS * CONTEXT + 1,), generator=draw).to(torch.uint16)
    task = NextToken(TokenWindows(tokens, CONTEXT), spec.protocol)
    return Session(spec, seeded_model(lambda: build_model(spec.model), spec.replicate), task, None)


def train(
    session: Session,
    *,
    state: TrainingState | None = None,
    save: Callable[[TrainingState], None] = lambda state: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    return session.train(state=state, save=save, progress=lambda progress: None, should_stop=should_stop)


def train_share(spec: RunSpec, rank: Rank, tell: Tell, should_stop: Callable[[], bool]) -> Any:
    session = session_of(spec)
    with joined(rank.number, rank.size, CPU, rank.port):
        outcome = train(share(session), should_stop=agreed(should_stop))
    weights = {name: value.numpy() for name, value in session.model.state_dict().items()}
    return outcome.history, weights


def together(work: Callable[..., Any], *arguments: Any, tell: Tell = print) -> Any:
    return run_together(partial(work, *arguments), TWO, tell=tell, should_stop=lambda: False)


def furthest(ours: dict[str, Any], theirs: dict[str, Tensor]) -> float:
    return max(float((torch.from_numpy(ours[name]) - theirs[name]).abs().max()) for name in theirs)


@pytest.mark.parametrize("model", MODELS, ids=["GPT2", "AetherGPT"])
def test_two_processes_train_the_network_of_one(model: str) -> None:
    """Losses within 1e-6; weights within a hundredth of a step (the learning rate), which is how far Adam moves one."""
    spec = spec_of(model)
    history, weights = together(train_share, spec)
    alone = session_of(spec)
    expected = train(alone).history
    for ours, theirs in zip(history, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6), "losses of training and validation, rows, steps"
    print(furthest(weights, alone.model.state_dict()))
    assert furthest(weights, alone.model.state_dict()) < 0.01 * PROTOCOL.optimizer.lr
