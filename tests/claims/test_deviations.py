"""Deviations: the records beside the papers' models, and the pages that present them to a reader."""

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


def test_every_number_that_training_decides_is_touched(found: dict[str, PaperDeviations]) -> None:
    """None of the five papers says enough to run it as it is."""
    records = [record for paper in found.values() for record in paper.deviations.values()]
    touching = {claim for record in records for claim in touched(record, CLAIMS)}
    kinds = ("value", "order", "difference", "gap", "equivalence")
    told = [claim for claim in CLAIMS if claim.paper in found]
    trained = {claim.id for claim in told if claim.experiment and claim.kind in kinds}
    timed = {claim.id for claim in CLAIMS if claim.metric in ("inference_time", "train_seconds")}
    rest = trained - timed - touching
    assert rest == {"nmn.ext.gpt.thr.linear", "nmn.ext.gpt.thr.aether"}, rest


def test_the_address_of_public_code_names_its_version(found: dict[str, PaperDeviations]) -> None:
    """What `code` says is of one commit: public code changes, and another version may do otherwise.

    Code that we had no copy of has no version that we could name; `before_use` says so, and no `code` is told.
    """
    public = {paper.paper: paper for paper in found.values() if paper.repository}
    unseen = {name for name, paper in public.items() if any("we had no copy" in said for said in paper.before_use)}
    assert len(public) == 5 and unseen == {"dac"}
    for name, paper in public.items():
        version = "" if name in unseen else "/tree/[0-9a-f]{7,40}"
        assert re.fullmatch(rf"https://github\.com/[\w.-]+/[\w.-]+{version}", paper.repository or ""), name
        assert any(one.code for one in paper.deviations.values()) is (name not in unseen), name


def test_what_a_paper_is_praised_for_is_in_its_text(found: dict[str, PaperDeviations]) -> None:
    """Its highlights: no claim of a web page, which the paper doesn't print."""
    elsewhere = {claim.id for claim in CLAIMS if claim.place == "authors' web pages"}
    assert elsewhere
    for paper in found.values():
        assert not [name for one in paper.argument for name in fnmatch.filter(elsewhere, one)], paper.paper


def test_a_pattern_touches_whole_ids_only() -> None:
    claims = [dataclasses.replace(CLAIMS[0], id=name) for name in ("p.a", "p.ab")]
    record = RecordedDeviation(subject="s", claims=("p.a",), paper="", ours="", why="")
    assert touched(record, claims) == ["p.a"]


def test_a_paper_without_a_file_has_none() -> None:
    assert read_deviations(["nobody"]) == []


def test_an_unknown_key_names_file_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "deviations.yaml").write_text("deviations:\n  x: {subject: s, claim: [], paper: a, ours: b, why: c}\n")
    monkeypatch.setattr("stages.claims.lines.source_path", lambda module: tmp_path / "__init__.py")
    with pytest.raises(ParamsError, match=r"deviations.yaml: .*deviations.x"):
        read_deviations(["x"])
