"""Verdicts report changes made after data were seen; a change without a reason is refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.claims import ClaimsError, read_claims, read_history
from stages.claims.history import PATH, append, digest_code, digest_row, digest_verdict, pending, seen_before_rule
from stages.recording.builder import record
from stages.results import ClaimFilter, list_judged, open_results
from tests.claims.lines import ROOT, claims, copy_project, params
from tests.commands.waiting import claimcheck
from tests.project import git

GAIN = "dac.sgemm.gain"


def test_every_change_is_recorded() -> None:
    lacking = pending(
        list(claims().values()), params().verdicts, read_history(ROOT / PATH), known=claims(), published=()
    )
    what = sorted({f"{change.subject} {change.claims}" for change in lacking})
    assert what == [], 'say why: claimcheck history --why "…" [the claims whose verdicts it may touch], and commit'


def test_digest_covers_row_metric_rules_and_code() -> None:
    claim, rules = claims()[GAIN], params().verdicts
    margins = dataclasses.replace(rules.margins, log_mse_share=0.26)
    digests = [
        digest_verdict(claim, rules, digest_code()),
        digest_verdict(dataclasses.replace(claim, metric="log_mse"), rules, digest_code()),
        digest_verdict(dataclasses.replace(claim, statement="falls"), rules, digest_code()),
        digest_verdict(claim, dataclasses.replace(rules, margins=margins), digest_code()),
        digest_verdict(claim, rules, "other code"),
    ]
    assert len(set(digests)) == len(digests)


def test_new_column_does_not_change_a_rows_digest() -> None:
    assert digest_row(claims()[GAIN]) == digest_row(dataclasses.replace(claims()[GAIN], trials=None))


def test_changed_metric_is_explained_on_the_claims_page(tmp_path: Path) -> None:
    copy_project(tmp_path)
    listed = tmp_path / "data" / "claims.csv"
    text = listed.read_text()
    (row,) = (line for line in text.splitlines() if line.startswith(f"{GAIN},"))
    listed.write_text(text.replace(row, row.replace("selected_log_mse", "log_mse")))
    rows, history = read_claims(listed), tmp_path / PATH
    (change,) = (
        change
        for change in pending(
            rows, params().verdicts, read_history(history), known=claims(), published=["dac-sgemm", "hyperbf-cifar10"]
        )
        if change.claims == GAIN
    )
    assert change.changed == {"metric": ("selected_log_mse", "log_mse")}
    assert change.after_evidence and change.before == digest_row(claims()[GAIN])
    append(history, [change], date="2026-11-24", why="The last epoch looked better.")
    record(tmp_path, str(tmp_path / "results.db"))
    settings = Settings(database=str(tmp_path / "results.db"), root=tmp_path)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        changes = client.get(f"/api/v1/claims/{GAIN}").json()["changes"]
        page = client.get(f"/claims/{GAIN}", headers={"accept": "text/html"}).text
    assert changes[-1] == {
        "date": "2026-11-24",
        "part": "claim",
        "changed": {"metric": ["selected_log_mse", "log_mse"]},
        "after_evidence": True,
        "alters": True,
        "seen": None,
        "why": "The last epoch looked better.",
    }
    narrowed = next(change["changed"]["statement"] for change in changes if "statement" in change["changed"])
    assert [text.endswith("about alike at all widths") for text in narrowed] == [True, False]
    assert "after results were published" in page and "The last epoch looked better." in page


def test_history_command_records_each_change_once(tmp_path: Path) -> None:
    copy_project(tmp_path)
    (tmp_path / "data" / "evidence").mkdir()
    shutil.copy(ROOT / "data" / "evidence" / "hyperbf-cifar10.jsonl", tmp_path / "data" / "evidence")
    listed = tmp_path / "data" / "claims.csv"
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "data/claims.csv")
    git(tmp_path, "commit", "-qm", "claims")
    listed.write_text(listed.read_text().replace(",0.7561,", ",0.7562,", 1))
    for expected in ("1 changes", "0 changes"):
        done = claimcheck(tmp_path, "history", "--why", "A digit was misread.")
        assert done.returncode == 0 and expected in done.stdout, done.stdout + done.stderr
    last = read_history(tmp_path / PATH)[-1]
    assert last.claims == "hyperbf.table2.c10.vit" and last.changed == {"value": (0.7561, 0.7562)}
    assert last.after_evidence and last.why == "A digit was misread."


def test_invalid_history_line_is_refused_by_number(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"date": "2026-11-24"}\n')
    with pytest.raises(ClaimsError, match="line 1"):
        read_history(tmp_path / "history.jsonl")
    line = json.loads((ROOT / PATH).read_bytes().splitlines()[0])
    (tmp_path / "history.jsonl").write_text(json.dumps(line | {"why": " "}))
    with pytest.raises(ClaimsError, match="line 1"):
        read_history(tmp_path / "history.jsonl")


def test_verdict_by_a_late_rule_states_how_many_results_existed(published: str) -> None:
    """A change of judging after results are public adds a line to the rule."""
    history = read_history(ROOT / PATH)
    with open_results(published)() as session:
        judged = [row for row in list_judged(session, ClaimFilter()) if row.verdict.estimate is not None]
    by_results = {row.claim.id: row.verdict for row in judged if row.verdict.basis == "results"}
    touched = {
        change.claims
        for change in history
        if change.subject == "claim" and change.after_evidence and {"kind", "metric"} & change.changed.keys()
    }
    lines = {change.claims for change in history if change.subject == "rule"}
    assert touched & by_results.keys() and touched & by_results.keys() <= lines <= by_results.keys()
    for name in lines:
        seen = by_results[name].seen_before_rule
        assert seen == seen_before_rule(name, history) and seen <= (by_results[name].scope or {"pairs": 1})["pairs"]


def test_rule_line_changes_no_state_and_lists_earlier_results() -> None:
    history = read_history(ROOT / PATH)
    listed, rules = list(claims().values()), params().verdicts
    without = [change for change in history if change.subject != "rule"]
    assert without != history
    one, other = (pending(listed, rules, lines, known=claims(), published=()) for lines in (history, without))
    assert one == other
    (rule, *_) = (change for change in history if change.subject == "rule")
    with pytest.raises(ValueError, match="a rule needs `seen`, and nothing else"):
        dataclasses.replace(rule, seen=None)


def test_history_line_says_whether_code_altered_verdicts(tmp_path: Path) -> None:
    code = [change for change in read_history(ROOT / PATH) if change.subject == "code"][-1]
    for alters in (True, False):
        append(tmp_path / "history.jsonl", [code], date="2026-11-24", why="Names.", alters=alters)
    changes = read_history(tmp_path / "history.jsonl")
    assert [change.alters for change in changes] == [True, False]
    assert "seen" not in (tmp_path / "history.jsonl").read_text(), "no optional field is written"
