"""`data/claims-history.jsonl`: every change of a claim's row, of the rules, or of the code that judges.

Rules are fixed before the data.  Whoever changes a row, a rule or the judging code afterwards gives the reason in a
line that the claim's page shows.  Replaying the lines gives the current state of the repository, so no change can go
unmentioned: `pending` lists the changes that no line records, and a test requires that there are none.

A line of the subject `rule` records what no digest tells: the rule that judges these claims was written when `seen` of
their own results had been seen.  Verdicts by such a rule say so wherever they stand.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import StringConstraints, TypeAdapter, ValidationError

from stages.claims.lines import ClaimLine, ClaimsError, parse_claims
from stages.faults import named
from stages.rules import Rules
from stages.run import STRICT, canonical_json
from stages.runs.fingerprint import module_digest, source_path
from stages.runs.revisions import ask_git

PATH = Path("data/claims-history.jsonl")
Subject = Literal["claim", "rules", "code", "rule"]
EVERY_CLAIM = "*"
Reason = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change.  `claims` is the id of a changed row, or a pattern of the ids that a changed rule or code judges.

    `before` and `after` are digests of what changed, None where it didn't exist (or, for old code, is unknown);
    `changed` has old and new values by column of the row or number of the rules.  `after_evidence`: results of the
    claim's experiments (for rules and code, of any experiment) were already published when the change was made.
    `alters`: False of code that touched no rule, metric, statement or verdict.  `seen`, of a rule: how many of the
    claim's own results (pairs, where it is of pairs) had been seen when it was written.
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
            raise ValueError(f"a line on a {self.subject} has seen = {self.seen}; a rule's line says it, and no other")

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
    """Digest, without comments and docstrings, of what turns results into verdicts: rules, statistics, claims."""
    package = source_path("stages")
    assert package is not None, "stages is a package"
    paths = [
        package.with_name("rules.py"),
        *package.parent.glob("claims/**/*.py"),
        *package.parent.glob("verdicts/*.py"),
    ]
    return _digest({str(path.relative_to(package.parent)): module_digest(path) for path in sorted(paths)})


@cache
def digest_findings(paper: str) -> str:
    """Digest of the modules that compute a paper's findings, and of their words."""
    package = source_path(f"stages.papers.{paper}")
    return _digest(
        {path.name: module_digest(path) for path in sorted(package.parent.glob("findings*") if package else ())}
    )


def digest_verdict(claim: ClaimLine, rules: Rules, code: str) -> str:
    """sha256 over the claim's row with its metric, the numbers of the rules, and the judging `code`'s digest."""
    parts = {"claim": _cells(claim), "rules": rules.digest(), "code": code}
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def _cells(claim: ClaimLine) -> dict[str, Any]:
    return {name: value for name, value in asdict(claim).items() if value is not None}


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


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
    """How many of the claim's own results had been seen when the rule that judges it was written; None: none had."""
    return max((change.seen for change in history if change.seen is not None and change.concerns(claim)), default=None)


def pending(
    claims: Sequence[ClaimLine],
    rules: Rules,
    history: Iterable[Change],
    *,
    known: Mapping[str, ClaimLine],
    published: Collection[str],
) -> list[Change]:
    """The differences from the end of the history, as changes without date and reason.

    `known` are rows of an earlier state, for old values; `published` are the experiments with evidence.
    """
    state: dict[tuple[Subject, str], str | None] = {change.key: change.after for change in history}
    rows = {claim.id: claim for claim in claims}
    now: dict[tuple[Subject, str], str | None] = {("claim", name): digest_row(row) for name, row in rows.items()}
    now |= {("rules", ""): rules.digest()[:16], ("code", ""): digest_code()}
    now |= dict.fromkeys(state.keys() - now.keys())
    experiments = {name: row.experiment or "" for name, row in {**known, **rows}.items()}
    return [
        Change(
            date="",
            subject=subject,
            claims=name or EVERY_CLAIM,
            before=state.get((subject, name)),
            after=after,
            changed=_changed(known.get(name), rows.get(name)),
            after_evidence=bool(fnmatch.filter(published, experiments.get(name, "")) if name else published),
            why="",
        )
        for (subject, name), after in now.items()
        if state.get((subject, name)) != after
    ]


def _changed(before: ClaimLine | None, after: ClaimLine | None) -> dict[str, tuple[Any, Any]]:
    if before is None or after is None:
        return {}
    old, new = asdict(before), asdict(after)
    return {name: (old[name], new[name]) for name in new if old[name] != new[name]}


def committed_claims(root: Path) -> dict[str, ClaimLine]:
    """The rows of the last commit, for old values; none if this is no clone or the columns were different."""
    text = ask_git(root, "show", "HEAD:data/claims.csv") or ""
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
    """Append the changes with their reason; `claims`: the ids whose verdicts changed rules or code may affect.

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
