"""The container image without an engine: the Dockerfile's own lines are parsed and run in a folder."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from PIL import Image

from tests.project import REPOSITORY
from tests.service.running import running

DOCKERFILE = re.sub(r"\\\n\s*", "", (REPOSITORY / "Dockerfile").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
EXACT = re.compile(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z-]*[a-z]+")


def stages() -> dict[str, list[str]]:
    """Return the lines of each stage, preceded by those of its base stage."""
    found: dict[str, list[str]] = {"": []}  # before any FROM
    name = ""
    for line in DOCKERFILE.splitlines():
        if begun := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            name = begun[2]
            found[name] = list(found.get(begun[1], []))
        if line and not line.startswith("#"):
            found[name].append(line)
    return found


def built_from() -> list[Path]:
    """Return the files that .dockerignore allows into the build."""
    rules = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    roots = [REPOSITORY / rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    found = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_images_have_exact_tags() -> None:
    """The build may override them, for example by digest."""
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - set(stages()) == {"${PYTHON_IMAGE}"}
    python = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    database = re.fullmatch(r"\$\{POSTGRES_IMAGE:-(\S+)\}", COMPOSE["services"]["database"]["image"])
    assert python and EXACT.fullmatch(python[1]) and database and EXACT.fullmatch(database[1])
    assert COMPOSE["services"]["service"]["build"]["args"] == ["PYTHON_IMAGE"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_runs_unprivileged_with_a_health_check(target: str) -> None:
    lines = stages()[target]
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001"]
    assert lines[-1] == "USER 10001" and "chown" not in " ".join(lines), "last: nothing below /app is the service's"
    assert sum(line.startswith("HEALTHCHECK") and "/health/ready" in line for line in lines) == 1
    assert f"{target}-packages" in " ".join(lines) and "pip install" not in " ".join(lines)


def test_compose_gives_the_service_minimal_rights() -> None:
    for name, service in COMPOSE["services"].items():
        assert (service.get("read_only") or name == "database") and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert name == "record" or (service["mem_limit"] and service["pids_limit"])
    assert COMPOSE["services"]["service"]["ports"] == ["127.0.0.1:8000:8000"]
    assert "ports" not in COMPOSE["services"]["database"]


@pytest.fixture
def python(tmp_path: Path) -> Iterator[str]:
    """Interpreter of an environment with only the `serve` packages and this environment's torch variant."""
    packages = tmp_path / "packages"
    backend = Path(sys.prefix, "torch-backend").read_text(encoding="utf-8").strip()
    environment = {**os.environ, "VENV": str(packages), "PYTHON": sys.executable}
    subprocess.run([REPOSITORY / ".ci/setup", "serving", backend], env=environment, check=True)
    yield str(packages / "bin/python")
    shutil.rmtree(packages)  # gigabytes unless hard-linked from uv's cache


def package_names(python: str) -> set[str]:
    """List the packages that this interpreter finds."""
    code = "from importlib.metadata import distributions as d; print(*{one.name.lower() for one in d()})"
    return set(subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.needs(network=True)  # pip's resolver needs uv's cache
@pytest.mark.timeout(900)
def test_copied_files_record_and_serve_with_only_the_serve_packages(tmp_path: Path, python: str) -> None:
    """Follows the `cpu` target from its COPY lines to its health check."""
    assert package_names(python) < package_names(sys.executable)
    assert not {"dvc", "celery", "asyncssh", "gevent", "diskcache", "uv"} & package_names(python)

    lines = stages()["cpu"]
    sources = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    folders = [REPOSITORY / source for source in sources if not source.startswith("--")]
    app = tmp_path / "app"
    for path in built_from():
        if any(path == folder or folder in path.parents for folder in folders):
            to = app / path.relative_to(REPOSITORY)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    for command in next(line for line in lines if "stages.record" in line).removeprefix("RUN ").split(" && "):
        done = subprocess.run([python, *command.split()[1:]], cwd=app, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    check = next(line for line in lines if line.startswith("HEALTHCHECK")).partition("CMD ")[2]
    (app / "service/static/style.css").write_text("/* the copy */", encoding="utf-8")
    image = io.BytesIO()
    Image.new("L", (28, 28)).save(image, "png")
    with running(app, tmp_path, code=app, python=python) as service:
        words = json.loads(check.replace("8000", str(service.port)))
        assert subprocess.run([python, *words[1:]], check=False, timeout=60).returncode == 0
        with httpx.Client(base_url=service.address, timeout=60) as client:
            style = client.get("/static/style.css").text
            assert style == "/* the copy */", "the copied code answers, not this clone's"
            for path in ("/", "/docs", "/claims", "/compare?dataset=cifar100&format=csv", "/api/v1/export.zip"):
                assert client.get(path).status_code == 200, path
            assert client.get("/compare?dataset=cifar100").json()["comparisons"]
            checkpoints = [one["id"] for one in client.get("/api/v1/checkpoints").json()]
            assert len(checkpoints) == len(list((app / "data/models").glob("*.safetensors")))
            for checkpoint in checkpoints:
                answer = client.post(f"/predict?checkpoint={checkpoint}", files={"file": image.getvalue()})
                assert answer.status_code == 200, answer.text
