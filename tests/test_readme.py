"""The README and docs/results.md say what the evidence says, and name what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.ledger import read_claims
from stages.reporting import write_docs
from stages.results import ExperimentComparison, compare, open_results
from tests.project import REPOSITORY
from tests.story import differences, read_story

README = (REPOSITORY / "README.md").read_text()


@pytest.fixture(scope="module")
def comparisons(published: str) -> list[ExperimentComparison]:
    with open_results(published)() as session:
        return compare(session)


def table_rows(comparisons: list[ExperimentComparison]) -> list[str]:
    """The README's table of NiNformer, from evidence."""
    rows = []
    for comparison in (item for item in comparisons if item.paper == "ninformer"):
        for arm in comparison.arms:
            if arm.ours is not None and arm.paper is not None:
                data = comparison.title.rsplit(", ", 1)[1]
                rows.append(f"| {data} | {arm.title} | {100 * arm.paper.value:.2f} % | {100 * arm.ours.mean:.2f} % |")
    return rows


def test_result_table_is_the_evidence(comparisons: list[ExperimentComparison]) -> None:
    shown = [line for line in README.splitlines() if re.match(r"\| (MNIST|CIFAR)", line)]
    assert shown == table_rows(comparisons)
    assert shown, "there is evidence to show"


def test_results_page_is_what_make_report_writes(tmp_path: Path) -> None:
    written = write_docs(REPOSITORY, tmp_path / "results.md")
    assert written.read_bytes() == (REPOSITORY / "docs" / "results.md").read_bytes(), "run make report and commit"


def test_answers_are_what_the_service_gives(published: str) -> None:
    """The shown comparison, and the finding that the shown claim rests on."""
    shown = [json.loads(block.text) for block in read_story(REPOSITORY / "README.md") if block.language == "json"]
    (comparison,) = (answer for answer in shown if "comparisons" in answer)
    app = create_app(Settings(root=REPOSITORY, database=published))
    client = TestClient(app, base_url="http://127.0.0.1")
    assert list(differences(comparison, client.get("/compare?dataset=cifar100").json())) == []
    (claim,) = (answer for answer in shown if "finding" in answer)
    page = (REPOSITORY / "docs" / "findings.md").read_text()
    assert (
        f"| `{claim['id']}` | {claim['verdict']['status']} | relative gain percent 4.993; gain percentage points 3.88;"
        in page
    )


def test_the_numbers_of_statements_are_those_of_the_claims() -> None:
    """What a paper says, what its authors say elsewhere, and what we read off its tables."""
    claims = read_claims(REPOSITORY / "data" / "claims.csv")
    implied = {claim.id for claim in claims if claim.id.endswith(".order") or claim.id.startswith("ninformer.rank.")}
    elsewhere = {claim.id for claim in claims if claim.place == "authors' web pages"} - implied
    shown = r"each of (\d+) statements .*? \((\d+) of the papers, (\d+) of web pages .*?, (\d+) orders"
    (counts,) = re.findall(shown, README, re.DOTALL)
    assert [*map(int, counts)] == [
        *(len(claims), len(claims) - len(elsewhere) - len(implied)),
        *(len(elsewhere), len(implied)),
    ]
    changelog = " ".join((REPOSITORY / "CHANGELOG.md").read_text().split())
    assert f"All {len(claims) - len(implied)} statements of the papers" in changelog
    assert f"the {len(implied)} orders that tables imply" in changelog


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (REPOSITORY / target).exists(), target


def test_make_targets_and_commands_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    cli = (REPOSITORY / "stages" / "cli.py").read_text()
    for command in set(re.findall(r"claimcheck ([a-z]+)\b", README)):
        assert f'"{command}"' in cli, command
