"""A `dvc.lock` that DVC can't read: what is wrong and what to do is said before anything runs."""

from pathlib import Path

import pytest

from stages.cli import main
from stages.commands.repro import BrokenLock, refuse_broken_lock
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
def test_what_is_wrong_with_the_lock_is_said(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "dvc.lock").write_text(text)
    with pytest.raises(BrokenLock, match=fault):
        refuse_broken_lock(tmp_path / "dvc.lock")


def test_a_whole_lock_and_none_pass(tmp_path: Path) -> None:
    refuse_broken_lock(tmp_path / "dvc.lock")
    (tmp_path / "dvc.lock").write_text(WHOLE)
    refuse_broken_lock(tmp_path / "dvc.lock")


def test_the_command_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_project(tmp_path / "project"))
    Path("dvc.lock").write_text("", encoding="utf-8")
    assert main(["repro"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("claimcheck repro: dvc.lock is empty or cut short; `git checkout dvc.lock` brings back")
    assert said.count("\n") == 1
