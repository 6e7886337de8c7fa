"""Decodes uploaded files to pixels: in its own threads, a few at a time, each within a time limit."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from service.batching import QueueFull
from stages.images import ImageError, decode_image

THREADS = 2  # a large image takes some 150 MB while it is decoded


@dataclass(frozen=True)
class Upload:
    """A file as uploaded; `name` comes from the client and is only ever displayed."""

    name: str
    content: bytes


class Decoder:
    """Decodes off the event loop.  The request gives up an image that exceeds its time, though its thread goes on."""

    def __init__(self, *, seconds: float, max_waiting: int) -> None:
        self.seconds, self.max_waiting = seconds, max_waiting
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="decoding")
        self._waiting = 0

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def decode(self, upload: Upload, shape: tuple[int, int, int]) -> np.ndarray:
        """The upload as uint8 [C, H, W].

        Raises:
            ImageError: the file isn't an image that we read, or takes too long; the message names it.
            QueueFull: too many others are waiting.
        """
        if self._waiting >= self.max_waiting:
            raise QueueFull(f"{self._waiting} images are waiting to be decoded already")
        started = threading.Event()
        self._waiting += 1
        try:
            return await self._within_time(upload, shape, started)
        except ImageError as error:
            raise type(error)(f"{upload.name}: {error}") from None
        finally:
            self._waiting -= 1

    async def _within_time(self, upload: Upload, shape: tuple[int, int, int], started: threading.Event) -> np.ndarray:
        def work() -> np.ndarray:
            started.set()
            return decode_image(upload.content, shape)

        job = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(job, self.seconds)
        except TimeoutError:
            if not started.is_set():
                raise QueueFull("the images before this one take too long to decode") from None
            raise ImageError(f"decoding takes longer than {self.seconds:g} s") from None
