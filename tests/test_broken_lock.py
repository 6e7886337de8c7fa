"""An unreadable `dvc.lock` is reported, with its remedy, before anything runs."""

from pathlib import Path

import pytest

from stages.cli import main
from stages.commands.repro import refuse_broken_lock
from stages.faults import Mistake
from tests.project import make_project

WHOLE = "schema: '2.0'\nstages:\n  inputs:\n    cmd: python -m stages.inputs\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty or cut short"),
        (WHOLE[:14], "is empty or cut short"),
        (WHOLE + '    deps: ["a', "is damaged or cut short"),
        (f"<<<<<<< ours\n{WHOLE}=======\n{WHOLE}>>>>>>> theirs\n", "holds both sides of a merge"),
    ],
    ids=["empty", "truncated", "truncated in a word", "in conflict"],
)
def test_fault_of_the_lock_is_described(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "dvc.lock").write_text(text, encoding="utf-8")
    with pytest.raises(Mistake, match=fault):
        refuse_broken_lock(tmp_path / "dvc.lock")


def test_valid_or_missing_lock_passes(tmp_path: Path) -> None:
    refuse_broken_lock(tmp_path / "dvc.lock")
    (tmp_path / "dvc.lock").write_text(WHOLE, encoding="utf-8")
    refuse_broken_lock(tmp_path / "dvc.lock")


def test_repro_reports_a_broken_lock_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_project(tmp_path / "project"))
    Path("dvc.lock").write_text("", encoding="utf-8")
    assert main(["repro"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("claimcheck repro: dvc.lock is empty or cut short; `git checkout dvc.lock` brings back")
    assert said.count("\n") == 1
