"""Decode uploaded images.

Tiny files are decoded on the event loop, which is faster than handing them to a thread. Small files are decoded in a
thread, where none takes longer than about 30 ms. Larger files go to a process with memory and time limits, which is
killed and replaced if it exceeds them. Threads and processes each have a fair queue.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import numpy as np

from service.inference.batching import InferenceStopped
from service.inference.processes import Process, ProcessGone, ProcessSlow, leave_signals_to_the_server
from service.slots import Busy, Request, Slots
from stages.images import ImageError, ImageTooLarge, Outline, decode_image, outline

Shape = tuple[int, int, int]
Decoded = list[np.ndarray]
Result = TypeVar("Result")
THREADS, PROCESSES = 2, 2
TINY_BYTES, TINY_WORK = 4 * 1024, 64 * 64
SMALL_BYTES, SMALL_WORK = 16 * 1024, 128 * 128
UNPACKED = (b"zTXt", b"iTXt", b"iCCP")
"""Chunks of a PNG file that may decompress to a thousand times their size."""
GOOD = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)
"""PNG of one black pixel; a decoder that can't decode it is broken."""
BUSY = 0.25
"""CPU share of a decoder below which the machine, not the image, is blamed for a timeout."""
PIXELS_PER_SECOND, SMALL_SECONDS = 20e6, 0.01  # estimated decoding times
MEMORY_BYTES = 512 * 1024 * 1024  # decoding the largest image takes some 250 MB


@dataclass(frozen=True)
class Upload:
    """An uploaded file; `name` comes from the client and is only displayed."""

    name: str
    content: bytes


@dataclass(eq=False, kw_only=True)
class _Share(Request):
    """Time budget of one request: seconds left, CPU seconds used by processes, and the part of them that is charged."""

    seconds_left: float
    computed: float = 0.0
    charged: float = 0.0


class Decoder:
    """Image decoder for one event loop; call `start` before use and `stop` after.

    An image waits at most `wait_seconds` for a process; the queue holds at most `max_waiting_seconds` of work.
    """

    def __init__(
        self,
        *,
        seconds: float,
        wait_seconds: float,
        max_waiting_seconds: float,
        max_pixels: int,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.seconds, self.max_pixels, self.memory_bytes = seconds, max_pixels, memory_bytes
        self.processes = [
            Process("decoding", _decode_until_closed, memory_bytes, seconds=seconds) for _ in range(PROCESSES)
        ]
        self._in_threads, self._in_processes = (
            Slots("decoding images", count, max_waiting=max_waiting_seconds, seconds=wait_seconds)
            for count in (THREADS, PROCESSES)
        )
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decoding")
        self._askers = ThreadPoolExecutor(PROCESSES, thread_name_prefix="decoding")
        self._idle = list(self.processes)

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._askers.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            process.stop()

    async def decode(
        self, uploads: Sequence[Upload], shapes: Sequence[Shape]
    ) -> tuple[list[np.ndarray], dict[int, ImageError]]:
        """Decode the images of one request as uint8 [N, C, H, W] for each of `shapes`; also return errors by image.

        Raises:
            ImageError: no file is a supported image that decodes in time; the message names the first.
            ImageTooLarge: the images together have too many pixels.
            Busy: the queue is full, the wait was too long, or the machine is too busy.
            InferenceStopped: no decoding process can be started.
        """
        outlines: dict[int, Outline] = {}
        decoded: dict[int, Decoded] = {}
        errors: dict[int, ImageError] = {}

        async def keep(results: dict[int, Result], number: int, work: Awaitable[Result]) -> None:
            try:
                results[number] = await work
            except ImageError as error:
                errors[number] = type(error)(f"{uploads[number].name}: {error}")

        for number, upload in enumerate(uploads):
            is_small = len(upload.content) <= SMALL_BYTES
            await keep(outlines, number, self._compute(outline, upload.content, is_here=is_small))
        pixels = sum(item.pixels for item in outlines.values())
        if pixels > self.max_pixels:
            raise ImageTooLarge(
                f"{len(uploads)} images have {pixels:,} pixels together; one request takes at most {self.max_pixels:,}"
            )
        share = _Share(seconds_left=self.seconds)
        small = {
            number
            for number, item in outlines.items()
            if len(uploads[number].content) <= SMALL_BYTES and item.work <= SMALL_WORK
        }
        large = [
            asyncio.ensure_future(keep(decoded, number, self._in_process(uploads[number], shapes, item.work, share)))
            for number, item in outlines.items()
            if number not in small
        ]
        await all_or_none(large)
        for number in sorted(small):
            if number:
                await asyncio.sleep(0)  # lets other requests run in between
            content = uploads[number].content
            is_here = is_tiny(content, outlines[number])
            await keep(decoded, number, self._compute(_decode_all, content, shapes, is_here=is_here))
        if not decoded:
            raise errors[0]
        return [
            np.stack([decoded[number][index] for number in sorted(decoded)]) for index in range(len(shapes))
        ], errors

    async def check(self) -> None:
        """Start a process if none is left.

        Raises:
            InferenceStopped: no process can be started, or it can't decode.
            Busy: other requests are ahead.
        """
        if not any(process.is_alive for process in self.processes):
            await self._in_process(Upload("", GOOD), [(1, 1, 1)], 1, _Share(seconds_left=self.seconds))

    async def _compute(self, work: Callable[..., Result], *arguments: object, is_here: bool) -> Result:
        """Return the result of `work`, computed on the event loop if `is_here`, else in a thread."""
        if is_here:
            return work(*arguments)
        async with self._in_threads.hold(SMALL_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _in_process(self, upload: Upload, shapes: Sequence[Shape], work: int, share: _Share) -> Decoded:
        loop = asyncio.get_running_loop()
        await self._in_processes.take(share, cost := work / PIXELS_PER_SECOND)
        process = self._idle.pop()
        job = self._askers.submit(self._ask, process, upload.content, shapes, share)

        def release() -> None:
            self._idle.append(process)
            took, share.charged = share.computed - share.charged, share.computed
            self._in_processes.release(share, took - cost)

        def release_in_loop(_job: Future[Decoded]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(release)

        job.add_done_callback(release_in_loop)  # a cancelled request keeps the process until it has answered
        return await asyncio.wrap_future(job)

    def _ask(self, process: Process, content: bytes, shapes: Sequence[Shape], share: _Share) -> Decoded:
        """Decode an image in a process; retry once if the process crashes, because the cause may lie elsewhere.

        If the processes were killed or got less than `BUSY` of the CPU time, the image is not to blame.
        """
        fault = "the image is damaged: its decoder ended"
        for _ in range(2):
            if share.seconds_left <= 0:
                break
            if not process.is_alive:
                _replace(process)
            started, before = time.monotonic(), process.processor_seconds
            try:
                result = process.ask((content, shapes), share.seconds_left)
                after = process.processor_seconds
            except ProcessSlow as slow:
                after = slow.processor_seconds
                _replace(process)
                break
            except ProcessGone as gone:
                after = before
                fault = "" if gone.was_killed else fault
                _replace(process)
                continue
            finally:
                share.seconds_left -= time.monotonic() - started
                share.computed += self.seconds if before is None or after is None else after - before
            if isinstance(result, Exception):
                raise result
            return result
        else:
            if not fault:
                raise Busy("the processes that decode images were killed")
            try:
                process.ask((GOOD, [(1, 1, 1)]))
            except ProcessGone:
                _replace(process)
                raise InferenceStopped("images can't be decoded at the moment: decoders exit immediately") from None
            raise ImageError(fault)
        if share.computed < BUSY * self.seconds:
            raise Busy("this machine is too busy to decode the image in time")
        raise ImageError(f"decoding takes longer than {self.seconds:g} s, the limit for all images of a request")


def is_tiny(content: bytes, image: Outline) -> bool:
    """Return True if decoding takes less than a switch of threads."""
    return len(content) <= TINY_BYTES and image.work <= TINY_WORK and not any(part in content for part in UNPACKED)


def _replace(process: Process) -> None:
    try:
        process.restart()
    except OSError as error:
        raise InferenceStopped(f"images can't be decoded at the moment ({error.strerror or error})") from None


def _decode_all(content: bytes, shapes: Sequence[Shape]) -> Decoded:
    return [decode_image(content, shape) for shape in shapes]


def _decode_until_closed(connection: Connection, memory_bytes: int) -> None:
    """Run the main loop of a decoding process."""
    leave_signals_to_the_server()
    has_all = _limit_memory(memory_bytes)
    while True:
        try:
            content, shapes = connection.recv()
            connection.send(_answer(content, shapes, memory_bytes, has_all))
        except (EOFError, OSError):
            return


def _answer(content: bytes, shapes: Sequence[Shape], memory_bytes: int, has_all: bool) -> Decoded | Exception:
    try:
        return _decode_all(content, shapes)
    except ImageError as error:
        return error
    except MemoryError:
        if not has_all:
            return InferenceStopped("images can't be decoded at the moment: this machine limits memory (ulimit -v)")
        return ImageTooLarge(f"decoding takes more than {memory_bytes >> 20} MB")


def _limit_memory(memory_bytes: int) -> bool:
    """Limit the memory that this process may still allocate (only on Linux, which reports its current use).

    Return False if a lower limit (`ulimit -v`) applies already.
    """
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        has = int(statistics.read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most, hard = has + memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]
        has_all = hard == resource.RLIM_INFINITY or most <= hard
        resource.setrlimit(resource.RLIMIT_AS, (most if has_all else hard, hard))
        return has_all
    return True


Answer = TypeVar("Answer")


async def all_or_none(tasks: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
    """Gather all results; if one fails or the caller is cancelled, cancel the others."""
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
