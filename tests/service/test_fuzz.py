"""Requests made up by Schemathesis from the OpenAPI document: every answer is one that the document declares.

Its checks: no server error, a declared status with its content type, schema and headers, nothing invalid taken,
unknown methods refused with Allow, and nothing valid refused, but where no schema can say what is valid: a cursor that
was given out, bytes that are an image, numbers as many as a model takes, names that only the database knows.
"""

import json
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks, positive_data_acceptance
from schemathesis.schemas import APIOperation

from tests.service.running import Running

load_all_checks()
DOCUMENT = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
GENTLY = settings(
    max_examples=4,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
HARD = settings(GENTLY, max_examples=200, derandomize=False)


def is_beyond_a_schema(case: schemathesis.Case) -> bool:
    """A cursor, a body, or, in a comparison, the names of profiles and metrics."""
    operation = case.operation
    return operation.path == "/compare" or bool(operation.body) or "cursor" in operation.query


def check(case: schemathesis.Case, service: Running) -> None:
    excluded = [positive_data_acceptance] if is_beyond_a_schema(case) else []
    case.call_and_validate(base_url=service.address, excluded_checks=excluded, timeout=60)


def test_few_operations_take_what_no_schema_describes() -> None:
    left_out = [operation for operation in OPERATIONS if is_beyond_a_schema(operation.Case())]
    assert len(left_out) == 13 and len(OPERATIONS) > 2 * len(left_out)


@SCHEMA.parametrize()
@GENTLY
def test_every_answer_is_a_declared_one(case: schemathesis.Case, service: Running) -> None:
    check(case, service)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_a_declared_one_at_length(operation: APIOperation, service: Running) -> None:
    """Without the cases of the test above, which would be made up anew whenever tests are listed."""

    @HARD
    @given(operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        check(case, service)

    ask()
