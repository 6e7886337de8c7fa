"""`python -m service`: the service and its page on 127.0.0.1:8000."""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import threading
from types import FrameType

import uvicorn

from service import logs
from service.access import new_key
from service.headers import MAX_REQUEST_HEADER_BYTES
from service.processes import load_ahead
from service.readiness import Readiness
from service.settings import Settings
from stages.device import device_for


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--new-key", action="store_true", help="print an API key and its digest, and end")
    parser.add_argument("--openapi", action="store_true", help="print the OpenAPI document, and end")
    arguments = parser.parse_args()
    if arguments.new_key:
        key, digest = new_key()
        print(f"key (for the client): {key}\nCLAIMCHECK_API_KEYS={digest}")
        return
    settings = Settings()
    try:
        device_for(settings.device)
    except ValueError as error:
        sys.exit(f"service: CLAIMCHECK_DEVICE: {error}")
    if not arguments.openapi:
        load_ahead()
    from service.app import create_app  # takes as long as loading torch, which happens meanwhile

    app = create_app(settings)
    if arguments.openapi:
        print(json.dumps(app.openapi(), indent=1, ensure_ascii=False))
        return
    gc.collect()
    gc.freeze()  # imported objects stay, so the garbage collector need not scan them again and again
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        server_header=False,
        access_log=False,
        log_config=logs.configuration(),
        http="h11",  # the other parser accepts headers of any length, trailers as headers and any number of requests
        h11_max_incomplete_event_size=MAX_REQUEST_HEADER_BYTES,
        ws="none",
        timeout_graceful_shutdown=30,
    )
    DrainingServer(config, app.state.claimcheck.readiness, settings.drain_seconds).run()


if __name__ == "__main__":
    main()
