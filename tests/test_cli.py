from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.project import REPOSITORY, environment


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
