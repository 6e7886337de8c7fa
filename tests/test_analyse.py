from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from stages import analyse
from stages.finding import Finding, Reading
from stages.ledger import read_claims
from tests.project import MARGINS, REPOSITORY, environment


@pytest.fixture
def toy_paper(tmp_path: Path) -> Path:
    """A checkout whose only paper finds what it is told to."""
    readers = ("experiment", "fingerprint", "grid", "ranges", "rules", "schema", "signature", "papers/__init__")
    for name in ("analyse", "finding", "run", "store", "__init__", *readers):
        target = tmp_path / "stages" / f"{name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((Path(analyse.__file__).parent / f"{name}.py").read_text())
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(index | {"experiments": {}}))
    paper = tmp_path / "stages" / "papers" / "toy"
    paper.mkdir()
    (paper / "__init__.py").touch()
    (paper / "findings.py").write_text(
        "from stages.finding import Finding\n"
        "def findings(margins):\n"
        "    return [Finding(claim='toy.half', status='holds', computed={'ratio': 1 / 3}, explanation='A third.'),\n"
        "            Finding(claim='toy.sum', status='fails', computed={'sum': 5}, explanation='2 + 2 is not 5.')]\n"
    )
    (tmp_path / "data").mkdir()
    return tmp_path


def test_findings_of_every_paper_are_written_as_lines(toy_paper: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stages.analyse"],
        cwd=toy_paper,
        env=environment() | {"PYTHONPATH": str(toy_paper)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "analyse: toy: 1 fails, 1 holds\n"
    lines = [json.loads(line) for line in (toy_paper / "data" / "findings.jsonl").read_text().splitlines()]
    assert [(line["paper"], line["claim"], line["status"]) for line in lines] == [
        ("toy", "toy.half", "holds"),
        ("toy", "toy.sum", "fails"),
    ]
    assert lines[0]["computed"] == {"ratio": 0.333333333}, "digits that every processor agrees on"


def test_an_error_at_several_places_is_told_once() -> None:
    reading = Reading(name="as printed", text="Ten.", holds=False)
    places = [
        Finding(
            claim=f"toy.{name}",
            status="contradicted",
            computed={"ten": 10},
            explanation="Nine.",
            readings=(reading,),
            error="toy.ten",
        )
        for name in ("a", "b", "c")
    ]
    alone = Finding(claim="toy.d", status="contradicted", computed={}, explanation="Two.")
    page = analyse.page({"toy": [*places, alone]}).decode()
    assert "## [toy](papers/toy.md): 2 contradicted; one error at 3 places\n" in page
    assert page.count("| contradicted |") == 4
    assert page.count("- does not hold, read as printed: Ten.") == 1
    assert "`toy.a`, and by the same error 2 more, contradicted:" in page


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    """All that is computed of the five papers, some seconds of work."""
    modules = (import_module(f"stages.papers.{paper}.findings") for paper in analyse.papers())
    return [finding for module in modules for finding in module.findings(MARGINS)]


@pytest.mark.timeout(300)
def test_the_page_says_what_is_computed(found: list[Finding]) -> None:
    """Claims and statuses; numbers differ in their last digits between processors."""
    page = (REPOSITORY / "docs" / "findings.md").read_text()
    shown = re.findall(r"^\| `([\w.]+)` \| ([\w ]+) \|", page, re.MULTILINE)
    computed = [(finding.claim, finding.status) for finding in found]
    assert sorted(shown) == sorted(computed), "run make report and commit"


@pytest.mark.timeout(300)
def test_ours_is_in_the_claims_unit_and_decides(found: list[Finding]) -> None:
    claims = {claim.id: claim for claim in read_claims(REPOSITORY / "data" / "claims.csv")}
    with_ours = [finding for finding in found if finding.ours is not None]
    assert len(with_ours) > 20
    for finding in with_ours:
        claim, ours = claims[finding.claim], finding.ours
        assert claim.value is not None and ours is not None, claim.id
        play = (claim.precision or 0.0) / 2 * (1 + 1e-9)
        is_printed = claim.value - play <= ours <= (claim.high or claim.value) + play
        assert is_printed == finding.status.startswith("holds"), f"{claim.id}: {ours} {claim.unit}"


def test_every_finding_is_of_a_claim_of_its_paper() -> None:
    page = (REPOSITORY / "docs" / "findings.md").read_text()
    with (REPOSITORY / "data" / "claims.csv").open() as file:
        known = {row["id"] for row in csv.DictReader(file)}
    assert set(re.findall(r"^\| `([\w.]+)`", page, re.MULTILINE)) <= known


def test_every_paper_with_findings_is_found() -> None:
    assert {"brownian", "dac", "hyperbf", "ninformer", "nmn"} <= set(analyse.papers())
