from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.cli import main
from stages.recording import record
from tests.claims.lines import copy_project
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


def test_show_prints_the_whole_of_an_experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(["show", "ninformer-mnist"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# The sources of these values stand beside them in params/ninformer-mnist.yaml and, for")
    whole, like = yaml.safe_load(printed), yaml.safe_load(Path("params/ninformer-cifar10.yaml").read_text())
    assert whole["arms"] == like["arms"] and whole["title"] == "NiNformer, Tables 2 and 3, MNIST"
    assert whole["protocol"] == like["protocol"] | {"augmentation": {"crop_padding": 4}, "mean": [0.5], "std": [0.5]}


def test_show_prints_a_claim_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    record(tmp_path, "data/results.db")
    assert main(["show", "dac.sgemm.gain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dac.sgemm.gain (dac, section 5, Figure 4)"
    assert "printed   0.25 nats" in lines and "verdict   not tested: Not run yet." in lines
    assert main(["show", "dac.sgem.gain"]) == 1
    assert "no experiment or claim 'dac.sgem.gain'; did you mean dac.sgemm.gain" in capsys.readouterr().err


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
