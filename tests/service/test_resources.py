import asyncio
import hashlib
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from service.http import middleware
from service.http.caching import edition_of, tag_of
from service.http.middleware import CACHED_BYTES, AnswerCache
from service.settings import Settings
from stages.recording.builder import record
from stages.run import canonical_json
from tests.service.conftest import keys_file, png, reading, serving
from tests.service.results_factory import REPOSITORY
from tests.service.running import Running, request
from tests.service.test_errors import assert_problem


def test_lists_keep_the_order_of_params_and_items_equal_list_entries(client: TestClient) -> None:
    (paper,) = client.get("/api/v1/papers").json()
    assert paper["title"].startswith("NiNformer") and client.get("/api/v1/papers/ninformer").json() == paper
    assert [row["name"] for row in client.get("/api/v1/datasets").json()] == ["mnist", "cifar10", "cifar100"]
    assert client.get("/api/v1/datasets/cifar100").json()["shape"] == [3, 32, 32]
    (experiment,) = client.get("/api/v1/experiments?dataset=mnist").json()
    assert [arm["name"] for arm in experiment["arms"]] == ["vit", "mlp-mixer", "local-vit", "ninformer"]
    assert client.get("/api/v1/experiments/ninformer-mnist").json() == experiment


def test_runs_can_be_filtered(client: TestClient) -> None:
    assert len(client.get("/api/v1/runs").json()) == 24
    chosen = client.get("/api/v1/runs?experiment=ninformer-cifar100&arm=vit&profile=quick").json()
    assert [(row["provenance"], row["source"]) for row in chosen] == [("subset", "evidence")]
    assert {row["provenance"] for row in client.get("/api/v1/runs?provenance=embedded").json()} == {"embedded"}
    assert_problem(client.get("/api/v1/runs?arm=vitt"), 404, "unknown arm 'vitt'")
    assert_problem(client.get("/api/v1/runs?experiment=ninformer-mnist&arm=vitt"), 404, "known: vit, mlp-mixer")


def walk(client: TestClient, address: str) -> list[list[dict[str, Any]]]:
    """Follow Link headers through all pages."""
    pages = []
    while True:
        response = client.get(address)
        pages.append(response.json())
        links = parse_links(response.headers["link"])
        if "next" not in links:
            return pages
        address = links["next"]


def parse_links(header: str) -> dict[str, str]:
    return {rel: address for address, rel in re.findall(r'<([^>]*)>; rel="(\w+)"', header)}


@pytest.mark.parametrize(
    "address",
    [
        "/api/v1/runs",
        "/api/v1/claims",
        "/api/v1/checkpoints",
        "/api/v1/experiments",
        "/api/v1/datasets",
        "/api/v1/papers",
    ],
)
@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_pages_have_every_row_once_and_in_order(client: TestClient, address: str, limit: int) -> None:
    whole = client.get(f"{address}?limit=1000").json()
    pages = walk(client, f"{address}?limit={limit}")
    assert [row for page in pages for row in page] == whole
    assert all(len(page) == limit for page in pages[:-1]) and 0 < len(pages[-1]) <= limit


def test_pages_keep_filters_and_order(client: TestClient) -> None:
    pages = walk(client, "/api/v1/runs?limit=5&profile=paper&sort=-accuracy")
    rows = [row for page in pages for row in page]
    accuracies = [metric["value"] for row in rows for metric in row["metrics"] if metric["metric"] == "accuracy"]
    assert len(rows) == 12 == len(accuracies)
    assert accuracies == sorted(accuracies, reverse=True)
    assert {row["profile"] for row in rows} == {"paper"}


def test_cursor_is_valid_only_for_its_list(client: TestClient) -> None:
    cursor = parse_links(client.get("/api/v1/runs?limit=5").headers["link"])["next"].split("cursor=")[1]
    for address in ("/api/v1/claims?", "/api/v1/runs?profile=paper&", "/api/v1/runs?sort=-position&"):
        response = client.get(f"{address}cursor={cursor}")
        assert response.status_code == 422
        assert "another list or other filters" in response.json()["detail"]


CONDITIONAL = ("/", "/compare", "/api/v1/runs?limit=2", "/api/v1/claims/ninformer.table2.mnist.vit", "/api/v1/papers")


@pytest.mark.parametrize("path", CONDITIONAL)
def test_unchanged_resource_is_304(client: TestClient, path: str) -> None:
    first = client.get(path)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (etag, etag.removeprefix("W/"), f'"x", {etag}', "*"):
        again = client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert {*first.headers["vary"].split(", ")} <= {*again.headers["vary"].split(", ")}
    assert client.get(path, headers={"if-none-match": 'W/"x"'}).text == first.text
    table = {"accept": "text/csv, */*;q=0.1", "accept-encoding": "identity"}
    other = client.get(path, headers=table).headers["etag"]
    assert other != etag, "another representation has another tag"
    assert client.get(path, headers=table | {"if-none-match": "*"}).headers["etag"] == other


def addresses(client: TestClient) -> list[str]:
    """Return one address of each kind that answers GET."""
    paths = ["/", "/?dataset=cifar100", "/papers/ninformer", "/method", "/docs", "/leaderboard", "/claims", "/nothing"]
    paths += ["/files/params.yaml", "/static/style.css"]
    for path, operation in operations(client.get("/api/v1/openapi.json").json()):
        named = {one["name"]: one for one in operation.get("parameters", []) if one["in"] == "path"}
        examples = {name: str((one.get("examples") or ["1"])[0]) for name, one in named.items()}
        filled = path.format_map(examples)
        paths += [filled] if "requestBody" not in operation else []
    return paths


CHOICES = {
    "accept": ("text/html", "text/csv", "*/*", "image/png", ""),
    "accept-encoding": ("gzip", "identity", "br, gzip;q=0"),
    "if-none-match": ("", "*", "TAG", 'W/"x", TAG', '"x"'),
    "range": ("", "", "", "bytes=2-9", "lines=1"),
    "host": ("127.0.0.1", "127.0.0.1", "localhost:1"),
    "content-encoding": ("", "", "", "gzip"),
    "origin": ("", "https://friend.example"),
}


def test_cached_answer_equals_a_fresh_one(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request with a Content-Length is never answered from the cache, but like one without."""
    caplog.set_level("INFO", "claimcheck.access")
    hits, draw, is_current = Counter[str](), random.Random(0), AnswerCache._is_current

    async def counted(cache: AnswerCache, content: str) -> bool:
        hits[path] += (found := await is_current(cache, content))
        return found

    def ask(method: str, headers: dict[str, str]) -> tuple[Any, ...]:
        caplog.clear()
        answer = client.request(method, path, headers=headers, follow_redirects=False)
        logged = [record.fields | {"seconds": 0} for record in caplog.records if record.name == "claimcheck.access"]  # type: ignore[attr-defined]
        names = {"x-request-id": answer.headers["x-request-id"], "last-modified": ""}
        ids.append(names["x-request-id"])
        return answer.status_code, answer.content, {**answer.headers, **names, "x-request-id": ""}, logged

    monkeypatch.setattr(AnswerCache, "_is_current", counted)
    ids: list[str] = []
    paths = [path for path in addresses(client) if path not in ("/metrics", "/health/ready")]
    paths += [*CONDITIONAL, "/claims?q=mnist", "/compare?dataset=mnist", "/curves", "/experiments/ninformer-mnist"]
    paths += ["/versus", "/models/ninformer-cifar100.vit", "/api/v1/experiments/ninformer-mnist"]
    paths += ["/claims/ninformer.table2.mnist.vit", "/claims/ninformer.table2.mnist.vit/badge.svg"]
    for path in paths:
        for _ in range(6):
            headers = {name: choice for name, choices in CHOICES.items() if (choice := draw.choice(choices))}
            tag = client.get(path, headers={"accept": headers.get("accept", "*/*")}).headers.get("etag", "")
            headers["if-none-match"] = headers.get("if-none-match", "").replace("TAG", tag)
            method = draw.choice(("GET", "GET", "HEAD"))
            fresh = ask(method, headers | {"content-length": "0"})
            assert ask(method, headers) == fresh == ask(method, headers), (path, method, headers)
    assert len({*ids}) == len(ids), "each answer has its own id"
    assert len([path for path in hits if hits[path]]) > 20 and not hits["/files/params.yaml"], "files may change"


def test_clients_that_wait_get_an_answer_made_meanwhile(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a popular page would be made once for each waiting client when its minute ends."""
    made, expect = Counter[str](), AnswerCache._expect

    def counted(cache: AnswerCache, content: str) -> None:
        made[content] += 1
        expect(cache, content)

    monkeypatch.setattr(AnswerCache, "_expect", counted)
    with ThreadPoolExecutor(40) as visitors:
        ask = partial(client.get, headers={"accept": "text/html, waiting/*"})
        answers = list(visitors.map(ask, ["/compare?dataset=cifar100"] * 40))
    assert {answer.status_code for answer in answers} == {200} and len({answer.content for answer in answers}) == 1
    assert made.total() <= 12, "of four readers at once"


class Cached:
    """An `AnswerCache` in front of an application whose answers have any size, on a database with any content."""

    def __init__(self) -> None:
        self.content, self.made, self.readings, self.reads = "a", 0, 0, asyncio.Event()
        self.reads.set()
        self.cache = AnswerCache(self._answer, edition="", read_content=self._read)

    async def _read(self) -> str:
        self.readings += 1
        await self.reads.wait()
        if not self.content:
            raise OSError
        return self.content

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.made += 1
        scope["state"] |= {"content": self.content, "etag": tag_of(scope, Headers(scope=scope), "", self.content)}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"link", bytes(100))]})
        await send({"type": "http.response.body", "body": self.content.encode() + bytes(int(scope["path"]))})

    async def ask(self, path: str = "0") -> str:
        """Return the content that the answer was made from."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "state": {}, "query_string": b""}
        await self.cache({**scope, "server": ("127.0.0.1", 80), "scheme": "http"}, receive, send)
        return str(sent[1]["body"].rstrip(b"\0").decode())


@pytest.mark.anyio
async def test_cached_answers_are_bounded() -> None:
    cached = Cached()
    for size in [CACHED_BYTES // 32 + 1, *range(9_000), *range(1_000_000, 1_000_100)]:
        await cached.ask(str(size))
    kept = cached.cache.cached
    assert sum(len(one.body) for one in kept.values()) + len(kept) * (4096 + 104) <= CACHED_BYTES
    made = cached.made
    for size, is_kept in ((CACHED_BYTES // 32 + 1, False), (1_000_099, True)):
        until = [*kept._TTLCache__links.values()][-1].expires if is_kept else 0  # type: ignore[attr-defined]
        await cached.ask(str(size))
        assert cached.made == (made := made + (not is_kept))
        assert not is_kept or max(one.expires for one in kept._TTLCache__links.values()) == until, "not renewed"  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_cached_answer_needs_a_recent_reading_of_the_same_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "READ_SECONDS", 0.05)
    cached = Cached()
    await cached.ask()
    assert {*await asyncio.gather(*(cached.ask() for _ in range(100)))} == {"a"}
    assert (cached.made, cached.readings) == (1, 1)
    cached.content = "b"
    assert (await cached.ask("1"), await cached.ask(), await cached.ask()) == ("b", "b", "b")
    assert (cached.made, cached.readings) == (3, 2), "an answer from new content ends the old ones at once"
    cached.content = "c"
    await asyncio.sleep(middleware.FRESH_SECONDS)
    assert await cached.ask() == "c", "the old reading has expired"
    cached.reads.clear()
    await asyncio.sleep(middleware.FRESH_SECONDS)
    made = cached.made
    assert (await cached.ask(), cached.made) == ("c", made + 1), "a silent database isn't waited for"
    cached.content = "d"
    assert await cached.ask("2") == "d"
    cached.reads.set()
    assert await cached.ask("2") == "d" == await cached.ask()
    cached.content = ""
    await asyncio.sleep(middleware.FRESH_SECONDS)
    assert await cached.ask() == "", "the routes report a database that can't be read"


def test_raw_fragment_poisons_no_address(service: Running) -> None:
    """`request.url` ends at a raw #, which no browser sends, but routes read the parameters after it."""
    headers = {"Accept": "text/html"}
    for clean, poison in (("/compare", "/compare?#&dataset=cifar100"), ("/claims", "/claims?#&verdict=open")):
        poisoned, honest = (request(service, "GET", path, headers=headers) for path in (poison, clean))
        assert poisoned[0] == honest[0] == 200
        assert poisoned[1] != honest[1] and poisoned[2]["etag"] != honest[2]["etag"]


def test_tags_and_cursors_change_only_with_content(own_root: Path) -> None:
    with reading(Settings(root=own_root)) as client:
        before = client.get("/compare").headers["etag"]
        following = parse_links(client.get("/api/v1/runs?limit=5").headers["link"])["next"]
        record(own_root, "data/results.db")
        assert client.get("/compare").headers["etag"] == before, "the same files give the same content"
        (own_root / "data" / "results" / "ninformer-cifar10.jsonl").unlink()
        record(own_root, "data/results.db")
        time.sleep(middleware.FRESH_SECONDS)
        assert client.get("/compare", headers={"if-none-match": before}).status_code == 200
        response = client.get(following)
        assert (response.status_code, response.headers["content-type"]) == (410, "application/problem+json")


def test_tag_changes_with_settings_and_templates(root: Path, tmp_path: Path) -> None:
    """Otherwise browsers would keep pages with an old contact or template."""
    with (
        reading(Settings(root=root)) as client,
        reading(Settings(root=root, contact="https://example.org/ask")) as other,
    ):
        tag = client.get("/method").headers["etag"]
        assert other.get("/method", headers={"if-none-match": tag}).status_code == 200
    (tmp_path / "page.html").write_text("one", encoding="utf-8")
    before = edition_of((tmp_path,), "{}")
    assert before == edition_of((tmp_path,), "{}")
    (tmp_path / "page.html").write_text("two", encoding="utf-8")
    assert before != edition_of((tmp_path,), "{}")


def test_changed_file_is_sent_again_and_a_removed_one_is_404(own_root: Path) -> None:
    file = own_root / "params.yaml"
    with reading(Settings(root=own_root)) as client:
        tag = client.get("/files/params.yaml").headers["etag"]
        assert client.get("/files/params.yaml", headers={"if-none-match": tag}).status_code == 304
        file.write_text(f"# another one\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
        again = client.get("/files/params.yaml", headers={"if-none-match": tag})
        assert again.status_code == 200 and "# another one" in again.text
        file.unlink()
        assert_problem(client.get("/files/params.yaml"), 404, "no file 'params.yaml' is shown here")


def test_errors_have_no_tag(client: TestClient) -> None:
    assert "etag" not in client.get("/api/v1/papers/x").headers
    assert "etag" not in client.get("/health/ready").headers


def test_trail_leads_from_a_checkpoint_to_data_and_machine(client: TestClient) -> None:
    (model,) = client.post("/predict?checkpoint=ninformer-cifar100.vit.0", files={"file": png()}).json()["models"]
    provenance = client.get(f"/api/v1/runs/{model['run_key']}/trail").json()
    (trail,) = provenance["trails"]
    assert provenance["run_key"] == model["run_key"]
    assert trail["checkpoint"]["sha256"] == model["weights_sha256"] == trail["trained_weights_sha256"]
    spec = {**trail["params"], "data_digest": trail["data"]["digest"], "code": trail["code"]["modules"]}
    assert hashlib.sha256(canonical_json(spec).encode()).hexdigest() == model["run_key"]
    assert (trail["code"]["revision"], trail["code"]["dirty"]) == ("0" * 40, False)
    assert trail["data"]["dataset"] == "cifar100"
    assert trail["environment"]["facts"]["torch"] == "2.15.0"


def test_committed_openapi_document_is_current(client: TestClient) -> None:
    """To update: `python -m service --openapi > docs/openapi.json`; API changes then show up in review."""
    committed = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert client.get("/api/v1/openapi.json").json() == committed


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, item in document["paths"].items() for operation in item.values()]


def test_openapi_has_unique_operations_with_declared_errors(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    found = operations(document)
    unversioned = {path for path, _ in found if not path.startswith(("/api/v1/", "/v2"))}
    assert unversioned == {"/compare", "/predict", "/health/live", "/health/ready", "/metrics"}
    assert len({operation["operationId"] for _, operation in found}) == len(found)
    for path, operation in found:
        assert operation["tags"] and operation["description"], path
        for status, response in operation["responses"].items():
            if status != "200":
                kinds = (
                    ["application/problem+json", "text/html"] if path == "/predict" else ["application/problem+json"]
                )
                assert list(response["content"]) == kinds, (path, status)
        if operation.get("parameters"):
            assert {"422", "404"} & set(operation["responses"]), path
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_no_route_blocks_the_event_loop(settings: Settings, tmp_path: Path) -> None:
    """Whatever waits (files, SQLite, sleeping, subprocesses) must run in a thread."""
    limits = {"counts": tmp_path / "counts.db", "requests_per_minute": 1000, "keys": keys_file(tmp_path, ann="secret")}
    with serving(settings.model_copy(update=limits)) as client, blockbuster_ctx() as blocking:
        blocking.functions["os.stat"].deactivate()  # file metadata are in the kernel's memory
        blocking.functions["io.TextIOWrapper.read"].can_block_in("processes.py", "_statistics")  # like /proc
        found = {path: client.get(path) for path in addresses(client)}
        for size in (32, 400):
            for form in ({}, {"top_k": "1"}):  # the fast path and the general parser
                address = f"/predict?checkpoint=ninformer-cifar100.vit.0#{size}{form}"
                files, headers = {"file": png(size=(size, size))}, {"authorization": "Bearer secret"}
                found[address] = client.post(address, files=files, data=form, headers=headers)
        assert len(found) > 40
        assert {path: answer.text for path, answer in found.items() if answer.status_code >= 500} == {}


@pytest.mark.slow
def test_reference_needs_no_docstrings(root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fastapi.testclient import TestClient\n"
        "from service.app import create_app; from service.settings import Settings\n"
        "print(TestClient(create_app(Settings(root=Path(sys.argv[1]))), 'http://127.0.0.1').get('/docs').status_code)"
    )
    command = [sys.executable, "-OO", "-W", "ignore", "-c", code, str(root)]
    assert subprocess.check_output(command, cwd=REPOSITORY) == b"200\n"
