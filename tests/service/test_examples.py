"""The reference's examples match answers of a service on the published evidence, and its first lines run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from fastapi.testclient import TestClient

from service.examples import OPEN, SEVEN, SEVEN_AS_TENSOR, Ask, collect, cut, draw_seven, load_examples, tensor_of
from tests.service.results_factory import REPOSITORY
from tests.service.running import Running

pytestmark = pytest.mark.slow

FIRST_LINES = REPOSITORY / "service" / "templates" / "first_lines.py.txt"


@pytest.fixture(scope="module")
def client(published_client: TestClient) -> TestClient:
    return published_client


def shape(value: Any) -> Any:
    """Return names and types of values: a new verdict makes an example older, not wrong."""
    if isinstance(value, dict):
        return {name: dict if name in OPEN else shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def test_examples_match_answers_on_the_published_evidence(client: TestClient) -> None:
    """To update: `python -m service --examples > service/examples.json`, then the OpenAPI document."""
    committed, asked = load_examples(), collect(Ask(client))
    assert list(asked) == list(committed)
    for name, example in asked.items():
        assert example["curl"] == committed[name]["curl"]
        assert shape(example["answer"]) == shape(committed[name]["answer"]), name
    top = asked["predict"]["answer"]["images"][0]["answers"][0]["top"]
    assert top[0]["name"] == "7", "the drawn image"


def test_every_example_is_in_the_openapi_document_and_on_its_page(client: TestClient) -> None:
    operations = [
        item for path in client.get("/api/v1/openapi.json").json()["paths"].values() for item in path.values()
    ]
    by_name = {item["operationId"]: item for item in operations}
    page = client.get("/docs").text
    for name, example in load_examples().items():
        assert by_name[name]["x-codeSamples"][0]["source"] == example["curl"]
        assert by_name[name]["responses"]["200"]["content"]["application/json"]["example"] == example["answer"]
        here = example["curl"].replace("127.0.0.1:8000", "127.0.0.1")  # only where the page is requested
        assert here.replace("&", "&amp;").replace("'", "&#39;") in page, name
    assert "…" not in str(load_examples()), "no example is made up"
    assert ":8000" not in page and 'at = "http://127.0.0.1"' in page


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_every_curl_line_of_the_reference_works(published_service: Running, tmp_path: Path) -> None:
    for name, example in load_examples().items():
        script = example["curl"].replace("127.0.0.1:8000", f"{published_service.host}:{published_service.port}")
        script = script.replace("curl ", "curl --fail --silent --show-error ")
        done = subprocess.run(
            ["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{name}: {script}: {done.stderr}"
        assert type(json.loads(done.stdout)) is type(example["answer"]), name


def test_drawn_seven_is_a_static_file() -> None:
    static = REPOSITORY / "service" / "static"
    assert {"inputs": [tensor_of((static / SEVEN).read_bytes())]} == json.loads(
        (static / SEVEN_AS_TENSOR).read_text(encoding="utf-8")
    )
    assert tensor_of((static / SEVEN).read_bytes()) == tensor_of(draw_seven())


def test_long_lists_and_objects_are_shortened() -> None:
    assert cut({"a": [1, 2], "code": dict.fromkeys("abcdef", 0)}) == {"a": [1], "code": dict.fromkeys("abcd", 0)}


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
