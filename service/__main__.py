"""`python -m service`: the service and its page on 127.0.0.1:8000."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.http import connections
from service.http.access import CountsError, KeysError, new_key
from service.http.middleware import Readiness
from service.http.monitoring import log_configuration
from service.inference.processes import load_ahead
from service.settings import Settings
from stages.device import device_for

BACKLOG, OTHER_FILES, LEAST_CONNECTIONS = 2048, 768, 32
SWITCH_SECONDS = 0.0005
"""Longest time that a thread keeps the interpreter while the event loop waits for it; Python's default is 0.005."""

logger = logging.getLogger("claimcheck")


class DrainingServer(uvicorn.Server):
    """After the first signal, reports not ready but goes on answering; `drain_seconds` later the server shuts down.

    Requests under way are still finished.  A second signal ends the wait.
    """

    def __init__(self, config: uvicorn.Config, readiness: Readiness, drain_seconds: float) -> None:
        super().__init__(config)
        self.readiness, self.drain_seconds = readiness, drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.readiness.is_draining or sig == signal.SIGINT:
            super().handle_exit(sig, frame)
            return
        self.readiness.is_draining = True
        timer = threading.Timer(self.drain_seconds, super().handle_exit, (sig, frame))
        timer.daemon = True
        timer.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        faulthandler.cancel_dump_traceback_later()  # open requests may take longer
        notify_systemd("STOPPING=1")
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Serve until a signal comes; at the end a captured signal ends the process."""
        with super().capture_signals():
            yield
            logging.getLogger("claimcheck").handlers[0].flush()


def notify_systemd(state: str) -> None:
    """Report to systemd, if it started this process (sd_notify(3)); an address with @ is abstract."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def make_room(connections: int) -> tuple[int, int]:
    """Raise the limit on open files to what so many connections, databases, models and exports need.

    Returns the number of connections that may be open, and that of those that may wait: they are accepted all at once.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + BACKLOG + OTHER_FILES
    most = wanted if hard < 0 else min(wanted, hard)
    if 0 <= soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == wanted:
        return connections, BACKLOG
    left = max(most - OTHER_FILES, LEAST_CONNECTIONS)
    logger.warning("`ulimit -n` is %d, but %d files are needed: at most %d connections", hard, wanted, left // 2)
    return min(connections, left // 2), left - left // 2


def warn_if_open(host: str, settings: Settings) -> None:
    """Log a warning if anyone may use the models."""
    if settings.keys is None and not is_this_machine(host):
        logger.warning(
            "OPEN TO ALL: %s is reachable from other machines, and anyone can run models without a key. "
            "Name a file of keys with CLAIMCHECK_KEYS (python -m service --new-key NAME), or listen on 127.0.0.1.",
            host,
        )


def is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--new-key", metavar="NAME", help="print an API key and its entry in CLAIMCHECK_KEYS, and exit")
    parser.add_argument("--openapi", action="store_true", help="print the OpenAPI document, and exit")
    arguments = parser.parse_args()
    if arguments.new_key:
        key, digest = new_key()
        print(f"key (for the client): {key}\nentry (for the file of keys):\n")
        print(f'[{arguments.new_key}]\nsha256 = ["{digest}"]')
        return
    if "CLAIMCHECK_API_KEYS" in os.environ:  # would leave open what was closed
        sys.exit("service: CLAIMCHECK_API_KEYS is not a setting; CLAIMCHECK_KEYS names a file of keys")
    settings = Settings()
    try:
        device_for(settings.device)
    except ValueError as error:
        sys.exit(f"service: CLAIMCHECK_DEVICE: {error}")
    if not arguments.openapi:
        load_ahead()
    from service.app import create_app  # takes as long as loading torch, which happens meanwhile

    try:
        app = create_app(settings)
    except KeysError as error:
        sys.exit(f"service: CLAIMCHECK_KEYS: {error}")
    except CountsError as error:
        sys.exit(f"service: CLAIMCHECK_COUNTS: {error}")
    if arguments.openapi:
        print(json.dumps(app.openapi(), indent=1, ensure_ascii=False))
        return
    serve(app, settings, arguments.host, arguments.port)


def serve(app: FastAPI, settings: Settings, host: str, port: int) -> None:
    """Answer until a signal ends it."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # imported objects stay, so the garbage collector need not scan them again and again
    most, backlog = make_room(settings.max_connections)
    limits = settings.model_copy(update={"max_connections": most})

    async def watch_loop() -> None:
        """End the process with every thread's stack in the log if the loop stalls, even with the GIL held."""
        faulthandler.dump_traceback_later(settings.stall_seconds, exit=True)
        notify_systemd("READY=1\nWATCHDOG=1")

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        server_header=False,
        access_log=False,
        log_config=log_configuration(),
        # the other parser accepts headers of any length, trailers as headers and any number of requests
        http=connections.protocol(limits, app.state.claimcheck.metrics),
        proxy_headers=False,  # `create_app` trusts those that the settings name
        ws="none",
        backlog=backlog,
        loop="asyncio",  # accepts all that wait at once; uvloop accepts one in each turn of the loop
        timeout_graceful_shutdown=30,
        callback_notify=watch_loop,
        timeout_notify=0,  # at each tick of a second
    )
    warn_if_open(host, settings)
    DrainingServer(config, app.state.claimcheck.readiness, settings.drain_seconds).run()


if __name__ == "__main__":
    main()
