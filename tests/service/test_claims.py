"""Claims over HTTP: MNIST as printed with three replicates, CIFAR-100 at quick, CIFAR-10 on placeholder data."""

import csv
import io
import json
from collections import defaultdict

import pytest
from fastapi.testclient import TestClient

from stages.params.experiment import load_params
from tests.service.results_factory import REPOSITORY
from tests.service.test_errors import assert_problem


def test_claim_shows_its_runs_and_their_cost(client: TestClient) -> None:
    claim = client.get("/api/v1/claims/ninformer.table2.mnist.ninformer").json()
    assert claim["experiments"] == ["ninformer-mnist"] and claim["datasets"] == ["mnist"]
    assert [(run["arm"], run["replicate"], run["source"]) for run in claim["runs"]] == [
        ("ninformer", replicate, "evidence") for replicate in range(3)
    ]
    for run in claim["runs"]:
        results = client.get(f"/api/v1/runs/{run['run_key']}").json()["results"]
        assert run["value"] in [row["value"] for row in results[0]["metrics"] if row["metric"] == "accuracy"]
    cost = claim["verdict"]["cost"]
    assert cost["device_seconds"] == 3 * 842.5
    rate = load_params(REPOSITORY).rates["cpu"].usd_per_hour
    assert cost["usd"] == pytest.approx(rate * cost["device_seconds"] / 3600)
    assert cost["peak_memory_bytes"] == 3_221_225_472


def test_claims_are_filtered_by_verdict_and_kind(client: TestClient) -> None:
    contradicted = client.get("/api/v1/claims?verdict=contradicted").json()
    assert [claim["id"] for claim in contradicted] == ["ninformer.table3.mnist.vit"]
    assert contradicted[0]["verdict"]["basis"] == "finding"
    assert client.get("/api/v1/claims?kind=value&verdict=shown").json() == []
    assert client.get("/api/v1/claims?verdict=perhaps").status_code == 422
    for given in ("kind=ordr", "family=ninformer.table9"):
        name = given.partition("=")[0]
        assert_problem(client.get(f"/api/v1/claims?{given}"), 404, f"unknown {name}")
    assert client.get("/api/v1/claims?dataset=imagenet").status_code == 404


def test_every_name_that_a_claim_has_filters_the_list(published_client: TestClient) -> None:
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    for field in ("paper", "kind", "family"):
        by_name = defaultdict(list)
        for claim in claims:
            by_name[claim[field]].append(claim["id"])
        by_name.pop(None, None)
        for name, ids in by_name.items():
            found = published_client.get("/api/v1/claims", params={field: name, "limit": 1000})
            assert found.status_code == 200 and [claim["id"] for claim in found.json()] == ids, name


def test_counts_by_verdict_agree_with_the_list(client: TestClient) -> None:
    (counts,) = client.get("/api/v1/verdicts").json()["papers"]
    assert counts["claims"] == 16
    for verdict, number in counts["by_verdict"].items():
        assert len(client.get("/api/v1/claims", params={"verdict": verdict}).json()) == number
    assert counts["decidable"] == counts["in_favour"] + counts["opposed"] + counts["open"] + counts["waiting"]
    decidable = [claim for claim in client.get("/api/v1/claims").json() if claim["verdict"]["is_decidable"]]
    assert len(decidable) == counts["decidable"]
    assert client.get("/api/v1/verdicts?paper=nobody").status_code == 404


def test_compare_shows_each_arms_verdicts(client: TestClient) -> None:
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    for arm in comparison["arms"]:
        claims = [client.get(f"/api/v1/claims/{verdict['claim']}").json() for verdict in arm["verdicts"]]
        assert [claim["metric"] for claim in claims] == ["accuracy", "inference_time"]
        for verdict, claim in zip(arm["verdicts"], claims, strict=True):
            assert (verdict["status"], claim["arm"]) == (claim["verdict"]["status"], arm["arm"])
    rows = csv.DictReader(io.StringIO(client.get("/compare?dataset=mnist&format=csv").text))
    assert [json.loads(row["verdicts"]) for row in rows] == [arm["verdicts"] for arm in comparison["arms"]]
