"""Processes that train one run together, one a device: started, followed and ended as one."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from typing import Any, Literal

import torch
import torch.distributed as dist

_WAIT_SECONDS = 0.2
_LAST_WORDS_SECONDS = 60.0
"""How long rank 0 may take to save its state, or to notice that another one has failed."""


class RankLost(ChildProcessError):
    """A process among those that train a run together ended before its time; the message says which and how."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A process's number, the devices of all ranks in order, where they meet, and the threads of each."""

    number: int
    devices: tuple[str, ...]
    port: int
    threads: int

    @property
    def size(self) -> int:
        return len(self.devices)

    @property
    def device(self) -> str:
        return self.devices[self.number]


Tell = Callable[[Any], None]
Work = Callable[[Rank, Tell, Callable[[], bool]], Any]
"""What a rank does, given its number, how to report progress, and whether to stop; its result is rank 0's."""


def run_together(work: Work, devices: Sequence[str], *, tell: Tell, should_stop: Callable[[], bool]) -> Any:
    """Run `work` in a process for each of `devices`; returns what rank 0 returned, and passes on what it tells.

    An error of one rank ends the others, and is raised here.

    Raises:
        RankLost: a rank ended without a result.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "torch._dynamo"])  # loaded once for all ranks of all runs
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    threads = max(1, torch.get_num_threads() // len(devices))
    stop, ranks = context.Event(), dict[Connection, tuple[Rank, ForkServerProcess]]()
    try:
        for number in range(len(devices)):
            rank = Rank(number=number, devices=tuple(devices), port=meeting.port, threads=threads)
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_be, args=(work, rank, writer, stop), name=f"rank-{number}")
            process.start()
            writer.close()
            ranks[reader] = rank, process
        return _follow(ranks, tell, should_stop, stop)
    finally:
        for _, process in ranks.values():
            process.kill()
            process.join()


def _follow(
    ranks: dict[Connection, tuple[Rank, ForkServerProcess]], tell: Tell, should_stop: Callable[[], bool], stop: Event
) -> Any:
    """Read what the ranks say until rank 0 has said its last word; it may still save a state when others are done.

    The first error counts, unless a rank died without a word: then that is what the others complain about.
    """
    readers, errors, deadline = list(ranks), list[Exception](), math.inf
    while time.monotonic() < deadline:
        if should_stop():
            stop.set()
        for ready in wait(readers, timeout=_WAIT_SECONDS):
            assert isinstance(ready, Connection), "only pipes were waited for"
            said = _next(ready)
            if said is None:
                raise _lost(*ranks[ready])
            kind, value = said
            if kind == "told":
                tell(value)
                continue
            readers.remove(ready)
            if kind == "raised":
                errors.append(value)
                deadline = time.monotonic() + _LAST_WORDS_SECONDS
            if ranks[ready][0].number == 0:
                if kind == "returned":
                    return value
                raise _died(ranks, readers) or errors[0]
    raise errors[0]


def _next(reader: Connection) -> tuple[Literal["told", "raised", "returned"], Any] | None:
    """What a rank says next; None if it is gone."""
    try:
        return reader.recv()
    except (EOFError, OSError):
        return None


def _died(ranks: dict[Connection, tuple[Rank, ForkServerProcess]], readers: Sequence[Connection]) -> RankLost | None:
    """The rank among those still listened to that has died without a word, if any."""
    for reader in wait(readers, timeout=_WAIT_SECONDS):
        assert isinstance(reader, Connection), "only pipes were waited for"
        if _next(reader) is None:
            return _lost(*ranks[reader])
    return None


def _lost(rank: Rank, process: ForkServerProcess) -> RankLost:
    process.join()
    code = process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return RankLost(
        f"rank {rank.number} of {rank.size} ({rank.device}) {how}, so the others were ended; its state stays"
    )


def _be(work: Work, rank: Rank, writer: Connection, stop: Event) -> None:
    """Be a rank: work, and say how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="orphan-watch", daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine, whose name may not resolve
    torch.set_num_threads(rank.threads)
    try:
        writer.send(("returned", work(rank, lambda value: writer.send(("told", value)), stop.is_set)))
    except Exception as error:  # noqa: BLE001  (whatever it is, the parent raises it)
        error.add_note(traceback.format_exc())
        writer.send(("raised", error))
    writer.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a rank is a child"
    parent.join()
    os._exit(os.EX_TEMPFAIL)
