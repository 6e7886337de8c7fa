import contextlib
import csv
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from service.pages.opening import cards_of, still_open
from stages import cli, report
from stages.recording.builder import record
from stages.recording.reporting import write_docs
from stages.results import Word, open_results, tally
from stages.runs.evidence import EvidenceLine, read_lines, write_lines
from tests.service.results_factory import REPOSITORY, make_root, without_test_images


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("template"))


@pytest.fixture
def root(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(template, tmp_path / "root")
    monkeypatch.chdir(tmp_path / "root")
    return tmp_path / "root"


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
    mnist = (folder / "ninformer-mnist.md").read_text()
    assert cells(mnist, "ViT (baseline)")[1:] == ["97.12", "97.22 ± 0.17", "3"]
    assert "The models finish in the paper’s order." in mnist
    with (folder / "ninformer-mnist.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["arm"], float(rows[0]["printed.value"])) == ("vit", 0.9712)


def test_placeholder_results_leave_cells_empty(root: Path) -> None:
    record(root, "data/results.db")
    report.main([])
    text = (root / "data" / "report" / "ninformer-cifar10.md").read_text()
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
    text = (root / "docs" / "results.md").read_text()
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
    assert "`make serve` makes it of the evidence in git" in capsys.readouterr().err


def test_every_paper_has_a_table_of_verdicts(root: Path) -> None:
    record(root, "data/results.db")
    report.main([])
    text = (root / "data" / "report" / "verdicts.md").read_text()
    assert "| ninformer | by training | 12 | 0 | 0 | 4 | 8 |" in text
    assert "| ninformer | by computing | 1 | 0 | 1 | 0 | 0 |" in text
    assert cells(text, "`ninformer.table2.mnist.vit`")[1:4] == ["97.12 %", "97.22 %", "inconclusive (exploratory)"]
    assert cells(text, "`ninformer.table3.mnist.vit`")[3] == "contradicted"


def test_status_builds_the_database_and_counts_like_the_front_page(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 0
    output = capsys.readouterr()
    assert "making data/results.db from the published evidence" in output.err and output.err.count("\n") == 1
    lines = output.out.splitlines()
    with open_results("data/results.db")() as session:
        tallies = tally(session)
    cards = {card.word: card.number for card in cards_of(tallies)} | {Word.OPEN: sum(still_open(tallies))}
    assert next(line.split() for line in lines if line.startswith("all "))[1:] == [str(cards[word]) for word in Word]
    assert lines[1].split() == ["ninformer", "by", "training", "0", "0", "4", "8"]
    assert lines[2].split() == ["ninformer", "by", "computing", "0", "1", "0", "0"]
    assert [" ".join(line.split()) for line in lines[lines.index("") + 2 :]] == [
        "fails contradicted 1",
        "open inconclusive 4",
        "not tested not tested (hardware) 3",
        "not tested not tested 8",
    ]
