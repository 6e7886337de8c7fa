"""Decodes uploaded files to pixels.

A tiny file is decoded at once, on the event loop: it takes less than handing it to a thread does.  A small one is
decoded in a thread: nothing of its size takes longer than some 30 ms.  Any other one goes to a process with a limit of
memory and of time, which is killed and replaced where it exceeds them.  Requests take turns at these processes by the
pixels that they have had decoded, each of a client after the first image of its others, so many large images hold up
nobody else; and of the images that may wait one client has at most half.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from service.inference.batching import InferenceStopped, QueueFull
from service.inference.processes import Process, ProcessGone, ProcessSlow, leave_signals_to_the_server
from service.inference.together import all_or_none
from service.slots import holder
from stages.images import ImageError, ImageTooLarge, Outline, decode_image, outline

Shape = tuple[int, int, int]
Decoded = list[np.ndarray]
THREADS, PROCESSES = 2, 2
TINY_BYTES, TINY_WORK = 4 * 1024, 64 * 64
SMALL_BYTES, SMALL_WORK = 16 * 1024, 128 * 128
UNPACKED = (b"zTXt", b"iTXt", b"iCCP")
"""Parts of a PNG file that may be a thousand times as long once they are read."""
GOOD = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)
"""A PNG of one black pixel: a decoder that can't decode it has a fault of its own."""
BUSY = 0.25
"""Share of the time that a decoder computes at least, on a machine that isn't too busy for it."""
MEMORY_BYTES = 512 * 1024 * 1024  # the largest image takes some 250 MB while it is decoded


@dataclass(frozen=True)
class Upload:
    """A file as uploaded; `name` comes from the client and is only ever displayed."""

    name: str
    content: bytes


@dataclass
class _Share:
    """One request's share of the decoding processes: seconds left to it, those it computed, when its next turn is.

    Its other images wait for `room`, so that none of them waits in the queue for those before it.
    """

    seconds_left: float
    computed: float = 0.0
    turn: int = 0
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PROCESSES))


class Decoder:
    """Decodes off the event loop, for one loop.  `start` it before, `stop` it after."""

    def __init__(self, *, seconds: float, max_waiting: int, max_pixels: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self.seconds, self.max_waiting, self.max_pixels = seconds, max_waiting, max_pixels
        self.memory_bytes = memory_bytes
        self.processes = [
            Process("decoding", _decode_until_closed, memory_bytes, seconds=seconds) for _ in range(PROCESSES)
        ]
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="decoding")
        self._askers = ThreadPoolExecutor(PROCESSES, thread_name_prefix="decoding")
        self._idle = list(self.processes)
        self._queue: list[tuple[int, int, asyncio.Future[Process]]] = []
        self._numbers = itertools.count()
        self._clock = 0  # the turn that was served last
        self._waiting: Counter[str] = Counter()  # images of each client
        self._next: dict[str, int] = {}  # the turn of each one's next request

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._askers.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            process.stop()

    async def decode(self, uploads: Sequence[Upload], shapes: Sequence[Shape]) -> list[np.ndarray]:
        """For each of `shapes` the uploads of one request as uint8 [N, C, H, W].

        Raises:
            ImageError: a file isn't an image that we read, or takes too long; the message names it.
            ImageTooLarge: one image, or all together, have too many pixels.
            QueueFull: too many others are waiting, or too many of this client.
            InferenceStopped: no process can be started that would decode them.
        """
        client, count = holder.get(), len(uploads)
        here, own = self._waiting.total(), self._waiting[client]
        if here + count > self.max_waiting:
            raise QueueFull(f"{here} images are waiting to be decoded already")
        if own and own + count > self.max_waiting // 2:
            raise QueueFull(f"{own} images of one client are waiting to be decoded already")
        self._waiting[client] += count
        try:
            outlines = [await self._outline(upload) for upload in uploads]
            pixels = sum(found.pixels for found in outlines)
            if pixels > self.max_pixels:
                raise ImageTooLarge(
                    f"{len(uploads)} images have {pixels:,} pixels together; one request takes at most "
                    f"{self.max_pixels:,}"
                )
            share = _Share(self.seconds, turn=self._begin(client, max(found.work for found in outlines)))
            large = {
                number: asyncio.ensure_future(self._in_process(upload, shapes, found.work, share))
                for number, (upload, found) in enumerate(zip(uploads, outlines, strict=True))
                if not _is_small(upload, found)
            }
            decoded = dict(zip(large, await all_or_none(list(large.values())), strict=True))
            for number, upload in enumerate(uploads):
                if number in decoded:
                    continue
                if number:
                    await asyncio.sleep(0)  # other requests have theirs in between
                is_tiny = _is_tiny(upload, outlines[number])
                decoded[number] = _here(upload, shapes) if is_tiny else await self._in_thread(upload, shapes)
        finally:
            self._waiting[client] -= count
            if not self._waiting[client]:
                del self._waiting[client]
                self._next.pop(client, None)
        return [np.stack([decoded[number][index] for number in range(len(uploads))]) for index in range(len(shapes))]

    async def check(self) -> None:
        """Start a process where none is left.

        Raises:
            InferenceStopped: none can be started, or it decodes nothing.
            QueueFull: others are before it.
        """
        if not any(process.is_alive for process in self.processes):
            await self._in_process(Upload("", GOOD), [(1, 1, 1)], 1, _Share(self.seconds))

    def _begin(self, client: str, work: int) -> int:
        """The turn of a new request, whose first image is at most so much work."""
        turn = max(self._clock, self._next.get(client, 0))
        self._next[client] = turn + work
        return turn

    async def _outline(self, upload: Upload) -> Outline:
        try:
            if len(upload.content) <= SMALL_BYTES:
                return outline(upload.content)
            return await asyncio.get_running_loop().run_in_executor(self._threads, outline, upload.content)
        except ImageError as error:
            raise _of(upload, error) from None

    async def _in_thread(self, upload: Upload, shapes: Sequence[Shape]) -> Decoded:
        job = asyncio.get_running_loop().run_in_executor(self._threads, _decode_all, upload.content, shapes)
        try:
            return await asyncio.wait_for(job, self.seconds)
        except TimeoutError:
            raise QueueFull("the images before this one take too long to decode") from None
        except ImageError as error:
            raise _of(upload, error) from None

    async def _in_process(self, upload: Upload, shapes: Sequence[Shape], work: int, share: _Share) -> Decoded:
        loop = asyncio.get_running_loop()
        async with share.room:
            process = await self._wait_for_turn(share, work)
            job = self._askers.submit(self._ask, process, upload.content, shapes, share)

            def hand_on(_job: Future[Decoded]) -> None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._hand_on, process)

            job.add_done_callback(hand_on)  # not before the process has answered, even if the request is cancelled
            try:
                return await asyncio.wrap_future(job)
            except ImageError as error:
                raise _of(upload, error) from None

    async def _wait_for_turn(self, share: _Share, work: int) -> Process:
        """A process for `work`; start-time fair queueing: who has had less is served before who has had more."""
        turn = max(share.turn, self._clock)
        share.turn = turn + work
        if self._idle:
            self._clock = turn
            return self._idle.pop()
        mine: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        heappush(self._queue, (turn, next(self._numbers), mine))
        try:
            return await asyncio.wait_for(mine, self.seconds)
        except TimeoutError:
            raise QueueFull("the images before this one take too long to decode") from None
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._hand_on(mine.result())
            raise

    def _hand_on(self, process: Process) -> None:
        while self._queue:
            turn, _, next_one = heappop(self._queue)
            if not next_one.done():
                self._clock = turn
                next_one.set_result(process)
                return
        self._idle.append(process)

    def _ask(self, process: Process, content: bytes, shapes: Sequence[Shape], share: _Share) -> Decoded:
        """An image at which a process ends is tried once more: something else may have ended it.

        Where the processes were killed, or had less than `BUSY` of the time, the image is not to blame.
        """
        fault = "the image is damaged: its decoder ended"
        for _ in range(2):
            if share.seconds_left <= 0:
                break
            if not process.is_alive:
                _replace(process)
            started, before = time.monotonic(), process.processor_seconds
            try:
                found = process.ask((content, shapes), share.seconds_left)
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
            if isinstance(found, Exception):
                raise found
            return found
        else:
            if not fault:
                raise QueueFull("the processes that decode images were killed")
            self._require_working(process)
            raise ImageError(fault)
        if share.computed < BUSY * self.seconds:
            raise QueueFull("this machine is too busy to decode the image in time")
        raise ImageError(f"decoding takes longer than {self.seconds:g} s, which is for all images of a request")

    def _require_working(self, process: Process) -> None:
        """Blame no image for the end of a decoder that decodes nothing.  Raises `InferenceStopped`."""
        try:
            process.ask((GOOD, [(1, 1, 1)]))
        except ProcessGone:
            _replace(process)
            raise InferenceStopped("images can't be decoded at the moment: decoders end at once") from None


def _is_small(upload: Upload, found: Outline) -> bool:
    return len(upload.content) <= SMALL_BYTES and found.work <= SMALL_WORK


def _is_tiny(upload: Upload, found: Outline) -> bool:
    content = upload.content
    return len(content) <= TINY_BYTES and found.work <= TINY_WORK and not any(part in content for part in UNPACKED)


def _here(upload: Upload, shapes: Sequence[Shape]) -> Decoded:
    try:
        return _decode_all(upload.content, shapes)
    except ImageError as error:
        raise _of(upload, error) from None


def _of(upload: Upload, error: ImageError) -> ImageError:
    return type(error)(f"{upload.name}: {error}")


def _replace(process: Process) -> None:
    try:
        process.restart()
    except OSError as error:
        raise InferenceStopped(f"images can't be decoded at the moment ({error.strerror})") from None


def _decode_all(content: bytes, shapes: Sequence[Shape]) -> Decoded:
    return [decode_image(content, shape) for shape in shapes]


def _decode_until_closed(connection: Connection, memory_bytes: int) -> None:
    """The whole life of a decoding process."""
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
    """Limit what the process may take from here on; only Linux says what it has.

    Returns False if a limit from outside (`ulimit -v`) is lower.
    """
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        has = int(statistics.read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most, hard = has + memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]
        has_all = hard == resource.RLIM_INFINITY or most <= hard
        resource.setrlimit(resource.RLIMIT_AS, (most if has_all else hard, hard))
        return has_all
    return True
