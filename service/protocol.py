"""HTTP by llhttp, whose own parser takes headers of any length."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.headers import MAX_REQUEST_HEADER_BYTES

logger = logging.getLogger("claimcheck")


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection with 400 once 32 KiB came that made neither complete headers nor a piece of body.

    So headers, chunk extensions and trailers have an end, whatever the parser would remember of them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._fruitless_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._fruitless_bytes += len(data)
        super().data_received(data)
        if self._fruitless_bytes > MAX_REQUEST_HEADER_BYTES and not self.transport.is_closing():
            logger.warning("a connection sent %d bytes without an end of its headers", self._fruitless_bytes)
            self.send_400_response("The request's headers are too large.")

    def on_headers_complete(self) -> None:
        self._fruitless_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._fruitless_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._fruitless_bytes = 0
        super().on_message_complete()
