"""Changes of claims and judging are recorded, and only runs trained after a matching registration are confirmatory."""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.claims import ClaimLine, ClaimsError, read_claims, read_history
from stages.claims.history import (
    FOLDER,
    Change,
    Registered,
    Registration,
    RegistrationMark,
    append,
    changes_since,
    digest_code,
    digest_row,
    digest_verdict,
    pending,
    read_registration,
    read_registrations,
    seal,
    seen_before_rule,
    write_text,
)
from stages.claims.history import PATH as HISTORY
from stages.claims.kinds import kind_of
from stages.recording.builder import record
from stages.results import ClaimFilter, list_judged, open_results
from stages.rules import Rules
from stages.runs.evidence import EvidenceLine, write_lines
from tests.claims.lines import ORIGIN, ROOT, as_evaluated, claims, copy_project, cost, params, results, trials
from tests.commands.test_proposal import judged_with
from tests.commands.waiting import claimcheck
from tests.project import git

EXPERIMENT, CLAIM, ARM, N = "ninformer-mnist", "ninformer.table2.mnist.ninformer", "ninformer", 5
FILE = FOLDER / "early.json"
REGISTER = ("register", "early", CLAIM, "--why", "Before anything is trained")
Values = Mapping[str, Sequence[float]]
VALUES: Values = {ARM: [0.981, 0.982, 0.983, 0.984, 0.985], "vit": [0.97] * N}


def commit(root: Path, subject: str) -> str:
    """Commit everything, even without changes; return the revision."""
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", subject)
    return git(root, "rev-parse", "HEAD")


@dataclasses.dataclass(frozen=True)
class Story:
    """A clone with commits `before`, `registered` and `after` a registration."""

    root: Path
    before: str
    registered: str
    after: str

    def mark(
        self,
        *revisions: str | None,
        root: Path | None = None,
        claim: ClaimLine | None = None,
        rules: Rules | None = None,
        history: Sequence[Change] | None = None,
    ) -> RegistrationMark:
        """Return the claim's mark for replicates published by these revisions (None: not published)."""
        found = trials(results(EXPERIMENT, {ARM: VALUES[ARM][: len(revisions)]}))
        origins = [None if one is None else dataclasses.replace(ORIGIN, revision=one) for one in revisions]
        made = [dataclasses.replace(trial, origin=origin) for trial, origin in zip(found, origins, strict=True)]
        root = root or self.root
        known = read_history(root / HISTORY) if history is None else history
        return Registered(root, rules or params().verdicts, known).mark(claim or claims()[CLAIM], made)


def make_clone(root: Path) -> Path:
    """A project under git with a complete history of claims."""
    copy_project(root)
    done = claimcheck(root, "history", "--why", "the code of today", "--alters-nothing")
    assert done.returncode == 0, done.stderr
    git(root, "init", "-q", "-b", "main")
    return root


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = make_clone(tmp_path_factory.mktemp("story"))
    before = commit(root, "claims")
    done = claimcheck(root, *REGISTER)
    assert done.returncode == 0, done.stderr
    return Story(root, before, commit(root, "register"), commit(root, "code"))


@pytest.fixture
def copy(story: Story, tmp_path: Path) -> Path:
    """A copy of the clone that a test may change."""
    return Path(shutil.copytree(story.root, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("published", "mark", "why"),
    [
        ("after after after after registered", "confirmatory", None),
        ("before before before before before", "exploratory", "0 of 5 runs were trained after registration"),
        ("before before after after after", "exploratory", "3 of 5 runs were trained after registration"),
        ("none after after after after", "unknown", None),
        ("elsewhere after after after after", "unknown", None),
        ("none before after after after", "exploratory", None),  # one is known to be too early
    ],
)
def test_only_runs_published_after_registration_are_confirmatory(
    story: Story, published: str, mark: str, why: str | None
) -> None:
    revisions = {**vars(story), "none": None, "elsewhere": "1" * 40}
    found = story.mark(*(revisions[name] for name in published.split()))
    assert found.mark == mark and (why is None or found.why == why)
    assert mark != "confirmatory" or (found.after, found.runs, found.registrations) == (5, 5, ("early",))


def test_unregistered_claim_is_exploratory(story: Story) -> None:
    other = claims()["ninformer.table2.mnist.vit"]
    found = story.mark(*[story.after] * N, claim=other)
    assert (found.mark, found.why) == ("exploratory", "no registration covers the claim")


def test_nothing_is_confirmatory_without_git(copy: Path, story: Story) -> None:
    shutil.rmtree(copy / ".git")
    found = story.mark(*[story.after] * N, root=copy)
    assert (found.mark, found.why) == ("unknown", "git can't say when 5 of 5 runs were trained")


def test_uncommitted_registration_confirms_nothing(copy: Path, story: Story) -> None:
    git(copy, "rm", "-q", "--cached", str(FILE))
    git(copy, "commit", "-qm", "forget it")
    assert story.mark(*[story.after] * N, root=copy).mark == "unknown"


def test_changed_row_margin_or_rule_makes_a_claim_exploratory(story: Story) -> None:
    claim, rules = claims()[CLAIM], params().verdicts
    moved = story.mark(*[story.after] * N, claim=dataclasses.replace(claim, value=0.97))
    assert moved.mark == "exploratory" and f"row: value {claim.value} -> 0.97" in moved.why
    wider = dataclasses.replace(rules, margins=dataclasses.replace(rules.margins, error_share=1.0))
    assert kind_of(claim, wider).margin != kind_of(claim, rules).margin
    widened = story.mark(*[story.after] * N, rules=wider)
    assert widened.mark == "exploratory" and "early this changed: margin: " in widened.why
    levels = dataclasses.replace(rules, alpha_outside=0.1)
    found = story.mark(*[story.after] * N, rules=levels)
    assert found.mark == "exploratory" and "rules: changed" in found.why


@pytest.mark.parametrize(
    ("alters", "of", "wanted"),
    [(True, "*", "exploratory"), (False, "*", "confirmatory"), (True, "dac.*", "confirmatory")],
)
def test_changed_judging_code_is_exploratory_if_it_alters_the_claim(
    copy: Path, story: Story, alters: bool, of: str, wanted: str
) -> None:
    """The registration is of older code, which the history's lines connect with today's."""
    older = dataclasses.replace(read_registration(copy / FILE), code="0" * 16)
    rewrite(copy, older)
    last = Change(
        date="2026-01-01",
        subject="code",
        claims="*",
        before=None,
        after="0" * 16,
        changed={},
        after_evidence=True,
        why="x",
    )
    later = dataclasses.replace(last, claims=of, after=digest_code(), why="Another test.", alters=alters)
    revision = commit(copy, "later")
    found = story.mark(*[revision] * N, root=copy, history=[last, later])
    assert found.mark == wanted and ("code: Another test." in found.why) == (wanted == "exploratory")
    assert story.mark(*[revision] * N, root=copy, history=[last]).mark == "exploratory", "no line records it"


def rewrite(root: Path, registration: Registration) -> None:
    """Write a changed registration with a matching digest."""
    (root / FILE).write_text(write_text(seal(registration)), encoding="utf-8")


def test_registration_edited_after_its_commit_is_detected(copy: Path, story: Story) -> None:
    text = (copy / FILE).read_text(encoding="utf-8")
    (copy / FILE).write_text(text.replace("Before anything", "After everything"), encoding="utf-8")
    with pytest.raises(ClaimsError, match="changed since it was written"):
        story.mark(story.after, root=copy)
    done = claimcheck(copy, "register", "--check")
    assert (
        done.returncode == 1
        and "changed since it was written" in done.stdout
        and "not committed as it is now" in done.stdout
    )
    rewrite(copy, dataclasses.replace(read_registration(story.root / FILE), why="After everything"))
    assert story.mark(*[story.after] * N, root=copy).mark == "unknown", "not the committed file"
    again = commit(copy, "edit the registration")
    assert story.mark(*[story.after] * N, root=copy).mark == "exploratory", "its latest commit counts"
    assert story.mark(*[again] * N, root=copy).mark == "confirmatory"


def test_run_trained_before_registration_is_exploratory(tmp_path: Path) -> None:
    """Publishing records the current revision, so the registration itself lists existing runs."""
    root = make_clone(tmp_path)
    (root / "data" / "evidence").mkdir()
    publish(root, "1" * 40, {ARM: VALUES[ARM][:2]})
    done = claimcheck(root, *REGISTER)
    assert "5 planned runs, 2 of them trained already" in done.stdout, done.stderr
    commit(root, "register")
    later = commit(root, "later")
    found = Story(root, later, later, later).mark(*[later] * N)
    assert (found.mark, found.why) == ("exploratory", "3 of 5 runs were trained after registration")


def publish(root: Path, revision: str, values: Values) -> None:
    lines = [
        EvidenceLine(result=line, cost=cost(line), origin=dataclasses.replace(ORIGIN, revision=revision))
        for line in map(as_evaluated, results(EXPERIMENT, values))
    ]
    (root / "data" / "evidence" / f"{EXPERIMENT}.jsonl").write_bytes(write_lines(lines))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("register", "other", "ninformer.table2.mnist.ninfomer", "--why", "x"), f"did you mean {CLAIM}?"),
        (("register", "other", "dac.thm.c1.2", "--why", "x"), "dac.thm.c1.2 is not decided by training"),
        (("register", "early", CLAIM, "--why", "x"), "early.json exists; a registration is never changed"),
        (("register", "other", CLAIM, "--why", "x"), f"{CLAIM} is registered already, unchanged and with these runs"),
        (
            ("register", "other", CLAIM, "--runs", "*.vit.0", "--why", "x"),
            "no planned run of these claims matches *.vit.0",
        ),
        (("register", "../x", CLAIM, "--why", "x"), "the name '../x' may only have the characters"),
        (("register", "other", CLAIM), 'expected a name, claims and --why "…", or --check'),
    ],
)
def test_invalid_registration_is_refused_in_one_line(story: Story, words: Sequence[str], said: str) -> None:
    done = claimcheck(story.root, *words)
    assert done.returncode != 0 and said in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in (story.root / FOLDER).iterdir()] == ["early.json"]


def test_unrecorded_change_blocks_registration_and_fails_the_check(copy: Path) -> None:
    listed = copy / "data" / "claims.csv"
    row = next(line for line in listed.read_text(encoding="utf-8").splitlines() if line.startswith(f"{CLAIM},"))
    listed.write_text(
        listed.read_text(encoding="utf-8").replace(row, row.replace(f"{claims()[CLAIM].value}", "0.9", 1)),
        encoding="utf-8",
    )
    done = claimcheck(copy, "register", "other", CLAIM, "--why", "x")
    assert f"has no line yet for claim {CLAIM}; first run: claimcheck history" in done.stderr
    checked = claimcheck(copy, "register", "--check")
    assert checked.returncode == 1 and "not judged by the registered rule; row: value" in checked.stdout


def test_registered_margin_is_that_of_the_judge() -> None:
    """Every trained claim is tried, with results of all experiments."""
    for judgement in judged_with(5):
        claim, verdict = judgement.claim, judgement.verdict
        judged = verdict if verdict.size is None else verdict.size
        if judged.margin is not None:
            assert judged.margin == pytest.approx(kind_of(claim, params().verdicts).margin), claim.id


def test_database_has_the_registration_mark(copy: Path, story: Story) -> None:
    (copy / "data" / "evidence").mkdir()
    publish(copy, story.after, VALUES)
    record(copy, "results.db")
    with open_results(str(copy / "results.db"))() as session:
        marks = {row.claim.id: row.verdict.mark for row in list_judged(session, ClaimFilter()) if row.verdict.mark}
    assert marks[CLAIM] == "confirmatory" and marks["ninformer.table2.mnist.vit"] == "exploratory"


def test_every_registered_claim_still_matches_one_registration() -> None:
    """If a reworded note or edited judge voids a registration, revert it or register again before the next run."""
    rules, history, today = params().verdicts, read_history(ROOT / HISTORY), claims()
    standing: dict[str, list[bool]] = {}
    for registration in read_registrations(ROOT):
        for known in registration.claims:
            changed = changes_since(registration, today.get(known.id), known, rules, history)
            standing.setdefault(known.id, []).append(not changed)
    assert standing and [claim for claim, is_valid in standing.items() if not any(is_valid)] == []


GAIN = "dac.sgemm.gain"


def test_every_change_is_recorded() -> None:
    lacking = pending(
        list(claims().values()), params().verdicts, read_history(ROOT / HISTORY), known=claims(), published=()
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
    text = listed.read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"{GAIN},"))
    listed.write_text(text.replace(row, row.replace("selected_log_mse", "log_mse")), encoding="utf-8")
    rows, history = read_claims(listed), tmp_path / HISTORY
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
    listed.write_text(listed.read_text(encoding="utf-8").replace(",0.7561,", ",0.7562,", 1), encoding="utf-8")
    for expected in ("1 changes", "0 changes"):
        done = claimcheck(tmp_path, "history", "--why", "A digit was misread.")
        assert done.returncode == 0 and expected in done.stdout, done.stdout + done.stderr
    last = read_history(tmp_path / HISTORY)[-1]
    assert last.claims == "hyperbf.table2.c10.vit" and last.changed == {"value": (0.7561, 0.7562)}
    assert last.after_evidence and last.why == "A digit was misread."


def test_invalid_history_line_is_refused_by_number(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"date": "2026-11-24"}\n', encoding="utf-8")
    with pytest.raises(ClaimsError, match="line 1"):
        read_history(tmp_path / "history.jsonl")
    line = json.loads((ROOT / HISTORY).read_bytes().splitlines()[0])
    (tmp_path / "history.jsonl").write_text(json.dumps(line | {"why": " "}), encoding="utf-8")
    with pytest.raises(ClaimsError, match="line 1"):
        read_history(tmp_path / "history.jsonl")


def test_verdict_by_a_late_rule_states_how_many_results_existed(published: str) -> None:
    """A change of judging after results are public adds a line to the rule."""
    history = read_history(ROOT / HISTORY)
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
    history = read_history(ROOT / HISTORY)
    listed, rules = list(claims().values()), params().verdicts
    without = [change for change in history if change.subject != "rule"]
    assert without != history
    one, other = (pending(listed, rules, lines, known=claims(), published=()) for lines in (history, without))
    assert one == other
    (rule, *_) = (change for change in history if change.subject == "rule")
    with pytest.raises(ValueError, match="a rule needs `seen`, and nothing else"):
        dataclasses.replace(rule, seen=None)


def test_history_line_says_whether_code_altered_verdicts(tmp_path: Path) -> None:
    code = [change for change in read_history(ROOT / HISTORY) if change.subject == "code"][-1]
    for alters in (True, False):
        append(tmp_path / "history.jsonl", [code], date="2026-11-24", why="Names.", alters=alters)
    changes = read_history(tmp_path / "history.jsonl")
    assert [change.alters for change in changes] == [True, False]
    assert "seen" not in (tmp_path / "history.jsonl").read_text(encoding="utf-8"), "no optional field is written"
