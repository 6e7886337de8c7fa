"""Published lines are never lost: `record`, `verify` and `audit` compare the record with git's history."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from stages.claims import read_claims
from stages.claims.history import PATH as HISTORY
from stages.claims.history import append, committed_claims, pending, read_history
from stages.params.experiment import load_params
from stages.recording.append_only import (
    RETRACTIONS,
    Version,
    digest_history,
    find_lost,
    read_retractions,
    read_versions,
    retract,
    row_faults,
)
from stages.recording.builder import record
from stages.recording.sources import RecordError
from stages.results import Meta, open_results
from stages.runs.evidence import EvidenceError, EvidenceLine, Release, read_lines, write_lines
from stages.runs.revisions import ask_git
from tests.project import git
from tests.service.results_factory import REPOSITORY, make_root
from tests.test_cli import claimcheck

EVIDENCE = "data/evidence/ninformer-mnist.jsonl"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_root(tmp_path_factory.mktemp("template"))
    (root / "data" / "registrations").mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / "data/registrations/sgemm-depths.json", root / "data/registrations")
    git(root, "init", "-q")
    git(root, "add", "-f", "data/evidence", "data/registrations", "data/claims.csv")
    git(root, "commit", "-qm", "publish")
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "root"))


def commit_all(root: Path) -> None:
    retractions = [str(RETRACTIONS)] if (root / RETRACTIONS).exists() else []
    git(root, "add", "-f", "data/evidence", "data/registrations", *retractions)
    git(root, "commit", "-qm", "more")


def test_complete_record_has_no_lost_lines(root: Path) -> None:
    assert find_lost(root, read_versions(root)) == []


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("is_edited", [False, True])
def test_deleted_or_resealed_line_is_reported_with_its_commit(root: Path, is_edited: bool, is_committed: bool) -> None:
    commit = read_versions(root)[0].commit
    first, *rest = read_lines(root / EVIDENCE, EvidenceLine)
    forged = EvidenceLine(**{**vars(first), "origin": type(first.origin)(**{**vars(first.origin), "dirty": True})})
    (root / EVIDENCE).write_bytes(write_lines([forged, *rest] if is_edited else rest))
    if is_committed:
        commit_all(root)
    with pytest.raises(RecordError, match=f"{EVIDENCE}: commit {commit[:12]} has ninformer-mnist {first.result.arm} 0"):
        record(root, "data/results.db")
    assert retract(root, read_versions(root), date="2026-01-01", why="Trained on the wrong split") == 1
    assert find_lost(root, read_versions(root)) == []
    record(root, "data/results.db")
    with open_results(str(root / "data/results.db"))() as session:
        assert session.get_one(Meta, "record").value == digest_history(read_versions(root))
    (retraction,) = read_retractions(root)
    assert retraction.same_numbers == is_edited, "the edited line has the previous line's numbers"
    promise = dataclasses.replace(retraction, same_numbers=True)
    assert [one.digest for one in find_lost(root, read_versions(root), promise)] == [*promise.lines] * (not is_edited)


def test_deleted_file_and_changed_registration_are_lost(root: Path) -> None:
    lines = len((root / EVIDENCE).read_bytes().splitlines())
    (root / EVIDENCE).unlink()
    (root / "data/registrations/sgemm-depths.json").write_text("{}", encoding="utf-8")
    assert [one.path for one in find_lost(root, read_versions(root))] == [EVIDENCE] * lines + [
        "data/registrations/sgemm-depths.json"
    ]


def test_retraction_cannot_be_withdrawn(root: Path) -> None:
    (root / EVIDENCE).write_bytes(b"")
    retract(root, read_versions(root), date="2026-01-01", why="Withdrawn")
    commit_all(root)
    content = json.loads((root / RETRACTIONS).read_bytes())
    (root / RETRACTIONS).write_text(json.dumps(content | {"why": "Another reason"}) + "\n", encoding="utf-8")
    assert [one.path for one in find_lost(root, read_versions(root))] == [str(RETRACTIONS)]
    (root / RETRACTIONS).write_text(json.dumps(content | {"why": " "}) + "\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match="retractions"):
        find_lost(root, read_versions(root))


def test_record_digest_changes_only_with_commits_to_the_record(root: Path) -> None:
    first = digest_history(read_versions(root))
    git(root, "commit", "-qm", "nothing", "--allow-empty")
    assert digest_history(read_versions(root)) == first
    (root / EVIDENCE).write_bytes((root / EVIDENCE).read_bytes().splitlines(keepends=True)[0])
    commit_all(root)
    assert digest_history(read_versions(root)) != first


@pytest.fixture
def merged(root: Path) -> Path:
    """A record whose history has a merge that keeps nothing from its second parent."""
    content = (root / EVIDENCE).read_bytes()
    git(root, "checkout", "-qb", "other")
    (root / EVIDENCE).write_bytes(content.splitlines(keepends=True)[0])
    commit_all(root)
    git(root, "checkout", "-q", "-")
    (root / EVIDENCE).write_bytes(content + b'{"name":"more"}\n')
    commit_all(root)
    git(root, "checkout", "-q", "other")
    git(root, "merge", "-q", "-s", "ours", "-m", "merge", "@{-1}")
    return root


def test_dropped_lines_of_a_merge_are_found_and_full_clones_share_a_digest(
    merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, first = find_lost(merged, read_versions(merged)), digest_history(read_versions(merged))
    assert [one.text.split()[0] for one in lost[-1:]] == ["more"] and len(lost) > 1
    (tmp_path / "settings").write_text(
        "[log]\nshowRoot = false\ndiffMerges = combined\n[diff]\nrelative = true\n", encoding="utf-8"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    git(tmp_path, "clone", "-q", merged.as_uri(), "clone")
    git(tmp_path / "clone", "repack", "-qad", "--write-midx")
    git(tmp_path / "clone", "commit-graph", "write", "--reachable", "--changed-paths")
    assert digest_history(read_versions(tmp_path / "clone")) == first
    assert find_lost(tmp_path / "clone", read_versions(tmp_path / "clone")) == lost


def test_clone_without_contents_of_the_record_is_refused(merged: Path, tmp_path: Path) -> None:
    git(merged, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", merged.as_uri(), "partial")
    git(tmp_path, "clone", "-q", "--depth=1", merged.as_uri(), "shallow")
    blob = str(ask_git(merged, "rev-parse", f"HEAD~1:{EVIDENCE}"))
    shutil.copytree(merged, tmp_path / "damaged")
    (tmp_path / "damaged" / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    shutil.move(merged, tmp_path / "moved")
    (tmp_path / "archive").mkdir()
    refused = {"partial": "lacks contents", "shallow": "this clone is shallow", "damaged": "damaged"}
    for name, words in (refused | {"archive": "git history: git rev-parse: fatal: not a git repository"}).items():
        done = claimcheck("audit", cwd=tmp_path / name)
        assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_released_model_without_a_file_is_refused(root: Path) -> None:
    first, *rest = read_lines(root / EVIDENCE, EvidenceLine)
    release = Release(sha256="0" * 64, dtype="float16", accuracy=0.5, same_class=0.0, n=10_000)
    (root / EVIDENCE).write_bytes(write_lines([EvidenceLine(**{**vars(first), "release": release}), *rest]))
    retract(root, read_versions(root), date="2026-01-01", why="Released")
    with pytest.raises(RecordError, match="no file in data/models has the released weights"):
        record(root, "data/results.db")


def test_claim_row_history_without_a_reason_or_denying_evidence_is_an_error(tmp_path: Path) -> None:
    for name in ("params.yaml", "params", "data/claims.csv", "data/claims-history.jsonl"):
        source, target = REPOSITORY / name, tmp_path / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    history = tmp_path / HISTORY
    began = Version("1" * 40, str(HISTORY), history.read_bytes())
    versions = [began, Version("2" * 40, EVIDENCE, b"{}")]
    assert row_faults(tmp_path, versions) == []
    path = tmp_path / "data" / "claims.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(",value,0.9712,", ",value,0.9812,", 1), encoding="utf-8")
    assert [fault.split(":")[0] for fault in row_faults(tmp_path, versions)] == ["ninformer.table2.mnist.vit"]
    rules, known = load_params(tmp_path).verdicts, committed_claims(REPOSITORY)
    changes = pending(read_claims(path), rules, read_history(history), known=known, published=())
    (change,) = (change for change in changes if change.subject == "claim")
    append(history, [change], date="2026-01-01", why="A digit was misread")
    committed = [*versions, Version("3" * 40, str(HISTORY), history.read_bytes())]
    for seen in (versions, committed):
        (fault,) = row_faults(tmp_path, seen)
        assert fault.endswith("evidence on ninformer.table2.mnist.vit was committed before that change")
    assert row_faults(tmp_path, [began, *committed[2:], *versions[1:]]) == [], "the change precedes it"
    append(history, [dataclasses.replace(change, after_evidence=True)], date="2026-01-01", why="Again")
    assert f"ninformer.table2.mnist.vit was not {change.before} before it" in row_faults(tmp_path, versions)[0]
