"""Subcommand `init`: start a project with the example of `docs/add-a-paper.md`; other files are copied from ours."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stages.commands.command import Answer
from stages.faults import Mistake
from stages.runs.fingerprint import PACKAGE_ROOT
from stages.runs.revisions import ask_git, prefix_in_git

_PAGE = "docs/add-a-paper.md"
_FILE = re.compile(r"^`(?P<name>[\w./-]+)`[^\n]*\n\n```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_KEPT = ("evidence", "models", "registrations")
_SECTION = re.compile(r"^(\w+):.*\n(?:(?:[ #].*)?\n)*", re.MULTILINE)


def start(_: argparse.Namespace) -> Answer:
    """Write the files of a project with its example, and make the folder a DVC repository if it isn't in one."""
    found = dict(_files())
    if here := [
        name for name in found if Path(name).exists() and name not in (".gitignore", ".dvcignore", "README.md")
    ]:
        raise Mistake(
            f"{', '.join(here)}: already in this folder, so nothing was written; "
            "in a repository with a pipeline, make a folder for the paper and run claimcheck init there"
        )
    for name, text in found.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        end = b"" if not before or before.endswith(b"\n") else b"\n"  # else its last line would swallow our first one
        path.write_bytes(before + end + text.encode())
    dvc = [sys.executable, "-m", "dvc"]
    if subprocess.run([*dvc, "root"], capture_output=True, check=False).returncode:
        place: dict[str | None, list[str]] = {None: ["--no-scm"], "": []}  # without git, and at a repository's top
        subprocess.run([*dvc, "init", "--quiet", *place.get(prefix_in_git(Path()), ["--subdir"])], check=True)
    root = subprocess.run([*dvc, "root"], capture_output=True, encoding="utf-8", check=True).stdout.strip()
    plots = Path(root, ".dvc", "plots", "arms.json")
    plots.parent.mkdir(exist_ok=True)
    if not plots.exists():
        plots.write_bytes((PACKAGE_ROOT / ".dvc" / "plots" / plots.name).read_bytes())
    shown = [f"wrote {name}" for name in found]
    if ignored := (ask_git(Path(), "check-ignore", *found, ceiling="") or "").splitlines():
        shown.append(f"git ignores {', '.join(ignored)}: commit them with `git add --force`")
    return Answer(document={"files": [*found]}, shown=[*shown, "next: claimcheck repro, then claimcheck status"])


def _files() -> Iterator[tuple[str, str]]:
    """Yield name and text of every file of a new project."""
    for match in _FILE.finditer((PACKAGE_ROOT / _PAGE).read_text(encoding="utf-8")):
        yield match["name"], match["text"]
    text = re.sub(r"^#.*\n", "", (PACKAGE_ROOT / "params.yaml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {match[1]: match[0] for match in _SECTION.finditer(text)}
    mnist = re.search(r"^  mnist:\n(?:   .*\n)+", sections["datasets"], re.MULTILINE)
    assert mnist is not None
    sections["experiments"] = "experiments:\n  toy-mnist: {paper: toy, dataset: mnist}\n\n"
    sections["datasets"] = f"datasets:\n{mnist[0]}"
    sections["verdicts"] = re.sub(r"(?<=\n  families: ).*", "[]", sections["verdicts"])
    yield "params.yaml", "# Profiles, rules, data sets and experiments.\n\n" + "".join(sections.values())
    pipeline = (PACKAGE_ROOT / "dvc.yaml").read_text(encoding="utf-8")
    pipeline = pipeline[pipeline.index("vars:") :].replace("python -m stages.stage", "claimcheck stage")
    pipeline = pipeline.replace("python -m stages.inputs", "claimcheck stage inputs")
    # The installed code isn't in this folder: the stage looks at it each time.
    yield (
        "dvc.yaml",
        pipeline.replace("    deps:\n      - stages\n", "    always_changed: true\n    deps:\n      - papers\n"),
    )
    ignored = (PACKAGE_ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    yield ".gitignore", "\n".join(["__pycache__/", *(line for line in ignored if line.startswith("/data/")), ""])
    yield ".dvcignore", "__pycache__\n*.pyc\n"
    yield "data/claims-history.jsonl", ""
    yield from ((f"data/{name}/.gitkeep", "") for name in _KEPT)
