"""What `pip install claimcheck` gives: the library with three packages; with an extra's, a project of one's own.

Runs docs/add-a-paper.md: its steps suffice, and its outputs are right.
"""

import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.server import free_port
from stages.runs.revisions import has_revision, prefix_in_git
from stages.upkeep.publishing import is_dirty
from tests.doc_examples import differences, is_printed, read_examples
from tests.polling import wait_until
from tests.project import REPOSITORY
from tests.test_reported import BASE, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
UV = Path(sys.executable).with_name("uv")
EXAMPLES = read_examples(REPOSITORY / "docs" / "add-a-paper.md")
PRINTED_PLACE = "127.0.0.1:8000"


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


def test_library_judges_as_its_page_says_with_three_packages(environment: Path, tmp_path: Path) -> None:
    """docs/judge.md: its claims, commands and Python lines, on results as it describes them."""
    text = {block.language: block.text for block in read_examples(REPOSITORY / "docs" / "judge.md")}
    (tmp_path / "claims.csv").write_text(text["text"], encoding="utf-8")
    results(vit=BASE).to_csv(tmp_path / "results.csv", index=False)
    judge, _, lint = (shlex.split(line, comments=True) for line in text["sh"].splitlines())
    command, python = environment / "claimcheck", environment / "python"
    said = run(command, *judge[1:], cwd=tmp_path)
    assert "table1.ours: " in said and "text.gain: supported" in said and (tmp_path / "report.html").is_file()
    assert "no faults found" in run(command, *lint[1:], cwd=tmp_path)
    exported = "Name,State,model,seed,accuracy\na,finished,vit,0,0.9\nb,finished,vit,1,0.91\n"
    (tmp_path / "export.csv").write_text(exported, encoding="utf-8")
    assert "2 values of 2 runs" in run(command, "import", "wandb", "export.csv", cwd=tmp_path)
    results(vit=BASE).to_csv(tmp_path / "results.csv", index=False)
    unwanted = '"stages", "service", "torch", "yaml", "pydantic"'
    check = f"import sys; assert not {{{unwanted}}} & {{name.split('.')[0] for name in sys.modules}}"
    printed = run(python, "-c", f"{text['python']}{check}", cwd=tmp_path).splitlines()
    assert [line.partition(" (reported, not retrained)")[0] for line in printed] == [
        "value: undecidable at this margin",
        "order: supported",
    ]
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


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an environment with the wheel and all packages of this one, but without this checkout."""
    folder = tmp_path_factory.mktemp("whole")
    run(UV, "venv", "-p", sys.executable, folder, cwd=folder)
    run(UV, "pip", "install", "--no-deps", "-p", folder, wheel, cwd=folder)
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "CLAIMCHECK_DEVICE": "cpu", "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.com"}


@pytest.mark.timeout(900)
def test_page_leads_from_an_empty_folder_to_verdicts(whole: dict[str, str], tmp_path: Path) -> None:
    """Each command of docs/add-a-paper.md in its order, with real DVC and service, by the installed package alone."""
    output, place, server = "", f"127.0.0.1:{free_port()}", None
    try:
        for block in EXAMPLES:
            if block.file:
                assert (tmp_path / block.file).read_text(encoding="utf-8") == block.text
            elif block.language == "sh":
                for line in block.text.splitlines():
                    words = shlex.split(line.replace(PRINTED_PLACE, place))
                    if words[1] == "serve":
                        command = [*words, "--port", place.rpartition(":")[2]]
                        server = subprocess.Popen(command, cwd=tmp_path, env=os.environ | whole, start_new_session=True)
                        wait_until(lambda: answers(place), 120)
                    else:
                        output = run(*words, *(["-fsS"] if words[0] == "curl" else []), cwd=tmp_path, **whole)
            elif block.language == "text":
                assert is_printed(block.text, output) == [], output
            elif block.language == "json":
                assert list(differences(json.loads(block.text), json.loads(output))) == []
    finally:
        if server is not None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()
    written = run("git", "ls-files", "-o", "--exclude-standard", "papers", "params", "data/*.csv", cwd=tmp_path)
    assert len(written.splitlines()) == 4, "a paper is four files, and a line in params.yaml"
    assert "already in this folder" in run("claimcheck", "init", cwd=tmp_path, fails=True, **whole)
    spec = json.loads((tmp_path / "data/results/toy-mnist.jsonl").read_text(encoding="utf-8").splitlines()[0])["spec"]
    assert spec["model"]["path"].startswith("stages.papers.toy.models:") and "stages.papers.toy.models" in spec["code"]


def answers(place: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{place}/health/ready"):
            return True
    except OSError:
        return False


def test_paper_starts_in_a_folder_of_a_repository_that_has_a_pipeline(whole: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    (tmp_path / "paper").mkdir()
    run("git", "init", "-q", cwd=tmp_path)
    run("dvc", "init", "-q", cwd=tmp_path, **whole)
    assert "make a folder for the paper" in run("claimcheck", "init", cwd=tmp_path, fails=True, **whole)
    run("claimcheck", "init", cwd=tmp_path / "paper", **whole)
    assert not (tmp_path / "paper" / ".dvc").exists()
    run(sys.executable, "-m", "dvc", "repro", "preprocess@mnist", cwd=tmp_path / "paper", **whole)


def test_paper_starts_in_a_folder_of_a_git_repository_without_dvc(whole: dict[str, str], tmp_path: Path) -> None:
    paper = tmp_path / "paper"
    paper.mkdir()
    run("git", "init", "-q", cwd=tmp_path)
    (tmp_path / ".gitignore").write_text("data/\n", encoding="utf-8")
    (paper / ".gitignore").write_text("secret.env", encoding="utf-8")
    assert "git ignores data/claims.csv" in run("claimcheck", "init", cwd=paper, **whole)
    assert (paper / ".gitignore").read_text(encoding="utf-8").startswith("secret.env\n"), "its last line had no end"
    run("git", "add", ".", cwd=paper)
    assert not run("git", "ls-files", "paper/.dvc/cache", cwd=tmp_path)
    run("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "Start", cwd=paper)
    assert prefix_in_git(paper) == "paper/" and has_revision(paper, "HEAD") and not is_dirty(paper)
    (paper / "params.yaml").write_text("broken", encoding="utf-8")
    (tmp_path / "notes").touch()
    assert is_dirty(paper)


def test_a_changed_answer_would_be_noticed() -> None:
    shown = {"arms": [{"arm": "a", "mean": "…"}], "n": 1}
    assert list(differences(shown, {"n": 1, "more": 0, "arms": [{"arm": "b"}, {"arm": "a", "mean": 3}]})) == []
    assert list(differences(shown, {"n": 2, "arms": []})) == ["answer.arms is empty", "answer.n is 2, shown is 1"]
    assert is_printed("run … took 3 s", "x\nrun 12 took 3 s\n") == []
    assert is_printed("run … took 3 s", "run 12 took 4 s") == ["run … took 3 s"]
