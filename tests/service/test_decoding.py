"""Real decoding processes: limits, replacement and fair scheduling."""

import asyncio
import os
import signal
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.inference import decoding as decoding_module
from service.inference.batching import InferenceStopped
from service.inference.decoding import PROCESSES, TINY_BYTES, Decoder, Upload, _decode_all, _Share, is_tiny
from service.inference.processes import Process
from service.slots import Busy, current_client
from stages.images import ImageError, ImageTooLarge, decode_image, outline
from tests.preloaded import python
from tests.project import REPOSITORY
from tests.service.broken_decoders import end_at_once, end_killed
from tests.service.conftest import png
from tests.service.hostile_images import (
    chunk,
    encode,
    hostile_images,
    interlaced,
    jpeg_of_scans,
    picture,
    png_of,
    segment,
    within_jpeg,
    within_png,
)

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(600)]

AMPLE = 500.0
"""Seconds for whatever isn't tested for its speed: on a busy machine, starting one process may take 30 s."""

SHAPE, GREY = (3, 32, 32), (1, 28, 28)
SMALL = Upload("small.png", png())
TEXTS = ((b"zTXt", b"note\0\0"), (b"iTXt", b"note\0\1\0\0\0"), (b"iCCP", b"x\0\0"))  # how their data start


@cache
def large() -> Upload:
    """Return an image of 4 million pixels, which takes a process about 50 ms."""
    return Upload("large.png", encode("PNG", Image.new("RGB", (2000, 2000), (200, 30, 60))))


@asynccontextmanager
async def decoding(
    seconds: float = AMPLE,
    wait_seconds: float = AMPLE,
    max_waiting_seconds: float = 20.0,
    max_pixels: int = 10**9,
    memory_bytes: int = 1 << 29,
) -> AsyncIterator[Decoder]:
    decoder = Decoder(
        seconds=seconds,
        wait_seconds=wait_seconds,
        max_waiting_seconds=max_waiting_seconds,
        max_pixels=max_pixels,
        memory_bytes=memory_bytes,
    )
    decoder.start()
    try:
        yield decoder
    finally:
        decoder.stop()


async def test_each_image_is_decoded_to_each_shape_in_order() -> None:
    uploads = [large(), SMALL, Upload("other.png", png(1)), large()]
    async with decoding() as decoder:
        (colour, grey), _ = await decoder.decode(uploads, [SHAPE, GREY])
    for number, upload in enumerate(uploads):
        assert np.array_equal(colour[number], decode_image(upload.content, SHAPE))
        assert np.array_equal(grey[number], decode_image(upload.content, GREY))


async def test_slow_image_ends_its_process_which_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding_module, "BUSY", 0.0)  # generous, in case this machine is busy
    slow = Upload("slow.jpg", jpeg_of_scans(4000, 100))
    async with decoding(seconds=0.2) as decoder:
        before = {process.pid for process in decoder.processes}
        with pytest.raises(ImageError, match=r"slow\.jpg: decoding takes longer than 0\.2 s"):
            await decoder.decode([slow], [SHAPE])
        assert len(before - {process.pid for process in decoder.processes}) == 1
        assert sum(process.restarts for process in decoder.processes) == 1
        decoder.seconds = AMPLE
        for process in decoder.processes:
            process.seconds = AMPLE
        for _ in range(PROCESSES):
            assert (await decoder.decode([large()], [SHAPE]))[0][0].shape == (1, *SHAPE)


async def test_time_limit_covers_all_images_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_module, "BUSY", 0.0)  # otherwise a busy machine is blamed
    async with decoding() as decoder:
        await decoder.decode([large()] * PROCESSES, [SHAPE])  # starting a process takes longer than the limit
        decoder.seconds = 0.2
        try:
            _, errors = await decoder.decode([large()] * 60, [SHAPE])
        except ImageError as error:  # not even one was decoded in time
            errors = {0: error}
        assert errors and all("the limit for all images of a request" in str(error) for error in errors.values())


async def test_image_beyond_the_memory_limit_is_refused_and_its_process_survives() -> None:
    async with decoding(memory_bytes=40 << 20) as decoder:
        huge = Upload("huge.png", encode("PNG", Image.new("RGB", (4000, 4000))))
        with pytest.raises(ImageTooLarge, match=r"huge\.png: decoding takes more than 40 MB"):
            await decoder.decode([huge], [SHAPE])
        assert (await decoder.decode([large()], [SHAPE]))[0][0].shape == (1, *SHAPE)
        assert sum(process.restarts for process in decoder.processes) == 0


async def test_pixel_limit_of_a_request_is_checked_before_decoding() -> None:
    async with decoding(max_pixels=11_000_000) as decoder:
        for process in decoder.processes:
            process.stop()
        words = r"3 images have 12,000,000 pixels together; one request takes at most 11,000,000"
        with pytest.raises(ImageTooLarge, match=words):
            await decoder.decode([large()] * 3, [SHAPE])


async def test_image_that_ends_two_processes_is_refused() -> None:
    async with decoding() as decoder:
        decoder._idle = [Process("decoding", end_at_once, seconds=AMPLE)]
        with pytest.raises(ImageError, match=r"large\.png: the image is damaged: its decoder ended"):
            await decoder.decode([large()], [SHAPE])


async def test_image_is_not_called_damaged_if_no_decoder_works() -> None:
    async with decoding() as decoder:
        for process in decoder.processes:
            process._target, process._arguments = id, ()  # ends at once, without an import of this module
            process.restart()
        with pytest.raises(InferenceStopped, match="decoders exit immediately"):
            await decoder.decode([large()], [SHAPE])
        while any(process.is_alive for process in decoder.processes):
            await asyncio.sleep(0.01)
        with pytest.raises(InferenceStopped, match="decoders exit immediately"):
            await decoder.check()


async def test_readiness_check_replaces_a_lost_decoder() -> None:
    async with decoding() as decoder:
        for process in decoder.processes:
            assert process._process is not None
            process._process.kill()
            process._process.join()
        await decoder.check()
        assert any(process.is_alive for process in decoder.processes)


LIMITED = """
import resource
from io import BytesIO
from PIL import Image
from service.inference.decoding import GOOD, _answer, _limit_memory

SHAPE, file = (3, 32, 32), BytesIO()
Image.new("1", (4000, 4000)).save(file, "PNG")
_answer(GOOD, [SHAPE], 512 << 20, True)  # loads what decoding needs
has = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (has + (8 << 20), has + (8 << 20)))
has_all = _limit_memory(512 << 20)
print(has_all, type(_answer(GOOD, [SHAPE], 512 << 20, has_all)).__name__)
print(type(_answer(file.getvalue(), [SHAPE], 512 << 20, has_all)).__name__)
"""


def test_external_memory_limit_is_not_blamed_on_an_image() -> None:
    done = python("-c", LIMITED, cwd=REPOSITORY, env=dict(os.environ))
    assert done.stdout.split() == ["False", "list", "InferenceStopped"], done.stderr


async def test_image_is_not_called_damaged_if_its_process_was_killed() -> None:
    async with decoding() as decoder:
        decoder._idle = [Process("decoding", end_killed, seconds=AMPLE)]
        with pytest.raises(Busy, match="the processes that decode images were killed"):
            await decoder.decode([large()], [SHAPE])


def stop_when_asked(decoder: Decoder) -> None:
    """Suspend each process as soon as it is seen running, so that it can't do its work."""

    def stopping(process: Process, ask: Callable[..., Any]) -> Callable[..., Any]:
        def stop(*arguments: object) -> object:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            return ask(*arguments)

        return stop

    for process in decoder.processes:
        process.ask = stopping(process, process.ask)  # type: ignore[method-assign]


async def test_image_is_not_called_slow_if_its_process_gets_no_cpu() -> None:
    async with decoding(seconds=0.5) as decoder:
        stop_when_asked(decoder)
        with pytest.raises(Busy, match="this machine is too busy to decode the image in time"):
            await decoder.decode([large()], [SHAPE])


async def test_request_with_many_large_images_lets_others_go_first() -> None:
    done: list[str] = []

    async def ask(name: str, uploads: list[Upload]) -> None:
        await decoder.decode(uploads, [SHAPE])
        done.append(name)

    async with decoding() as decoder:
        many = asyncio.create_task(ask("twelve large ones", [large()] * 12))
        await asyncio.sleep(0.05)
        await asyncio.gather(ask("two large ones", [large()] * 2), ask("a small one", [SMALL]), many)
    assert done == ["a small one", "two large ones", "twelve large ones"]


async def test_unexpectedly_slow_images_do_not_delay_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Semaphore(0)

    def answer(_decoder: Decoder, _process: Process, content: bytes, _shapes: object, share: _Share) -> list[Any]:
        assert content != b"slow" or go.acquire(timeout=60)
        share.computed += 5.0
        return []

    monkeypatch.setattr(Decoder, "_ask", answer)

    async def ask(client: str) -> None:
        current_client.set(client)
        await decoder._in_process(Upload("", client.encode()), [], 1, _Share(seconds_left=60))

    async with decoding() as decoder:
        slow = [asyncio.create_task(ask("slow")) for _ in range(3 * PROCESSES)]
        await asyncio.sleep(0)
        go.release()
        await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait_for(asyncio.create_task(ask("lone")), 60)
        assert sum(task.done() for task in slow) == 1
        for _ in slow:
            go.release()
        await asyncio.gather(*slow)


async def test_full_queue_rejects_the_heaviest_clients_newest_request() -> None:
    async def ask(client: str, images: int) -> None:
        current_client.set(client)
        await decoder.decode([large()] * images, [SHAPE])

    async with decoding(max_waiting_seconds=1.0) as decoder:  # five such images, besides those being decoded
        many = [asyncio.create_task(ask("many", size)) for size in (4, 3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="decoding images: the queue is full"):
            await asyncio.create_task(ask("many", 1))
        await asyncio.create_task(ask("other", 1))
        assert [type(found) for found in await asyncio.gather(*many, return_exceptions=True)] == [type(None), Busy]
        waiting = [asyncio.create_task(ask(name, 2)) for name in "abc"]
        await asyncio.sleep(0.01)
        for task in waiting[1:]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(2 * PROCESSES):
            await ask("any", 2)


def laborious_and_tiny() -> list[bytes]:
    """Return files of at most `TINY_BYTES` that need as much work as possible."""
    zeros = [chunk(name, start + zlib.compress(bytes(900_000))) for name, start in TEXTS]
    frames = [Image.new("L", (2, 2), number) for number in range(40)]
    return [
        *(within_png(*[part] * times) for part in zeros for times in (1, 2)),
        *(within_png(*[chunk(b"abCd", b"")] * times) for times in (10, 80)),
        png_of(64, 64, colour=0, data=zlib.compress(bytes(3_000_000))),
        png_of(1, 4096, colour=0, data=zlib.compress(bytes(8192))),
        interlaced(64),
        *(jpeg_of_scans(16, scans) for scans in (12, 16)),
        within_jpeg(*[segment(0xFE, b"")] * 700),
        within_jpeg(segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(2000))),
        encode("PNG", frames[0], save_all=True, append_images=frames[1:]),
        encode("WEBP", picture(size=(60, 60)), lossless=True, method=6),
    ]


def test_images_decoded_on_the_event_loop_are_fast() -> None:
    """Other requests run between a request's images, so none may block the loop."""
    looked_at = 0
    for content in [*laborious_and_tiny(), *(case.content for case in hostile_images())]:
        try:
            found = outline(content)
        except ImageError:
            continue
        if not is_tiny(content, found):
            continue
        looked_at += 1
        seconds = []
        for _ in range(3):
            before = time.thread_time()
            with suppress(ImageError):
                _decode_all(content, [(3, 32, 32)])
            seconds.append(time.thread_time() - before)
        assert min(seconds) < 0.005, content[:200]
    assert looked_at > 60


@pytest.mark.parametrize(("name", "start"), TEXTS)
def test_highly_compressed_chunk_is_not_decoded_on_the_event_loop(name: bytes, start: bytes) -> None:
    content = within_png(chunk(name, start + zlib.compress(bytes(900_000))))
    plain = within_png(chunk(b"abCd", bytes(len(content) - len(within_png()) - 12)))
    assert len(plain) == len(content) <= TINY_BYTES
    assert is_tiny(plain, outline(plain)) and not is_tiny(content, outline(content))
