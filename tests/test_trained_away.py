"""Training into an object store equals training into a folder bit for bit, and other clones reuse the results."""

import shutil
from pathlib import Path

import pytest

from stages.runs.object_store import ObjectStore, open_store
from stages.scheduling.journal import PREFIX
from stages.scheduling.leases import Leases
from tests.object_server import ObjectServer
from tests.preloaded import python
from tests.project import EXPERIMENT, environment, make_project

FILES = ("spec.json", "history.jsonl", "weights.safetensors")


def train(project: Path, *options: str, **more: str) -> str:
    done = python("-m", "stages.train", EXPERIMENT, *options, cwd=project, env=environment() | more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def linked(project: Path) -> dict[str, tuple[bytes, ...]]:
    """Return the contents, independent of the store, of each outcome in the experiment's folder."""
    folders = sorted((project / "data" / "runs" / EXPERIMENT).glob("*/"))
    return {folder.name: tuple((folder / name).read_bytes() for name in FILES) for folder in folders}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, ...]]:
    """Outcomes trained into a folder."""
    project = make_project(tmp_path_factory.mktemp("folder") / "project")
    train(project)
    found = linked(project)
    assert len(found) == 2
    return found


def test_object_store_outcomes_equal_those_of_a_folder(
    tmp_path: Path, object_url: str, expected: dict[str, tuple[bytes, ...]]
) -> None:
    project = make_project(tmp_path / "project")
    shutil.copytree(project, tmp_path / "clone")
    assert train(project, CLAIMCHECK_STORE=object_url).count("to train, new") == 2
    assert linked(project) == expected
    assert not (project / "data" / "store" / "runs").exists(), "the local store isn't used"
    store = ObjectStore(object_url, tmp_path / "look")
    assert (
        list(store.run_keys()) == sorted(expected)
        and [work for work in store.scratch.list_works() if not work.startswith(PREFIX)] == []
    )
    leases = Leases(store)
    assert [one.end for key in expected for one in leases.attempts(key)] == ["published"] * 2
    assert leases.holder(*expected) is None
    assert train(tmp_path / "clone", CLAIMCHECK_STORE=object_url).count("taken from the store") == 2
    assert linked(tmp_path / "clone") == expected


def test_stopped_training_resumes_on_another_machine(
    tmp_path: Path, object_url: str, expected: dict[str, tuple[bytes, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its state in the object store."""
    project = make_project(tmp_path / "project")
    shutil.copytree(project, tmp_path / "clone")
    code = (
        "import signal, sys\n"
        "from stages.runs.object_store import ObjectScratch\n"
        "save = ObjectScratch.save\n"
        "def stop(self, name, content):\n"
        "    save(self, name, content)\n"
        "    if name.endswith('/resume.pt'):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "ObjectScratch.save = stop\n"
        "from stages.train import main\n"
        f"sys.exit(main(['{EXPERIMENT}']))\n"
    )
    stopped = python("-c", code, cwd=project, env=environment() | {"CLAIMCHECK_STORE": object_url})
    assert stopped.returncode == 1 and "the next dvc repro resumes from here" in stopped.stdout
    store = ObjectStore(object_url, tmp_path / "look")
    (begun,) = [work for work in store.scratch.list_works() if not work.startswith(PREFIX)]
    output = train(tmp_path / "clone", CLAIMCHECK_STORE=object_url)
    assert linked(tmp_path / "clone") == expected
    assert output.count("epoch 1/3") == 1, "only the other run"
    assert [one.end for one in Leases(store).attempts(begun)] == ["stopped", "published"]


def test_unusable_object_store_is_one_line(tmp_path: Path, object_server: ObjectServer) -> None:
    project = make_project(tmp_path / "project")
    env = environment() | object_server.environment
    for url, words in (
        ("ftp://host/x", "ftp://host/x: no object store; known: s3://, gs://, az://; fix that, then run this again"),
        ("s3://none/x", "s3://none/x: "),
    ):
        done = python("-m", "stages.train", EXPERIMENT, cwd=project, env=env | {"CLAIMCHECK_STORE": url})
        assert done.returncode == 1 and done.stderr.startswith(f"train: {words}") and done.stderr.count("\n") == 1


def test_object_store_cache_is_in_a_folder_that_git_ignores(
    tmp_path: Path, object_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIMCHECK_STORE", object_url)
    store = open_store(tmp_path)
    assert isinstance(store, ObjectStore)
    assert store.cache.root.is_relative_to(tmp_path / "data" / "store")
