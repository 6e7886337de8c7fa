"""Hundreds of hostile uploads and requests with their expected responses, without a 500 or internal details."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.service.conftest import png
from tests.service.hostile_images import hostile_images, interlaced
from tests.service.test_errors import assert_problem

PREDICT = "/predict?checkpoint=ninformer-cifar100.vit.0"
NAMES = {
    "dots": "../../../../etc/passwd",
    "encoded dots": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "twice encoded dots": "%252e%252e%252fetc",
    "windows": "..\\..\\windows\\win.ini",
    "absolute": "/etc/passwd",
    "drive": "C:\\boot.ini",
    "address": "file:///etc/passwd",
    "foreign address": "https://example.org/model.safetensors",
    "nul": "ninformer\0.png",
    "newline": "ninformer\r\nSet-Cookie: a=b",
    "look-alike": "nіnformer",
    "full width": "ｎｉｎｆｏｒｍｅｒ",
    "right to left": "\u202eremrofnin",
    "zero width": "nin\u200bformer",
    "capitals": "NINFORMER",
    "trailing space": "ninformer ",
    "quote": "' OR '1'='1",
    "comment": "x'; DROP TABLE claims; --",
    "union": "x' union select passwd from pg_shadow --",
    "like": "%",
    "template": "{{7*7}}${7*7}#{7*7}",
    "lookup": "${jndi:ldap://example.org/a}",
    "script": "<script>alert(1)</script>",
    "formula": "=cmd|' /C calc'!A0",
    "long": "x" * 8000,
    "surrogate": "%ED%A0%80",
    "invalid utf-8": "%FF%FE",
}
FEW_NAMES = ("quote", "long", "surrogate", "invalid utf-8", "right to left")
"""Kinds of names for every parameter that takes a name; model names are tested with all kinds."""
NAME_FILTERS = {
    "/api/v1/experiments/ninformer-mnist/curves": ("arm",),
    "/compare": ("dataset", "paper"),
    "/versus": ("dataset",),
    "/api/v1/experiments": ("dataset", "paper"),
    "/api/v1/claims": ("paper", "kind", "family"),
    "/api/v1/runs": ("experiment", "arm"),
    "/api/v1/checkpoints": ("dataset", "experiment"),
}
CLOSED_FILTERS = {
    "/compare": ("profile", "metric", "format"),
    "/api/v1/runs": ("provenance", "source", "selected", "limit"),
}
RESOURCES = ("papers", "datasets", "experiments", "claims", "runs", "checkpoints")


def test_hostile_image_gets_expected_status(client: TestClient, subtests: pytest.Subtests) -> None:
    for case in hostile_images():
        with subtests.test(case.name):
            response = client.post(PREDICT, files={"file": ("picture.png", case.content)})
            if case.status == 200:
                assert response.status_code == 200, response.text
                assert len(response.json()["images"][0]["answers"][0]["top"]) == 5
            else:
                assert_problem(response, case.status, case.words)
                assert response.json()["detail"].startswith("picture.png: ")


def encoded(name: str) -> str:
    return name if "%" in name and len(name) > 1 else quote(name, safe="")


@pytest.mark.parametrize("kind", NAMES)
def test_hostile_model_name_is_404(client: TestClient, kind: str) -> None:
    name = encoded(NAMES[kind])
    assert client.get(f"/v2/models/{name}").status_code == 404
    assert client.get(f"/v2/models/ninformer-mnist.vit/versions/{name}").status_code == 404
    assert client.post(f"/v2/models/{name}/infer", json={}).status_code == 404
    assert_problem(client.post(f"/predict?checkpoint={name}", files={"file": png()}), 404)
    form = client.post("/predict", data={"dataset": NAMES[kind]}, files={"file": png()})
    assert_problem(form, 413 if len(NAMES[kind]) > 4096 else 404)
    assert_problem(client.get(f"/runs/{name}"), 404)
    assert_problem(client.get(f"/static/{name}"), 404)


@pytest.mark.parametrize("kind", FEW_NAMES)
def test_hostile_name_is_404_or_422_for_fixed_choices(client: TestClient, kind: str) -> None:
    name = encoded(NAMES[kind])
    for resource in RESOURCES:
        assert_problem(client.get(f"/api/v1/{resource}/{name}"), 404)
    for filters, status in ((NAME_FILTERS, 404), (CLOSED_FILTERS, 422)):
        for address in (f"{path}?{one}={name}" for path, names in filters.items() for one in names):
            assert_problem(client.get(address), status)


def test_invalid_limit_is_422(client: TestClient) -> None:
    for value in ("-1", "0", "1e3", "1e309", "NaN", "inf", "null", "[]", "0x10", "1001", "9" * 5000, ""):
        assert_problem(client.get("/api/v1/runs", params={"limit": value}), 422, "query.limit")
    assert client.get("/api/v1/runs", params={"limit": "١٠"}).status_code in (200, 422), "Python parses these, too"


@dataclass(frozen=True)
class Form:
    """Body that pretends to be a form, with the expected status."""

    name: str
    content: bytes
    status: int
    content_type: str = "multipart/form-data; boundary=b"
    words: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def part(disposition: str, content: bytes, *headers: str) -> bytes:
    lines = [f"Content-Disposition: form-data; {disposition}", *headers]
    return b"--b\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n"


END = b"--b--\r\n"
GOOD = part('name="file"; filename="a.png"', png())


def forms() -> Iterator[Form]:
    yield Form("plain", GOOD + END, 200)
    short = "the form was cut short: it lacks its last line, --b--"
    yield Form("no end", GOOD, 400, words=short)
    yield Form("cut within a part", GOOD[:-200], 400, words=short)
    yield Form("cut within a second part", GOOD + GOOD[:-200], 400, words=short)
    yield Form("cut in its last line", GOOD + END[:-3], 400, words=short)
    yield Form("more behind its end", GOOD + END + b"epilogue" * 9, 200)
    yield Form("no body", b"", 400, words=short)
    yield Form("only an end", END, 422)
    yield Form("no boundary named", GOOD + END, 400, "multipart/form-data", "lacks the form's boundary")
    yield Form("another boundary", GOOD + END, 400, "multipart/form-data; boundary=c")
    yield Form("long boundary", GOOD + END, 400, f"multipart/form-data; boundary={'b' * 5000}", "256 bytes")
    yield Form("not a form", b"hello--b--", 400, words="begin with the boundary")
    yield Form(
        "compressed", b"\x1f\x8b\x08" + bytes(50), 415, words="uncompressed", headers={"content-encoding": "gzip"}
    )
    yield Form("part without a name", part('filename="a.png"', png()) + END, 400, words="lacks its name")
    yield Form("part without a header", b"--b\r\n\r\n" + png() + b"\r\n" + END, 400, words="lacks its name")
    yield Form("another name", part('name="image"; filename="a.png"', png()) + END, 422, words="send a file as file=")
    yield Form("text instead of a file", part('name="file"', b"hello") + END, 422, words="this is text; send a file")
    yield Form("traversing file name", part('name="file"; filename="../../a.png"', png()) + END, 200)
    yield Form("file name with a nul", part('name="file"; filename="a\0.png"', png()) + END, 200)
    yield Form("file name of a device", part('name="file"; filename="/dev/null"', png()) + END, 200)
    yield Form("no file name", part('name="file"; filename=""', png()) + END, 200)
    yield Form("long file name", part(f'name="file"; filename="{"x" * 2000}"', png()) + END, 200)
    yield Form(
        "longer file name", part(f'name="file"; filename="{"x" * 9000}"', png()) + END, 400, words="a shorter file name"
    )
    yield Form("lying part type", part('name="file"; filename="a"', png(), "Content-Type: text/html") + END, 200)
    nested = part('name="file"; filename="a.png"', GOOD + END, "Content-Type: multipart/mixed; boundary=c")
    yield Form("form within a form", nested + END, 422)
    many = b"".join(part(f'name="f{number}"', b"x") for number in range(300))
    yield Form("300 fields", many + GOOD + END, 413, words="Too many fields")
    flood = b"".join(b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\n\r\n' for _ in range(17_000))
    yield Form("17,000 parts", flood + END, 413, words="Too many fields")
    almost = (b"\r\n--bx" * 10_000,)
    yield Form(
        "lines that almost end a part", part('name="file"; filename="a"', *almost) + END, 413, words="begin with"
    )
    yield Form("a million parts", b"--b\r\n\r\n" * 10**6, 413, words="larger than 1,000,000 bytes")
    yield Form(
        "a large field", part('name="checkpoint"', b"x" * 5000) + GOOD + END, 413, words="a file needs a filename"
    )
    yield Form("50 files", GOOD * 50 + END, 413, words="50 images; one request takes at most 4")
    yield Form("5 files", GOOD * 5 + END, 413, words="5 images; one request takes at most 4")
    yield Form(
        "a giant part header", part('name="file"; filename="a"', png(), "X: " + "y" * 100_000) + END, 400, words="4,224"
    )
    options = ";" * 4000
    yield Form(
        "thousands of a part's options", part(f'name="file"; filename="{options}"', png()) + END, 400, words="64"
    )
    yield Form("thousands of options", GOOD + END, 400, f'multipart/form-data; boundary="{options}', words="semicolons")
    yield Form(
        "thousands of part headers",
        part('name="file"; filename="a"', png(), *["X: y"] * 9000) + END,
        400,
        words="8 headers",
    )
    yield Form(
        "space in a part's header", part('name="file"; filename="a"', b"", "X y: z") + END, 400, words="invalid char"
    )
    for kind in (
        "application/json",
        "text/plain",
        "image/png",
        "multipart/mixed; boundary=b",
        "multipart",
        "",
        "/",
        "\x7f",
    ):
        yield Form(f"content type {kind!r}", GOOD + END, 415, kind, "multipart/form-data")
    yield Form("urlencoded", b"file=x", 415, "application/x-www-form-urlencoded")
    yield Form("odd charset", GOOD + END, 200, "multipart/form-data; charset=no-such; boundary=b")
    named = part('name="checkpoint"', b"\\ud800")
    for charset in ("utf-8", "UTF8", "us-ascii", "latin-1", "no-such"):
        yield Form(f"charset {charset}", named + GOOD + END, 404, f"multipart/form-data; charset={charset}; boundary=b")
    for charset in (
        *("unicode_escape", "raw_unicode_escape", "UTF-7", "punycode", "idna", "undefined", "utf-16", "cp037"),
        *("rot13", "hex", "base64", "zlib", "mbcs\0", '"unicode_escape"'),
    ):
        kind = f"multipart/form-data; charset={charset}; boundary=b"
        yield Form(f"charset {charset}", named + GOOD + END, 404, kind)
    for charset in ("unicode_escape", "undefined"):
        own = f"Content-Type: text/plain; charset={charset}"
        yield Form(f"field in {charset}", part('name="checkpoint"', b"\\ud800", own) + GOOD + END, 404)
        names = f'name="file"; filename*={charset}\'\'%5Cud800; filename="\\ud800"'
        yield Form(f"file in {charset}", part(names, png(), own) + END, 200)
    yield Form("surrogate as a name", part('name="checkpoint"', b"\xed\xa0\x80") + GOOD + END, 404)
    yield Form("65 checkpoints", part('name="checkpoint"', b"x") * 65 + GOOD + END, 422, words="66 checkpoints")
    yield Form(
        "65 arms", part('name="arm"', b"x") * 65 + GOOD + END, 422, words="65 arms; one request takes at most 64"
    )
    wide = part('name="file"; filename="a.png"', interlaced(4000))
    together = "3 images have 48,000,000 pixels together; one request takes at most 40,000,000"
    yield Form("three images of 16 megapixels", wide * 3 + END, 413, words=together)


# The parser leaves the files of an unfinished form open; their destructor closes them with a warning.
@pytest.mark.filterwarnings("ignore:Unclosed file <tempfile:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hostile_form_gets_expected_status(client: TestClient, subtests: pytest.Subtests) -> None:
    for case in forms():
        with subtests.test(case.name):
            headers = {"content-type": case.content_type, **case.headers}
            response = client.post(PREDICT, content=case.content, headers=headers)
            if case.status == 200:
                assert response.status_code == 200, response.text
            else:
                assert_problem(response, case.status, case.words)


TENSOR = {"name": "image", "datatype": "UINT8", "shape": [1, 3, 32, 32], "data": [7] * 3072}


INVALID_TENSORS: dict[str, list[object]] = {
    "name": ["images"],
    "datatype": ["FP32"],
    "shape": [
        *([1, 3, 32, 31], [0, 3, 32, 32], [-1, 3, 32, 32], [True, 3, 32, 32], [2, 3, 32, 32], [10**12, 3, 32, 32]),
        *("x", [1.0, 3, 32, 32], [1, 3.0, 32, 32], [1, 3, 32, 32.0], [1, True, 32, 32], [1, 3, 32]),
        *([1, 3, 32, 32, 1], [], [int("9" * 400), 3, 32, 32]),
    ],
    "data": [
        *([7] * 3071, [-1] * 3072, [256] * 3072, [10**30] * 3072, [0.5] * 3072, ["x"] * 3072, [None] * 3072),
        *([[1], [1, 2]], {}, ["a" * 40_000, *[""] * 13_333], ["a" * 40_000, *[""] * 3071], [True] * 3072),
        *([7.0] * 3072, [[]] * 3072, [[[[7] * 3072]]], "[7]", None),
        [[[[7] * 31] * 33, [[7] * 32] * 31, [[7] * 32] * 32]],
    ],
    "parameters": [*({"binary_data_size": 3072}, {"binary_data_size": "3072"}, {"shared_memory_region": "x"}, False)],
}
"""Invalid values of a tensor, by key."""
INVALID_KEYS: dict[str, list[object]] = {
    "id": [{}, None, "x" * 1025, "\ud800"],
    "parameters": [[1], "", {"x": ["\ud800"]}],
    "outputs": [
        *(None, {"name": "classes"}, [5], [{"name": "classes"}] * 5000),
        *([{"name": name}] for name in ("logits", "\ud800", ["classes"], {"a": 1}, None, 5, True)),
        *([{"name": "classes", "parameters": {key: 3}}] for key in ("classification", "shared_memory_region")),
    ],
    "\udfff": [1],
}
"""Invalid values of keys next to a valid tensor."""
BODIES: list[object] = [
    *(b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b"{}", b'{"inputs": []}', b'{"inputs": [1]}'),
    *(b'{"inputs": {}}', b'{"inputs": [{}]}', b'{"inputs": [{}, {}]}', b'{"id": 5}', b'{"inputs": "\xed\xa0\x80"}'),
    {"inputs": [TENSOR | {"parameters": []}], "outputs": 5},
    *({"inputs": [TENSOR | {name: "\ud800"}]} for name in (*INVALID_TENSORS, "x")),
    *({"inputs": [TENSOR | {name: value}]} for name, values in INVALID_TENSORS.items() for value in values),
    *({"inputs": [TENSOR], name: value} for name, values in INVALID_KEYS.items() for value in values),
]


def test_invalid_tensor_request_is_400(client: TestClient, subtests: pytest.Subtests) -> None:
    for body in BODIES:
        with subtests.test(str(body)[:200]):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = client.post("/v2/models/ninformer-cifar100.vit/infer", content=content)
            assert response.status_code == 400, response.text
            problem = response.json()
            assert problem["error"] == problem["detail"] and problem["status"] == 400
            assert "Traceback" not in response.text and ".py" not in response.text


def test_wrong_header_length_is_400(client: TestClient) -> None:
    for length in ("-1", "x", "99999", "9" * 30, "1", "1" * 5000, "0" * 5000 + "1", "1_0", "+5", " 5", "5.0", ""):
        headers = {"inference-header-content-length": length}
        response = client.post("/v2/models/ninformer-cifar100.vit/infer", json={"inputs": [TENSOR]}, headers=headers)
        assert response.status_code == 400, length


def test_foreign_host_is_421(client: TestClient) -> None:
    for host in ("example.org", "127.0.0.1.example.org", "evil@127.0.0.1", "127.0.0.1:80:80", "", "[::1", "*"):
        assert_problem(client.get("/compare", headers={"host": host}), 421, "CLAIMCHECK_ALLOWED_HOSTS")


def test_own_host_is_served_despite_forwarding_headers(client: TestClient) -> None:
    forwarded = {"x-forwarded-host": "example.org", "forwarded": "host=example.org", "x-original-url": "/predict"}
    for host in ("127.0.0.1", "127.0.0.1:8000", "LOCALHOST:1", "[::1]:8000"):
        assert client.get("/health/live", headers={"host": host, **forwarded}).status_code == 200


ODD_HEADERS = {
    "accept": ("*/*;q=nan", ";" * 5000, "a/b,*/*"),
    "if-none-match": ('"' * 4000, 'W/"x", "y", *x'),
    "range": ("bytes=0-18446744073709551615",),
    "x-request-id": ("a b\tc", "x" * 4000),
    "cookie": ("a=" + "b" * 4000,),
    "authorization": ("Bearer " + "x" * 4000,),
    "accept-encoding": ("gzip;q=9, br, *",),
    "transfer-encoding": ("chunked, identity",),
    "upgrade": ("h2c",),
    "origin": ("https://example.org",),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in ODD_HEADERS for value in ODD_HEADERS[name]])
def test_malformed_header_is_ignored(client: TestClient, name: str, value: str) -> None:
    response = client.get("/api/v1/papers", headers={name: value})
    assert response.status_code == 200
    assert len(response.headers["x-request-id"]) <= 64
    assert "access-control-allow-origin" not in response.headers
