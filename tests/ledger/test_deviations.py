"""Deviations: the records beside the papers' models, and the pages that tell them to a reader."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from pathlib import Path

import pytest

from stages.ledger import Deviation, PaperDeviations, read_claims, read_deviations, touched
from stages.schema import ParamsError

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = read_claims(ROOT / "data" / "claims.csv")
PAPERS = sorted({claim.paper for claim in CLAIMS})
HEADING = "## What the text leaves open, and what we do\n"


@pytest.fixture(scope="module")
def found() -> dict[str, PaperDeviations]:
    return {paper.paper: paper for paper in read_deviations(PAPERS)}


def told(paper: str) -> list[list[str]]:
    """Rows of the table under the heading of the paper's page, without its head."""
    section = (ROOT / "docs" / "papers" / f"{paper}.md").read_text().split(HEADING)[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row[1:-1])] for row in rows]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_papers_page_tells_the_records_and_no_other(paper: str, found: dict[str, PaperDeviations]) -> None:
    """A row of the page without a record: add it to stages/papers/<paper>/deviations.yaml, word by word."""
    records = []
    for record in found[paper].deviations.values():
        code = [record.code] if record.code is not None else []
        records.append([record.subject, record.paper, *code, record.ours, record.why])
    assert told(paper) == records


@pytest.mark.parametrize("paper", PAPERS)
def test_every_pattern_matches_a_claim_of_its_paper(paper: str, found: dict[str, PaperDeviations]) -> None:
    ids = [claim.id for claim in CLAIMS if claim.paper == paper]
    for name, deviation in found[paper].deviations.items():
        assert deviation.claims, name
        for pattern in deviation.claims:
            assert fnmatch.filter(ids, pattern), f"{name}: {pattern} matches no claim"


def test_every_number_that_training_decides_is_touched(found: dict[str, PaperDeviations]) -> None:
    """No paper of the five says enough to run it as it is."""
    records = [record for paper in found.values() for record in paper.deviations.values()]
    touching = {claim for record in records for claim in touched(record, CLAIMS)}
    kinds = ("value", "order", "difference", "gap", "equivalence")
    trained = {claim.id for claim in CLAIMS if claim.experiment and claim.kind in kinds}
    timed = {claim.id for claim in CLAIMS if claim.metric in ("inference_time", "train_seconds")}
    rest = trained - timed - touching
    assert rest == {"nmn.ext.gpt.thr.linear", "nmn.ext.gpt.thr.aether"}, rest


def test_a_pattern_touches_whole_ids_only() -> None:
    claims = [dataclasses.replace(CLAIMS[0], id=name) for name in ("p.a", "p.ab")]
    record = Deviation(subject="s", claims=("p.a",), paper="", ours="", why="")
    assert touched(record, claims) == ["p.a"]


def test_a_paper_without_a_file_has_none() -> None:
    assert read_deviations(["nobody"]) == []


def test_an_unknown_key_names_file_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "deviations.yaml").write_text("deviations:\n  x: {subject: s, claim: [], paper: a, ours: b, why: c}\n")
    monkeypatch.setattr("stages.ledger.deviations.source_path", lambda module: tmp_path / "__init__.py")
    with pytest.raises(ParamsError, match=r"deviations.yaml: .*deviations.x"):
        read_deviations(["x"])
