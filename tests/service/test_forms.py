"""The fast path reads a form like the general parser, or leaves it to that."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from service.http.strict import only_file
from service.routes.inference import MAX_NAMES, read_query
from tests.service.conftest import png
from tests.service.test_hostile import END, GOOD, forms, part

KIND = "multipart/form-data; boundary=b"
PIECES = [
    *(b"--b", b"--b--", b"\r\n", b"\n", b"\r", b"-", b"--", b"b", b"\0", b'"', b";", b":", b" ", b"x", b"\xff"),
    *(b"Content-Disposition: form-data; ", b"content-type: image/png", b'name="file"', b'filename="a.png"', b"; "),
    *(b"\r\n\r\n", b"\r\n--b", b"\r\n--b--\r\n", b"--b\r\n", b"filename*=utf-8''x", GOOD, END),
]


def by_the_parser(kind: str, body: bytes) -> list[tuple[str, str | None, bytes]] | None:
    """Return field, file name and content of every part, or None for an invalid form."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    async def read() -> list[tuple[str, str | None, bytes]]:
        form = await MultiPartParser(Headers({"content-type": kind}), stream()).parse()
        found = []
        for name, value in form.multi_items():
            is_file = isinstance(value, UploadFile)
            found.append((name, value.filename, await value.read()) if is_file else (name, None, value.encode()))
        await form.close()
        return found

    try:
        return asyncio.run(read())
    except (MultiPartException, UnicodeError, KeyError):
        return None


def assert_alike(kind: str, body: bytes) -> None:
    short = only_file(kind.encode("latin-1"), body)
    if short is not None:
        assert by_the_parser(kind, body) == [short]


@pytest.mark.parametrize("name", ["a.png", "a b_c-1.JPG", "x"])
@pytest.mark.parametrize("content", [b"", png(), b"\r\n--", b"--b", b"a\r\n-b\r\n"], ids=len)
def test_form_with_one_file_is_read(name: str, content: bytes) -> None:
    for more in ([], ["Content-Type: image/png"]):
        body = part(f'name="file"; filename="{name}"', content, *more) + END
        assert only_file(KIND.encode(), body) == ("file", name, content)
        assert by_the_parser(KIND, body) == [("file", name, content)]


@pytest.mark.filterwarnings("ignore:Unclosed file <tempfile:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hostile_form_is_read_alike_or_declined(subtests: pytest.Subtests) -> None:
    for case in forms():
        with subtests.test(case.name):
            assert_alike(case.content_type, case.content)


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_random_form_is_read_alike_or_declined(pieces: list[bytes]) -> None:
    assert_alike(KIND, b"".join(pieces))


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.sampled_from(["a.png", 'a"b', "ä", "a\\b", "%41", ""]))
def test_random_file_is_read_alike_or_declined(pieces: list[bytes], name: str) -> None:
    assert_alike(KIND, part(f'name="file"; filename="{name}"', b"".join(pieces)) + END)


@pytest.mark.parametrize(
    "text",
    [
        *("", "top_k=5", "arm=vit", "checkpoint=", "checkpoint=a&dataset=b", "dataset=a&dataset=b", "checkpoint"),
        *("checkpoint=a&top_k=0", "checkpoint=a&top_k=1001", "checkpoint=a&top_k=05", "checkpoint=a&top_k=x"),
        *("checkpoint=a&top_k=1&top_k=2", "checkpoint=%61", "checkpoint=a+b", "checkpoint=a&x=1", "checkpoint=a&"),
        "&".join(["checkpoint=a"] * (MAX_NAMES + 1)),
        "dataset=a&" + "&".join(["arm=a"] * (MAX_NAMES + 1)),
    ],
)
def test_invalid_or_complex_query_is_left_to_the_route(text: str) -> None:
    assert read_query(text.encode()) is None
