"""`claimcheck export crate`, read by third-party programs: RO-Crate's validator, and rdflib with SPARQL."""

import hashlib
import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stages.results import ClaimFilter, list_judged, open_results
from stages.upkeep.crate import PROFILE, write_crate
from stages.upkeep.exporting import ExportError
from tests.project import REPOSITORY

HERE = Path(__file__).parent
QUESTION = """
    PREFIX s: <http://schema.org/>
    SELECT ?training ?key WHERE {
      ?review s:itemReviewed/s:name "dac.sgemm.gain" ; s:isBasedOn ?outcome .
      ?training a s:CreateAction ; s:result ?outcome .
      ?outcome s:identifier ?key
    }
"""
HONEST = (
    "The Action SHOULD have an endTime in ISO 8601 format",  # no end times were recorded
    "The Application SHOULD have a url",  # there is no public address
    "The organization SHOULD have a URL",
    "The SoftwareApplication id SHOULD be an absolute URI",  # the message is about the class itself
)
"""Recommendations of the validator that the crate can't follow."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in git like in a fresh clone, without results of this working tree."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("CITATION.cff", "LICENSE", "NOTICE", "dvc.yaml", "params.yaml", "params", "pyproject.toml"):
        (folder / name).symlink_to(REPOSITORY / name)
    for name in ("requirements", "stages"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "data").mkdir()
    for name in ("evidence", "models", "claims.csv", "claims-history.jsonl"):
        (folder / "data" / name).symlink_to(REPOSITORY / "data" / name)
    return folder


@pytest.fixture(scope="module")
def crate(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crates") / "crate"
    write_crate(clone, folder)
    return folder


def graph(crate: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((crate / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    return {entity["@id"]: entity for entity in document["@graph"]}


def digest(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    lines = "".join(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def test_same_files_give_the_same_bytes(clone: Path, crate: Path, tmp_path: Path) -> None:
    written = write_crate(clone, tmp_path / "again")
    assert digest(tmp_path / "again") == digest(crate)
    assert written.counts == {"trainings": trainings(), "verdicts": len(claims())}
    with pytest.raises(ExportError, match="again exists already"):
        write_crate(clone, tmp_path / "again")


def trainings() -> int:
    folder = REPOSITORY / "data" / "evidence"
    files = (path for path in folder.glob("*.jsonl") if path.name != "equivalences.jsonl")
    return sum(len(path.read_bytes().splitlines()) for path in files)


def claims() -> list[str]:
    return (REPOSITORY / "data" / "claims.csv").read_text(encoding="utf-8").splitlines()[1:]


def test_training_has_its_inputs_and_outputs(crate: Path) -> None:
    entities = graph(crate)
    line = json.loads(
        (REPOSITORY / "data" / "evidence" / "dac-sgemm.jsonl").read_text(encoding="utf-8").splitlines()[0]
    )
    result, origin = line["result"], line["origin"]
    name = f"{result['experiment']}.{result['arm']}.{result['replicate']}"
    tail = f"{name}-{result['run_key'][:12]}-{result['environment_digest']}"
    training, outcome = entities[f"#training-{tail}"], entities[f"#outcome-{tail}"]
    assert training["instrument"] == {"@id": f"swh:1:rev:{origin['revision']}"}
    objects = [entities[one["@id"]] for one in training["object"]]
    assert objects[0]["identifier"] == result["data"]["digest"]
    assert hashlib.sha256(objects[1]["text"].encode()).hexdigest() == result["run_key"], "derived from its content"
    assert objects[2]["@id"] == "params/dac-sgemm.yaml" and (crate / "params" / "dac-sgemm.yaml").is_file()
    environment = entities[training["environment"]["@id"]]
    assert json.loads(environment["value"]) == result["environment"]
    assert training["result"] == {"@id": outcome["@id"]} and outcome["sha256"] == result["weights_sha256"]
    numbers = {entities[one["@id"]]["name"]: entities[one["@id"]]["value"] for one in outcome["variableMeasured"]}
    assert numbers.items() <= {row["metric"]: row["value"] for row in result["metrics"]}.items() and numbers


def test_crate_has_profile_licence_authors_and_all_its_files(crate: Path) -> None:
    entities = graph(crate)
    root = entities["./"]
    assert root["conformsTo"] == {"@id": PROFILE} and root["license"] == {"@id": "https://spdx.org/licenses/Apache-2.0"}
    assert entities[root["author"]["@id"]]["name"] == "The Claimcheck authors"
    files = {path.relative_to(crate).as_posix() for path in crate.rglob("*") if path.is_file()}
    described = {name for name in entities if (crate / name).is_file()}
    assert {name for name in files - described if not name.startswith("stages/")} == set()
    assert (
        "stages/" in entities and (crate / "stages" / "cli.py").is_file() and not any("__pycache__" in f for f in files)
    )
    assert len(root["mentions"]) == trainings() + 1, "every training, plus the judging"


def test_crate_of_a_project_of_ones_own_has_its_code_licences_and_authors(clone: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(clone, project, symlinks=True, ignore=shutil.ignore_patterns("stages", "CITATION.cff", "evidence"))
    (project / "papers").mkdir()
    (project / "papers" / "models.py").write_text("", encoding="utf-8")
    about = {"title": "Digits", "version": "3.1", "authors": [{"alias": "ada"}], "license": ["MIT", "BSD-3-Clause"]}
    for field in ("license", "version", "title", "authors"):
        lacking = {name: value for name, value in about.items() if name != field}
        (project / "CITATION.cff").write_text(json.dumps(lacking), encoding="utf-8")
        with pytest.raises(ExportError, match=rf"CITATION\.cff lacks {field}; add it"):
            write_crate(project, tmp_path / "crate")
    (project / "CITATION.cff").write_text(json.dumps(about), encoding="utf-8")
    write_crate(project, tmp_path / "crate")
    entities = graph(tmp_path / "crate")
    program = entities["#claimcheck"]
    assert (program["name"], program["softwareVersion"], program["hasPart"]) == ("Digits", "3.1", {"@id": "papers/"})
    assert program["softwareRequirements"] == f"claimcheck=={version('claimcheck')}"
    assert [entities[one["@id"]]["name"] for one in entities["./"]["license"]] == about["license"]
    assert entities["#authors"]["name"] == "ada" and (tmp_path / "crate" / "papers" / "models.py").is_file()


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of an environment with the hash-checked packages of `reader.lock`."""
    folder = tmp_path_factory.mktemp("reader")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv, "uv is in the pipeline's lock"
    python = folder / "bin" / "python"
    install = ["pip", "install", "--python", str(python), "--require-hashes", "-r", str(HERE / "reader.lock")]
    for words in (["venv", "--python", sys.executable, str(folder)], install):
        done = subprocess.run([uv, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return python


def ask(reader: Path, crate: Path, *question: str) -> Any:
    spec = find_spec("rocrate")
    assert spec is not None and spec.origin is not None
    context = Path(spec.origin).parent / "data" / "ro-crate.jsonld"
    words = [str(reader), "-I", str(HERE / "reader.py"), str(context), str(crate), *question]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.needs(network=True)
@pytest.mark.timeout(600)
def test_crate_passes_the_validator(reader: Path, crate: Path) -> None:
    issues = [one.partition(": ")[2] for one in ask(reader, crate)]
    assert [one for one in issues if not one.startswith(HONEST)] == []
    assert all(any(one.startswith(known) for one in issues) for known in HONEST), "it looked at the crate"


@pytest.mark.needs(network=True)
@pytest.mark.timeout(600)
def test_sparql_finds_the_trainings_that_decided_a_claim(reader: Path, crate: Path, published: str) -> None:
    rows = ask(reader, crate, QUESTION)
    with open_results(published)() as session:
        (one,) = (one for one in list_judged(session, ClaimFilter()) if one.claim.id == "dac.sgemm.gain")
        behind = {run.result.run_key for run in one.verdict.runs}
    assert {key for _, key in rows} == behind and len(rows) == len(behind) > 100
