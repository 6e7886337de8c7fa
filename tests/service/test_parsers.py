"""Every parser reachable by clients takes linear time, so that none can block the event loop."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
from fastapi.testclient import TestClient
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, QueryParams
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from service.http.caching import MAX_REQUEST_HEADER_BYTES, known_tags
from service.http.errors import weight
from service.http.middleware import ADDRESS, _is_ignored
from service.http.strict import only_file
from service.inference.decoding import TINY_BYTES
from service.inference.tensors import TensorError, read_request
from service.routes.inference import MAX_BYTES, read_query
from stages.images import ImageError, decode_image, outline

LONGEST_MESSAGE = 320 * 1024
"""Bytes of a body that the server passes on at once: one read of the event loop plus the data that already wait."""
QUICK_BYTES, QUICK_SECONDS = 20_000, 0.1
"""A first, short run: quadratic time shows within seconds instead of days."""
SECONDS = 0.5
SHAPE = (3, 32, 32)
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
TENSOR = b'{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,3,32,32],"data":'


@dataclass(frozen=True)
class Parser:
    """Continue each of `starts` up to `limit` bytes with one byte, two alternating bytes of `grammar`, or a word."""

    name: str
    read: Callable[[bytes], object]
    limit: int
    starts: tuple[bytes, ...]
    grammar: bytes
    bytes_alone: bytes = bytes(range(256))
    words: tuple[bytes, ...] = ()


def read_form(content: bytes) -> None:
    async def message() -> AsyncIterator[bytes]:
        yield content
        yield b""

    headers = Headers({"content-type": "multipart/form-data; boundary=b"})
    parser = MultiPartParser(headers, message(), max_fields=256, max_part_size=4096)
    with suppress(MultiPartException):
        asyncio.run(parser.parse())
    for file in parser._files_to_close_on_error:
        file.close()


def read_tensors(content: bytes) -> None:
    for header_length in (None, str(len(content) // 2)):
        with suppress(TensorError):
            read_request(content, header_length, SHAPE, 512)


def read_outline(content: bytes) -> None:
    with suppress(ImageError):
        outline(content)


def read_tiny(content: bytes) -> None:
    with suppress(ImageError):
        decode_image(content, SHAPE)


def read_cookie(content: bytes) -> None:
    """FastAPI parses the cookies of every request with a quadratic function of the standard library."""
    headers = [pair for pair in [(b"cookie", content)] if not _is_ignored(*pair)]
    Request({"type": "http", "headers": headers}).cookies  # noqa: B018


def in_header(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda content: read(content.decode("latin-1"))


HEADER = MAX_REQUEST_HEADER_BYTES
FILES = (b"", b"\xff\xd8", b"\xff\xd8\xff\xda\x00\x02", b"\x89PNG\r\n\x1a\n", b"RIFF\x00\x00\x00\x00WEBP")
WORDS = (b"\0\0\0\0IDAT\0\0\0\0", b"\xff\xda\0\x02", b"\xff\xc0\0\x02", b"VP8L\x01\0\0\0\x2f\0", b"RIFF\0\0\0\0WEBP")
MARKERS = b"\x00\x01\x02\xc0\xc4\xd0\xd8\xd9\xda\xe1\xff"
PARSERS = [
    Parser("form", read_form, LONGEST_MESSAGE, (b"", b"--b\r\n", PART[:-6], PART, PART + b"\r\n--b--"), b"\r\n-b:;="),
    Parser(
        "one file", lambda body: only_file(b"multipart/form-data; boundary=b", body), MAX_BYTES, (b"", PART), b"\r\n-b"
    ),
    Parser(
        "tensors",
        read_tensors,
        4 * 1024 * 1024,
        (b"", b'{"a":', TENSOR, TENSOR + b"["),
        b'[]{},:"\\ 0',
        b'[]{},:"\\ 0-.eu\xff',
    ),
    Parser("query", in_header(QueryParams), HEADER, (b"", b"a="), b"&=%;+a"),
    Parser("short query", read_query, HEADER, (b"", b"checkpoint="), b"&=%.a"),
    Parser(
        "content type",
        in_header(parse_options_header),
        HEADER,
        (b"", b'multipart/form-data; boundary="'),
        b"\\\";=*' ,%a",
    ),
    Parser("accept", in_header(lambda text: weight(text, "text/html")), HEADER, (b"", b"text/html;q="), b'",;=/*q0. '),
    Parser("tags", lambda text: known_tags(Headers(raw=[(b"if-none-match", text)])), HEADER, (b"", b'W/"'), b'",W/ *'),
    Parser("cookie", read_cookie, HEADER - len("cookie"), (b"", b'a="'), b'=;" \\'),
    Parser("address", ADDRESS.fullmatch, HEADER, (b"", b"http://"), b"/:h"),
    Parser("outline", read_outline, 10 * 1024 * 1024, FILES[1:], b"\x00\xff", MARKERS, WORDS),
    Parser("tiny image", read_tiny, TINY_BYTES, FILES, MARKERS, words=WORDS),
]


HEADERS = {
    "accept": ",;/=",
    "accept-encoding": ",;",
    "authorization": " ",
    "cookie": "=;",
    "if-none-match": ',"',
    "range": ",-",
    "x-forwarded-for": ",",
}
HEADER_SECONDS = 0.1


def takes(parser: Parser, content: bytes) -> float:
    """Return the seconds of this thread, which other processes don't affect."""
    began = time.thread_time()
    parser.read(content)
    return time.thread_time() - began


def test_no_header_takes_long_to_process(client: TestClient) -> None:
    """Every page and list reads the same headers, so a parser's time counts about 20 times."""
    for name, grammar in HEADERS.items():
        for period in (*grammar, *itertools.permutations(grammar, 2)):
            value = ("/" + "".join(period) * HEADER)[: HEADER - 1000].encode("latin-1")
            for path in ("/nothing", "/api/v1/papers"):
                assert any(of_answer(client, path, {name: value}) < HEADER_SECONDS for _ in range(3)), (name, period)


def of_answer(client: TestClient, path: str, headers: dict[str, bytes]) -> float:
    began = time.process_time()
    client.get(path, headers=headers)
    return time.process_time() - began


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_no_parser_takes_long(parser: Parser) -> None:
    """Each input gets three tries, because garbage of earlier tests may be collected during one."""
    pairs = [bytes(pair) for pair in itertools.product(parser.grammar, repeat=2) if pair[0] != pair[1]]
    periods = [bytes([byte]) for byte in parser.bytes_alone] + pairs + list(parser.words)
    read_tiny(b"x")  # load what decoding needs
    for size, seconds in ((min(QUICK_BYTES, parser.limit), QUICK_SECONDS), (parser.limit, SECONDS)):
        for start, period in itertools.product(parser.starts, periods):
            content = (start + period * (size // len(period)))[:size]
            assert any(takes(parser, content) < seconds for _ in range(3)), (parser.name, start, period, size)
