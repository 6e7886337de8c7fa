"""Compares the published record with git's history: a committed line stays, or a retraction says why it went.

The record is every line of `data/evidence/**/*.jsonl`, `data/claims-history.jsonl` and `data/retractions.jsonl`, every
registration, and every released model.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stages.claims import read_claims
from stages.claims.history import PATH as HISTORY
from stages.claims.history import Reason, pending, read_history
from stages.params.experiment import load_params
from stages.run import STRICT, canonical_json
from stages.runs.evidence import LABS, EvidenceError, read_lines
from stages.runs.revisions import GitError, read_objects, run_git
from stages.runs.store import write_atomically

RETRACTIONS = Path("data/retractions.jsonl")
_RECORD = ("data/evidence", "data/claims-history.jsonl", "data/registrations", "data/models", str(RETRACTIONS))
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Retraction:
    """A reason why committed lines are gone; each is named by sixteen digits of its sha256, and its last one counts.

    `same_numbers` promises that another line, present or retracted without this promise, has the same run's numbers.
    """

    __pydantic_config__: ClassVar = STRICT
    date: str
    why: Reason
    lines: tuple[str, ...]
    same_numbers: bool = False


@dataclass(frozen=True)
class Version:
    """The content that a commit gave a file of the record."""

    commit: str
    path: str
    content: bytes


@dataclass(frozen=True)
class Lost:
    """A line, or a whole registration, that was committed and is gone or different; `commit` is the last that had it.

    A line of `RETRACTIONS` can't be retracted.
    """

    path: str
    commit: str
    digest: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: commit {self.commit[:12]} has {self.text}, which is missing or different now"


def read_versions(root: Path) -> list[Version]:
    """Read all committed contents of the record, oldest first; none if git has no history of this folder."""
    try:  # plumbing: a user's settings change what `git log` shows
        commits = run_git(root, "rev-list", "--reverse", "--topo-order", "--full-history", "HEAD", "--", *_RECORD)
        options = ("--stdin", "--root", "--relative", "-m", "-r", "--raw", "--no-abbrev", "--no-renames", "-z")
        words = iter(run_git(root, "diff-tree", *options, "--", *_RECORD, given=commits).decode().split("\0"))
    except GitError:
        return []
    commit, named = "", []
    for word in words:
        if not word.startswith(":"):
            commit = word
        elif set(blob := word.split()[3]) == {"0"}:
            next(words)
        else:
            named.append((commit, next(words), blob))
    named = list(dict.fromkeys(named))
    blobs = list(dict.fromkeys(blob for _, _, blob in named))
    try:
        found = read_objects(root, blobs)
    except GitError as error:
        raise EvidenceError(f"this clone lacks contents of the record; first: git fetch --refetch ({error})") from None
    contents = {blob: content for blob, content in zip(blobs, found, strict=True) if content is not None}
    if missing := sorted({path for _, path, blob in named if blob not in contents}):
        raise EvidenceError(f"git's objects are damaged: committed contents of {', '.join(missing)} are missing")
    return [Version(commit, path, contents[blob]) for commit, path, blob in named]


def _pieces(path: str, content: bytes) -> Iterable[bytes]:
    """Return the parts of a file that must stay: each line, or a whole registration; evidence names the models."""
    if path.endswith(".jsonl"):
        return content.splitlines()
    return (content,) if path.startswith("data/registrations/") and path.endswith(".json") else ()


def digest_piece(piece: bytes) -> str:
    return hashlib.sha256(piece).hexdigest()[:16]


def read_retractions(root: Path) -> list[Retraction]:
    return read_lines(root / RETRACTIONS, Retraction)


def find_lost(root: Path, versions: Iterable[Version], *more: Retraction) -> list[Lost]:
    """Find all committed parts (`read_versions`) that are neither here nor retracted; `more` retractions come last."""
    last: dict[tuple[str, bytes], str] = {
        (version.path, piece): version.commit
        for version in versions
        for piece in _pieces(version.path, version.content)
    }
    promises = {digest: one.same_numbers for one in [*read_retractions(root), *more] for digest in one.lines}
    kept: set[str | None] = set()
    for name in {path for path, _ in last}:
        file = root / name
        for piece in _pieces(name, file.read_bytes()) if file.is_file() else ():
            last.pop((name, piece), None)
            kept.add(_numbers(piece))
    lost = [(piece, Lost(path, commit, digest_piece(piece), _name(piece))) for (path, piece), commit in last.items()]
    kept |= {_numbers(piece) for piece, one in lost if promises.get(one.digest) is False}
    kept.discard(None)
    return [
        one
        for piece, one in lost
        if one.path == str(RETRACTIONS)
        or one.digest not in promises
        or (promises[one.digest] and _numbers(piece) not in kept)
    ]


def _numbers(piece: bytes) -> str | None:
    """Return the run of a result line and everything measured of its model; None if the piece isn't a result line."""
    try:
        line = json.loads(piece)["result"]
        metrics = [[row["metric"], row["split"], row["value"], row.get("n")] for row in line["metrics"]]
        names = "experiment", "arm", "replicate", "status", "correct", "confusion"
        return canonical_json([line["spec"]["replicate"], sorted(metrics), *(line.get(name) for name in names)])
    except (ValueError, KeyError, TypeError):
        return None


def _name(piece: bytes) -> str:
    """Name the piece for a reader."""
    try:
        content = json.loads(piece)
        line = content.get("result", content)
        if "arm" in line:
            return " ".join(str(line[name]) for name in ("experiment", "arm", "replicate"))
        return f"{str(line.get('name') or line.get('claims') or line.get('before'))[:40]} ({digest_piece(piece)})"
    except (ValueError, AttributeError):
        return f"a line ({digest_piece(piece)})"


def row_faults(root: Path, versions: Iterable[Version]) -> list[str]:
    """Describe claims and rules that changed without a line in their history, and lines of it that git contradicts.

    The history's first lines were written after the changes that they record, so evidence committed before them
    contradicts none of them.
    """
    claims, rules = read_claims(root / "data" / "claims.csv"), load_params(root).verdicts
    path, history = root / HISTORY, read_history(root / HISTORY)
    found = [
        f"{change.claims}: the {change.subject} changed, and {HISTORY} doesn't say why (claimcheck history --why)"
        for change in pending(claims, rules, history, known={}, published=())
        if change.subject in ("claim", "rules")
    ]
    published, before = set[str](), dict[bytes, set[str]]()
    for version in versions:
        if version.path == str(HISTORY):
            until = published.copy() if before else set()
            before = dict.fromkeys(version.content.splitlines(), until) | before
        elif version.path.startswith("data/evidence/"):
            published |= experiments_in(version.path, version.content)
    experiments = {claim.id: claim.experiment or "" for claim in claims}
    state: dict[object, str | None] = {}
    for number, change in enumerate(history, start=1):
        if change.subject != "rule" and state.get(change.key) != change.before:
            found.append(f"{HISTORY}, line {number}: {change.claims} was not {change.before} before it")
        state[change.key] = change.after
    for number, piece in enumerate(path.read_bytes().splitlines() if path.is_file() else (), start=1):
        line = json.loads(piece)
        known = fnmatch.filter(before.get(piece, published), experiments.get(line["claims"], ""))
        if line["subject"] == "claim" and known and not line["after_evidence"]:
            found.append(f"{HISTORY}, line {number}: evidence on {line['claims']} was committed before that change")
    return found


def experiments_in(path: str, content: bytes) -> set[str]:
    """Return the experiments of an evidence file: the one in its name, or those of a lab's lines."""
    if Path(path).parent.name != LABS:
        return {Path(path).stem}
    pieces = content.splitlines() if path.endswith(".jsonl") else ()
    return {json.loads(piece)["result"]["experiment"] for piece in pieces}


def describe_lost(lost: list[Lost]) -> str:
    more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    remedy = "take the file from git again, or give the reason: claimcheck audit --retract"
    return f"{'; '.join(map(str, lost[:_NAMED]))}{more}; {remedy}"


def retract(root: Path, versions: Iterable[Version], *, date: str, why: str) -> int:
    """Append a retraction of everything that `find_lost` finds; return how many lines it names."""
    digests = tuple(sorted({one.digest for one in find_lost(root, versions) if one.path != str(RETRACTIONS)}))
    if digests:
        promise = Retraction(date=date, why=why, lines=digests, same_numbers=True)
        kept = {one.digest for one in find_lost(root, versions, promise)}.isdisjoint(digests)
        line = {**vars(promise), "same_numbers": kept}
        path = root / RETRACTIONS
        before = path.read_bytes() if path.is_file() else b""
        write_atomically(path, before + f"{canonical_json(line)}\n".encode())
    return len(digests)


def digest_history(versions: Iterable[Version]) -> str:
    """Return the Merkle root over all committed contents of the record; equal roots mean equal records and histories.

    It is empty if there are none, and meaningless in a shallow clone, which lacks some.  The leaves are sorted, because
    commits name their parents and git promises no order of branches.
    """
    level = sorted(
        hashlib.sha256(f"{one.commit} {one.path} ".encode() + hashlib.sha256(one.content).digest()).digest()
        for one in versions
    )
    while len(level) > 1:
        pairs = (level[number : number + 2] for number in range(0, len(level), 2))
        level = [hashlib.sha256(b"".join(pair)).digest() for pair in pairs]
    return level[0].hex() if level else ""
