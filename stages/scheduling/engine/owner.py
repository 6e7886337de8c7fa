"""Who owns a lease: one process among machines and containers, and whether it is known to be gone."""

from __future__ import annotations

import os
import socket
from functools import cache


def process_identity(pid: int) -> str:
    """`host:boot:namespace:pid:start time`: identifies one process among containers, even after its pid is reused."""
    return f"{_scope()}:{pid}:{_start_time(pid)}"


@cache
def _scope() -> str:
    """Host, boot and namespace of process ids: where a pid can be looked up.

    Two containers may share a host name; their namespaces differ.
    """
    return f"{socket.gethostname()}:{_read('/proc/sys/kernel/random/boot_id')[:8]}:{_namespace()}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """In ticks since boot, which no clock that is set changes; psutil tells it by the clock."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _is_running(identity: str) -> bool:
    _, pid, start_time = identity.rsplit(":", 2)
    return start_time != "" and process_identity(int(pid)) == identity


def is_gone(owner: str) -> bool:
    """True if `owner` is a process of this boot and namespace that is gone; about others nothing is known."""
    return owner.rsplit(":", 2)[0] == _scope() and os.path.isdir("/proc/self") and not _is_running(owner)
