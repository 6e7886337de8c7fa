"""The README and docs/results.md say what the evidence says, and name what exists."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.claims import read_claims
from stages.cli import COMMANDS
from stages.params.experiment import load_params
from stages.recording.reporting import write_docs
from stages.results import open_results, tally
from tests.project import REPOSITORY, findings_on_page
from tests.story import differences, read_story

README, USAGE = ((REPOSITORY / name).read_text() for name in ("README.md", "docs/usage.md"))


def test_the_table_of_papers_is_what_the_verdicts_say(published: str) -> None:
    """By training from the evidence, by computing from the headings of the findings, which `make report` writes."""
    with open_results(published)() as session:
        trained = {row.paper: row.trained for row in tally(session)}
    findings = (REPOSITORY / "docs" / "findings.md").read_text()
    claims = {claim.id: claim for claim in read_claims(REPOSITORY / "data" / "claims.csv")}
    for paper, counts in trained.items():
        (said,) = re.findall(rf"^## \[{paper}\]\(papers/{paper}\.md\): ([^;\n]*)", findings, re.MULTILINE)
        held, against = Counter[str](), 0
        for number, status in re.findall(r"(\d+) ([a-z ]+)", said):  # one error at several places is one
            held[status] += int(number)
            against += int(number) * (status in ("fails", "contradicted"))
        for name, status in findings_on_page().items():
            if (
                name.startswith(f"{paper}.")
                and claims[name].experiment
                and claims[name].facts.by not in ("computing", "data")
            ):
                held[status] -= 1  # to be trained
        waiting = counts.waiting - (paper == "ninformer")  # a gain that is contradicted whatever is trained
        by_reading = held["holds under a reading"] + counts.under_reading
        holds, fails = held["holds"] + counts.in_favour, against + counts.against
        cells = f"| {holds} | {fails} | {counts.open} | {waiting} | {by_reading} |"
        (row,) = re.findall(rf"^\| \[[^]]+\]\(docs/papers/{paper}\.md\) .*$", README, re.MULTILINE)
        assert cells in row, paper


def test_a_person_reads_the_readme_in_minutes() -> None:
    assert len(README.splitlines()) <= 90


def test_the_experiment_of_the_readme_is_accepted_and_differs_in_its_rate_alone(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "params", tmp_path / "params")
    (block,) = (block for block in read_story(REPOSITORY / "README.md") if block.file)
    (line,) = re.findall(r"`(half-rate: [^`]+)`", README)
    (tmp_path / block.file).write_text(block.text)
    index = (REPOSITORY / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(index.replace("\nexperiments:\n", f"\nexperiments:\n  {line}\n"))
    experiments = load_params(tmp_path).experiments
    ours, other = experiments["half-rate"], experiments["ninformer-cifar10"]
    assert ours.printed.optimizer.lr == other.printed.optimizer.lr / 2
    assert replace(ours.printed, optimizer=other.printed.optimizer) == other.printed
    assert list(ours.arms) == list(other.arms)


def test_results_page_is_what_make_report_writes(tmp_path: Path) -> None:
    written = write_docs(REPOSITORY, tmp_path / "results.md")
    assert written.read_bytes() == (REPOSITORY / "docs" / "results.md").read_bytes(), "run make report and commit"


def test_answers_are_what_the_service_gives(published: str) -> None:
    """The shown comparison, and the status of the shown claim."""
    shown = [
        json.loads(block.text) for block in read_story(REPOSITORY / "docs" / "usage.md") if block.language == "json"
    ]
    (comparison,) = (answer for answer in shown if "comparisons" in answer)
    app = create_app(Settings(root=REPOSITORY, database=published))
    client = TestClient(app, base_url="http://127.0.0.1")
    assert list(differences(comparison, client.get("/compare?dataset=cifar100").json())) == []
    (claim,) = (answer for answer in shown if "finding" in answer)
    assert findings_on_page()[claim["id"]] == claim["verdict"]["status"]


def test_the_numbers_of_statements_are_those_of_the_claims() -> None:
    """Statements of a paper, its authors' statements elsewhere, and those that we read off its tables."""
    claims = read_claims(REPOSITORY / "data" / "claims.csv")
    implied = {claim.id for claim in claims if claim.id.endswith(".order") or claim.id.startswith("ninformer.rank.")}
    elsewhere = {claim.id for claim in claims if claim.place == "authors' web pages"} - implied
    shown = r"There are (\d+) claims: (\d+) from the papers, (\d+) from web pages .*? and (\d+) orders"
    (counts,) = re.findall(shown, README, re.DOTALL)
    assert [*map(int, counts)] == [
        *(len(claims), len(claims) - len(elsewhere) - len(implied)),
        *(len(elsewhere), len(implied)),
    ]


def test_the_hours_that_are_left_are_those_of_the_plan() -> None:
    costs = (REPOSITORY / "docs" / "costs.md").read_text()
    (row,) = re.findall(r"^\| all \|.*$", costs, re.MULTILINE)
    header = next(line for line in costs.splitlines() if "hours of one H100" in line)
    hours = dict(zip(header.split(" | "), row.split(" | "), strict=True))["hours of one H100"]
    assert f"{hours} hours of an H100" in README


def test_links_lead_to_files() -> None:
    for folder, text in ((REPOSITORY, README), (REPOSITORY / "docs", USAGE)):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert target.startswith("http") or (folder / target).exists(), target


def test_make_targets_and_commands_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README + USAGE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert set(re.findall(r"claimcheck ([a-z]+)\b", README + USAGE)) == set(COMMANDS)
