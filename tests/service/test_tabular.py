"""Every list as CSV, compared with the same list as JSON."""

import csv
import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.database.schemas import PaperOut
from service.http.tabular import rows_as_csv
from tests.service.test_resources import parse_links

LISTS = ("papers", "datasets", "experiments", "claims", "runs", "checkpoints")


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def leaf(row: dict[str, Any], column: str) -> Any:
    """Return the JSON value that a column's name leads to, or nothing below a null object."""
    value: Any = row
    for name in column.split("."):
        value = None if value is None else value[name]
    return value


@pytest.mark.parametrize("name", LISTS)
def test_lists_csv_has_the_content_of_its_json(client: TestClient, name: str) -> None:
    as_json = client.get(f"/api/v1/{name}?limit=1000").json()
    answer = client.get(f"/api/v1/{name}?limit=1000", headers={"accept": "text/csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "Accept" in [part.strip() for part in answer.headers["vary"].split(",")]
    assert answer.text == client.get(f"/api/v1/{name}?limit=1000&format=csv").text
    rows = read_csv(answer.text)
    assert len(rows) == len(as_json) > 0
    metrics = [metric["metric"] for metric in as_json[0].get("metrics", [])]
    checked = 0
    for row, expected in zip(rows, as_json, strict=True):
        for column, cell in row.items():
            if name == "runs" and column not in expected:
                assert column in metrics or not cell
                continue
            value = leaf(expected, column)
            if isinstance(value, str):
                assert cell == value or cell == f"'{value}"
            elif value is None:
                assert cell == ""
            elif isinstance(value, bool):
                assert cell == str(value).lower()
            elif isinstance(value, int | float):
                assert float(cell) == value
            elif isinstance(value, list) and all(isinstance(item, str | int) for item in value):
                assert cell.split() == [str(item) for item in value]
            else:
                assert json.loads(cell) == value
            checked += 1
    assert checked > 2 * len(rows)


def test_csv_is_complete_without_paging(published_client: TestClient) -> None:
    for name in ("claims", "runs"):
        answer = published_client.get(f"/api/v1/{name}?format=csv")
        rest = published_client.get(f"/api/v1/{name}?limit=1000").json()
        assert len(read_csv(answer.text)) == len(rest) > 100, name
        assert "next" not in parse_links(answer.headers["link"])
        assert len(published_client.get(f"/api/v1/{name}").json()) == 100
    curves = published_client.get("/api/v1/experiments/dac-sgemm/curves?curve=test_loss&format=csv")
    assert len(read_csv(curves.text)) > 5000


@pytest.mark.parametrize("name", LISTS)
def test_unsupported_list_format_is_refused(client: TestClient, name: str) -> None:
    assert client.get(f"/api/v1/{name}", headers={"accept": "image/png"}).status_code == 406
    assert client.get(f"/api/v1/{name}?format=xml").status_code == 422


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1 or so", "@SUM(A1)", "\tx"])
def test_text_never_becomes_a_formula(text: str) -> None:
    (row,) = read_csv(rows_as_csv(PaperOut, [PaperOut(name="x", title=text, summary="a=b")]))
    assert row == {"name": "x", "title": f"'{text}", "summary": "a=b"}
