import pytest

from stages.papers.finding import Finding
from tests.project import computed_findings


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Finding]:
    """Findings by claim of the paper whose folder contains the test."""
    return {
        claim: one for claim, one in computed_findings().items() if claim.startswith(f"{request.path.parent.name}.")
    }
