"""`python -m service`: the service and its page on 127.0.0.1:8000."""

from __future__ import annotations

import argparse

import uvicorn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    uvicorn.run("service.app:create_app", factory=True, host=arguments.host, port=arguments.port, server_header=False)


if __name__ == "__main__":
    main()
