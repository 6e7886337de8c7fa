"""Reports faults of the machine (a full disk, an unwritable folder) in one line that says what to do.

Standard library only.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, ParamSpec

FAULTS = (OSError, sqlite3.OperationalError)
P = ParamSpec("P")
INTERRUPTED = 130
STOPPED = "stopped by Ctrl-C; finished work is kept, so run this again to do the rest"


class Mistake(Exception):
    """A mistake that the user can correct; the message is one line that says how."""


class UnknownName(LookupError):
    """A name that the results database doesn't contain.

    `known` lists the names that it does contain if they are few; otherwise, `nearest` is the one that was probably
    meant.  `kind` says what the name is of, as "paper".
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.removeprefix("Unknown").lower()

    def __init__(self, name: str, known: Iterable[str] = (), *, nearest: str | None = None) -> None:
        self.name, self.known, self.nearest = name, tuple(known), nearest
        choices = f"; known: {', '.join(self.known)}" if self.known else ""
        choices += f"; did you mean {nearest}?" if nearest else ""
        super().__init__(f"unknown {self.kind} {name!r}{choices}")


_AGAIN = "then run this again"
_FULL = (
    "free some space (`claimcheck du` shows what takes it, `claimcheck gc` removes what killed trainings left) or move "
    f"downloads and trainings to another disk with CLAIMCHECK_HOME, {_AGAIN}"
)
_CLOSED = f"give this user access to it, or work in a folder that this user can write to, {_AGAIN}"
_MOVABLE = f"give this user access to it, or move downloads and trainings elsewhere with CLAIMCHECK_HOME, {_AGAIN}"
_IN_THE_WAY = f"there is a file instead of a folder, or a folder instead of a file: move it away, {_AGAIN}"
_BROKEN = f"check the disk, restore the file (`git checkout` or `dvc repro`), {_AGAIN}"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: f"files can't be that large here: raise `ulimit -f` or use another disk, {_AGAIN}",
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.EROFS: _CLOSED,
    errno.ENOENT: f"go to the root of a clone; `dvc repro` creates missing files below data/, {_AGAIN}",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EIO: _BROKEN,
    errno.EAGAIN: f"another process holds it: wait until that process ends, {_AGAIN}",
    errno.EMFILE: f"raise `ulimit -n`, {_AGAIN}",
    errno.ENOMEM: f"end other programs, or train with fewer slots, {_AGAIN}",
}
_OF_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_BUSY: errno.EAGAIN,
    sqlite3.SQLITE_LOCKED: errno.EAGAIN,
}


def describe_fault(error: OSError | sqlite3.OperationalError) -> str:
    """Return one line: `path: what is wrong; what to do`."""
    path = getattr(error, "filename", None)
    if isinstance(error, OSError):
        number, words = error.errno, error.strerror or str(error)
    else:
        number, words = _OF_SQLITE.get(_sqlite_code(error)), str(error)
    advice = _ADVICE.get(number or 0, f"fix that, {_AGAIN}")
    movable = [Path(os.environ.get("CLAIMCHECK_HOME", "data"), name).absolute() for name in ("downloads", "store")]
    if path and advice is _CLOSED and any(Path(str(path)).absolute().is_relative_to(folder) for folder in movable):
        advice = _MOVABLE
    return f"{f'{path}: ' if path else ''}{' '.join(words.split())}; {advice}"


def _sqlite_code(error: sqlite3.OperationalError) -> int:
    """Return the primary error code, without the details in its upper bits."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Attribute faults in this block to `path` if they name no file, as faults of writing don't."""
    try:
        yield
    except FAULTS as error:
        if getattr(error, "filename", None) is None:
            error.filename = str(path)  # type: ignore[union-attr]  # SQLite's errors take any attribute
        raise


def mend_streams() -> None:
    """Redirect closed standard streams (`>&-`) to nowhere, and replace characters that a stream can't encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # open one now, or the next file to be opened gets the closed one's number
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, open(nowhere, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # a fork's pipe that was a file when the stream was made; the handler is set first
                stream.reconfigure(errors="replace")


def in_one_line(verb: str, *mistakes: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorate a verb's `main` to report Ctrl-C, a mistake, a fault or a module that can't be parsed in one line."""
    expected: tuple[type[Exception], ...] = (Mistake, *mistakes)

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @functools.wraps(main)
        def answer(*args: P.args, **kwargs: P.kwargs) -> int:
            mend_streams()
            try:
                code = main(*args, **kwargs)
                sys.stdout.flush()
            except KeyboardInterrupt:
                print(f"{verb}: {STOPPED}", file=sys.stderr)
                return INTERRUPTED
            except expected as error:
                print(f"{verb}: {error}", file=sys.stderr)
                return 1
            except SyntaxError as error:  # in a module that is read or imported while the verb runs
                line = f", line {error.lineno}" if error.lineno else ""
                advice = f"fix it, or restore it (`git checkout {error.filename}`), {_AGAIN}"
                print(f"{verb}: {error.filename}{line}: {error.msg}; {advice}", file=sys.stderr)
                return 1
            except FAULTS as error:
                if isinstance(error, sqlite3.OperationalError) and _sqlite_code(error) not in _OF_SQLITE:
                    raise  # one of our own statements is wrong
                print(f"{verb}: {describe_fault(error)}", file=sys.stderr)
                return 1
            return code

        return answer

    return decorate


@contextmanager
def on_signal(number: signal.Signals, act: Callable[[], Any]) -> Iterator[None]:
    """Let the signal call `act` while the block runs; only for the main thread."""
    before = signal.signal(number, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that trainings save their state and end by themselves."""
    stop = threading.Event()
    with on_signal(signal.SIGTERM, stop.set), on_signal(signal.SIGINT, stop.set):
        yield stop
