"""`data/registrations/<name>.json`: claims, rules and planned runs, written down before the runs are trained.

A verdict by training is *confirmatory* if every run behind it was trained after the commit of a registration that
covers the claim, and row, margin, rules and judging code are still those of the registration.  Otherwise it is
*exploratory*.  It is *unknown* if only git could say and can't.

No clock is read: git says whether the revision of a result line contains the registration's commit.  Because that is
the revision which published the line, a registration also lists the planned runs that were trained already.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from stages.claims.history import Change, Reason, Subject, digest_code, digest_row
from stages.claims.kinds import kind_of
from stages.claims.lines import ClaimLine, ClaimsError
from stages.rules import Rules
from stages.run import STRICT, canonical_json
from stages.runs.evidence import Trial
from stages.runs.revisions import commit_of, is_ancestor

FOLDER = Path("data/registrations")
Mark = Literal["confirmatory", "exploratory", "unknown"]


@dataclass(frozen=True, kw_only=True)
class RegisteredClaim:
    """A claim's row and its digest, the margin as a number (None: the test has none), the test and its error term."""

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
    """One file.  `rules`: all numbers of the rules; `code`: digest of the judging code; `digest`: of all but itself."""

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
    kept = [spec["model"], spec["protocol"], spec.get("replicate")]
    return hashlib.sha256(canonical_json(kept).encode()).hexdigest()[:16]


def register_claim(claim: ClaimLine, rules: Rules) -> RegisteredClaim:
    kind = kind_of(claim, rules)
    row = {name: value for name, value in dataclasses.asdict(claim).items() if value is not None}
    return RegisteredClaim(
        id=claim.id, digest=digest_row(claim), row=row, margin=kind.margin, test=kind.test, error=kind.error
    )


def compose(
    name: str, why: str, claims: Iterable[ClaimLine], runs: Iterable[RegisteredRun], rules: Rules
) -> Registration:
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
    """The registration with the digest of its content."""
    return dataclasses.replace(registration, digest=_digest(dataclasses.asdict(registration)))


def _digest(document: Mapping[str, Any]) -> str:
    text = canonical_json({name: value for name, value in document.items() if name != "digest"})
    return hashlib.sha256(text.encode()).hexdigest()


def write_text(registration: Registration) -> str:
    """The file's text: a field per line, a claim or run per line."""
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
    if registration.digest != _digest(json.loads(text)) or registration.name != path.stem:
        raise ClaimsError(
            f"{path}: not as it was written: its digest or its name differs; take it from git again, or register "
            "under another name"
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
    """Return the changes since the registration that judge the claim otherwise: row, margin, rules or judging code."""
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
    """The reasons of changes that alter something for the claim, by the history's lines after the digest `then`."""
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
    """The registrations below `root`, and the marks that follow from them and from git."""

    def __init__(self, root: Path, rules: Rules, history: Sequence[Change]) -> None:
        self.all = read_registrations(root)
        self._root, self._rules, self._history = root, rules, history
        self._commits = {one.name: commit_of(root, FOLDER / f"{one.name}.json") for one in self.all}
        self._planned = {
            one.name: {(run.experiment, run.arm, run.replicate, run.training): run for run in one.runs}
            for one in self.all
        }

    def mark(self, claim: ClaimLine, trials: Sequence[Trial]) -> RegistrationMark:
        """The mark of a verdict on `claim` that rests on these results."""
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
