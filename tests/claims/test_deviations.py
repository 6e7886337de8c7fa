"""Deviations: records for the papers' models, and the pages that show them."""

import dataclasses
import fnmatch
import re
from pathlib import Path

import pytest

from stages.claims import PaperDeviations, RecordedDeviation, read_claims, read_deviations, touched
from stages.params.schema import ParamsError

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = read_claims(ROOT / "data" / "claims.csv")
PAPERS = sorted({claim.paper for claim in CLAIMS})


@pytest.fixture(scope="module")
def found() -> dict[str, PaperDeviations]:
    return {paper.paper: paper for paper in read_deviations(PAPERS)}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_pattern_matches_a_claim_of_its_paper(paper: str, found: dict[str, PaperDeviations]) -> None:
    ids = [claim.id for claim in CLAIMS if claim.paper == paper]
    for name, deviation in found[paper].deviations.items() if paper in found else ():
        assert deviation.claims, name
        for pattern in deviation.claims:
            assert fnmatch.filter(ids, pattern), f"{name}: {pattern} matches no claim"


def test_every_trained_number_has_a_deviation(found: dict[str, PaperDeviations]) -> None:
    """None of the five papers is complete enough to run without additions."""
    records = [record for paper in found.values() for record in paper.deviations.values()]
    touching = {claim for record in records for claim in touched(record, CLAIMS)}
    kinds = ("value", "order", "difference", "gap", "equivalence")
    described = [claim for claim in CLAIMS if claim.paper in found]
    trained = {claim.id for claim in described if claim.experiment and claim.kind in kinds}
    timed = {claim.id for claim in CLAIMS if claim.metric in ("inference_time", "train_seconds")}
    rest = trained - timed - touching
    assert rest == {"nmn.ext.gpt.thr.linear", "nmn.ext.gpt.thr.aether"}, rest


def test_public_code_is_linked_at_a_commit(found: dict[str, PaperDeviations]) -> None:
    """Other versions may behave differently.

    For code that we couldn't read there is no version: `before_use` says so and `code` is empty.
    """
    public = {paper.paper: paper for paper in found.values() if paper.repository}
    unseen = {name for name, paper in public.items() if any("we had no copy" in said for said in paper.before_use)}
    assert len(public) == 5 and unseen == {"dac"}
    for name, paper in public.items():
        version = "" if name in unseen else "/tree/[0-9a-f]{7,40}"
        assert re.fullmatch(rf"https://github\.com/[\w.-]+/[\w.-]+{version}", paper.repository or ""), name
        assert any(one.code for one in paper.deviations.values()) is (name not in unseen), name


def test_highlighted_claims_are_in_the_papers(found: dict[str, PaperDeviations]) -> None:
    """Claims from web pages, which the paper doesn't print, are not highlights."""
    elsewhere = {claim.id for claim in CLAIMS if claim.place == "authors' web pages"}
    assert elsewhere
    for paper in found.values():
        assert not [name for one in paper.argument for name in fnmatch.filter(elsewhere, one)], paper.paper


def test_pattern_matches_whole_ids() -> None:
    claims = [dataclasses.replace(CLAIMS[0], id=name) for name in ("p.a", "p.ab")]
    record = RecordedDeviation(subject="s", claims=("p.a",), paper="", ours="", why="")
    assert touched(record, claims) == ["p.a"]


def test_paper_without_a_file_has_no_deviations() -> None:
    assert read_deviations(["unknown"]) == []


def test_unknown_key_is_reported_by_file_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "deviations.yaml").write_text(
        "deviations:\n  x: {subject: s, claim: [], paper: a, ours: b, why: c}\n", encoding="utf-8"
    )
    monkeypatch.setattr("stages.claims.lines.source_path", lambda module: tmp_path / "__init__.py")
    with pytest.raises(ParamsError, match=r"deviations.yaml: .*deviations.x"):
        read_deviations(["x"])
