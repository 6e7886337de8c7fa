from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient


def test_papers_come_from_their_packages(client: TestClient) -> None:
    (paper,) = client.get("/api/v1/papers").json()
    assert paper["name"] == "ninformer"
    assert paper["title"].startswith("NiNformer")
    assert client.get("/api/v1/papers/ninformer").json() == paper


def test_datasets_and_experiments_keep_the_order_of_the_params(client: TestClient) -> None:
    assert [row["name"] for row in client.get("/api/v1/datasets").json()] == ["mnist", "cifar10", "cifar100"]
    assert client.get("/api/v1/datasets/cifar100").json()["shape"] == [3, 32, 32]
    (experiment,) = client.get("/api/v1/experiments?dataset=mnist").json()
    assert [arm["name"] for arm in experiment["arms"]] == ["vit", "mlp-mixer", "local-vit", "ninformer"]
    assert experiment["protocol"]["epochs"] == 100
    assert client.get("/api/v1/experiments/ninformer-mnist").json() == experiment


def test_runs_can_be_filtered_and_paged(client: TestClient) -> None:
    everything = client.get("/api/v1/runs").json()
    assert len(everything) == 24
    pages = [client.get(f"/api/v1/runs?limit=10&offset={offset}").json() for offset in (0, 10, 20, 30)]
    assert [row for page in pages for row in page] == everything
    chosen = client.get("/api/v1/runs?experiment=ninformer-cifar100&arm=vit&profile=quick").json()
    assert [(row["provenance"], row["source"]) for row in chosen] == [("subset", "evidence")]
    assert {row["provenance"] for row in client.get("/api/v1/runs?provenance=embedded").json()} == {"embedded"}


def test_a_run_has_curves_spec_and_environment(client: TestClient) -> None:
    row = client.get("/api/v1/runs?experiment=ninformer-mnist&arm=vit").json()[0]
    run = client.get(f"/api/v1/runs/{row['run_key']}").json()
    assert run["spec"]["model"]["arguments"]["image_size"] == 28
    (result,) = run["results"]
    assert [epoch["epoch"] for epoch in result["curves"]] == list(range(1, 13))
    assert result["environment"]["torch"] == "2.15.0"
    assert result["origin"]["revision"] == "0" * 40
    assert result["checkpoint"] == "ninformer-mnist.vit.0"
    assert result["cost"]["train_seconds"] == 842.5
    assert {metric["metric"]: metric["value"] for metric in result["metrics"]}["accuracy"] == 0.9692


def test_checkpoints_say_what_they_are(client: TestClient) -> None:
    found = {row["id"]: row for row in client.get("/api/v1/checkpoints").json()}
    assert len(found) == 20
    assert found["ninformer-cifar10.vit.0"]["label"].startswith("stand-in data")
    assert found["ninformer-cifar100.vit.0"]["accuracy"] == 0.2142
    one = client.get("/api/v1/checkpoints/ninformer-cifar100.vit.0").json()
    assert one == found["ninformer-cifar100.vit.0"]
    assert re.fullmatch("[0-9a-f]{64}", one["sha256"])


def test_claims_keep_their_order_and_fractions(client: TestClient) -> None:
    claims = client.get("/api/v1/claims?experiment=ninformer-cifar100").json()
    assert [claim["value"] for claim in claims] == [0.3487, 0.3916, 0.4161, 0.5378]
    one = client.get("/api/v1/claims/ninformer.table2.cifar100.ninformer").json()
    assert (one["value"], one["unit"], one["place"]) == (0.5378, "fraction", "Table 2")


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, item in document["paths"].items() for operation in item.values()]


def test_openapi_names_every_operation_once_and_declares_its_errors(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    found = operations(document)
    assert len({operation["operationId"] for _, operation in found}) == len(found)
    for path, operation in found:
        assert operation["tags"] and operation["description"], path
        for status, response in operation["responses"].items():
            if status != "200":
                assert list(response["content"]) == ["application/problem+json"], (path, status)
        if operation.get("parameters"):
            assert {"422", "404"} & set(operation["responses"]), path
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_openapi_has_no_dangling_reference(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    references = set(re.findall(r'"#/components/schemas/(\w+)"', client.get("/api/v1/openapi.json").text))
    assert references <= set(document["components"]["schemas"])
    assert "ProblemOut" in references


def test_only_the_documented_addresses_are_unversioned(client: TestClient) -> None:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    unversioned = {path for path in paths if not path.startswith(("/api/v1/", "/v2"))}
    assert unversioned == {"/compare", "/predict", "/health/live", "/health/ready", "/metrics"}


@pytest.mark.parametrize("state", ["live", "ready"])
def test_health_is_ok(client: TestClient, state: str) -> None:
    assert client.get(f"/health/{state}").json()["status"] == "ok"


def test_a_claim_says_what_was_found_without_training(client: TestClient) -> None:
    claim = client.get("/api/v1/claims/ninformer.table3.mnist.vit").json()
    assert claim["finding"]["status"] == "contradicted"
    assert claim["finding"]["computed"] == {"times_peak": 113.3}
    assert client.get("/api/v1/claims/ninformer.table2.mnist.vit").json()["finding"] is None
