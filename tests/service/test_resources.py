import asyncio
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from cachetools import TTLCache
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from service.http import caching
from service.http.caching import KnownAnswer, edition_of
from service.http.middleware import KEPT_BYTES, AnswerCache
from service.settings import Settings
from stages.recording import record
from stages.run import canonical_json
from tests.service.conftest import keys_file, png, reading, serving
from tests.service.results_factory import REPOSITORY
from tests.service.running import Running
from tests.service.test_errors import assert_problem
from tests.service.test_server import request


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
    assert client.get(path, headers={"if-none-match": 'W/"x"'}).text == first.text
    other = client.get(path, headers={"accept": "text/csv, */*;q=0.1"}).headers["etag"]
    assert other != etag, "another representation has another tag"


@pytest.mark.parametrize("path", [*CONDITIONAL, "/papers/ninformer", "/leaderboard"])
def test_cached_answer_equals_a_fresh_one(client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Each kind of request has its own: plain, compressed, for another host, or a range."""
    kinds = [
        {"accept-encoding": "identity", "accept": "text/html"},
        {"accept-encoding": "gzip", "accept": "text/html"},
        {"accept-encoding": "identity", "accept": "text/csv"},
        {"accept-encoding": "identity", "accept": "text/csv", "range": "bytes=2-9"},
        {"accept-encoding": "identity", "accept": "text/html", "host": "localhost:1"},
    ]

    def ask() -> list[tuple[int, bytes, dict[str, str]]]:
        answers = [client.get(path, headers=kind) for kind in kinds]
        ids = [answer.headers["x-request-id"] for answer in answers]
        assert len({*ids}) == len(ids)
        return [
            (answer.status_code, answer.content, {**answer.headers, "x-request-id": "", "last-modified": ""})
            for answer in answers
        ]

    hits = 0

    class Counted(KnownAnswer):
        def __init__(self, *arguments: Any) -> None:
            nonlocal hits
            hits += 1
            super().__init__(*arguments)

    monkeypatch.setattr(caching, "KnownAnswer", Counted)
    first = ask()
    hits = 0
    assert ask() == first
    whole = [answer for kind, answer in zip(kinds, first, strict=True) if "range" not in kind]
    assert hits == sum(status == 200 for status, _, _ in whole), "all but ranges and errors are cached"
    monkeypatch.setattr(TTLCache, "get", lambda *_: None)
    assert ask() == first, "the cached answer equals a fresh one"


def test_cached_answers_are_bounded() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        size = int(scope["path"])
        scope["state"]["etag"] = scope["path"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"link", bytes(100))]})
        await send({"type": "http.response.body", "body": bytes(size)})

    cache = AnswerCache(answer)

    async def ask() -> None:
        async def send(_message: Message) -> None: ...

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        for size in [KEPT_BYTES // 32 + 1, *range(20_000), *range(999_999, 1_000_100)]:
            scope = {
                "type": "http",
                "method": "GET",
                "path": str(size),
                "headers": [],
                "state": {"known": ([], b"")} if size == 999_999 else {},
                "query_string": b"",
            }
            await cache({**scope, "server": ("127.0.0.1", 80), "scheme": "http"}, receive, send)

    asyncio.run(ask())
    assert sum(len(body) for _, body in cache.kept.values()) + len(cache.kept) * (4096 + 104) <= KEPT_BYTES
    assert ("http://127.0.0.1/", False, str(999_999)) not in cache.kept, "a known answer doesn't begin another minute"
    assert ("http://127.0.0.1/", False, str(KEPT_BYTES // 32 + 1)) not in cache.kept
    assert ("http://127.0.0.1/", False, str(1_000_099)) in cache.kept


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
    (tmp_path / "page.html").write_text("one")
    before = edition_of((tmp_path,), "{}")
    assert before == edition_of((tmp_path,), "{}")
    (tmp_path / "page.html").write_text("two")
    assert before != edition_of((tmp_path,), "{}")


def test_changed_file_is_sent_again_and_a_removed_one_is_404(own_root: Path) -> None:
    file = own_root / "params.yaml"
    with reading(Settings(root=own_root)) as client:
        tag = client.get("/files/params.yaml").headers["etag"]
        assert client.get("/files/params.yaml", headers={"if-none-match": tag}).status_code == 304
        file.write_text(f"# another one\n{file.read_text()}")
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
    committed = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
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
        document = client.get("/api/v1/openapi.json").json()
        paths = [
            "/",
            "/?dataset=cifar100",
            "/papers/ninformer",
            "/method",
            "/docs",
            "/leaderboard",
            "/claims",
            "/nothing",
        ]
        paths += ["/files/params.yaml", "/static/style.css"]
        for path, operation in operations(document):
            named = {one["name"]: one for one in operation.get("parameters", []) if one["in"] == "path"}
            filled = re.sub(r"{(\w+)}", lambda name: str((named[name[1]].get("examples") or ["1"])[0]), path)  # noqa: B023
            paths += [filled] if "requestBody" not in operation else []
        found = {path: client.get(path) for path in paths}
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
