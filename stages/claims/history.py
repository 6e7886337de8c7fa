"""`data/claims-history.jsonl`: every change of a claim's row, of the rules, or of the judging code.

Rules are fixed before the data.  Every later change of a row, a rule or the judging code has a line with its reason,
which the claim's page shows.  Replaying the lines gives the repository's current state: `pending` lists the changes
that no line records, and a test requires that there are none.

A line of the subject `rule` records what no digest shows: the rule for these claims was written after `seen` of their
own results were known.  Every verdict by such a rule says so.

`data/registrations/<name>.json` has claims, rules and planned runs, recorded before the runs are trained.

A verdict by training is *confirmatory* if every run behind it was trained after the commit of a registration that
covers the claim, and row, margin, rules and judging code haven't changed since then.  Otherwise it is *exploratory*,
or *unknown* if git can't say.

No clock is used: git says whether the revision of a result line contains the registration's commit.  That revision
published the line, so a registration also lists the planned runs that had already been trained.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import StringConstraints, TypeAdapter, ValidationError

from stages.claims.kinds import kind_of
from stages.claims.lines import ClaimLine, ClaimsError, parse_claims
from stages.faults import named
from stages.rules import Rules
from stages.run import STRICT, canonical_json
from stages.runs.evidence import Trial
from stages.runs.fingerprint import module_digest, source_path
from stages.runs.revisions import ask_git, commit_of, is_ancestor

PATH = Path("data/claims-history.jsonl")
Subject = Literal["claim", "rules", "code", "rule"]
EVERY_CLAIM = "*"
Reason = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change.  `claims` is the id of a changed row, or a pattern of the ids that a changed rule or code judges.

    `before` and `after` are digests of what changed, None if it didn't exist (or, for old code, is unknown);
    `changed` has old and new values by column of the row or number of the rules.  `after_evidence`: results of the
    claim's experiments (for rules and code, of any experiment) were already published when the change was made.
    `alters`: False if code changed no rule, metric, statement or verdict.  `seen`, for a rule: how many of the claim's
    own results (or pairs of results) were known when it was written.
    """

    __pydantic_config__: ClassVar = STRICT
    date: str
    subject: Subject
    claims: str
    before: str | None
    after: str | None
    changed: Mapping[str, tuple[Any, Any]]
    after_evidence: bool
    why: Reason
    alters: bool = True
    seen: int | None = None

    def __post_init__(self) -> None:
        if (self.subject == "rule") != (self.seen is not None):
            raise ValueError(
                f"subject is {self.subject} and seen is {self.seen}; a rule needs `seen`, and nothing else"
            )

    @property
    def key(self) -> tuple[Subject, str]:
        """The subject of the change: one row, the rules, or the code."""
        return self.subject, self.claims if self.subject == "claim" else ""

    def concerns(self, claim: str) -> bool:
        return fnmatch.fnmatchcase(claim, self.claims)


def digest_row(claim: ClaimLine) -> str:
    """Digest of the row's filled cells, so that adding a column doesn't change any row."""
    return _digest(_cells(claim))


def digest_code() -> str:
    """Digest of the code that turns results into verdicts (rules, statistics, claims), without its documentation."""
    package = source_path("stages")
    assert package is not None, "stages is a package"
    folder = package.parent
    paths = [folder / "rules.py", *folder.glob("claims/**/*.py"), *folder.glob("verdicts/*.py")]
    return _digest({str(path.relative_to(folder)): module_digest(path) for path in sorted(paths)})


@cache
def digest_findings(paper: str) -> str:
    """Digest of the modules that compute a paper's findings, and of the findings' texts."""
    package = source_path(f"stages.papers.{paper}")
    paths = sorted(package.parent.glob("findings*")) if package else []
    return _digest({path.name: module_digest(path) for path in paths})


def digest_verdict(claim: ClaimLine, rules: Rules, code: str) -> str:
    """sha256 over the claim's row with its metric, the numbers of the rules, and the judging `code`'s digest."""
    return _sha256({"claim": _cells(claim), "rules": rules.digest(), "code": code})


def _cells(claim: ClaimLine) -> dict[str, Any]:
    return {name: value for name, value in asdict(claim).items() if value is not None}


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _digest(value: Any) -> str:
    return _sha256(value)[:16]


def read_history(path: Path) -> list[Change]:
    """Read all changes, oldest first; none if there is no file.

    Raises:
        ClaimsError: a line can't be read.
    """
    adapter = TypeAdapter(Change)
    changes = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else [], start=1):
        try:
            changes.append(adapter.validate_json(line))
        except ValidationError as error:
            raise ClaimsError(f"{path}, line {number}: {error.errors()[0]['msg']}") from None
    return changes


def seen_before_rule(claim: str, history: Iterable[Change]) -> int | None:
    """Number of the claim's own results that were known when its rule was written; None if none were."""
    return max((change.seen for change in history if change.seen is not None and change.concerns(claim)), default=None)


def pending(
    claims: Sequence[ClaimLine],
    rules: Rules,
    history: Iterable[Change],
    *,
    known: Mapping[str, ClaimLine],
    published: Collection[str],
) -> list[Change]:
    """Return the differences from the history's last state, as changes without date and reason.

    `known` are rows of an earlier state, for old values; `published` are the experiments with evidence.
    """
    state: dict[tuple[Subject, str], str | None] = {change.key: change.after for change in history}
    rows = {claim.id: claim for claim in claims}
    now: dict[tuple[Subject, str], str | None] = {("claim", name): digest_row(row) for name, row in rows.items()}
    now |= {("rules", ""): rules.digest()[:16], ("code", ""): digest_code()}
    now |= dict.fromkeys(state.keys() - now.keys())
    found = []
    for (subject, name), after in now.items():
        if state.get((subject, name)) == after:
            continue
        old, new = (asdict(row) if (row := of_claims.get(name)) else {} for of_claims in (known, rows))
        experiment = (new or old).get("experiment") or ""
        change = Change(
            date="",
            subject=subject,
            claims=name or EVERY_CLAIM,
            before=state.get((subject, name)),
            after=after,
            changed={cell: (old[cell], new[cell]) for cell in new if old and old[cell] != new[cell]},
            after_evidence=bool(fnmatch.filter(published, experiment) if name else published),
            why="",
        )
        found.append(change)
    return found


def committed_claims(root: Path) -> dict[str, ClaimLine]:
    """Return the rows of the last commit, for old values; none outside a clone or if the columns were different."""
    text = ask_git(root, "show", "HEAD:./data/claims.csv") or ""
    try:
        return {claim.id: claim for claim in parse_claims(text, Path("HEAD:data/claims.csv"))}
    except ClaimsError:
        return {}


def append(
    path: Path,
    changes: Iterable[Change],
    *,
    date: str,
    why: str,
    claims: str = EVERY_CLAIM,
    alters: bool = True,
) -> None:
    """Append the changes with their reason; `claims` are ids whose verdicts a changed rule or code may affect.

    `alters`: whether changed code touched a rule, a metric, a statement or a verdict.
    """
    lines = [
        replace(change, date=date, why=why)
        if change.subject == "claim"
        else replace(change, date=date, why=why, claims=claims, alters=alters or change.subject != "code")
        for change in changes
    ]
    with named(path), path.open("a", encoding="utf-8") as file:
        for line in map(asdict, lines):
            own = {name: line[name] for name in line if (name, line[name]) not in (("alters", True), ("seen", None))}
            file.write(canonical_json(own) + "\n")


FOLDER = Path("data/registrations")
Mark = Literal["confirmatory", "exploratory", "unknown"]


@dataclass(frozen=True, kw_only=True)
class RegisteredClaim:
    """A claim's row and its digest, its margin, the test and its error term.

    `margin` is None if the test has none, or if it is relative to what the baseline reaches.
    """

    __pydantic_config__: ClassVar = STRICT
    id: str
    digest: str
    row: Mapping[str, Any]
    margin: float | None
    test: str
    error: str


@dataclass(frozen=True, kw_only=True)
class RegisteredRun:
    """A planned run.  `training` digests model, protocol and replicate; `run_key` also data and code (None: unpacked).

    `is_trained`: a result or an outcome of this training existed when the registration was written.
    """

    __pydantic_config__: ClassVar = STRICT
    experiment: str
    arm: str
    replicate: int
    training: str
    run_key: str | None
    is_trained: bool


@dataclass(frozen=True, kw_only=True)
class Registration:
    """One file.

    `rules` has all numbers of the rules, `code` the digest of the judging code, `digest` that of the other fields.
    """

    __pydantic_config__: ClassVar = STRICT
    name: str
    why: Reason
    claims: tuple[RegisteredClaim, ...]
    rules: Mapping[str, Any]
    rules_digest: str
    code: str
    runs: tuple[RegisteredRun, ...]
    digest: str = ""

    def covers(self, claim: str) -> RegisteredClaim | None:
        return next((one for one in self.claims if one.id == claim), None)


def digest_training(spec: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over model, protocol and replicate of a spec, without data and code."""
    return _digest([spec["model"], spec["protocol"], spec.get("replicate")])


def register_claim(claim: ClaimLine, rules: Rules) -> RegisteredClaim:
    kind = kind_of(claim, rules)
    return RegisteredClaim(
        id=claim.id, digest=digest_row(claim), row=_cells(claim), margin=kind.margin, test=kind.test, error=kind.error
    )


def compose(
    name: str, why: str, claims: Iterable[ClaimLine], runs: Iterable[RegisteredRun], rules: Rules
) -> Registration:
    """Return a sealed registration of these claims and runs under today's rules and judging code."""
    registration = Registration(
        name=name,
        why=why,
        claims=tuple(register_claim(claim, rules) for claim in claims),
        rules=json.loads(json.dumps(dataclasses.asdict(rules))),
        rules_digest=rules.digest()[:16],
        code=digest_code(),
        runs=tuple(runs),
    )
    return seal(registration)


def seal(registration: Registration) -> Registration:
    """Return the registration with the digest of its content."""
    return dataclasses.replace(registration, digest=_seal_of(dataclasses.asdict(registration)))


def _seal_of(document: Mapping[str, Any]) -> str:
    return _sha256({name: value for name, value in document.items() if name != "digest"})


def write_text(registration: Registration) -> str:
    """Return the file's text: a field per line, a claim or run per line."""
    fields = []
    for name, value in dataclasses.asdict(registration).items():
        text = json.dumps(value)
        if isinstance(value, tuple):
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def read_registration(path: Path) -> Registration:
    """Read one file.

    Raises:
        ClaimsError: it can't be read, or has changed since it was written.
    """
    try:
        text = path.read_bytes()
        registration = TypeAdapter(Registration).validate_json(text)
    except ValidationError as error:
        raise ClaimsError(f"{path}: {error.errors()[0]['msg']}") from None
    if registration.digest != _seal_of(json.loads(text)) or registration.name != path.stem:
        raise ClaimsError(
            f"{path}: changed since it was written: its digest or its name differs; take it from git again, or "
            "register under another name"
        )
    return registration


def read_registrations(root: Path) -> list[Registration]:
    """Read all files below `root`, by name.

    Raises:
        ClaimsError: as for `read_registration`.
    """
    return [read_registration(path) for path in sorted((root / FOLDER).glob("*.json"))]


def changes_since(
    registration: Registration, claim: ClaimLine | None, known: RegisteredClaim, rules: Rules, history: Sequence[Change]
) -> list[str]:
    """Return the changes since the registration that affect how the claim is judged."""
    if claim is None:
        return [f"{known.id} has no row any more"]
    now, found = register_claim(claim, rules), []
    if now.digest != known.digest:
        names = [name for name in {**known.row, **now.row} if known.row.get(name) != now.row.get(name)]
        found.append("row: " + ", ".join(f"{name} {known.row.get(name)} -> {now.row.get(name)}" for name in names))
    if now.margin != known.margin:
        found.append(f"margin: {known.margin} -> {now.margin}")
    found += _changed("rules", registration.rules_digest, rules.digest()[:16], claim.id, history)
    return found + _changed("code", registration.code, digest_code(), claim.id, history)


def _changed(subject: Subject, then: str, now: str, claim: str, history: Sequence[Change]) -> list[str]:
    """Return the reasons of the recorded changes after the digest `then` that alter something for the claim."""
    if then == now:
        return []
    lines = [change for change in history if change.subject == subject]
    ends = [number for number, line in enumerate(lines, start=1) if line.after == then]
    if not ends or lines[-1].after != now:
        return [f"{subject}: changed, and data/claims-history.jsonl doesn't say how"]
    return [f"{subject}: {line.why}" for line in lines[ends[-1] :] if line.alters and line.concerns(claim)]


@dataclass(frozen=True, kw_only=True)
class RegistrationMark:
    """The mark of a verdict by training: `after` of its `runs` were trained after one of `registrations`."""

    mark: Mark
    why: str
    registrations: tuple[str, ...]
    after: int
    runs: int


class Registered:
    """The registrations below `root`, and the marks that they and git imply."""

    def __init__(self, root: Path, rules: Rules, history: Sequence[Change]) -> None:
        self.all = read_registrations(root)
        self._root, self._rules, self._history = root, rules, history
        self._commits = {one.name: commit_of(root, FOLDER / f"{one.name}.json") for one in self.all}
        self._planned = {
            one.name: {(run.experiment, run.arm, run.replicate, run.training): run for run in one.runs}
            for one in self.all
        }

    def mark(self, claim: ClaimLine, trials: Sequence[Trial]) -> RegistrationMark:
        """Return the mark of a verdict on `claim` that is based on these results."""
        covering = [(one, known) for one in self.all if (known := one.covers(claim.id))]
        changed = {one.name: changes_since(one, claim, known, self._rules, self._history) for one, known in covering}
        valid = [name for name, found in changed.items() if not found]
        answers = [self._is_after(trial, valid) for trial in trials]
        after, runs = answers.count(True), len(trials)
        share = f"{after} of {runs} runs were trained after registration"
        mark: Mark = "exploratory"
        if not covering:
            why = "no registration covers the claim"
        elif not valid:
            name, found = next(reversed(changed.items()))
            why = f"since the registration {name} this changed: {'; '.join(found)}"
        elif runs and after == runs:
            mark, why = "confirmatory", share
        elif False in answers or not runs:
            why = share
        else:
            mark, why = "unknown", f"git can't say when {answers.count(None)} of {runs} runs were trained"
        return RegistrationMark(mark=mark, why=why, registrations=tuple(valid), after=after, runs=runs)

    def _is_after(self, trial: Trial, names: Sequence[str]) -> bool | None:
        """True if one of the registrations plans the run and was committed before the revision that published it."""
        line, answers = trial.result, set[bool | None]()
        key = line.experiment, line.arm, line.replicate, digest_training(line.spec)
        for name in names:
            run, commit = self._planned[name].get(key), self._commits[name]
            if run is None or run.is_trained:
                answers.add(False)
            elif commit is None or trial.origin is None:
                answers.add(None)
            else:
                answers.add(is_ancestor(self._root, commit, trial.origin.revision))
        return True if True in answers else None if None in answers else False
