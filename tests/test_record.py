import contextlib
import csv
import dataclasses
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from service.pages.opening import cards_of
from stages import cli, report
from stages import record as verb
from stages.recording.builder import record
from stages.recording.reporting import write_docs
from stages.recording.sources import PLAN_CHANGED, RecordError
from stages.results import Checkpoint, Claim, Result, Word, open_results, tally
from stages.run import canonical_json
from stages.runs.equivalence import PATH, append_line
from stages.runs.evidence import (
    CostLine,
    EvidenceError,
    EvidenceLine,
    Release,
    ResultLine,
    Trial,
    read_lines,
    seal,
    write_lines,
)
from stages.runs.fingerprint import code_today
from tests.claims.lines import recorded
from tests.project import shown_same, whole_file
from tests.service.results_factory import REPOSITORY, add_results, as_published, without_test_images

DATABASE = "data/results.db"


@pytest.fixture
def root(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(root, tmp_path / "root", ignore=shutil.ignore_patterns("results.db"))
    monkeypatch.chdir(tmp_path / "root")
    return tmp_path / "root"


def rows(root: Path, table: str) -> list[tuple]:
    with sqlite3.connect(root / DATABASE) as connection:
        answer = connection.execute(f"SELECT * FROM {table}").fetchall()
    connection.close()
    return answer


def test_every_result_line_becomes_a_row_with_metrics_curves_and_cost(root: Path) -> None:
    summary = record(root, DATABASE)
    assert (summary.results, summary.claims, summary.notes) == (24, 16, ())
    lines = read_lines(root / "data" / "results" / "ninformer-cifar10.jsonl", ResultLine)
    with open_results(str(root / DATABASE))() as session:
        for line in lines:
            row = session.query(Result).filter_by(run_key=line.run_key, arm=line.arm).one()
            assert (row.source, row.profile, row.provenance, row.cut) == ("local", "smoke", "embedded", line.cut)
            assert {(m.metric, m.split, m.value, m.n) for m in row.metrics} == {
                (m.metric, m.split, m.value, m.n) for m in line.metrics
            }
            assert [epoch.test_accuracy for epoch in row.epochs] == [epoch.test_accuracy for epoch in line.curves]
            assert row.spec == line.spec
            assert row.cost is not None and row.cost.train_seconds == 842.5
            assert {array.kind: array.content for array in row.arrays} == {
                "correct": line.correct,
                "confusion": line.confusion,
            }


def test_same_inputs_give_the_same_database(root: Path) -> None:
    record(root, DATABASE)
    first = (root / DATABASE).read_bytes()
    record(root, DATABASE)
    assert (root / DATABASE).read_bytes() == first


def test_content_digest_changes_with_any_value(root: Path) -> None:
    record(root, DATABASE)
    before = dict(rows(root, "meta"))["content"]
    claims = root / "data" / "claims.csv"
    claims.write_text(claims.read_text(encoding="utf-8").replace("0.5378", "0.5379"), encoding="utf-8")
    record(root, DATABASE)
    assert dict(rows(root, "meta"))["content"] != before


def test_published_result_counts_once_as_evidence(root: Path) -> None:
    folder = root / "data" / "results"
    lines = read_lines(folder / "ninformer-cifar10.jsonl", ResultLine)
    costs = read_lines(folder / "ninformer-cifar10.cost.jsonl", CostLine)
    published = [as_published(line, cost, "2026-11-03") for line, cost in zip(lines, costs, strict=True)]
    (root / "data" / "evidence" / "ninformer-cifar10.jsonl").write_bytes(write_lines(published))
    assert record(root, DATABASE).results == 24
    with open_results(str(root / DATABASE))() as session:
        found = session.query(Result).filter_by(experiment="ninformer-cifar10").all()
        assert [row.source for row in found] == ["evidence"] * 4


def test_newest_evidence_of_a_replicate_is_selected(root: Path) -> None:
    folder = root / "data" / "results"
    line = read_lines(folder / "ninformer-cifar10.jsonl", ResultLine)[0]
    cost = read_lines(folder / "ninformer-cifar10.cost.jsonl", CostLine)[0]
    others = [
        as_published(line, cost, day, machine=machine)
        for machine, day in (("newer", "2026-11-05"), ("older", "2026-11-04"))
    ]
    (root / "data" / "evidence" / "ninformer-cifar10.jsonl").write_bytes(write_lines(others))
    with recorded(root) as session:
        same = session.query(Result).filter_by(run_key=line.run_key, arm=line.arm).all()
        assert len(same) == 3
        assert [row.environment["device_name"] for row in same if row.is_selected] == ["newer"]


def selected(root: Path, arm: str) -> list[tuple[str, bool, list[str]]]:
    with recorded(root) as session:
        found = session.query(Result).filter_by(experiment="ninformer-cifar100", arm=arm, profile="quick")
        return sorted((row.source, row.is_selected, row.changed_code) for row in found)


def test_result_of_a_changed_model_is_not_selected_or_served(root: Path) -> None:
    params = whole_file("ninformer-cifar100", root)
    params["arms"]["vit"]["model"]["depth"] += 1
    (root / "params" / "ninformer-cifar100.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    assert selected(root, "vit") == [("evidence", False, [])]
    assert selected(root, "ninformer") == [("evidence", True, [])]
    with open_results(str(root / DATABASE))() as session:
        assert session.get(Checkpoint, "ninformer-cifar100.vit.0") is None
        assert session.get(Checkpoint, "ninformer-cifar100.ninformer.0") is not None


def test_current_code_is_preferred_to_evidence_and_older_code_is_listed(root: Path) -> None:
    older = {"stages.training.protocol": "0" * 16}
    (root / "data" / "evidence" / "ninformer-cifar100.jsonl").unlink()
    add_results(root, "ninformer-cifar100", "quick", "subset", published="2026-11-01T10:00:00Z", code=older)
    assert selected(root, "vit") == [("evidence", True, ["stages.training.protocol"])]
    add_results(root, "ninformer-cifar100", "quick", "subset")
    assert selected(root, "vit") == [("evidence", False, ["stages.training.protocol"]), ("local", True, [])]


def test_older_code_is_current_if_a_line_shows_it_equivalent(root: Path) -> None:
    """The line covers one model's path, so the other arms' code remains older."""
    older = {"stages.training.protocol": "0" * 16}
    (root / "data" / "evidence" / "ninformer-cifar100.jsonl").unlink()
    lines = add_results(root, "ninformer-cifar100", "quick", "subset", published="2026-11-01T10:00:00Z", code=older)
    vit = next(line for line in lines if line.arm == "vit")
    today = code_today(vit.spec)
    assert today is not None
    modules = {name: (vit.spec["code"].get(name), digest) for name, digest in today.items()}
    append_line(root, shown_same(vit.run_key, vit.spec, modules))
    assert selected(root, "vit") == [("evidence", True, [])]
    assert selected(root, "ninformer") == [("evidence", True, ["stages.training.protocol"])]
    with open_results(str(root / DATABASE))() as session:
        assert {tuple(row.equivalences) for row in session.query(Result).filter_by(arm="vit", profile="quick")} == {
            (1,)
        }
    path = root / PATH
    path.write_text(
        path.read_text(encoding="utf-8").replace(today["stages.training.protocol"], "1" * 16), encoding="utf-8"
    )
    with pytest.raises(EvidenceError, match=r"equivalences.jsonl, line 1: its digest is"):
        record(root, DATABASE)
    path.unlink()
    modules |= {"stages.training.protocol": ("0" * 16, "1" * 16)}
    append_line(root, shown_same(vit.run_key, vit.spec, modules))
    assert selected(root, "vit") == [("evidence", True, ["stages.training.protocol"])]
    (note,) = record(root, DATABASE).notes
    assert "equivalences.jsonl, line 1: stages.training.protocol changed after it" in note


def test_checkpoint_is_the_best_result_with_available_weights(root: Path) -> None:
    with recorded(root) as session:
        checkpoint = session.get(Checkpoint, "ninformer-cifar100.vit.0")
        assert checkpoint is not None
        assert checkpoint.result.profile == "quick"
        assert checkpoint.sha256 == checkpoint.result.weights_sha256
        assert (root / checkpoint.path).stat().st_size == checkpoint.size_bytes


def test_committed_model_is_preferred_to_the_same_weights_in_runs(root: Path) -> None:
    with recorded(root) as session:
        checkpoint = session.get(Checkpoint, "ninformer-cifar100.vit.0")
        assert checkpoint is not None
        weights = (root / checkpoint.path).read_bytes()
    models = root / "data" / "models"
    models.mkdir()
    (models / "ninformer-cifar100.vit.0.safetensors").write_bytes(weights)
    (models / "stray.safetensors").write_bytes(weights + b"\0")
    summary = record(root, DATABASE)
    assert [note.split(":")[0] for note in summary.notes] == ["data/models/stray.safetensors"]
    with open_results(str(root / DATABASE))() as session:
        checkpoint = session.get(Checkpoint, "ninformer-cifar100.vit.0")
        assert checkpoint is not None
        assert checkpoint.path == "data/models/ninformer-cifar100.vit.0.safetensors"


def test_released_model_has_its_own_accuracy_if_the_trained_weights_are_missing(root: Path) -> None:
    path = root / "data" / "evidence" / "ninformer-cifar100.jsonl"
    lines = read_lines(path, EvidenceLine)
    content = b"rounded weights"
    digest = hashlib.sha256(content).hexdigest()
    released = Release(sha256=digest, dtype="float16", accuracy=0.2139, same_class=0.998, n=10_000)
    path.write_bytes(
        write_lines(dataclasses.replace(line, release=released if line.result.arm == "vit" else None) for line in lines)
    )
    (root / "data" / "models").mkdir()
    (root / "data" / "models" / "ninformer-cifar100.vit.0.safetensors").write_bytes(content)

    def checkpoint() -> tuple[str, str | None, float | None]:
        with recorded(root) as session:
            row = session.get(Checkpoint, "ninformer-cifar100.vit.0")
            assert row is not None
            return row.path, row.dtype, row.accuracy

    run_key = next(line.result.run_key for line in lines if line.result.arm == "vit")
    as_trained = f"data/runs/ninformer-cifar100/{run_key}/weights.safetensors"
    assert checkpoint() == (as_trained, None, None)
    (root / as_trained).unlink()
    assert checkpoint() == ("data/models/ninformer-cifar100.vit.0.safetensors", "float16", 0.2139)


def test_diverged_run_is_recorded_with_its_last_finite_step(root: Path) -> None:
    (root / "data" / "evidence" / "ninformer-mnist.jsonl").unlink()
    add_results(root, "ninformer-mnist", "paper", "full", published="2026-11-02", diverged=("vit", 1))
    with recorded(root) as session:
        row = session.query(Result).filter_by(experiment="ninformer-mnist", arm="vit", replicate=1).one()
        assert (row.status, row.metrics, row.weights_sha256) == ("diverged", [], None)
        assert row.divergence == {"step": 400, "last_finite_step": 390, "last_finite_loss": 1.83}


@pytest.mark.parametrize(
    ("file", "old", "new", "error", "message"),
    [
        ("results/ninformer-cifar10.jsonl", '"arm":', '"arn":', EvidenceError, "cifar10.jsonl, line 1: ar[mn]"),
        ("results/ninformer-cifar10.jsonl", '"code":', '"cod":', RecordError, "has no code"),
        ("results/ninformer-cifar10.jsonl", '"replicate":0', f'"replicate":{10**20}', RecordError, "64 bits"),
    ],
)
def test_invalid_line_is_reported_and_the_old_database_kept(
    root: Path, file: str, old: str, new: str, error: type[Exception], message: str
) -> None:
    record(root, DATABASE)
    before = (root / DATABASE).read_bytes()
    path = root / "data" / file
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(error, match=message):
        record(root, DATABASE)
    assert (root / DATABASE).read_bytes() == before
    assert [path.name for path in (root / "data").glob("*results.db*")] + [
        path.name for path in (root / "data").glob(".*")
    ] == ["results.db"]


def test_a_claim_with_a_bad_row_is_named_and_the_others_are_judged(root: Path) -> None:
    path = root / "data" / "claims.csv"
    text = path.read_text(encoding="utf-8").replace("0.5378", "54 %").replace("cifar10.ninformer", "cifar10.vit")
    path.write_text(text.replace(",0.9712,", ",97.12,").replace(",0.7012,", ",1e999,"), encoding="utf-8")
    notes = "\n".join(record(root, DATABASE).notes)
    for said in (
        "line 13: value: Input",
        "cifar10.vit occurs twice; the row",
        "expected a fraction of 1, such as 0.9712",
        "value: Input should be a finite number; the row is left out",
    ):
        assert said in notes
    with open_results(str(root / DATABASE))() as session:
        assert session.query(Claim).count() == 13


def test_differing_canaries_are_reported_without_splitting_the_machine(root: Path) -> None:
    path, lines = root / "data" / "results" / "ninformer-cifar10.jsonl", []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        process = {"variables": {}, "modules": {}, "canary": {"of": "a", "digest": f"{min(number, 1):012d}"}}
        line = json.loads(text)
        line["environment"]["process"] = process
        line["environment_digest"] = hashlib.sha256(canonical_json(line["environment"]).encode()).hexdigest()[:12]
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (note,) = record(root, DATABASE).notes
    assert note.startswith("CANARIES DIFFER: 000000000000 for ninformer-cifar10.")
    with open_results(str(root / DATABASE))() as session:
        local = session.query(Result).filter_by(source="local", experiment="ninformer-cifar10").all()
    found = [{getattr(row, name) for row in local} for name in ("environment_digest", "machine_digest")]
    assert [len(digests) for digests in found] == [2, 1]


@pytest.mark.parametrize("kind", ["experiment", "arm", "profile"])
def test_results_of_a_removed_name_are_omitted_with_a_note(root: Path, kind: str) -> None:
    """Both local and published results of a name that is no longer in the params files."""
    record(root, DATABASE)
    before = {table: rows(root, table) for table in ("results", "metrics", "epochs", "checkpoints", "verdicts")}
    for folder, file in (("results", "ninformer-cifar10"), ("evidence", "ninformer-mnist")):
        path = root / "data" / folder / f"{file}.jsonl"
        line = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        own = line["result"] if folder == "evidence" else line
        own[kind] = "mine"
        with path.open("a", encoding="utf-8") as written:
            written.write(json.dumps(seal(line) if folder == "evidence" else line) + "\n")
    summary = record(root, DATABASE)
    assert summary.results == 24
    published, local = summary.notes
    assert published.startswith(f"{PLAN_CHANGED}{root}/data/evidence/ninformer-mnist.jsonl: ")
    assert local.startswith(f"{root}/data/results/ninformer-cifar10.jsonl: ")
    for note in summary.notes:
        assert f"1 results of the {kind} 'mine' left out, because the params files don't have it; " in note
    assert {table: rows(root, table) for table in before} == before


def test_open_reader_keeps_the_old_database_and_the_next_sees_the_new(root: Path) -> None:
    record(root, DATABASE)
    sessions = open_results(str(root / DATABASE))
    with sessions() as under_way:
        assert under_way.query(Result).count() == 24
        (root / "data" / "results" / "ninformer-cifar10.jsonl").unlink()
        record(root, DATABASE)
        assert under_way.query(Result).count() == 24
    with sessions() as following:
        assert following.query(Result).count() == 20


def test_record_prints_a_summary_or_the_fault(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main() == 0
    assert "24 results (24 enter comparisons), 20 checkpoints, 16 claims" in capsys.readouterr().out
    (root / "data" / "claims.csv").unlink()
    assert verb.main() == 1
    assert capsys.readouterr().err.startswith("record: data/claims.csv: No such file")


def test_arms_with_declared_differences_are_compared(root: Path) -> None:
    params = whole_file("ninformer-cifar100", root)
    params["arms"]["vit"]["protocol"] = {"optimizer": {"name": "sgd", "lr": 0.1}}
    (root / "params" / "ninformer-cifar100.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    record(root, DATABASE)
    assert selected(root, "vit") and not any(is_selected for _, is_selected, _ in selected(root, "vit"))
    (root / "data" / "evidence" / "ninformer-cifar100.jsonl").unlink(missing_ok=True)
    add_results(root, "ninformer-cifar100", "quick", "full", published="2026-11-09")
    with recorded(root) as session:
        found = session.query(Result).filter_by(experiment="ninformer-cifar100", profile="quick", is_selected=True)
        assert {row.arm for row in found} == {"vit", "mlp-mixer", "local-vit", "ninformer"}
        assert len({row.conditions for row in found}) == 1


def write_finding(root: Path, claim: str) -> None:
    line = {
        "claim": claim,
        "computed": {"ratio": 2.5},
        "explanation": "Twice.",
        "readings": [{"name": "as printed", "text": "Ten.", "holds": False, "ours": 9.0, "brief": None}],
        "error": "ninformer.ten",
        "paper": "ninformer",
    }
    (root / "data" / "findings.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")


def test_finding_is_stored_with_its_claim(root: Path) -> None:
    write_finding(root, "ninformer.table2.cifar100.vit")
    assert record(root, DATABASE).findings == 1
    with open_results(str(root / DATABASE))() as session:
        found = {claim.id: claim.finding for claim in session.query(Claim) if claim.finding is not None}
    assert found == {
        "ninformer.table2.cifar100.vit": {
            "status": "fails",
            "computed": {"ratio": 2.5},
            "explanation": "Twice.",
            "readings": [{"name": "as printed", "text": "Ten.", "holds": False, "ours": 9.0, "brief": None}],
            "error": "ninformer.ten",
        }
    }
    assert record(root, DATABASE, evidence_only=True).findings == 0


def test_finding_without_a_claim_is_refused(root: Path) -> None:
    write_finding(root, "ninformer.table9")
    with pytest.raises(RecordError, match=r"findings.jsonl, line 1: no claim ninformer.table9 in data/claims.csv"):
        record(root, DATABASE)


def test_partial_and_complete_test_sets_are_not_compared(root: Path) -> None:
    """A few test rows that a mirror lacks don't count as partial."""
    path = root / "data" / "results" / "ninformer-cifar10.jsonl"
    line = read_lines(path, ResultLine)[0]

    def conditions(scored: int, left_out: int) -> str:
        data = dataclasses.replace(line.data, test_images=scored, excluded_test_images=left_out)
        result = dataclasses.replace(line, data=data)
        return Trial(result=result, cost=None, origin=None, release=None, file=path, line=1).conditions

    assert conditions(10_000, 0) == conditions(9_977, 23)
    assert len({conditions(10_000, 0), conditions(2_000, 8_000), conditions(1_000, 9_000)}) == 3


def cells(text: str, model: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {model} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_experiment_has_a_markdown_and_a_csv_table(root: Path) -> None:
    record(root, "data/results.db")
    assert report.main([]) == 0
    folder = root / "data" / "report"
    names = ("ninformer-mnist", "ninformer-cifar10", "ninformer-cifar100")
    assert {path.name for path in folder.iterdir()} == {"index.md", "verdicts.md"} | {
        f"{n}.{kind}" for n in names for kind in ("md", "csv")
    }
    mnist = (folder / "ninformer-mnist.md").read_text(encoding="utf-8")
    assert cells(mnist, "ViT (baseline)")[1:] == ["97.12", "97.22 ± 0.17", "3"]
    assert "The models finish in the paper’s order." in mnist
    with (folder / "ninformer-mnist.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["arm"], float(rows[0]["printed.value"])) == ("vit", 0.9712)


def test_placeholder_results_leave_cells_empty(root: Path) -> None:
    record(root, "data/results.db")
    report.main([])
    text = (root / "data" / "report" / "ninformer-cifar10.md").read_text(encoding="utf-8")
    assert cells(text, "ViT (baseline)")[1:] == ["65.74", "–", "0"]
    assert "says nothing about the claim" in text


def test_docs_use_only_evidence(root: Path) -> None:
    assert report.main(["--docs"]) == 0
    before = (root / "docs" / "results.md").read_bytes()
    assert b"ninformer-cifar100" not in before and b"CIFAR-100" in before
    assert cells(before.decode(), "ViT (baseline)")[1] == "97.12"
    assert b"stand-in)" not in before
    shutil.rmtree(root / "data" / "results")
    shutil.rmtree(root / "data" / "runs")
    assert report.main(["--docs"]) == 0
    assert (root / "docs" / "results.md").read_bytes() == before
    text = before.decode()
    assert "## Verdicts: ninformer" in text
    assert "`ninformer.table2.mnist.vit`" in text and "`ninformer.table2.cifar10.vit`" not in text
    assert "contradicted" not in text, "claims without training are in findings.md"


def test_docs_state_omitted_test_images(root: Path) -> None:
    path = root / "data" / "evidence" / "ninformer-mnist.jsonl"
    lines = []
    for line in read_lines(path, EvidenceLine):
        lines.append(replace(line, result=without_test_images(line.result, 23)))
    path.write_bytes(write_lines(lines))
    assert report.main(["--docs"]) == 0
    text = (root / "docs" / "results.md").read_text(encoding="utf-8")
    table = text[text.index("MNIST") : text.index("CIFAR-100")]
    assert "on official data without 23 of 10,000 test images, which our source lacks (profile paper)." in table


def test_docs_do_not_depend_on_locale_time_zone_or_hash_seed(root: Path) -> None:
    write_docs(root, root / "docs" / "results.md")
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "TZ": "Pacific/Apia",
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": str(REPOSITORY),
    }
    before = (root / "docs" / "results.md").read_bytes()
    command = [sys.executable, "-m", "stages.report", "--docs"]
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True)
    assert (root / "docs" / "results.md").read_bytes() == before


def test_database_is_the_same_in_a_locale_without_utf8(root: Path) -> None:
    path = root / "data" / "claims.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("lower,\n", "lower,naïve – see §3\n"), encoding="utf-8")
    without = {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "stages.record"]
    record(root, "data/here.db")
    done = subprocess.run(command, cwd=root, env=os.environ | without, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    built = []
    for name in ("here", "results"):
        with contextlib.closing(sqlite3.connect(root / "data" / f"{name}.db")) as connection:
            built.append(sorted(connection.iterdump()))  # a table's indices are a set
    assert built[0] == built[1]


def test_report_without_a_database_explains_how_to_get_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([]) == 1
    assert "`make serve` builds it from the evidence in git" in capsys.readouterr().err


def test_every_paper_has_a_table_of_verdicts(root: Path) -> None:
    record(root, "data/results.db")
    report.main([])
    text = (root / "data" / "report" / "verdicts.md").read_text(encoding="utf-8")
    assert "| ninformer | by training | 12 | 0 | 0 | 4 | 8 |" in text
    assert "| ninformer | by computing | 1 | 0 | 1 | 0 | 0 |" in text
    assert cells(text, "`ninformer.table2.mnist.vit`")[1:4] == ["97.12 %", "97.22 %", "inconclusive (exploratory)"]
    assert cells(text, "`ninformer.table3.mnist.vit`")[3] == "contradicted"


def test_status_builds_the_database_and_counts_like_the_front_page(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 0
    output = capsys.readouterr()
    assert "building data/results.db from published evidence" in output.err and output.err.count("\n") == 1
    lines = output.out.splitlines()
    with open_results("data/results.db")() as session:
        tallies = tally(session)
    cards = {card.word: card.number for card in cards_of(tallies)}
    assert next(line.split() for line in lines if line.startswith("all "))[1:] == [str(cards[word]) for word in Word]
    assert lines[1].split() == ["ninformer", "by", "training", "0", "0", "4", "8"]
    assert lines[2].split() == ["ninformer", "by", "computing", "0", "1", "0", "0"]
    assert [" ".join(line.split()) for line in lines[lines.index("") + 2 :]] == [
        "fails contradicted 1",
        "open inconclusive 4",
        "not tested not tested (hardware) 3",
        "not tested not tested 8",
    ]
