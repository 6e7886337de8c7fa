"""Users never see a traceback: a full disk, an unwritable folder and a damaged file each give one line."""

import csv
import errno
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.claims import ClaimsError
from stages.claims.lines import parse_claims, read_claims
from stages.faults import describe_fault, in_one_line, named
from tests.preloaded import python
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project
from tests.resource_limits import drop_root_privileges, limit_file_size

pytestmark = pytest.mark.slow

VERBS = {
    "inputs": ["stages.inputs"],
    "fetch": ["stages.fetch", "mnist"],
    "preprocess": ["stages.preprocess", "mnist"],
    "train": ["stages.train", EXPERIMENT],
    "evaluate": ["stages.evaluate", EXPERIMENT],
    "record": ["stages.record"],
    "report": ["stages.report"],
    "claimcheck profile": ["stages.cli", "profile", "quick"],
    "claimcheck sample": ["stages.cli", "sample", "mnist"],
}


def call(project: Path, verb: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the verb to its end, calling `before` first."""
    return python("-m", *VERBS[verb], cwd=project, env=environment(), before=before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose verbs have all run."""
    project = make_project(tmp_path_factory.mktemp("faults") / "project", epochs=1, steps_per_epoch=1)
    shutil.copy(REPOSITORY / "data" / "claims.csv", project / "data")
    for verb in ("fetch", "train", "evaluate", "record", "report", "inputs"):
        done = call(project, verb)
        assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "project")


def check_one_line(done: subprocess.CompletedProcess[str], verb: str, words: str) -> None:
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    faults = [line for line in (done.stdout + done.stderr).splitlines() if "then run this again" in line]
    assert len(faults) == 1, done.stderr
    assert words in faults[0]
    assert verb in faults[0]


@pytest.mark.parametrize("verb", ["fetch", "train", "record", "claimcheck profile"])
def test_unwritable_folder_is_one_line(project: Path, verb: str) -> None:
    folders = [path for path in [project, *project.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = call(project, verb, drop_root_privileges)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    check_one_line(done, verb, "; give this user access to it")


@pytest.mark.parametrize("verb", VERBS)
def test_full_disk_is_one_line(project: Path, verb: str) -> None:
    check_one_line(call(project, verb, limit_file_size), verb, "; ")


def test_full_disk_error_names_its_file() -> None:
    """The system's own error names no file."""
    with pytest.raises(OSError, match="No space left") as full, named(Path("data/x.json")):
        Path("/dev/full").write_text("x", encoding="utf-8")
    assert describe_fault(full.value).startswith(
        "data/x.json: No space left on device; free some space (`claimcheck du`"
    )


def test_refused_write_suggests_claimcheck_home_only_if_it_moves_the_file() -> None:
    advised = {
        name: "CLAIMCHECK_HOME" in describe_fault(PermissionError(errno.EACCES, "Permission denied", name))
        for name in ("data/store/runs", "data/downloads/mnist", "data/results.db", "data/raw/mnist.json", ".cache")
    }
    assert [name for name, is_advised in advised.items() if is_advised] == ["data/store/runs", "data/downloads/mnist"]


def test_error_in_our_sql_is_not_reported_as_a_machine_fault() -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        in_one_line("x")(lambda: sqlite3.connect(":memory:").execute("SELECT * FROM absent").rowcount)()


DAMAGED = {
    "data/raw/mnist.json": "preprocess",
    "data/processed/mnist/dataset.json": "train",
    "data/runs/tiny-mnist/runs.json": "evaluate",
    "data/claims.csv": "record",
    "data/results/tiny-mnist.jsonl": "record",
    "data/results/tiny-mnist.cost.jsonl": "record",
    "data/results.db": "report",
    "params.yaml": "inputs",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_reported_by_name(project: Path, name: str) -> None:
    (project / name).unlink()
    (project / name).write_bytes(b"\xff\xfe\x00")
    done = call(project, DAMAGED[name])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert name in done.stderr or "the results database can't be read; `dvc repro` rebuilds it" in done.stderr


def test_training_rewrites_a_damaged_run_list(project: Path) -> None:
    path = project / "data" / "runs" / EXPERIMENT / "runs.json"
    before = path.read_bytes()
    path.unlink()
    path.write_bytes(before[:40])
    done = call(project, "train")
    assert (done.returncode, path.read_bytes()) == (0, before)
    assert "damaged; `claimcheck stage train tiny-mnist` rewrites it" in done.stdout


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda whole: whole[:4096] + b"\xff" * (len(whole) - 4096), "rebuilds it"),  # it opens by its first page
        (lambda whole: whole.replace(b"tiny-mnist", b"tiny\xadmnist"), "the results database is damaged ("),
        (lambda whole: whole.replace(b'{"', b'["'), "the results database is damaged ("),
    ],
    ids=["page", "no UTF-8", "no JSON"],
)
def test_damaged_database_gives_no_traceback(project: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    path = project / "data" / "results.db"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(content))
    assert path.read_bytes() != content
    done = call(project, "report")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False) and said in done.stderr


CLAIM = "id,paper,place,metric,kind,value,statement\nx,dac,Table 1,{metric},count,1,{statement}\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"claims\.csv: lacks the columns "),
        (b"id,paper\nx,y\n", r"claims\.csv: lacks the columns kind, metric, place, value"),
        (CLAIM.format(metric="m", statement="s").replace("statement", "kind").encode(), "has the columns kind twice"),
        (
            CLAIM.format(metric="m", statement="s,t").encode(),
            "line 2: 8 cells in 7 columns; quote a cell that has a comma",
        ),
        (CLAIM.format(metric="m", statement='"s" t').encode(), "line 2: .*; expected CSV"),
        (CLAIM.format(metric="m", statement="\N{LATIN SMALL LETTER E WITH ACUTE}").encode("cp1252"), "line 2: .*iconv"),
    ],
)
def test_malformed_claims_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "claims.csv").write_bytes(content)
    with pytest.raises(ClaimsError, match=said):
        read_claims(tmp_path / "claims.csv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_claims_saved_by_a_spreadsheet_are_read(tmp_path: Path, encoding: str) -> None:
    rows = list(csv.reader(io.StringIO((REPOSITORY / "data" / "claims.csv").read_text(encoding="utf-8"))))[:2]
    rows[1][rows[0].index("statement")] = statement = "two\r\nlines, and a separator\u2028"
    with (tmp_path / "claims.csv").open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=";").writerows(rows)
    assert [claim.statement for claim in read_claims(tmp_path / "claims.csv")] == [statement]
    text = (tmp_path / "claims.csv").read_text(encoding=encoding).replace(rows[1][0], "../x")
    with pytest.raises(ClaimsError, match=r"line 2: id \.\./x is no address of a page"):
        parse_claims(text, tmp_path / "claims.csv")


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @in_one_line("evaluate@toy")
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert interrupted() == 130
    assert capsys.readouterr().err.startswith("evaluate@toy: stopped by Ctrl-C; finished work is kept")


@pytest.mark.parametrize("module", ["stages.cli", "stages.record", "service"])
def test_ctrl_c_during_imports_is_one_line(module: str, tmp_path: Path) -> None:
    for name in ("pydantic", "sqlalchemy", "typing_extensions"):
        (tmp_path / f"{name}.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    env = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-m", module, *(["status"] if module == "stages.cli" else [])]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode in (130, -signal.SIGINT), done.stderr.count("\n")) == (True, 1), done.stderr
    assert "stopped by Ctrl-C" in done.stderr
