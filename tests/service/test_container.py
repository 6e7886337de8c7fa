"""The content of the image, rehearsed without an engine: the Dockerfile's own lines are read and run in a folder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from tests.project import REPOSITORY
from tests.service.running import running

DOCKERFILE = re.sub(r"\\\n\s*", "", (REPOSITORY / "Dockerfile").read_text())
COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
EXACT = re.compile(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z-]*[a-z]+")


def stages() -> dict[str, list[str]]:
    """The lines of each stage, preceded by those of the stage that it builds on."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in DOCKERFILE.splitlines():
        if begun := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            name = begun[2]
            found[name] = list(found.get(begun[1], []))
        if line and not line.startswith("#"):
            found[name].append(line)
    return found


def built_from() -> list[Path]:
    """Files that .dockerignore lets into the build."""
    rules = (REPOSITORY / ".dockerignore").read_text().splitlines()
    roots = [REPOSITORY / rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    found = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_images_are_named_exactly() -> None:
    images = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - set(stages())
    images.add(COMPOSE["services"]["database"]["image"])
    assert len(images) == 2
    assert [image for image in images if not EXACT.fullmatch(image)] == []


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_image_runs_as_nobody_and_says_how_it_feels(target: str) -> None:
    lines = stages()[target]
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001"]
    assert lines.index("USER 10001") < next(place for place, line in enumerate(lines) if "stages.record" in line)
    assert sum(line.startswith("HEALTHCHECK") and "/health/ready" in line for line in lines) == 1
    assert f"{target}-packages" in " ".join(lines) and "pip install" not in " ".join(lines)


def test_compose_gives_the_service_no_more_than_it_needs() -> None:
    for name in ("record", "service"):
        service = COMPOSE["services"][name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert COMPOSE["services"]["service"]["ports"] == ["127.0.0.1:8000:8000"]
    assert "ports" not in COMPOSE["services"]["database"]


@pytest.mark.slow
def test_what_is_copied_records_and_serves(tmp_path: Path) -> None:
    """The `cpu` target from its COPY lines to its health check, with this environment for its packages."""
    lines = stages()["cpu"]
    sources = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    folders = [REPOSITORY / source for source in sources if not source.startswith("--")]
    for path in built_from():
        if any(path == folder or folder in path.parents for folder in folders):
            to = tmp_path / path.relative_to(REPOSITORY)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    for command in next(line for line in lines if "stages.record" in line).removeprefix("RUN ").split(" && "):
        done = subprocess.run(
            [sys.executable, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    check = next(line for line in lines if line.startswith("HEALTHCHECK")).partition("CMD ")[2]
    (tmp_path / "service/static/style.css").write_text("/* the copy */")
    with running(tmp_path, tmp_path, code=tmp_path) as service:
        words = json.loads(check.replace("8000", str(service.port)))
        assert subprocess.run([sys.executable, *words[1:]], check=False, timeout=60).returncode == 0
        with urlopen(f"{service.address}/static/style.css", timeout=60) as style:
            assert style.read() == b"/* the copy */", "the copied code answers, not this clone's"
