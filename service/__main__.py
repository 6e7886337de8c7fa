"""`python -m service`: the service and its page on 127.0.0.1:8000."""

from __future__ import annotations

import argparse
import sys

import uvicorn

from service.app import create_app
from service.settings import Settings
from stages.device import pick_device


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    settings = Settings()
    try:
        pick_device(settings.device)
    except ValueError as error:
        sys.exit(f"service: CLAIMCHECK_DEVICE: {error}")
    uvicorn.run(create_app(settings), host=arguments.host, port=arguments.port, server_header=False)


if __name__ == "__main__":
    main()
