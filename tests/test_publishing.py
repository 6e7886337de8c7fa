"""Evidence: only results of real data and current code are published, with the revision and whether it was clean."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.run import canonical_json, environment_digest
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.equivalence import append_line, read_equivalences
from stages.runs.evidence import (
    DataUsed,
    EvidenceError,
    EvidenceLine,
    Measurement,
    ResultLine,
    pack_correct,
    read_lines,
    seal,
)
from stages.runs.fingerprint import source_digest, source_path, training_code
from stages.runs.revisions import has_revision, is_full_clone, read_objects, refusal, run_git
from stages.upkeep.publishing import PublishError, is_dirty, publish
from tests.claims.lines import cost, evaluate
from tests.project import REPOSITORY, git, shown_same

MODEL = "stages.papers.ninformer.vit:ViT"
CODE = dict(training_code("images", MODEL, "adam"))
PROTOCOL_MODULE = "stages.training.protocol"
MACHINE = {"device": "cpu", "threads": 1}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "params.yaml").write_text("profile: smoke\nprofiles: {}\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("x", encoding="utf-8")
    (tmp_path / "code.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("data/results/\n", encoding="utf-8")
    for module in CODE:
        path = source_path(module)
        assert path is not None
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


def key(arm: str, code: dict[str, str] = CODE) -> str:
    return hashlib.sha256(canonical_json(spec(arm, code)).encode()).hexdigest()


def spec(arm: str, code: dict[str, str]) -> dict[str, Any]:
    protocol = {"optimizer": {"name": "adam"}, "mean": [0.5], "precision": "float32"}
    model = {"path": MODEL, "arguments": {"arm": arm}}
    return {"model": model, "protocol": protocol, "replicate": {"seed": 0}, "code": code, "data_digest": "d"}


def result(
    arm: str = "vit", provenance: str = "full", accuracy: float = 0.5, code: dict[str, str] = CODE
) -> ResultLine:
    return ResultLine(
        experiment="toy",
        arm=arm,
        replicate=0,
        run_key=key(arm, code),
        profile="quick",
        cut="",
        status="finished",
        spec=spec(arm, code),
        data=DataUsed(dataset="mnist", digest="d", provenance=provenance, train_images=2, test_images=4),  # type: ignore[arg-type]
        environment_digest=environment_digest(MACHINE),
        environment=MACHINE,
        metrics=(Measurement(metric="accuracy", split="test", value=accuracy, n=4),),
        curves=(),
        weights_sha256="0" * 64,
        correct=pack_correct(np.arange(4) < round(4 * accuracy)),
    )


def evaluated(checkout: Path, *lines: ResultLine) -> None:
    evaluate(checkout, lines)


def test_published_lines_have_revision_and_cost(checkout: Path) -> None:
    evaluated(checkout, result("vit"), result("ninformer"))
    done = publish("toy", checkout)
    lines = read_lines(done.path, EvidenceLine)
    revision = git(checkout, "rev-parse", "HEAD")
    assert (done.lines, done.new) == (2, 2)
    assert {line.origin.revision for line in lines} == {revision}
    assert not any(line.origin.dirty for line in lines)
    assert [line.cost.arm for line in lines] == [line.result.arm for line in lines]


def test_republishing_replaces_changed_lines_and_keeps_others_with_their_origin(checkout: Path) -> None:
    evaluated(checkout, result("vit"), result("ninformer"), result("mixer"))
    publish("toy", checkout)
    git(checkout, "commit", "--allow-empty", "-m", "two")
    evaluated(checkout, result("vit", accuracy=0.75), result("ninformer"))
    done = publish("toy", checkout)
    assert (done.lines, done.new) == (3, 0)
    lines = {line.result.arm: line for line in read_lines(done.path, EvidenceLine)}
    accuracy = {arm: line.result.metrics[0].value for arm, line in lines.items()}
    assert accuracy == {"vit": 0.75, "ninformer": 0.5, "mixer": 0.5}
    revisions = {arm: line.origin.revision for arm, line in lines.items()}
    assert revisions["vit"] != revisions["ninformer"] == revisions["mixer"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "dvc repro evaluate@toy"),
        ([result(provenance="embedded")], "placeholder data, which isn't evidence"),
        ([result(code=CODE | {PROTOCOL_MODULE: "0" * 16})], r"has changed since \(stages\.training\.protocol"),
        ([result()], "dvc repro evaluate@toy"),  # its cost is missing
    ],
)
def test_invalid_evidence_is_refused_with_a_remedy(checkout: Path, lines: list[ResultLine], said: str) -> None:
    if lines:
        evaluated(checkout, *lines)
    if lines == [result()]:
        (checkout / "data" / "results" / "toy.cost.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(PublishError, match=said):
        publish("toy", checkout)
    assert not (checkout / "data" / "evidence").exists()


def test_variables_of_another_repository_are_ignored(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init")
    revision = run_git(checkout, "rev-parse", "HEAD").decode().strip()
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))  # as in every git hook
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert has_revision(checkout, revision)
    assert not is_dirty(checkout)


def test_folder_inside_another_repository_is_not_a_clone(checkout: Path) -> None:
    inner = checkout / "unpacked"
    inner.mkdir()
    assert not is_full_clone(inner)
    assert "not a git repository" in (refusal(inner) or "")


def test_project_in_a_folder_of_a_repository_has_its_history(checkout: Path) -> None:
    inner = checkout / "paper"
    (inner / "data").mkdir(parents=True)
    (inner / "params.yaml").write_text("profile: smoke\n", encoding="utf-8")
    (inner / "data" / "claims.csv").write_text("id\n", encoding="utf-8")
    git(checkout, "add", "paper")
    git(checkout, "commit", "-m", "Start a paper")
    assert read_objects(inner, ["HEAD:./data/claims.csv", "HEAD:data/claims.csv"]) == [b"id\n", None]
    (checkout / "other").touch()
    assert not is_dirty(inner), "files of other folders don't count"
    (inner / "papers.py").touch()
    assert is_dirty(inner)


def test_publish_shows_why_git_refuses(checkout: Path) -> None:
    evaluated(checkout, result())
    (checkout / ".git" / "config").write_text("[broken", encoding="utf-8")
    with pytest.raises(PublishError, match="bad config line"):
        publish("toy", checkout)
    assert not is_full_clone(checkout), "a refusal is no answer"


def test_nothing_is_published_outside_git(tmp_path: Path) -> None:
    evaluated(tmp_path, result())
    with pytest.raises(PublishError, match="evidence needs a git revision"):
        publish("toy", tmp_path)


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        (lambda root: None, False),
        (lambda root: (root / "README.md").write_text("y", encoding="utf-8"), False),
        (lambda root: (root / "dvc.lock").write_text("y", encoding="utf-8"), False),
        (lambda root: (root / "params.yaml").write_text("profile: quick\nprofiles: {}\n", encoding="utf-8"), False),
        (lambda root: (root / "params.yaml").write_text("profile: quick\nprofiles: {a: 1}\n", encoding="utf-8"), True),
        (lambda root: (root / "code.py").write_text("x = 2\n", encoding="utf-8"), True),
        (lambda root: (root / "new.py").write_text("x = 2\n", encoding="utf-8"), True),
    ],
    ids=["nothing", "readme", "lock", "profile line", "other params", "code", "new file"],
)
def test_clone_is_dirty_if_numbers_may_change(checkout: Path, change: Callable[[Path], object], dirty: bool) -> None:
    change(checkout)
    assert is_dirty(checkout) is dirty


def test_results_of_uncommitted_code_are_not_published(checkout: Path) -> None:
    """Otherwise, publishing before committing would record a revision without the code."""
    module = next(iter(CODE))
    path = checkout / f"{module.replace('.', '/')}.py"
    committed = path.read_text(encoding="utf-8")
    git(checkout, "rm", "-q", "--cached", str(path))
    git(checkout, "commit", "-qm", "without it")
    evaluated(checkout, result())
    with pytest.raises(PublishError, match=rf"toy.vit.0 ran code that HEAD doesn't hold \({module}\); commit it first"):
        publish("toy", checkout)
    assert path.read_text(encoding="utf-8") == committed and not (checkout / "data" / "evidence").exists()
    git(checkout, "add", str(path))
    git(checkout, "commit", "-qm", "with it")
    assert publish("toy", checkout).new == 1


def test_contradictory_result_is_not_published(checkout: Path) -> None:
    edited = dataclasses.replace(result(), metrics=result(accuracy=0.75).metrics)
    evaluated(checkout, edited)
    with pytest.raises(
        PublishError, match=r"toy\.vit\.0 contradicts itself: accuracy is 0\.75, its bitmap has 2 correct of 4"
    ):
        publish("toy", checkout)
    evaluated(checkout, line := result())
    folder = checkout / "data" / "runs" / "toy" / line.run_key
    folder.mkdir(parents=True)
    trained = {"run_key": line.run_key, "environment_digest": line.environment_digest, "weights_sha256": None}
    trained |= {**vars(cost(line)), "train_seconds": 10.0}
    files = {"spec.json": line.spec, "history.jsonl": None, "result.json": trained}
    for name, content in files.items():
        (folder / name).write_text(canonical_json(content) if content else "", encoding="utf-8")
    with pytest.raises(PublishError, match=r"its train_seconds not those of data/runs/toy/\w+/result\.json"):
        publish("toy", checkout)
    assert not (checkout / "data" / "evidence").exists()


def test_nothing_is_published_next_to_an_edited_line(checkout: Path) -> None:
    """Publishing would recompute the digest and turn the edit into evidence."""
    evaluated(checkout, result())
    path = publish("toy", checkout).path
    path.write_text(path.read_text(encoding="utf-8").replace('"dirty":false', '"dirty":true'), encoding="utf-8")
    before = path.read_bytes()
    evaluated(checkout, result("ninformer"))
    with pytest.raises(EvidenceError, match=r"toy.jsonl, line 1: its digest is"):
        publish("toy", checkout)
    assert path.read_bytes() == before


def with_older_code(checkout: Path, *, forged: bool = False) -> tuple[ResultLine, str, str]:
    """Return a result of code that has since changed without changing a number, and the revisions before and after.

    If `forged`, the equivalence states a digest that its revision lacks.
    """
    path, older = checkout / f"{PROTOCOL_MODULE.replace('.', '/')}.py", CODE | {PROTOCOL_MODULE: "0" * 16}
    source = path.read_text(encoding="utf-8")
    path.write_text(source + "OLDER = 1\n", encoding="utf-8")
    if not forged:
        older = CODE | {PROTOCOL_MODULE: source_digest(path.read_text(encoding="utf-8"))}
    git(checkout, "commit", "-qam", "older")
    before = git(checkout, "rev-parse", "HEAD")
    path.write_text(source, encoding="utf-8")
    git(checkout, "commit", "-qam", "newer")
    line = result(code=older)
    modules = {name: (older[name], CODE[name]) for name in CODE}
    shown = shown_same(line.run_key, line.spec, modules, before=before, after=git(checkout, "rev-parse", "HEAD"))
    append_line(checkout, shown)
    return line, before, shown.after


def test_equivalent_older_code_is_published_with_its_own_revision(checkout: Path) -> None:
    line, before, after = with_older_code(checkout)
    evaluated(checkout, line, result("ninformer"))
    done = publish("toy", checkout)
    revisions = {line.result.arm: line.origin.revision for line in read_lines(done.path, EvidenceLine)}
    assert revisions == {"vit": before, "ninformer": after}
    assert read_equivalences(checkout).faults(1) == []
    path = checkout / EQUIVALENCES
    path.write_text(
        canonical_json(seal(json.loads(path.read_text(encoding="utf-8")) | {"after": "0" * 40})) + "\n",
        encoding="utf-8",
    )
    (fault,) = read_equivalences(checkout).faults(1)
    assert fault.endswith("line 1: there is no revision 000000000000 in this repository")
    assert read_equivalences(checkout).chain(line.spec, line.environment, CODE) is None


def test_older_code_with_a_forged_equivalence_is_refused(checkout: Path) -> None:
    line, before, _ = with_older_code(checkout, forged=True)
    fault = f"equivalences.jsonl, line 1: revision {before[:12]} has another {PROTOCOL_MODULE}"
    assert [one.endswith(fault) for one in read_equivalences(checkout).faults(1)] == [True]
    evaluated(checkout, line)
    with pytest.raises(EvidenceError, match=fault):
        publish("toy", checkout)
