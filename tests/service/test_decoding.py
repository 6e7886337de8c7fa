"""Decoders that take too long: no accepted image makes one hang, so a waiting function stands in for it."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from service.batching import QueueFull
from service.decoding import THREADS, Decoder, Upload
from stages.images import ImageError, decode_image
from tests.service.conftest import png

SHAPE = (3, 32, 32)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An image called "hangs" is decoded once this is set."""
    opened = threading.Event()

    def decode(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
        if content == b"hangs":
            opened.wait(60)
        return decode_image(content, shape)

    monkeypatch.setattr("service.decoding.decode_image", decode)
    return opened


def test_an_image_beyond_its_time_is_given_up_and_those_behind_it_may_come_again(gate: threading.Event) -> None:
    async def scene() -> None:
        decoder = Decoder(seconds=1.0, max_waiting=8)
        uploads = [Upload(f"{number}.png", b"hangs") for number in range(THREADS)] + [Upload("good.png", png())]
        calls = (decoder.decode(upload, SHAPE) for upload in uploads)
        *hanging, behind = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(error) for error in hanging] == [
            f"{number}.png: decoding takes longer than 1 s" for number in range(THREADS)
        ]
        assert all(isinstance(error, ImageError) for error in hanging) and isinstance(behind, QueueFull)
        gate.set()
        decoder.seconds = 60.0
        assert (await decoder.decode(Upload("good.png", png()), SHAPE)).shape == SHAPE
        decoder.stop()

    asyncio.run(scene())


def test_no_more_images_wait_than_may(gate: threading.Event) -> None:
    async def scene() -> None:
        decoder = Decoder(seconds=60.0, max_waiting=2)
        waiting = [asyncio.create_task(decoder.decode(Upload("a.png", b"hangs"), SHAPE)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="2 images are waiting to be decoded already"):
            await decoder.decode(Upload("good.png", png()), SHAPE)
        gate.set()
        assert all(isinstance(error, ImageError) for error in await asyncio.gather(*waiting, return_exceptions=True))
        assert (await decoder.decode(Upload("good.png", png()), SHAPE)).shape == SHAPE
        decoder.stop()

    asyncio.run(scene())
