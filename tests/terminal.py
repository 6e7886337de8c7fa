"""Run a command on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])|\r(?!\n)")


def on_terminal(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    *,
    columns: int,
    look: Callable[[str, subprocess.Popen[bytes]], None] = lambda shown, process: None,
) -> tuple[int, str]:
    """Return the exit code and the output without control sequences, on a terminal with `columns` columns.

    `look` is called with the output so far whenever it grows. The process leads the terminal's foreground group, which
    receives Ctrl-C.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal = {"TERM": "xterm-256color"}
    kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=kept | terminal,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
        look(CONTROL.sub("\n", written.decode(errors="replace")), process)
    os.close(leader)
    return process.wait(), CONTROL.sub("\n", written.decode())
