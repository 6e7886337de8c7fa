"""Rules that hold for every file in git, whatever its content."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from stages.runs.revisions import ask_git

ROOT = Path(__file__).resolve().parent.parent
MAX_TRACKED_BYTES = 1024 * 1024
MAX_EVIDENCE_BYTES = 13_000_000  # 555 trainings of SGEMM: 22 kB each, curves of 300 to 435 epochs
MAX_LINES = 600  # a long file about one subject is easier to follow than many small ones
MAX_TEST_LINES = 860
# Small trained models may be committed, below data/models.
MAX_MODEL_BYTES, MAX_MODELS_BYTES = 6_000_000, 30_000_000
# Split so that this file doesn't match itself.
REGISTRY_HOST = re.compile(
    r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|registry[.]npmjs|deb[.]debian[.]org"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|tmp|Users|mnt)/[\w.-]+")
INDEX_LINE = re.compile(r"^\s*(?:-i|--index-url|--extra-index-url|--find-links|-f)\b|https?://", re.MULTILINE)


@cache
def tracked_files() -> tuple[Path, ...]:
    """List the files in git's index that still exist; skip outside a clone."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git clone: nothing is tracked")
    return tuple(path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file())


@cache
def tracked_text() -> dict[str, str]:
    texts = {}
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content[:8192]:
            texts[str(path.relative_to(ROOT))] = content.decode()
    return texts


def places(pattern: re.Pattern[str], exempt: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked_text().items()
        if name not in exempt
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


class Call(NamedTuple):
    """A call in the code: where it is, the called name, the names of its keywords, and all strings in it."""

    place: str
    name: str
    is_method: bool
    keywords: set[str | None]
    strings: set[str]


@cache
def calls(folders: tuple[str, ...] = ("stages/", "service/", "benchmarks/")) -> list[Call]:
    return [
        Call(
            f"{name}:{node.lineno}",
            getattr(node.func, "attr", getattr(node.func, "id", "")),
            isinstance(node.func, ast.Attribute),
            {keyword.arg for keyword in node.keywords},
            {word.value for word in ast.walk(node) if isinstance(word, ast.Constant) and isinstance(word.value, str)},
        )
        for name, text in tracked_text().items()
        if name.startswith(folders) and name.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def test_files_are_never_opened_in_the_locales_encoding() -> None:
    # Ruff's PLW1514 only checks objects that it knows to be paths.
    ascii_json_and_code = ("stages/datasets/packed.py", "stages/papers/__init__.py")
    kernel_files = ("stages/device.py", "stages/ops/fast/cpp.py", "stages/training/process.py")
    distributions = ("stages/params/callables.py",)  # importlib reads their files in UTF-8
    found = []
    for call in (*calls(), *calls(("tests/",))):
        is_text = call.name == "read_text" or (call.name == "write_text" and call.is_method)
        is_text |= (
            not call.place.startswith("tests/")
            and call.name in ("run", "Popen", "check_output")
            and bool(call.keywords & {"text", "universal_newlines"})
        )
        if is_text and "encoding" not in call.keywords:
            found.append(call.place)
    assert [
        place for place in found if not place.startswith((*ascii_json_and_code, *kernel_files, *distributions))
    ] == []


def test_text_is_never_checked_with_isdigit() -> None:
    """`isdigit` accepts Latin-1's superscript two, which `int` rejects, and headers and arguments may contain it."""
    of_bytes_or_no_number = ("stages/runs/revisions.py", "service/routes/inference.py", "service/pages/searching.py")
    found = [call.place for call in calls() if call.name == "isdigit"]
    assert [place for place in found if not place.startswith(of_bytes_or_no_number)] == []


def test_only_one_module_runs_git() -> None:
    found = [call.place for call in calls() if "git" in call.strings]
    assert [place for place in found if not place.startswith(("benchmarks/", "stages/runs/revisions.py"))] == []


def test_advice_names_commands_that_every_project_has() -> None:
    in_run_keys_and_verdicts = ["stages/claims/kinds/base.py", "stages/datasets/packed.py"]
    found = [place.partition(":")[0] for place in places(re.compile(r'^(?!\s*""").*"[^"]*`python -m stages'))]
    assert sorted(name for name in found if name.startswith(("stages/", "service/"))) == in_run_keys_and_verdicts


def test_yaml_is_written_without_aliases() -> None:
    found = [call.place for call in calls() if call.name in ("safe_dump", "dump") and call.is_method]
    assert [place for place in found if not place.startswith("stages/yaml_reader.py")] == []


def test_no_file_names_a_package_registry() -> None:
    assert places(REGISTRY_HOST) == []


def test_no_file_contains_a_machines_path() -> None:
    assert places(MACHINE_PATH) == []


def test_no_setting_of_git_converts_line_ends() -> None:
    """Digests are of bytes, and Git for Windows sets `core.autocrlf` by default."""
    listed = (ask_git(ROOT, "ls-files", "--eol") or "").splitlines()
    kept = re.compile(r"i/(lf|none|-text) .*attr/(text=auto eol=lf|-text)\s")
    assert [line for line in listed if not kept.match(line)] == []


def test_no_yaml_file_repeats_a_key() -> None:
    """Loaders silently keep the last one."""
    found = []
    for path in tracked_files():
        if path.suffix in (".yaml", ".yml") and path.name != "mkdocs.yml":  # has custom tags
            for document in yaml.compose_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
                found += [f"{path.relative_to(ROOT)}: {key}" for key in keys_that_occur_twice(document)]
    assert found == []
    assert [*keys_that_occur_twice(yaml.compose("a: {b: 1, c: [{d: 1, d: 2}]}"))] == ["d"]


def keys_that_occur_twice(node: yaml.Node | None) -> Iterator[str]:
    match node:
        case yaml.MappingNode(value=pairs):
            counts = Counter(str(key.value) for key, _ in pairs)
            yield from (key for key, count in counts.items() if count > 1)
            for _, value in pairs:
                yield from keys_that_occur_twice(value)
        case yaml.SequenceNode(value=items):
            for item in items:
                yield from keys_that_occur_twice(item)


@pytest.mark.parametrize("group", ["serve", "pipeline", "dev", "docs", "cluster"])
def test_locks_have_no_index_and_hash_every_package(group: str) -> None:
    lock = (ROOT / "requirements" / f"{group}.lock").read_text(encoding="utf-8")
    assert INDEX_LINE.findall(lock) == []
    packages = re.split(r"\n(?=[A-Za-z0-9])", lock)
    assert [text.split("==")[0] for text in packages if "--hash=sha256:" not in text] == []


def test_every_decision_referred_to_exists_once() -> None:
    existing = re.findall(r"^### (\d{4})$", (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {
        number for text in tracked_text().values() for number in re.findall(r"decisions?(?:\.md#| )(\d{4})\b", text)
    }
    assert len(existing) == len(set(existing)) and named <= {*existing}, named - {*existing}


def test_tracked_files_are_small() -> None:
    models = [path for path in tracked_files() if path.suffix == ".safetensors"]
    evidence = [path for path in tracked_files() if path.parent == ROOT / "data" / "evidence"]
    others = {
        str(path.relative_to(ROOT)): path.stat().st_size
        for path in tracked_files()
        if path not in [*models, *evidence] and path.stat().st_size > MAX_TRACKED_BYTES
    }
    assert others == {}
    assert [path.name for path in evidence if path.stat().st_size > MAX_EVIDENCE_BYTES] == []
    assert [path for path in models if path.stat().st_size > MAX_MODEL_BYTES] == []
    assert sum(path.stat().st_size for path in models) <= MAX_MODELS_BYTES


def test_no_source_file_is_too_long() -> None:
    lengths = {name: text.count("\n") for name, text in tracked_text().items() if name.endswith(".py")}
    limits = {name: MAX_TEST_LINES if name.startswith("tests/") else MAX_LINES for name in lengths}
    assert {name: lines for name, lines in lengths.items() if lines > limits[name]} == {}


def test_no_unfinished_code() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "Not" + "ImplementedError")
    assert places(re.compile(r"\b(" + "|".join(words) + r")\b"), exempt=("LICENSE",)) == []


def test_pipeline_outputs_are_not_tracked() -> None:
    """DVC doesn't let git ignore its lock, so that needs a test."""
    built = ("dvc.lock", "data/downloads/", "data/store/", "data/raw/", "data/processed/", "data/runs/", "data/report/")
    assert [name for name in tracked_text() if name.startswith(built)] == []


def test_paths_that_documents_name_exist() -> None:
    path = re.compile(r"`((?:stages|service|tests|benchmarks|docs|deploy)/[\w./-]+)`")
    pages = {name: text for name, text in tracked_text().items() if name.endswith(".md") and name != "CHANGELOG.md"}
    named = {(name, found) for name, text in pages.items() for found in path.findall(text)}
    assert named and {(name, found) for name, found in named if not (ROOT / found).exists()} == set()
