"""The Makefile's targets work, and .ci/setup installs its part of the locks or explains why not."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from stages.cli import COMMANDS
from stages.params.experiment import load_params
from tests.project import captured

ROOT = Path(__file__).resolve().parent.parent
FRAME = ("Makefile", "Dockerfile", ".ci/run", "dvc.yaml")


def make(*arguments: str, cwd: Path = ROOT) -> str:
    """Return the output of make without settings inherited from an outer make, which must not affect tested code."""
    chosen = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    env = {name: value for name, value in os.environ.items() if name not in [*chosen, "CLAIMCHECK_DEVICE"]}
    done = subprocess.run(["make", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout


def dry_run(*arguments: str) -> str:
    """Return the commands that make would run."""
    return make("--dry-run", "TORCH_BACKEND=locked", *arguments)


def test_make_within_tests_ignores_the_outer_make() -> None:
    """`make test` exports variables that would change the output of every inner make."""
    code = "import os, tests.conftest; print(*(name for name in os.environ if 'MAKE' in name or name == 'MFLAGS'))"
    env = os.environ | {"MAKEFLAGS": "w -j1", "MFLAGS": "-w", "MAKELEVEL": "1", "MAKEOVERRIDES": "X=1"}
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []


def test_unknown_experiment_gets_the_nearest_or_the_known_ones() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        dry_run("repro", "EXPERIMENTS=ninformer-mnist ninformer-mnits")
    assert "no experiment ninformer-mnits; did you mean ninformer-mnist?" in refused.value.stderr
    with pytest.raises(subprocess.CalledProcessError) as refused:
        dry_run("repro", "EXPERIMENTS=x")
    assert "no experiment x; known: " in refused.value.stderr
    assert set(load_params(ROOT).experiments) <= set(re.findall(r"[\w-]+", refused.value.stderr))


@pytest.mark.parametrize("name", FRAME)
def test_every_called_module_is_runnable(name: str) -> None:
    called = set(re.findall(r"-m\W+(stages\.\w+(?:\.\w+)*|service)", (ROOT / name).read_text(encoding="utf-8")))
    assert called
    bases = {module: ROOT.joinpath(*module.split(".")) for module in called}
    runnable = {m for m, base in bases.items() if base.with_suffix(".py").is_file() or (base / "__main__.py").is_file()}
    assert runnable == called


def test_every_subcommand_that_make_calls_exists() -> None:
    called = set(re.findall(r"/claimcheck (\w+)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert called == {"profile", "repro"} and called <= set(COMMANDS)


def test_every_target_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert explained == set(phony[1].split())


def test_serve_builds_a_database_of_the_evidence_if_none_exists(tmp_path: Path) -> None:
    for part in ("Makefile", "params", "stages", ".ci", "pyproject.toml", "requirements"):
        (tmp_path / part).symlink_to(ROOT / part)
    (tmp_path / "data").mkdir()

    def steps(*choices: str) -> str:
        return make("--dry-run", "TORCH_BACKEND=locked", "serve", *choices, cwd=tmp_path)

    assert steps().index("stages.record") < steps().index("-m service")
    assert "stages.record" not in steps("CLAIMCHECK_DATABASE=postgresql://127.0.0.1/results")
    (tmp_path / "data" / "results.db").touch()
    assert "stages.record" not in steps() and "-m service" in steps()


def test_profile_and_device_reach_the_pipeline() -> None:
    steps = dry_run("repro", "PROFILE=quick")
    assert steps.index("claimcheck profile quick") < steps.index("claimcheck repro") < steps.index("next: make serve")
    assert "http://127.0.0.1:9000" in dry_run("repro", "PORT=9000")
    assert "claimcheck profile" not in dry_run("repro")
    chosen = dry_run("repro", "EXPERIMENTS=ninformer-mnist dac-vgg-cifar10")
    assert "claimcheck repro ninformer-mnist dac-vgg-cifar10\n" in chosen
    show = ("--eval", "show: ; +@env | grep CLAIMCHECK_DEVICE", "show")  # make runs lines with + even in a dry run
    assert "CLAIMCHECK_DEVICE=cuda" in dry_run(*show, "DEVICE=cuda")


@pytest.mark.parametrize(("files", "chosen"), [([], "locked"), (["torch-backend"], "locked"), (["ready-cpu"], "cpu")])
def test_backend_is_that_of_a_complete_environment(tmp_path: Path, files: list[str], chosen: str) -> None:
    """A failed small install must not determine the next `make repro`."""
    (tmp_path / ".venv").mkdir()
    for name in files:
        (tmp_path / ".venv" / name).write_text("cpu\n", encoding="utf-8")
    shown = make("-f", str(ROOT / "Makefile"), "--eval", "show: ; @echo $(TORCH_BACKEND)", "show", cwd=tmp_path)
    assert shown == f"{chosen}\n"


def test_docker_image_copies_existing_files() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+)", dockerfile, re.MULTILINE)
    sources = {source for copy in copies for source in copy.split()[:-1]}
    assert {source for source in sources if not (ROOT / source).exists()} == set()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert {source for source in sources if f"!{source}" not in ignored} == set()


GROUPS = ("serve", "pipeline", "dev", "docs")


def setup(
    *arguments: str, env: dict[str, str] | None = None, script: Path = ROOT / ".ci/setup"
) -> subprocess.CompletedProcess[str]:
    return captured([str(script), *arguments], env={**os.environ, "LC_ALL": "C", **(env or {})})


def package_names(lines: str) -> set[str]:
    return set(re.findall(r"^([A-Za-z0-9._-]+)==", lines, re.MULTILINE))


def locked(*groups: str) -> str:
    return "".join((ROOT / "requirements" / f"{group}.lock").read_text(encoding="utf-8") for group in groups or GROUPS)


def test_no_package_is_in_two_locks() -> None:
    """Otherwise a package could be pinned to two versions."""
    packages = [package_names(locked(group)) for group in GROUPS]
    assert all(packages)
    assert sum(len(names) for names in packages) == len(set[str]().union(*packages))


def test_requirements_of_a_group_are_in_its_lock_or_an_earlier_one() -> None:
    for place, group in enumerate(GROUPS):
        lines = (ROOT / "requirements" / f"{group}.in").read_text(encoding="utf-8").splitlines()
        named = {match[0].lower() for line in lines if (match := re.match(r"[A-Za-z0-9._-]+", line)) and line[0] != "-"}
        assert named and named <= package_names(locked(*GROUPS[: place + 1]))
        assert (f"-r {GROUPS[place - 1]}.in" in lines) == (place > 0)


def test_default_install_uses_the_locks_unchanged() -> None:
    assert setup("lines", "locked").stdout == locked()


def test_small_install_omits_only_torch_and_cuda() -> None:
    left_out = package_names(locked()) - package_names(setup("lines", "cpu").stdout)
    assert {name for name in left_out if not name.startswith(("nvidia-", "cuda-"))} == {
        "torch",
        "torchvision",
        "triton",
    }
    assert "nvidia-cudnn-cu13" in left_out


def test_small_install_keeps_the_hashes_of_the_lock() -> None:
    for text in re.split(r"\n(?=[A-Za-z0-9])", setup("lines", "cpu").stdout):
        assert "--hash=sha256:" in text
        assert text in locked()


def test_service_install_has_no_training_or_test_packages() -> None:
    installed = package_names(setup("lines", "locked", "serving").stdout)
    assert {"torch", "fastapi", "sqlalchemy", "pillow"} <= installed
    others = {"dvc", "celery", "asyncssh", "diskcache", "gevent", "pandas", "pytest", "mypy", "ruff", "playwright"}
    assert others <= package_names(locked()) - installed


def test_unknown_backend_lists_the_choices() -> None:
    done = setup("install", "gpu")
    assert (done.returncode, done.stderr) == (1, "setup: TORCH_BACKEND is 'gpu'; known: locked, cpu\n")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the script elsewhere, so that an unexpected success can't change this clone's environment."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/setup", tmp_path / ".ci/setup")
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def stand_in(folder: Path, name: str, body: str) -> dict[str, str]:
    """Return an environment whose PATH finds our command `name` first."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (bin_folder / name).chmod(0o755)
    return {"PATH": f"{bin_folder}:{os.environ['PATH']}"}


def test_full_disk_is_detected_before_anything_is_created(copy: Path) -> None:
    env = stand_in(copy, "df", "printf 'Filesystem 1024-blocks Used Available\\n/dev/x 9 9 1024000\\n'")
    done = setup("install", env=env, script=copy / ".ci/setup")
    assert done.returncode == 1
    assert "1000 MiB of disk are free here, 8000 MiB are needed; TORCH_BACKEND=cpu needs 2500 MiB" in done.stderr
    assert not (copy / ".venv").exists()


def test_old_python_is_refused_by_version(copy: Path) -> None:
    body = 'test "$1" = --version && echo "Python 3.9.2"; test "$1" = --version'
    done = setup("install", env=stand_in(copy, "python3", body), script=copy / ".ci/setup")
    assert (done.returncode, done.stderr[:48]) == (1, "setup: Python 3.9.2 is too old, 3.11 or later is")


def test_python_without_venv_reports_the_missing_package(copy: Path) -> None:
    body = 'case "$2" in *ensurepip*) exit 1;; esac'
    done = setup("install", env=stand_in(copy, "python3", body), script=copy / ".ci/setup")
    assert (done.returncode, "apt install python3-venv" in done.stderr) == (1, True)


def test_unavailable_small_pytorch_is_detected_before_other_packages(copy: Path) -> None:
    programs, asked = copy / ".venv/bin", copy / "asked"
    programs.mkdir(parents=True)
    uv = f'echo "$*" >>{asked}; case "$*" in *--dry-run*) echo no route >&2; exit 1;; esac'
    for name, body in (("python", "exit 0"), ("uv", uv)):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    done = setup("install", "cpu", script=copy / ".ci/setup")
    assert (done.returncode, len(asked.read_text(encoding="utf-8").splitlines())) == (1, 1)
    assert "setup: the host of the small PyTorch can't be reached: no route\n" in done.stderr
    assert "without TORCH_BACKEND=cpu the locked one is installed" in done.stderr


class Clone:
    """A clone's build files, and an environment that imports `stages` from it."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / ".venv"
        (root / "stages").mkdir(parents=True)
        (root / "stages" / "__init__.py").touch()
        (root / "params").mkdir()
        (root / ".ci").mkdir()
        for name in (".ci/setup", "Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, root / name)
        shutil.copytree(ROOT / "requirements", root / "requirements", copy_function=shutil.copy)

    def install(self, clone: Path) -> None:
        """Create the environment that `make setup` leaves, importing from `clone`."""
        venv.create(self.venv, symlinks=True)
        site = next(self.venv.glob("lib/python*/site-packages"))
        (site / "claimcheck.pth").write_text(f"{clone}\n", encoding="utf-8")
        (self.venv / "ready-locked").touch()

    def make(self) -> subprocess.CompletedProcess[str]:
        """Run `make setup` with a Python that can't create environments, so that nothing is installed by mistake."""
        env = stand_in(self.root, "python3", "exit 1")
        return captured(["make", "setup", "TORCH_BACKEND=locked"], cwd=self.root, env={**os.environ, **env})


@pytest.fixture
def owner(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "owner")
    clone.install(clone.root)
    return clone


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("part", [".venv", ".venv/bin", ".venv/lib"])
def test_environment_is_never_changed_through_a_symlink(owner: Clone, tmp_path: Path, part: str) -> None:
    other = Clone(tmp_path / "other")
    if part != ".venv":
        shutil.copytree(owner.venv, other.venv, symlinks=True)
        shutil.rmtree(other.root / part)
    (other.root / part).symlink_to(owner.root / part)
    before = content(owner.venv)
    done = other.make()
    assert done.returncode != 0
    assert f"setup: {part} is a link to {owner.root / part}" in done.stderr
    assert f"remove the link (rm {part})" in done.stderr
    assert content(owner.venv) == before
    assert owner.make().returncode == 0


def test_copied_environment_is_rejected_and_rebuilt(owner: Clone, tmp_path: Path) -> None:
    other = Clone(tmp_path / "other")
    shutil.copytree(owner.venv, other.venv, symlinks=True)
    done = other.make()
    assert f"setup: .venv is a copy of the environment of {owner.root}; it is made anew" in done.stderr
    assert not other.venv.exists()
    assert owner.make().returncode == 0


def test_environment_of_another_clone_is_refused(owner: Clone, tmp_path: Path) -> None:
    other, before = Clone(tmp_path / "other"), content(owner.venv)
    done = setup("install", env={"VENV": str(owner.venv)}, script=other.root / ".ci/setup")
    assert (done.returncode, f"is the environment of the clone {owner.root}" in done.stderr) == (1, True)
    assert content(owner.venv) == before
