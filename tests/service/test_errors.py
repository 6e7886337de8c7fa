import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from httpx import Response

from service.settings import Settings
from stages.recording.builder import record
from tests.service.conftest import png, reading, serving
from tests.service.results_factory import PAPER_ACCURACY, REPOSITORY

PLACEHOLDERS = "placeholder models answer only if named with checkpoint="
VIT = "/predict?checkpoint=ninformer-cifar100.vit.0"


def assert_problem(response: Response, status: int, words: str = "") -> None:
    """Check the common format, without internals; below `/v2` the detail is also in `error`."""
    assert response.status_code == status, (response.request.url, response.text)
    assert response.headers["content-type"] == "application/problem+json"
    assert "default-src 'self'" in response.headers["content-security-policy"]
    problem = response.json()
    assert [name for name in problem if name != "error"] == ["type", "title", "status", "detail", "instance"]
    assert problem["type"] == f"/docs#problem-{status}" and problem["status"] == status
    assert problem["title"] and problem["detail"] and words in problem["detail"]
    assert problem.get("error", problem["detail"]) == problem["detail"]
    for secret in ("Traceback", ".py", "sqlite", "site-packages", "SELECT"):
        assert secret not in response.text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nothing", 404, "nothing at this address"),
        ("/?dataset=imagenet", 404, "known: mnist, cifar10, cifar100"),
        ("/?dataset=mnist&metric=acc", 422, "known: accuracy"),
        ("/compare?dataset=imagenet", 404, "known: mnist, cifar10, cifar100"),
        ("/compare?paper=resnet", 404, "known: ninformer"),
        ("/compare?profile=slow", 422, "known: smoke, quick-bfloat16, quick, thirty-bfloat16, paper-tf32, paper"),
        ("/compare?metric=acc", 422, "known: accuracy"),
        ("/compare?format=xml", 422, "query.format"),
        ("/runs/0000", 404, "unknown run '0000'; /api/v1/runs lists them"),
        ("/api/v1/papers/resnet", 404, "known: ninformer"),
        ("/api/v1/datasets/imagenet", 404, "known: mnist"),
        ("/api/v1/experiments/x", 404, "known: ninformer-mnist"),
        ("/api/v1/experiments?paper=x", 404, "known: ninformer"),
        (
            "/claims/ninformer.table2.mnist.vt",
            404,
            "unknown claim 'ninformer.table2.mnist.vt'; did you mean ninformer.table2.mnist.vit? "
            "/api/v1/claims lists them",
        ),
        ("/api/v1/claims?limit=0", 422, "query.limit"),
        ("/api/v1/runs?limit=1000000000", 422, "query.limit"),
        ("/api/v1/runs?cursor=%C3%A9", 422, "query.cursor: expected a cursor from a Link header"),
        ("/api/v1/runs?cursor=" + "A" * 201, 422, "query.cursor"),
        ("/api/v1/runs?sort=spec", 422, "query.sort"),
        ("/api/v1/runs?source=rumour", 422, "query.source"),
        ("/api/v1/runs?experiment=x", 404, "known: ninformer-mnist"),
        ("/api/v1/checkpoints/x", 404, "unknown checkpoint 'x'; /api/v1/checkpoints lists those that answer"),
        ("/leaderboard?dataset=x", 404, "known: mnist"),
        ("/leaderboard?sort=x", 422, "sort"),
        ("/static/nothing.css", 404, "nothing at this address"),
    ],
)
def test_bad_request_is_problem_details(client: TestClient, path: str, status: int, words: str) -> None:
    response = client.get(path)
    assert_problem(response, status, words)
    assert response.json()["instance"] == path.partition("?")[0]


BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def assert_page(page: Response, problem: Response) -> None:
    """Check for the same status in our page layout, with the machine-readable detail, a link home, and no internals."""
    assert page.status_code == problem.status_code
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["vary"].split(", ")[0] == "Accept" and problem.headers["vary"] == "Accept"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    detail = html.escape(problem.json()["detail"]).replace("&#x27;", "&#39;")
    assert f'<p class="note">For programs: status {page.status_code}, {detail}. <a' in page.text
    assert '<a href="/">All papers' in page.text.partition("<main")[2] and "Traceback" not in page.text


@pytest.mark.parametrize(
    ("path", "title", "lead", "asked", "first"),
    [
        ("/x-1/y_2", "No such page", "Nothing is at this address.", "y 2", None),
        ("/papers/ninfomer", "No such paper", "no paper with the name “ninfomer”", "ninfomer", "/papers/ninformer"),
        ("/?dataset=cifr10", "No such data set", "no data set with the name", "cifr10", "/compare?dataset=cifar10"),
        ("/experiments/x", "No such experiment", "no experiment with", "x", "/experiments/ninformer-mnist"),
        (
            "/claims/ninformer.table2.x",
            *("No such claim", "no claim with", "ninformer table2 x", "/claims/ninformer.table2.mnist.vit"),
        ),
        ("/?dataset=mnist&metric=acc", "No such metric", "no metric with", "", "/?dataset=mnist&amp;metric=accuracy"),
        ("/?sample=x&dataset=mnist", "This can’t be answered as asked", "Query.sample", "", None),
    ],
)
def test_error_page_explains_the_problem_and_suggests_a_name(
    client: TestClient, path: str, title: str, lead: str, asked: str, first: str | None
) -> None:
    answer = client.get(path, headers=BROWSER)
    assert_page(answer, client.get(path))
    page = answer.text.partition("<main")[2]
    assert f"<h1>{title}</h1>" in page and lead in page.partition('<p class="note">')[0]
    assert (f'name="q" value="{asked}"' in page) == bool(asked)
    offered = page.partition('aria-label="What there is"')[2].partition("</nav>")[0]
    addresses = re.findall(r'<a href="([^"]+)">', offered)
    assert addresses[:1] == ([first] if first else [])
    assert "/api/" not in page.partition('<p class="note">')[0]


def test_api_addresses_return_problem_details_to_browsers(client: TestClient) -> None:
    paths = [
        path for path in client.get("/api/v1/openapi.json").json()["paths"] if path not in ("/compare", "/predict")
    ]
    for path in ("/static/nothing", *(path.replace("{", "").replace("}", "") for path in paths)):
        response = client.request("TRACE", path, headers=BROWSER)
        assert (response.status_code, response.headers["content-type"]) == (405, "application/problem+json"), path


def test_form_without_javascript_explains_the_error(client: TestClient, settings: Settings) -> None:
    for address, content in ((VIT, b"no image"), ("/predict", png()), (VIT, bytes(settings.max_body_bytes))):
        pair = [client.post(address, files={"file": content}, headers=sent) for sent in (BROWSER, {})]
        assert_page(*pair)
        script = client.post(
            address, files={"file": content}, headers={"accept": "text/html, application/problem+json"}
        )
        assert script.json() == pair[1].json()


def chunks() -> Iterator[bytes]:
    for _ in range(40):
        yield b"x" * 50_000


@pytest.mark.parametrize("declared", [None, "10", "-1", "99999999999999999999999999"])
def test_body_is_counted_regardless_of_content_length(client: TestClient, declared: str | None) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    if declared is not None:
        headers["content-length"] = declared
    assert_problem(client.post(VIT, content=chunks(), headers=headers), 413, "larger than 1,000,000 bytes")


def test_predict_lists_what_it_accepts(client: TestClient) -> None:
    assert_problem(client.post(VIT, json={"file": "x"}), 415, "multipart/form-data")
    assert_problem(client.post(VIT, files={"image": png()}), 422, "no image; send a file as file=")
    assert_problem(client.post("/predict", files={"file": png()}), 422, "no model is named; use checkpoint=")
    both = "/predict?checkpoint=ninformer-cifar100.vit.0&dataset=cifar100"
    assert_problem(client.post(both, files={"file": png()}), 422, "either")
    assert_problem(client.post("/predict?dataset=x", files={"file": png()}), 404, "known: mnist")
    unknown_arm = "/predict?dataset=cifar100&arm=resnet"
    assert_problem(client.post(unknown_arm, files={"file": png()}), 404, "known: vit, mlp-mixer")
    assert_problem(client.post(VIT + "&top_k=0", files={"file": png()}), 422, "query.top_k")
    assert_problem(client.post(VIT, content=b"junk", headers={"content-type": "multipart/form-data"}), 400)


def test_placeholder_models_answer_only_by_name(client: TestClient) -> None:
    response = client.post("/predict?dataset=cifar10&arm=vit", files={"file": png()})
    assert_problem(response, 409, f"no weights of vit trained on real cifar10 data are here; {PLACEHOLDERS}")
    response = client.post("/predict?dataset=cifar10", files={"file": png()})
    listed = ", ".join(f"ninformer-cifar10.{arm}.0" for arm in PAPER_ACCURACY["ninformer-cifar10"])
    assert response.json()["detail"].endswith(
        f"a model trained on real cifar10 data are here; {PLACEHOLDERS}: {listed}"
    )


def test_data_set_without_weights_explains_why_nothing_answers(own_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are real but their weights are missing; models of a table take no image."""
    shutil.rmtree(own_root / "data" / "runs" / "ninformer-cifar100")
    monkeypatch.setattr("service.database.queries.MAX_NAMES", 2)
    index = yaml.safe_load((own_root / "params.yaml").read_text(encoding="utf-8"))
    whole = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    for part, name in (("experiments", "dac-sgemm"), ("datasets", "sgemm")):
        index[part][name] = whole[part][name]
    (own_root / "params.yaml").write_text(yaml.safe_dump(index, sort_keys=False), encoding="utf-8")
    shutil.copy(REPOSITORY / "params" / "dac-sgemm.yaml", own_root / "params")
    record(own_root, "data/results.db")
    details = {
        "cifar100": "no weights of a model trained on real cifar100 data are here",
        "sgemm": "a model of sgemm takes rows of a table, whose scaling no checkpoint has",
        "cifar10": "ninformer-cifar10.vit.0, ninformer-cifar10.mlp-mixer.0, …; /api/v1/checkpoints lists all",
    }
    with reading(Settings(root=own_root)) as client:
        for dataset, detail in details.items():
            assert_problem(client.post(f"/predict?dataset={dataset}", files={"file": png()}), 409, detail)


def test_missing_or_broken_database_is_503(tmp_path: Path) -> None:
    paths = ("/", "/health/ready", "/api/v1/claims")
    with serving(Settings(root=tmp_path)) as client:
        for path in paths:
            assert_problem(client.get(path), 503, "there is no results database yet")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "results.db").write_bytes(b"\0" * 5000)
        for path in paths:
            assert_problem(client.get(path), 503, "the results database can't be read")
        assert client.get("/health/live").status_code == 200
