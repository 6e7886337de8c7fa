import atexit
import gc
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import psycopg
import pytest
from filelock import FileLock

from tests.datasets.official_host import OfficialHost
from tests.object_server import BUCKET, ObjectServer
from tests.postgres import cluster, find_programs

# A test's make must not inherit the flags and variables of `make test`, and no test another folder of downloads.
for name in ("CLAIMCHECK_HOME", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKEFILES", "GNUMAKEFLAGS"):
    os.environ.pop(name, None)
# A shell that starts tests in the background makes them, and all their children, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Set before torch is imported: several threads make small tests very slow on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A slow example only means that the machine is busy.
hypothesis.settings.register_profile("claimcheck", deadline=None, max_examples=40)
hypothesis.settings.load_profile("claimcheck")

OTHER_STORE = "CLAIMCHECK_TEST_STORE"
"""`s3://bucket`, `gs://bucket` or `az://container`: replaces the local object store, with keys from the environment."""


# The slowest files start first, so that workers, which take a file at a time, finish together.
LONG = (
    *("test_crate", "test_installed", "test_equivalence", "test_container", "test_every_kind", "test_verifying"),
    *("test_parallel", "test_walks", "test_decoding", "test_devices", "test_server", "test_recovery", "test_flood"),
    *("test_gpu_campaign", "test_memory", "test_cli", "test_stack", "test_published_pages"),
    *("test_tunnel", "test_all_trained", "test_loop", "test_contributing", "test_deploy", "test_silent_database"),
    *("test_gpu_check", "test_asking", "test_notebook", "test_refusals", "test_workers", "test_evaluate"),
    *("test_proposal", "test_power", "test_faults", "test_access", "test_batching", "test_imported"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """Exempt the objects of all test modules from garbage collection, because they live to the end."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # C++ libraries report leaks at exit


REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def official_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfficialHost]:
    """Local server that acts as the official hosts."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with OfficialHost() as host:
        yield host


@pytest.fixture(scope="session")
def real_mirror() -> Path:
    """Real benchmark data, from `CLAIMCHECK_MIRROR` or unpacked once from `shared/data` next to the repository.

    Unpacking takes up to a minute, so tests that use this fixture are marked slow.
    """
    given = os.environ.get("CLAIMCHECK_MIRROR")
    if given:
        return Path(given)
    packed = REPOSITORY.parent / "shared" / "data"
    if not (packed / "unpack.py").is_file():
        pytest.skip("no real data: set CLAIMCHECK_MIRROR to a folder of mirrored data sets (docs/data.md)")
    if find_spec("pillow_jxl") is None:
        pytest.skip("real data are next to the repository, but unpacking them needs pillow-jxl-plugin")
    version = hashlib.sha256((packed / "MANIFEST.json").read_bytes()).hexdigest()[:12]
    cache = Path(tempfile.gettempdir()) / f"claimcheck-mirror-{version}"
    if not cache.is_dir():
        staged = Path(tempfile.mkdtemp(prefix=f"{cache.name}-"))
        try:
            subprocess.run([sys.executable, packed / "unpack.py", staged], check=True, capture_output=True)
            staged.rename(cache)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return cache


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository root with MNIST as printed, CIFAR-100 at quick and CIFAR-10 on placeholder data, recorded."""
    from stages.recording.builder import record
    from tests.service.results_factory import make_root

    root = make_root(tmp_path_factory.mktemp("results"))
    record(root, "data/results.db")
    return root


@pytest.fixture
def own_root(root: Path, tmp_path: Path) -> Path:
    """A copy of the root that a test may change."""
    return Path(shutil.copytree(root, tmp_path / "root"))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a database of only the published evidence; the first test process builds it for all."""
    from stages.recording.builder import record

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(shared / "published.lock"):
        if not (shared / "published.db").exists():
            record(REPOSITORY, str(own / "published.db"), evidence_only=True)
            (own / "published.db").rename(shared / "published.db")
    return str(shared / "published.db")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], str]]:
    """Return a function that creates an empty PostgreSQL database and returns its URL."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server here; on Debian: apt install postgresql")
    numbers = itertools.count()
    with cluster(programs) as server:

        def create() -> str:
            name = f"results{next(numbers)}"
            with psycopg.connect(f"{server.url}/postgres", autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
            return f"{server.url}/{name}"

        yield create


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """Local S3-compatible object store."""
    if find_spec("obstore") is None:
        pytest.skip("no obstore here: `make cluster` adds it")
    if OTHER_STORE in os.environ:
        pytest.skip(f"{os.environ[OTHER_STORE]} can't be taken down by a test")
    with ObjectServer() as server:
        yield server


@pytest.fixture
def object_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty object store that this process and its children can reach."""
    if OTHER_STORE not in os.environ:
        for name, value in request.getfixturevalue("object_server").environment.items():
            monkeypatch.setenv(name, value)
    return f"{os.environ.get(OTHER_STORE, f's3://{BUCKET}')}/{uuid.uuid4().hex[:12]}"
