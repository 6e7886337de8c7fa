import json
import re
import unicodedata
from pathlib import Path

import pytest
import yaml

from stages import analyse
from stages.claims import read_claims
from stages.papers.finding import Finding, Reading
from stages.params.stage_inputs import code_digests
from stages.runs.fingerprint import source_path
from tests.preloaded import python
from tests.project import REPOSITORY, computed_findings, environment


@pytest.fixture
def toy_paper(tmp_path: Path) -> Path:
    """A checkout whose only paper has the findings that the test sets."""
    for name in code_digests(("stages.analyse",), ()):  # modules and their data files
        path = source_path(name) or REPOSITORY / name
        target = tmp_path / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(index | {"experiments": {}}), encoding="utf-8")
    paper = tmp_path / "stages" / "papers" / "toy"
    paper.mkdir()
    (paper / "__init__.py").touch()
    (paper / "findings.py").write_text(
        "from stages.papers.finding import Finding\n"
        "def findings(margins):\n"
        "    return [Finding(claim='toy.half', holds=True, computed={'ratio': 1 / 3}, explanation='A third.'),\n"
        "            Finding(claim='toy.sum', holds=False, computed={'sum': 5}, explanation='2 + 2 is not 5.')]\n",
        encoding="utf-8",
    )
    (tmp_path / "data").mkdir()
    return tmp_path


def test_findings_of_every_paper_are_written_as_lines(toy_paper: Path) -> None:
    done = python("-m", "stages.analyse", cwd=toy_paper, env=environment() | {"PYTHONPATH": str(toy_paper)})
    assert done.stdout == "analyse: toy: 1 fails, 1 holds\n"
    lines = [
        json.loads(line) for line in (toy_paper / "data" / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [(line["paper"], line["claim"], line["holds"]) for line in lines] == [
        ("toy", "toy.half", True),
        ("toy", "toy.sum", False),
    ]
    assert lines[0]["computed"] == {"ratio": 0.333333333}, "digits on which all processors agree"


def test_shared_error_is_one_row() -> None:
    reading = Reading(name="as printed", text="Ten.", holds=False)
    places = [
        Finding(
            claim=f"toy.{name}",
            contradicted=True,
            computed={"ten": 10},
            explanation="Nine.",
            readings=(reading,),
            error="toy.ten",
        )
        for name in ("a", "b", "c")
    ]
    alone = Finding(claim="toy.d", holds=False, contradicted=True, computed={}, explanation="Two.")
    page = analyse.page({"toy": [*places, alone]}).decode()
    assert "## [toy](papers/toy.md): 2 contradicted; one error at 3 places\n" in page
    assert (
        "| `toy.a`, also `toy.b`, `toy.c` | contradicted | – | as printed |\n| `toy.d` | contradicted | – | – |\n"
        in page
    )


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return [*computed_findings().values()]


@pytest.mark.timeout(300)
def test_our_value_of_a_finding_uses_the_claims_unit_and_decides_it(found: list[Finding]) -> None:
    """Findings with readings have one value per reading."""
    claims = {claim.id: claim for claim in read_claims(REPOSITORY / "data" / "claims.csv")}
    with_ours = [finding for finding in found if finding.ours is not None]
    assert len(with_ours) > 20
    for finding in with_ours:
        claim = claims[finding.claim]
        decided = [(reading.ours, reading.holds) for reading in finding.readings if reading.ours is not None]
        assert not decided or finding.ours in [ours for ours, _ in decided], claim.id
        for ours, holds in decided or [(finding.ours, finding.status == "holds")]:
            assert claim.value is not None and ours is not None, claim.id
            play = (claim.precision or 0.0) / 2 * (1 + 1e-9)  # a count must equal the printed one regardless of margins
            is_the_same = claim.value - play <= ours <= (claim.high or claim.value) + play
            assert is_the_same == holds, f"{claim.id}: {ours} {claim.unit}"


SOURCES = REPOSITORY.parent / "shared" / "papers" / "seeds"
SOURCE_OF = {"hyperbf": "000", "ninformer": "001", "nmn": "002", "brownian": "003", "dac": "004"}


@pytest.mark.timeout(300)
def test_no_claim_is_contradicted_if_a_reading_supports_it(found: list[Finding]) -> None:
    accused = [finding for finding in found if finding.status in ("fails", "contradicted")]
    assert accused
    for finding in accused:
        assert len(finding.readings) >= 2, f"{finding.claim} {finding.status}: check the derivation against the paper"
        assert not any(reading.holds for reading in finding.readings), finding.claim


@pytest.mark.timeout(300)
@pytest.mark.skipif(not SOURCES.is_dir(), reason=f"the papers' texts are not at {SOURCES}")
def test_readings_quote_the_papers_exactly(found: list[Finding]) -> None:
    """Compare text between double quotes, ignoring white space and ligatures."""
    texts = {}
    for paper, number in SOURCE_OF.items():
        (source,) = SOURCES.glob(f"{number}_*.txt")
        texts[paper] = plain(source.read_text(encoding="utf-8"))
    for finding in found:
        for reading in finding.readings:
            for quote in re.findall(r'"([^"]+)"', reading.text):
                paper = finding.claim.partition(".")[0]
                assert plain(quote) in texts[paper], f"{finding.claim}, read {reading.name}: {quote}"


def plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
