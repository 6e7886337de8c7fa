"""A language model trained by two processes is the one that a single process trains, except for rounding."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.papers import build_model
from stages.run import OptimizerSpec, Protocol, RunSpec
from stages.training.loop import Outcome, seeded_model
from stages.training.parallel import SharedTask, agreed, joined, refuse_unlike, share
from stages.training.ranks import Rank, Tell, run_together
from stages.training.session import Session
from stages.training.tokens import NextToken, TokenWindows
from tests.small_gpt import CONTEXT, MODELS, PROTOCOL, VOCABULARY, WINDOWS, spec_of

pytestmark = pytest.mark.long


def task_of(protocol: Protocol) -> NextToken:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (WINDOWS * CONTEXT + 1,), generator=draw).to(torch.uint16)
    return NextToken(TokenWindows(tokens, CONTEXT), protocol)


def session_of(spec: RunSpec) -> Session:
    """A session on random text; GPT-2 has a matrix that no step uses, as HyperBF's code has."""
    model = seeded_model(lambda: build_model(spec.model), spec.replicate)
    if spec.model.path.endswith("GPT2"):
        model.register_parameter("unused", nn.Parameter(torch.ones(3, 3)))
    return Session(spec, model, task_of(spec.protocol), None)


def train(session: Session) -> Outcome:
    return session.train(
        state=None, save=lambda state: None, progress=lambda progress: None, should_stop=agreed_or_never()
    )


def agreed_or_never() -> Any:
    return agreed(lambda: False) if torch.distributed.is_initialized() else lambda: False


def train_share(spec: RunSpec, rank: Rank, tell: Tell, should_stop: Any) -> Any:
    session = session_of(spec)
    with joined(rank.number, rank.size, torch.device("cpu"), rank.port):
        outcome = train(share(session))
    return outcome.history, {name: value.numpy() for name, value in session.model.state_dict().items()}


class BackToFront(NextToken):
    """The same task with the rows of each batch in another order: other roundings, nothing else."""

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return super().training_batch(rows.flip(0), generator)


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


@pytest.mark.parametrize("model", MODELS, ids=["GPT2", "AetherGPT"])
def test_two_processes_train_the_network_of_one(model: str) -> None:
    """Not bit by bit, as gradients are sums over rows in another order: losses within 1e-6, and weights as near as
    those of one process that takes each batch back to front (Adam makes steps even of a gradient that is rounding
    alone, such as that of the keys' biases).
    """
    spec = spec_of(model)
    history, arrays = run_together(partial(train_share, spec), ("cpu", "cpu"), tell=print, should_stop=lambda: False)
    alone, reordered = session_of(spec), session_of(spec)
    reordered = replace(reordered, task=BackToFront(task_of(spec.protocol).data, spec.protocol))
    for ours, theirs in zip(history, train(alone).history, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6), "losses of training and validation, rows, steps"
    train(reordered)
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    one = alone.model.state_dict()
    assert 0 < furthest(weights, one) < 5 * furthest(reordered.model.state_dict(), one)


def shares(rows: int, size: int) -> Iterator[tuple[SharedTask, int]]:
    for rank in range(size):
        task = SharedTask(task_of(PROTOCOL), rank, size)
        _, targets = task.training_batch(torch.arange(rows), torch.Generator())
        yield task, len(targets)


@pytest.mark.parametrize(("rows", "size", "expected"), [(8, 2, [4, 4]), (8, 3, [2, 3, 3]), (2, 3, [2, 2, 2])])
def test_ranks_share_a_batch_and_weigh_their_parts(rows: int, size: int, expected: list[int]) -> None:
    """All rows once, or, where there are too few for all ranks, all rows by each."""
    found = list(shares(rows, size))
    assert [count for _, count in found] == expected
    assert sum(task.weight for task, _ in found) == pytest.approx(1)
    assert all(task.weight == pytest.approx(count / sum(expected)) for task, count in found)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)


@pytest.mark.parametrize(
    ("model", "protocol", "why"),
    [
        (build_model(spec_of(MODELS[0], dropout=0.1).model), PROTOCOL, "draws random numbers"),
        (Normalised(), PROTOCOL, "normalises over the batch"),
        (build_model(spec_of(MODELS[0]).model), replace(PROTOCOL, optimizer=OptimizerSpec(name="kfac", lr=1)), "kfac"),
    ],
    ids=["dropout", "batch norm", "K-FAC"],
)
def test_a_training_that_would_become_another_is_refused(model: nn.Module, protocol: Protocol, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*name one device"):
        refuse_unlike(model, task_of(protocol), protocol)
