"""What waits for a pass, and how its answers are awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from service.inference.models import Model


@dataclass(frozen=True, eq=False)
class PendingRequest:
    """Images uint8 [N, C, H, W] of one request of `client`; `future` gets their probabilities float32 [N, K].

    `turn`: images that were served before this request came, and those of the request that are served before these;
    `is_first`: there are none of these.
    """

    model: Model
    images: np.ndarray
    client: str = ""
    turn: int = 0
    is_first: bool = True
    future: Future[np.ndarray] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)


async def answers(jobs: Sequence[PendingRequest]) -> np.ndarray:
    """The probabilities of all jobs of one model, in their order.

    Raises:
        InferenceStopped, SetAside, AnswerFailed, CheckpointError: see `Batcher.probabilities`.
    """
    if len(jobs) == 1:
        return await asyncio.wrap_future(jobs[0].future)
    return np.concatenate(await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs)))


def withdraw(jobs: Sequence[Sequence[PendingRequest]]) -> None:
    """Whatever hasn't begun leaves the queue."""
    for of_model in jobs:
        for job in of_model:
            job.future.cancel()
