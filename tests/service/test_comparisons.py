import csv
import io

import pytest
from fastapi.testclient import TestClient

from service.http.errors import preferred

OFFERS = {"json": "application/json", "csv": "text/csv"}


def test_compare_returns_four_arms_with_ours_and_the_papers_numbers(client: TestClient) -> None:
    response = client.get("/compare?dataset=cifar100")
    assert response.headers["content-type"] == "application/json"
    (comparison,) = response.json()["comparisons"]
    assert [(arm["arm"], arm["role"], arm["printed"]["value"]) for arm in comparison["arms"]] == [
        ("vit", "baseline", 0.3487),
        ("mlp-mixer", "baseline", 0.3916),
        ("local-vit", "baseline", 0.4161),
        ("ninformer", "proposed", 0.5378),
    ]
    proposed = comparison["arms"][3]
    assert proposed["ours"]["value"] == 0.3314
    assert proposed["difference"] is None and "shortened run" in proposed["no_difference"]
    assert proposed["checkpoints"] == ["ninformer-cifar100.ninformer.0"]
    assert proposed["printed"]["unit"] == "fraction"
    assert (comparison["profile"], comparison["provenance"]) == ("quick", "subset")
    assert "not a verdict" in comparison["label"]


def test_every_experiment_is_compared_without_a_filter(client: TestClient) -> None:
    names = [comparison["experiment"] for comparison in client.get("/compare").json()["comparisons"]]
    assert names == ["ninformer-mnist", "ninformer-cifar10", "ninformer-cifar100"]
    assert client.get("/compare?paper=ninformer").json() == client.get("/compare").json()


def test_results_are_filtered_by_provenance(client: TestClient) -> None:
    """CIFAR-100 has runs on part of the data and on placeholder data."""
    answers = {}
    for name in ("full", "subset", "embedded"):
        (answers[name],) = client.get(f"/compare?dataset=cifar100&provenance={name}").json()["comparisons"]
    assert {name: answer["provenance"] for name, answer in answers.items()} == {
        "full": None,
        "subset": "subset",
        "embedded": "embedded",
    }
    assert answers["subset"]["arms"][3]["ours"]["value"] == 0.3314
    assert [answers[name]["arms"][3]["ours"] for name in ("full", "embedded")] == [None, None]
    assert answers["full"]["reason"] == "not run yet on data of provenance full"
    refused = client.get("/compare?provenance=half")
    assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["detail"] == "query.provenance: input should be 'embedded', 'subset' or 'full', got 'half'"


def test_csv_has_the_same_numbers_as_json(client: TestClient) -> None:
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    by_format = client.get("/compare?dataset=mnist&format=csv")
    by_accept = client.get("/compare?dataset=mnist", headers={"accept": "text/csv, application/json;q=0.5"})
    assert by_format.text == by_accept.text
    assert by_format.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(by_format.text)))
    assert [
        (row["arm"], float(row["ours.value"]), float(row["ours.low"]), float(row["difference.value"])) for row in rows
    ] == [
        (arm["arm"], arm["ours"]["value"], arm["ours"]["low"], arm["difference"]["value"]) for arm in comparison["arms"]
    ]
    for row, arm in zip(rows, comparison["arms"], strict=True):
        assert (row["printed.unit"], row["sources"]) == (arm["printed"]["unit"], "evidence")
        assert float(row["difference.low"]) == arm["difference"]["low"]
        assert float(row["difference.high"]) == arm["difference"]["high"]
    assert rows[0]["checkpoints"].split() == [f"ninformer-mnist.vit.{number}" for number in range(3)]


@pytest.mark.parametrize(
    ("accept", "choice"),
    [
        ("*/*", "json"),
        ("text/csv", "csv"),
        ("text/*", "csv"),
        ("text/csv;q=0.4, application/json;q=0.5", "json"),
        ("*/*;q=0.1, application/json;q=0", "csv"),
        ("text/html, */*;q=0.8", "json"),
    ],
)
def test_accept_header_follows_rfc_9110(accept: str, choice: str) -> None:
    assert preferred(accept, OFFERS) == choice


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("/compare?datset=mnist", "dataset, format, metric, paper, profile, provenance"),
        ("/api/v1/runs?datset=mnist", "arm, cursor"),
        ("/api/v1/claims?datset=mnist", "cursor, dataset"),
    ],
)
def test_misspelt_parameter_lists_the_known_ones(client: TestClient, address: str, known: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"unknown query parameter 'datset'; known: {known}")


def test_duplicate_query_parameter_is_422(client: TestClient) -> None:
    answer = client.get("/compare?dataset=mnist&dataset=cifar10")
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "query parameter 'dataset' is given 2 times; expected once",
    )


def test_route_without_parameters_rejects_any(client: TestClient) -> None:
    answer = client.get("/api/v1/claims/ninformer.table2.c100.vit?format=csv")
    assert (answer.status_code, answer.json()["detail"]) == (422, "unknown query parameter 'format'; it takes none")


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8"


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "application/json, text/html", BROWSER])
def test_compare_is_html_only_for_clients_that_prefer_it(client: TestClient, accept: str | None) -> None:
    headers = {"accept": accept} if accept else {}
    answer = client.get("/compare?dataset=cifar100", headers=headers)
    is_page = accept == BROWSER
    assert answer.headers["content-type"].startswith("text/html" if is_page else "application/json")
    assert "Accept" in answer.headers["vary"]
    assert client.get("/compare?dataset=cifar100&format=json", headers={"accept": BROWSER}).json()
    alone = client.get("/compare?dataset=cifar100", headers={"accept": "text/html"})
    assert (alone.status_code, alone.headers["content-type"]) == (200, "text/html; charset=utf-8")
