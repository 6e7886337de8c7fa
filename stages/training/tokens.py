"""Next-token prediction on one text, cut into windows that are the loop's rows.

N windows in all, B in a batch, T tokens a window, V the model's vocabulary.

Window i reads tokens iT to (i+1)T - 1 and predicts tokens iT + 1 to (i+1)T.  So no token is read twice in an epoch, and
every token but the first is predicted once; the remainder after the last window, at most T tokens, is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.run import Protocol


@dataclass(frozen=True)
class TokenWindows:
    """Token ids (uint16) of one text, in order, and the number T of tokens per window.

    Raises:
        ValueError: the text is shorter than one window's T + 1 tokens.
    """

    tokens: Tensor
    window: int

    def __post_init__(self) -> None:
        if not 1 <= self.window < len(self.tokens):
            raise ValueError(f"the text has {len(self.tokens)} tokens; a window of {self.window} needs one more")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.window

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens that windows `rows` (int64 [B], on the device) read and predict: int64 [B, T] each."""
        # CUDA can't index uint16, so the bits are read as int16 and the sign is masked off.
        tokens = self.tokens.view(torch.int16)
        both = tokens.unfold(0, self.window + 1, self.window)[rows].long() & 0xFFFF
        return both[:, :-1], both[:, 1:]


class NextToken:
    """Cross entropy in nats per token; training sees the windows as they are."""

    scores: tuple[str, ...] = ("loss",)

    def __init__(self, data: TokenWindows, protocol: Protocol) -> None:
        self.data, self.protocol = data, protocol
        self.device = data.tokens.device

    def __len__(self) -> int:
        return len(self.data)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens and the tokens after them, int64 [B, T]; `generator` is unused."""
        return self.data.pick(rows)

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same in order, in batches no larger than training's: logits [B, T, V] are most of the memory."""
        for part in rows.split(min(batch_size, self.protocol.batch_size)):
            yield self.data.pick(part)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits [B, T, V] over the batch's tokens, float32."""
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def sums(self, logits: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """`scores` summed over the batch's windows, float64 [1]; all have T tokens, so the mean is per token."""
        return (loss.double() * len(targets)).reshape(1)
