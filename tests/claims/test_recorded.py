"""Recording into a real database: selected results, and a row for every claim of the five papers."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.app import create_app
from service.settings import Settings
from stages.claims import judge_claim
from stages.recording.builder import record
from stages.recording.sources import facts_today
from stages.results import (
    ClaimFilter,
    Question,
    Result,
    VerdictRow,
    compare,
    find_judged,
    list_families,
    list_judged,
    open_results,
    tally,
)
from stages.results.claims import AGAINST_THE_PAPER
from stages.verdicts import Status
from stages.verdicts.kinds import KINDS
from tests.claims.lines import as_evaluated, claims, copy_project, evaluate, params, publish, recorded, results
from tests.claims.test_trained import MNIST

VIT, LEAD = "ninformer.table2.mnist.vit", "ninformer.rank.mnist.ninformer"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All params and claims, with MNIST published, later local results of the same runs, and HyperBF at smoke."""
    root = tmp_path_factory.mktemp("ledger")
    copy_project(root)
    published = results("ninformer-mnist", MNIST)
    publish(root, published)
    later = results("ninformer-mnist", {arm: [0.5] * 5 for arm in MNIST}, environment="later")
    smoke = {"vit": [0.7561], "hyperbf": [0.7512]}
    hyperbf = results("hyperbf-cifar10", smoke, metric="best_epoch_accuracy", profile="smoke", provenance="embedded")
    for lines in (later, hyperbf):
        evaluate(root, [*map(as_evaluated, lines)])
    record(root, "data/results.db")
    return root


@pytest.fixture
def session(root: Path) -> Iterator[Session]:
    with open_results(str(root / "data" / "results.db"))() as session:
        yield session


def test_every_claim_of_the_five_papers_has_a_row(session: Session) -> None:
    judged = list_judged(session, ClaimFilter())
    assert [row.claim.id for row in judged] == list(claims())
    assert {row.verdict.rules for row in judged} == {params().verdicts.digest()}
    assert {Status(row.verdict.status) for row in judged} <= set(Status)


def test_published_evidence_takes_precedence_over_later_runs(session: Session) -> None:
    claim = find_judged(session, VIT)
    assert claim.verdict.status == "reproduced"
    assert [run.value for run in claim.runs] == pytest.approx(MNIST["vit"], abs=1e-12)
    assert {run.result.source for run in claim.runs} == {"evidence"}
    assert claim.verdict.n == 5


def test_judging_outside_the_database_agrees_with_it(root: Path, session: Session) -> None:
    """A published run that was evaluated again elsewhere counts once in both."""
    facts = facts_today(root, params())
    judged = [judge_claim(claim, facts) for claim in facts.claims if claim.facts.by != "orders"]
    today = {one.claim.id: (str(one.verdict.status), one.verdict.n) for one in judged}
    recorded = list_judged(session, ClaimFilter())
    assert today == {
        row.claim.id: (row.verdict.status, row.verdict.n) for row in recorded if KINDS[row.claim.kind].by != "orders"
    }


def test_verdict_has_size_table_and_deviations(session: Session) -> None:
    claim = find_judged(session, LEAD)
    assert claim.verdict.size is not None and claim.verdict.size["status"] == "reproduced"
    assert claim.family is not None and claim.family.text.startswith("Mean gain of 3 of 9 orders on 1 data set")
    assert (claim.family.status, claim.family.ahead) == ("unresolved", 2)
    assert "ninformer.dropout" in {deviation.id for deviation in claim.deviations}
    assert [family.name for family in list_families(session)] == list(params().verdicts.families)


def test_claim_of_several_experiments_is_listed_with_each(session: Session) -> None:
    for dataset in ("mnist", "cifar10", "cifar100"):
        found = {row.claim.id: row for row in list_judged(session, ClaimFilter(dataset=dataset))}
        assert found["ninformer.setup.epochs"].datasets == ("mnist", "cifar10", "cifar100")


def test_badge_counts_decidable_claims(session: Session) -> None:
    counts = {row.paper: row for row in tally(session)}
    assert sum(row.claims for row in counts.values()) == len(claims())
    for row in counts.values():
        assert row.decidable == row.in_favour + row.against + row.open + row.waiting
        assert sum(row.by_verdict.values()) == row.claims
    ours = counts["ninformer"]
    decided = [claim for claim in list_judged(session, ClaimFilter(paper="ninformer")) if claim.verdict.is_decidable]
    assert ours.decidable == len(decided)
    assert not {"setup", "figure", "qualitative"} & {claim.claim.kind for claim in decided}


TIMES = [f"ninformer.table3.mnist.{arm}" for arm in ("vit", "mlpmixer", "localvit", "ninformer")]


def write_findings(root: Path, claims: Sequence[str], error: str | None) -> None:
    """Write the same contradicted finding for each of `claims`."""
    finding = {"holds": False, "contradicted": True, "computed": {}, "explanation": "Computed."}
    lines = [{**finding, "claim": claim, "paper": "ninformer", "error": error} for claim in claims]
    (root / "data" / "findings.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize(("error", "counted"), [("inference times in nanoseconds", 1), (None, 4)])
def test_error_in_several_places_counts_once(root: Path, tmp_path: Path, error: str | None, counted: int) -> None:
    other = smaller(root, tmp_path / "root")
    write_findings(other, TIMES, error)
    with recorded(other) as session:
        (ours,) = [row for row in tally(session, ClaimFilter(paper="ninformer")) if row.claims]
        same_error = find_judged(session, TIMES[1]).same_error
        decidable = [row for row in list_judged(session, ClaimFilter(paper="ninformer")) if row.verdict.is_decidable]
    against = [row for row in decidable if Status(row.verdict.status) in AGAINST_THE_PAPER]
    assert ours.by_basis["finding"] == {"contradicted": counted}
    assert ours.against == len(against) - 4 + counted
    assert ours.by_verdict["contradicted"] == ours.by_kind["value"]["contradicted"] == 4, "one per claim"
    assert ours.decidable == ours.in_favour + ours.against + ours.open + ours.waiting == len(decidable) - 4 + counted
    assert ours.errors == ({error: 4} if error else {})
    assert same_error == ((TIMES[0], *TIMES[2:]) if error else ())


def smaller(root: Path, place: Path) -> Path:
    """Return a copy with only MNIST's experiments, which is fast to record."""
    shutil.copytree(root, place)
    (place / "data" / "results" / "hyperbf-cifar10.jsonl").unlink()
    index = yaml.safe_load((place / "params.yaml").read_text(encoding="utf-8"))
    index["experiments"] = {"ninformer-mnist": index["experiments"]["ninformer-mnist"]}
    (place / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    return place


def test_changed_rule_changes_the_digest_and_the_verdict(root: Path, tmp_path: Path) -> None:
    other = smaller(root, tmp_path / "root")
    index = yaml.safe_load((other / "params.yaml").read_text(encoding="utf-8"))
    index["verdicts"]["margins"]["error_share"] = 0.001
    (other / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    with recorded(other) as session:
        claim = session.get_one(VerdictRow, VIT)
    assert claim.rules != params().verdicts.digest()
    assert claim.status == "undecidable at this margin", "margin: the printed rounding; the paper ran once"


def test_result_of_a_changed_protocol_decides_nothing(root: Path, tmp_path: Path) -> None:
    other = smaller(root, tmp_path / "root")
    path = other / "params" / "ninformer-cifar10.yaml"  # MNIST's inherits from it
    path.write_text(path.read_text(encoding="utf-8").replace("lr: 0.001", "lr: 0.01"), encoding="utf-8")
    with recorded(other) as session:
        assert session.get_one(VerdictRow, VIT).status == "not tested"
        assert session.get_one(VerdictRow, LEAD).status == "indicative: agrees"


def test_verdicts_and_comparison_use_the_same_results(tmp_path: Path) -> None:
    """Of two indicative groups, the one with more arms is used, even if the other has more replicates."""
    copy_project(tmp_path)
    broad = results("ninformer-mnist", {arm: values[:3] for arm, values in MNIST.items()}, epochs=40)
    deep = results("ninformer-mnist", {arm: MNIST[arm][:4] for arm in ("local-vit", "ninformer")}, epochs=50)
    publish(tmp_path, [*deep, *broad])
    with recorded(tmp_path) as session:
        positions = {run.spec["protocol"]["epochs"]: run.group_position for run in session.scalars(select(Result))}
        assert positions == {40: 0, 50: 1}
        (shown,) = compare(session, Question(dataset="mnist", paper="ninformer"))
        runs = find_judged(session, LEAD).runs
        assert len(runs) == 6 and {run.result.conditions for run in runs} == {shown.conditions}


@pytest.mark.slow
def test_each_lab_is_judged_alone_and_none_changes_our_verdict(tmp_path: Path) -> None:
    """Two labs have more arms than we have; one agrees with us, the other's order is reversed."""
    copy_project(tmp_path)
    publish(tmp_path, results("ninformer-mnist", {arm: MNIST[arm] for arm in ("local-vit", "ninformer")}))
    alone = find_all(tmp_path)
    publish(tmp_path, results("ninformer-mnist", MNIST, environment="Oslo"), lab="uni-oslo")
    swapped = MNIST | {"ninformer": MNIST["vit"]}
    publish(tmp_path, results("ninformer-mnist", swapped, environment="Bergen"), lab="uni-bergen")
    record(tmp_path, "data/results.db")
    app = create_app(Settings(root=tmp_path))
    with open_results(str(tmp_path / "data" / "results.db"))() as session:
        lead, vit = (session.get_one(VerdictRow, claim) for claim in (LEAD, VIT))
        assert {run.result.origin["lab"] for run in vit.runs if run.result.origin} == {"uni-bergen"}, "we have none"
        assert [(row["lab"], row["status"], row["n"]) for row in lead.labs] == [
            ("", "supported", 5),
            ("uni-bergen", "reversed", 5),
            ("uni-oslo", "supported", 5),
        ]
        assert lead.pooled and (lead.pooled["status"], lead.pooled["n"]) == ("unresolved", 3)
        assert lead.pooled["estimate"] == pytest.approx(sum(row["estimate"] for row in lead.labs) / 3)
        assert vit.pooled and (vit.pooled["low"], vit.pooled["n"]) == (None, 2), "two labs give no interval"
        key = vit.runs[0].result.run_key
        for verdict in session.scalars(select(VerdictRow)):
            if verdict.runs and not any("lab" in (run.result.origin or {}) for run in verdict.runs):
                now = verdict.status, verdict.low, verdict.high, verdict.n
                assert now == alone[verdict.claim], verdict.claim
        assert not any(row["lab"] == "" for row in vit.labs)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        page = client.get(f"/claims/{LEAD}").text
        assert "Reproduced 10 times by 2 of 3 labs" in page and "uni-bergen</th>" in page
        assert "3 labs together</th>" in page and "judged together from three labs" in client.get(f"/claims/{VIT}").text
        answer = client.get(f"/api/v1/claims/{LEAD}").json()
        assert [row["lab"] for row in answer["labs"]] == ["", "uni-bergen", "uni-oslo"] and answer["pooled"]["n"] == 3
        assert "trained by the lab uni-bergen" in client.get(f"/runs/{key}").text


def find_all(root: Path) -> dict[str, tuple[str, float | None, float | None, int]]:
    with recorded(root) as session:
        return {row.claim: (row.status, row.low, row.high, row.n) for row in session.scalars(select(VerdictRow))}
