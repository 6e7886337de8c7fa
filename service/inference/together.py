"""Several answers that count only together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

Answer = TypeVar("Answer")


async def all_or_none(tasks: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
    """All answers; if one fails or the caller is cancelled, the others are cancelled."""
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
