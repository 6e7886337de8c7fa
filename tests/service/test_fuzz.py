"""Schemathesis generates requests from the OpenAPI document; every answer must be declared there.

Checks: no server error; a declared status with its content type, schema and headers; nothing invalid accepted; unknown
methods refused with Allow; and nothing valid refused, except where no schema can describe validity: cursors, image
bytes, tensor sizes, and names in the database.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.service.running import Running

if TYPE_CHECKING:
    import schemathesis
    from schemathesis.schemas import APIOperation

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
GENTLY = settings(
    max_examples=4,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
HARD = settings(GENTLY, max_examples=200, derandomize=False)


@pytest.fixture(scope="module")
def operations() -> list[APIOperation]:
    """Operations of the document, loaded lazily because importing Schemathesis takes seconds."""
    import schemathesis
    from schemathesis.checks import load_all_checks

    load_all_checks()
    document = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text(encoding="utf-8")))
    return [found.ok() for found in document.get_all_operations()]


def is_beyond_a_schema(case: schemathesis.Case) -> bool:
    """Return True for a cursor, a body or, in a comparison, names of profiles and metrics."""
    operation = case.operation
    return operation.path == "/compare" or bool(operation.body) or "cursor" in operation.query


def test_few_operations_have_inputs_beyond_the_schema(operations: list[APIOperation]) -> None:
    left_out = [operation for operation in operations if is_beyond_a_schema(operation.Case())]
    assert len(left_out) == 13 and len(operations) > 2 * len(left_out)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "effort", [GENTLY, pytest.param(HARD, marks=pytest.mark.slow(hours=True))], ids=["gently", "hard"]
)
def test_every_answer_is_declared(
    operations: list[APIOperation], effort: settings, service: Running, subtests: pytest.Subtests
) -> None:
    from schemathesis.checks import positive_data_acceptance

    for operation in operations:

        @effort
        @given(operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            excluded = [positive_data_acceptance] if is_beyond_a_schema(case) else []
            case.call_and_validate(base_url=service.address, excluded_checks=excluded, timeout=60)

        with subtests.test(operation.label):
            ask()
