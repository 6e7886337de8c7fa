"""What `pip install claimcheck` gives: the library with three packages; the application with an extra's."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.project import REPOSITORY
from tests.test_reported import HEADER, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, cwd: Path, fails: bool = False, **env: str) -> str:
    """Run a command without this checkout on its path; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in files.split("\0"):
        if not name.startswith(("data/", "tests/")) and (REPOSITORY / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / "source" / name)
    run(UV, "build", "--wheel", "--no-build-isolation", "-p", sys.executable, "-o", folder, ".", cwd=folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel and what it requires, in the versions of this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "-p", sys.executable, folder, cwd=folder)
    required = [f"{name}=={version(name)}" for name in ("numpy", "pandas", "scipy")]
    run(UV, "pip", "install", "-p", folder, wheel, *required, cwd=folder)
    return folder / "bin"


def test_library_judges_with_three_packages(environment: Path, tmp_path: Path) -> None:
    claims = HEADER + "t,value,accuracy,ours,,mnist,97.2 %,,,5,\ng,order,accuracy,ours,base,mnist,2.2 %,,,,\n"
    (tmp_path / "claims.csv").write_text(claims)
    results().to_csv(tmp_path / "results.csv", index=False)
    command, python = environment / "claimcheck", environment / "python"
    said = run(command, "judge", "claims.csv", "results.csv", "--html", "report.html", cwd=tmp_path)
    assert "t: reproduced" in said and "g: supported" in said and (tmp_path / "report.html").is_file()
    assert "no faults found" in run(command, "lint", "claims.csv", cwd=tmp_path)
    exported = "Name,State,model,seed,accuracy\na,finished,vit,0,0.9\nb,finished,vit,1,0.91\n"
    (tmp_path / "export.csv").write_text(exported)
    assert "2 values of 2 runs" in run(command, "import", "wandb", "export.csv", cwd=tmp_path)
    five_lines = """\
import claimcheck, sys
print(claimcheck.value(printed="97.5 ± 0.2 %", n=5, ours=[0.971, 0.974, 0.969, 0.973, 0.972]).status)
print(len(claimcheck.judge("claims.csv", "results.csv").to_frame()))
assert not {"stages", "service", "torch", "yaml", "pydantic"} & {name.split(".")[0] for name in sys.modules}
"""
    assert run(python, "-c", five_lines, cwd=tmp_path).splitlines() == ["undecidable at this margin", "2"]
    packages = run(UV, "pip", "freeze", "-q", "-p", environment.parent, cwd=tmp_path)
    assert {line.split("==")[0] for line in packages.splitlines() if "@" not in line} <= {
        *("numpy", "pandas", "python-dateutil", "scipy", "six", "tzdata")
    }
    (site,) = environment.parent.glob("lib/*/site-packages")
    assert (site / "claimcheck").is_dir() and not [*site.glob("stages*"), *site.glob("service*"), *site.glob("*.pth")]


def test_help_names_what_works_and_what_brings_the_rest(environment: Path, tmp_path: Path) -> None:
    said = run(environment / "claimcheck", "--help", cwd=tmp_path)
    assert re.findall(r"^    (\w+)  ", said, re.MULTILINE) == ["judge", "import", "lint"]
    assert "pip install 'claimcheck[train]'" in said and "pip install 'claimcheck[service]'" in said
    assert "invalid choice: 'repro'" in run(environment / "claimcheck", "repro", cwd=tmp_path, fails=True)
    (tmp_path / "rules.yaml").touch()
    words = ("judge", "claims.csv", "results.csv", "--rules", "rules.yaml")
    assert "pip install pyyaml" in run(environment / "claimcheck", *words, cwd=tmp_path, fails=True)
