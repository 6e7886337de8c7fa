"""A verdict is confirmatory only if its runs were trained after a committed, still matching registration."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stages.claims import ClaimLine, ClaimsError, Trial, read_history
from stages.claims.history import (
    FOLDER,
    Change,
    Registered,
    Registration,
    RegistrationMark,
    changes_since,
    digest_code,
    read_registration,
    read_registrations,
    seal,
    write_text,
)
from stages.claims.history import PATH as HISTORY
from stages.claims.kinds import kind_of
from stages.recording.builder import record
from stages.results import ClaimFilter, list_judged, open_results
from stages.rules import Rules
from stages.runs.evidence import EvidenceLine, write_lines
from tests.claims.lines import ORIGIN, ROOT, as_evaluated, claims, copy_project, cost, params, results, trials
from tests.commands.waiting import claimcheck
from tests.priorities.test_proposal import judged_with
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

    def mark(self, *revisions: str | None, root: Path | None = None, **changed: object) -> RegistrationMark:
        """Return the claim's mark for replicates published by these revisions (None: not published)."""
        found = trials(results(EXPERIMENT, {ARM: VALUES[ARM][: len(revisions)]}))
        origins = [None if one is None else dataclasses.replace(ORIGIN, revision=one) for one in revisions]
        made = [dataclasses.replace(trial, origin=origin) for trial, origin in zip(found, origins, strict=True)]
        return mark(root or self.root, made, **changed)


def mark(
    root: Path, made: Sequence[Trial], *, claim: ClaimLine | None = None, rules: Rules | None = None,
    history: Sequence[Change] | None = None,
) -> RegistrationMark:  # fmt: skip
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
    (root / FILE).write_text(write_text(seal(registration)))


def test_registration_edited_after_its_commit_is_detected(copy: Path, story: Story) -> None:
    text = (copy / FILE).read_text()
    (copy / FILE).write_text(text.replace("Before anything", "After everything"))
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
            "no planned run of these claims fits *.vit.0",
        ),
        (("register", "../x", CLAIM, "--why", "x"), "the name '../x' has other characters"),
        (("register", "other", CLAIM), 'expected a name, claims and --why "…", or --check'),
    ],
)
def test_invalid_registration_is_refused_in_one_line(story: Story, words: Sequence[str], said: str) -> None:
    done = claimcheck(story.root, *words)
    assert done.returncode != 0 and said in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in (story.root / FOLDER).iterdir()] == ["early.json"]


def test_unrecorded_change_blocks_registration_and_fails_the_check(copy: Path) -> None:
    listed = copy / "data" / "claims.csv"
    row = next(line for line in listed.read_text().splitlines() if line.startswith(f"{CLAIM},"))
    listed.write_text(listed.read_text().replace(row, row.replace(f"{claims()[CLAIM].value}", "0.9", 1)))
    done = claimcheck(copy, "register", "other", CLAIM, "--why", "x")
    assert f"has no line yet for claim {CLAIM}; first run: claimcheck history" in done.stderr
    checked = claimcheck(copy, "register", "--check")
    assert checked.returncode == 1 and "judged by another rule than registered; row: value" in checked.stdout


def test_registered_margin_is_that_of_the_judge() -> None:
    """For every trained claim, with results of all experiments."""
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
