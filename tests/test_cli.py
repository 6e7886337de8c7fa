from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.cli import main
from tests.project import REPOSITORY, environment


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sample", "foo"], "no data set 'foo'; known: cifar10, cifar100, "),
        (["sample", "sgemm"], "sgemm is a table and has no images"),
        (["publish", "ninformer-mnist", "foo"], "no experiment 'foo'; known: ninformer-mnist, "),
        (["release", "foo", "vit"], "no experiment 'foo'; known: ninformer-mnist, "),
    ],
)
def test_a_name_that_nothing_has_is_answered_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(arguments) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"claimcheck {arguments[0]}: ") and words in message


def test_output_that_nobody_reads_on_is_no_error(tmp_path: Path) -> None:
    """As in `claimcheck plan | head`."""
    shutil.copy(REPOSITORY / "params.yaml", tmp_path)
    shutil.copytree(REPOSITORY / "params", tmp_path / "params")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "stages.cli", "profile", "quick"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nprofile: quick\n" in (tmp_path / "params.yaml").read_text()
