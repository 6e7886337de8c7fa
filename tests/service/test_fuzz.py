"""Requests made up by Schemathesis from the OpenAPI document: every answer is one that the document declares.

Its checks: no server error, a declared status with its content type, schema and headers, nothing invalid taken,
unknown methods refused with Allow.  Left out: that nothing valid is refused, since no schema says which names are
known and which bytes are an image.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks, positive_data_acceptance

from tests.service.running import Running

load_all_checks()
DOCUMENT = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
GENTLY = settings(
    max_examples=8,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
HARD = settings(GENTLY, max_examples=200, derandomize=False)


def check(case: schemathesis.Case, service: Running) -> None:
    case.call_and_validate(base_url=service.address, excluded_checks=[positive_data_acceptance], timeout=60)


@SCHEMA.parametrize()
@GENTLY
def test_every_answer_is_a_declared_one(case: schemathesis.Case, service: Running) -> None:
    check(case, service)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@SCHEMA.parametrize()
@HARD
def test_every_answer_is_a_declared_one_at_length(case: schemathesis.Case, service: Running) -> None:
    check(case, service)
