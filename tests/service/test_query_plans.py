"""The service's queries use an index, according to SQLite's plans for the queries that it really sends.

Without statistics the planner knows no sizes, so these plans hold for databases of any size.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

GROWING = {"results", "metrics", "epochs", "costs", "arrays", "checkpoints", "verdict_runs"}
"""Tables that grow with every run; papers, arms and claims don't."""

FILTERS = (
    *("experiment=ninformer-mnist", "arm=vit", "profile=paper", "provenance=full", "source=local", "selected=true"),
    *("experiment=ninformer-mnist&arm=vit&profile=paper", "source=evidence&provenance=full&selected=false"),
)
ORDERS = ("position", "-position", "accuracy", "-accuracy", "train_seconds", "-train_seconds")
ADDRESSES = (
    *("/api/v1/papers", "/api/v1/datasets", "/api/v1/experiments?dataset=mnist", "/api/v1/experiments/ninformer-mnist"),
    *("/api/v1/claims", "/api/v1/claims?dataset=mnist&kind=value", "/api/v1/claims?verdict=reproduced"),
    *("/api/v1/claims/ninformer.table2.mnist.vit", "/api/v1/verdicts", "/api/v1/runs/{key}"),
    *("/api/v1/runs/{key}/trail", "/api/v1/checkpoints", "/api/v1/checkpoints?dataset=mnist&limit=5"),
    *("/api/v1/checkpoints?experiment=ninformer-mnist", "/api/v1/checkpoints/ninformer-mnist.vit.0"),
    *("/compare", "/compare?dataset=mnist&metric=loss", "/compare?paper=ninformer&profile=quick&format=csv"),
    *("/api/v1/versus?dataset=mnist&a=vit&b=ninformer", "/versus?dataset=mnist&a=vit&b=ninformer", "/versus"),
    *("/", "/?dataset=cifar100", "/papers/ninformer", "/claims/ninformer.table2.mnist.vit", "/runs/{key}"),
    "/models/ninformer-mnist.vit",
    *(f"/api/v1/runs?sort={order}" for order in ORDERS),
    *(f"/api/v1/runs?sort={order}&{chosen}" for order in ("position", "-accuracy") for chosen in FILTERS),
)


class Plans:
    """Plan steps and SQL of every SELECT since the last `clear`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def clear(self) -> None:
        self.sent.clear()

    def note(
        self, connection: Any, cursor: Any, statement: str, parameters: Any, _context: Any, _is_many: bool
    ) -> None:
        if statement.lstrip().startswith("SELECT"):
            steps = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            self.sent += [(step[3], statement) for step in steps]


@pytest.fixture(scope="module")
def plans(client: TestClient) -> Iterator[Plans]:
    plans = Plans()
    engine: Engine = client.app.state.claimcheck.reading.sessions.kw["bind"]  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", plans.note)
    yield plans
    event.remove(engine, "before_cursor_execute", plans.note)


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_query_scans_a_growing_table(client: TestClient, plans: Plans, address: str) -> None:
    client.app.state.claimcheck.comparisons.__init__()  # type: ignore[attr-defined]
    key = client.get("/api/v1/runs?limit=1").json()[0]["run_key"]
    plans.clear()
    uncached = {"content-length": "0"}
    assert client.get(address.replace("{key}", key), headers=uncached).status_code == 200
    assert plans.sent, "the database was queried"
    for step, statement in plans.sent:
        found = re.match(r"(SCAN|SEARCH) (\w+?)(?:_\d+)?(?: |$)", step)
        if found is None or found[2] not in GROWING:
            continue
        assert "INDEX" in step or "PRIMARY KEY" in step, (step, statement)
        assert found[1] == "SEARCH" or "LIMIT" in statement, (step, statement)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chosen", ["", *FILTERS])
def test_page_of_runs_is_found_by_index(client: TestClient, plans: Plans, order: str, chosen: str) -> None:
    """Filters and order share one index; only the page's own runs are read."""
    plans.clear()
    assert client.get(f"/api/v1/runs?limit=3&sort={order}&{chosen}").status_code == 200
    listed = [step for step, statement in plans.sent if statement.startswith("SELECT results.id \n")]
    assert listed and "COVERING INDEX" in listed[0], listed
    by_experiment = "experiment=" in chosen
    assert by_experiment or "USE TEMP B-TREE FOR ORDER BY" not in listed, "sorted like the index"
