"""The reference's examples match answers on the published evidence, and its first lines run.

`CLAIMCHECK_WRITE=1` rewrites `service/examples.json`; then update the OpenAPI document.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from fastapi.testclient import TestClient

from tests.service.results_factory import REPOSITORY
from tests.service.running import Running

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "service" / "examples.json"
FIRST_LINES = REPOSITORY / "service" / "templates" / "first_lines.py.txt"
STATIC = REPOSITORY / "service" / "static"
MODEL = "ninformer-mnist.ninformer"
GETS = {
    "compare": "/compare?dataset=mnist",
    "listPapers": "/api/v1/papers",
    "getPaper": "/api/v1/papers/ninformer",
    "listDatasets": "/api/v1/datasets",
    "getDataset": "/api/v1/datasets/mnist",
    "listExperiments": "/api/v1/experiments?dataset=mnist",
    "getExperiment": "/api/v1/experiments/ninformer-mnist",
    "listCurves": "/api/v1/experiments/ninformer-mnist/curves?curve=test_accuracy&arm=ninformer",
    "listClaims": "/api/v1/claims?paper=dac&verdict=supported",
    "getClaim": "/api/v1/claims/dac.sgemm.gain",
    "listVerdicts": "/api/v1/verdicts?paper=dac",
    "listRuns": "/api/v1/runs?experiment=ninformer-mnist&arm=ninformer",
    "listCheckpoints": "/api/v1/checkpoints?dataset=mnist",
    "getCheckpoint": f"/api/v1/checkpoints/{MODEL}.0",
    "serverMetadata": "/v2",
    "modelMetadata": f"/v2/models/{MODEL}",
    "modelReady": f"/v2/models/{MODEL}/ready",
    "live": "/health/live",
}
OPEN = ("modules", "code", "facts", "environment", "spec", "protocol", "by_kind", "by_verdict", "computed", "errors")
"""Objects whose names are data: an example holds only the first four."""


@pytest.fixture(scope="module")
def examples() -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    return read


def cut(value: Any, *, items: int = 1, name: str = "") -> Any:
    """Shorten lists and open objects at any depth."""
    if isinstance(value, list):
        return [cut(item, items=items) for item in value[:items]]
    if isinstance(value, dict):
        names = list(value)[:4] if name in OPEN else list(value)
        return {key: cut(value[key], items=items, name=key) for key in names}
    return value


def ask_all(client: TestClient) -> dict[str, dict[str, Any]]:
    """Send every request of the reference; `{operation: {curl, answer}}`, with answers cut to show their shape."""
    (run,) = client.get(f"{GETS['listRuns']}&limit=1").json()
    of_a_run = {
        "getRun": f"/api/v1/runs/{run['run_key'][:10]}",
        "getTrail": f"/api/v1/runs/{run['run_key'][:10]}/trail",
    }
    found = {
        name: {"curl": f"curl '127.0.0.1:8000{path}'", "answer": cut(client.get(path).json())}
        for name, path in {**GETS, **of_a_run}.items()
    }
    path = f"/predict?checkpoint={MODEL}.0&top_k=2"
    seven = {"file": ("seven.png", (STATIC / "seven.png").read_bytes(), "image/png")}
    found["predict"] = {
        "curl": f"curl -sO 127.0.0.1:8000/static/seven.png\ncurl -F file=@seven.png '127.0.0.1:8000{path}'",
        "answer": cut(client.post(path, files=seven).json(), items=2),
    }
    path, body = f"/v2/models/{MODEL}/infer", json.loads((STATIC / "seven.json").read_text(encoding="utf-8"))
    found["modelInfer"] = {
        "curl": "curl -sO 127.0.0.1:8000/static/seven.json\n"
        f"curl -H 'Content-Type: application/json' -d @seven.json '127.0.0.1:8000{path}'",
        "body": {"inputs": [{**body["inputs"][0], "data": ["784 numbers from 0 to 255, row by row"]}]},
        "answer": cut(client.post(path, json=body).json(), items=10),
    }
    return found


def shape(value: Any) -> Any:
    """Return names and types of values: a new verdict makes an example older, not wrong."""
    if isinstance(value, dict):
        return {name: dict if name in OPEN else shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def test_examples_match_answers_on_the_published_evidence(
    published_client: TestClient, examples: dict[str, Any]
) -> None:
    asked = ask_all(published_client)
    if os.environ.get("CLAIMCHECK_WRITE"):
        EXAMPLES.write_text(json.dumps(asked, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert list(asked) == list(examples)
    for name, example in asked.items():
        assert example["curl"] == examples[name]["curl"]
        assert shape(example["answer"]) == shape(examples[name]["answer"]), name
    top = asked["predict"]["answer"]["images"][0]["answers"][0]["top"]
    assert top[0]["name"] == "7", "the drawn image"


def test_every_example_is_in_the_openapi_document_and_on_its_page(
    published_client: TestClient, examples: dict[str, Any]
) -> None:
    operations = [
        item for path in published_client.get("/api/v1/openapi.json").json()["paths"].values() for item in path.values()
    ]
    by_name = {item["operationId"]: item for item in operations}
    page = published_client.get("/docs").text
    for name, example in examples.items():
        assert by_name[name]["x-codeSamples"][0]["source"] == example["curl"]
        assert by_name[name]["responses"]["200"]["content"]["application/json"]["example"] == example["answer"]
        here = example["curl"].replace("127.0.0.1:8000", "127.0.0.1")  # only where the page is requested
        assert here.replace("&", "&amp;").replace("'", "&#39;") in page, name
    assert "…" not in str(examples), "no example is made up"
    assert ":8000" not in page and 'at = "http://127.0.0.1"' in page


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_every_curl_line_of_the_reference_works(
    published_service: Running, examples: dict[str, Any], tmp_path: Path
) -> None:
    for name, example in examples.items():
        script = example["curl"].replace("127.0.0.1:8000", f"{published_service.host}:{published_service.port}")
        script = script.replace("curl ", "curl --fail --silent --show-error ")
        done = subprocess.run(
            ["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{name}: {script}: {done.stderr}"
        assert type(json.loads(done.stdout)) is type(example["answer"]), name


def test_first_lines_of_the_reference_run(published_service: Running) -> None:
    lines = FIRST_LINES.read_text(encoding="utf-8")
    assert f"```python\n{lines}```" in (REPOSITORY / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert len([line for line in lines.splitlines() if line]) <= 10
    script = lines.replace("http://127.0.0.1:8000", published_service.address)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=100)
    claims = json.loads(urlopen(f"{published_service.address}/api/v1/claims?limit=1000").read())
    assert done.returncode == 0, done.stderr
    assert "DAC, 5 layers of 141 units" in done.stdout and "..." not in done.stdout
    judged = [row["id"] for row in claims if row["verdict"]["basis"] == "results" and row["verdict"]["low"] is not None]
    assert len(judged) > 4 and all(claim in done.stdout for claim in judged), "everything decided by training"
