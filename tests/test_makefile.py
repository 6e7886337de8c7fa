"""The commands that the README promises lead to modules and subcommands that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stages.params.experiment import load_params
from tests.preloaded import python

ROOT = Path(__file__).resolve().parent.parent
FRAME = ("Makefile", "Dockerfile", ".ci/run", "dvc.yaml")


def make(*arguments: str, cwd: Path = ROOT) -> str:
    """The output of make, independent of any make around this process: a choice for the tests must not affect tested
    code.
    """
    chosen = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    env = {name: value for name, value in os.environ.items() if name not in [*chosen, "CLAIMCHECK_DEVICE"]}
    done = subprocess.run(["make", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout


def dry_run(*arguments: str) -> str:
    """The commands that make would run; it runs nothing."""
    return make("--dry-run", "TORCH_BACKEND=locked", *arguments)


def test_a_make_within_the_tests_is_no_part_of_the_one_that_runs_them() -> None:
    """The README says `make test`; what that make hands down would show in the output of each within."""
    code = "import os, tests.conftest; print(*(name for name in os.environ if 'MAKE' in name or name == 'MFLAGS'))"
    env = os.environ | {"MAKEFLAGS": "w -j1", "MFLAGS": "-w", "MAKELEVEL": "1", "MAKEOVERRIDES": "X=1"}
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []


def test_an_unknown_experiment_is_answered_with_the_nearest_or_the_known_ones() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        dry_run("repro", "EXPERIMENTS=ninformer-mnist ninformer-mnits")
    assert "no experiment ninformer-mnits; did you mean ninformer-mnist?" in refused.value.stderr
    with pytest.raises(subprocess.CalledProcessError) as refused:
        dry_run("repro", "EXPERIMENTS=x")
    assert "no experiment x; known: " in refused.value.stderr
    assert set(load_params(ROOT).experiments) <= set(re.findall(r"[\w-]+", refused.value.stderr))


def modules_called(name: str) -> set[str]:
    return set(re.findall(r"-m\W+(stages\.\w+(?:\.\w+)*|service)", (ROOT / name).read_text()))


@pytest.mark.parametrize("name", FRAME)
def test_every_module_that_is_called_can_be_run(name: str) -> None:
    called = modules_called(name)
    assert called
    bases = {module: ROOT.joinpath(*module.split(".")) for module in called}
    runnable = {m for m, base in bases.items() if base.with_suffix(".py").is_file() or (base / "__main__.py").is_file()}
    assert runnable == called


def test_every_subcommand_that_make_calls_is_known() -> None:
    called = set(re.findall(r"/claimcheck (\w+)", (ROOT / "Makefile").read_text()))
    assert called == {"profile", "repro"}
    for name in called:
        assert python("-m", "stages.cli", name, "--help", cwd=ROOT, env=os.environ).returncode == 0, name


def test_every_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert explained == set(phony[1].split())


def test_before_any_repro_the_service_gets_a_database_of_the_evidence(tmp_path: Path) -> None:
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
    show = ("--eval", "show: ; +@env | grep CLAIMCHECK_DEVICE", "show")  # make runs a + line in a dry run too
    assert "CLAIMCHECK_DEVICE=cuda" in dry_run(*show, "DEVICE=cuda")


@pytest.mark.parametrize(("files", "chosen"), [([], "locked"), (["torch-backend"], "locked"), (["ready-cpu"], "cpu")])
def test_the_backend_is_that_of_the_environment_once_it_is_complete(
    tmp_path: Path, files: list[str], chosen: str
) -> None:
    """A small install that failed doesn't choose for the next `make repro`."""
    (tmp_path / ".venv").mkdir()
    for name in files:
        (tmp_path / ".venv" / name).write_text("cpu\n")
    shown = make("-f", str(ROOT / "Makefile"), "--eval", "show: ; @echo $(TORCH_BACKEND)", "show", cwd=tmp_path)
    assert shown == f"{chosen}\n"


def test_the_image_copies_what_is_there() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+)", dockerfile, re.MULTILINE)
    sources = {source for copy in copies for source in copy.split()[:-1]}
    assert {source for source in sources if not (ROOT / source).exists()} == set()
    ignored = (ROOT / ".dockerignore").read_text()
    assert {source for source in sources if f"!{source}" not in ignored} == set()
