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

# `make test` hands down its own flags and variables, and a test's make is no part of it.
for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKEFILES", "GNUMAKEFLAGS"):
    os.environ.pop(name, None)
# A shell that starts tests in the background has them ignore Ctrl-C, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything brings in torch: threads that wait for each other make small tests crawl on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No deadline: a busy machine is no fault of an example.
hypothesis.settings.register_profile("claimcheck", deadline=None, max_examples=40)
hypothesis.settings.load_profile("claimcheck")

OTHER_STORE = "CLAIMCHECK_TEST_STORE"
"""`s3://bucket`, `gs://bucket` or `az://container`: tests take it for the object store, by the environment's keys."""


# They start first, so that workers which take a file at a time end together.
LONG = (
    *("test_installed", "test_tunnel", "test_every_kind", "test_server", "test_browser", "test_flood"),
    *("test_equivalence", "test_devices", "test_gpu_campaign", "test_gpu_check", "test_verifying", "test_access"),
    *("test_batching", "test_published_pages", "test_all_trained", "test_asking", "test_deploy", "test_parallel"),
    *("test_refusals", "test_evaluate", "test_cli", "test_faults", "test_triton", "test_power", "test_recovery"),
    *("test_workers", "test_memory", "test_decoding", "test_stack"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """What all tests' modules hold stays to the end: no collection of garbage needs to look at it again."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # C++ libraries count what is left at the end


REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def official_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfficialHost]:
    """A server on this machine that plays the official hosts."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with OfficialHost() as host:
        yield host


@pytest.fixture(scope="session")
def real_mirror() -> Path:
    """Real benchmark data: `CLAIMCHECK_MIRROR`, or unpacked once into a cache from `shared/data` beside the repository.

    Unpacking takes up to a minute, so tests that ask for this are marked slow.
    """
    given = os.environ.get("CLAIMCHECK_MIRROR")
    if given:
        return Path(given)
    packed = REPOSITORY.parent / "shared" / "data"
    if not (packed / "unpack.py").is_file():
        pytest.skip("no real data: set CLAIMCHECK_MIRROR to a folder of mirrored data sets (docs/data.md)")
    if find_spec("pillow_jxl") is None:
        pytest.skip("real data are beside the repository, but unpacking them needs pillow-jxl-plugin")
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
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of the published evidence only, which the first of the processes that want it makes for all."""
    from stages.recording import record

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(shared / "published.lock"):
        if not (shared / "published.db").exists():
            record(REPOSITORY, str(own / "published.db"), evidence_only=True)
            (own / "published.db").rename(shared / "published.db")
    return str(shared / "published.db")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], str]]:
    """A function that makes an empty PostgreSQL database and returns its URL."""
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
    """An object store on this machine that speaks S3."""
    if find_spec("obstore") is None:
        pytest.skip("no obstore here: `make cluster` adds it")
    if OTHER_STORE in os.environ:
        pytest.skip(f"{os.environ[OTHER_STORE]} can't be taken down by a test")
    with ObjectServer() as server:
        yield server


@pytest.fixture
def object_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty object store, which this process and those that it starts can reach."""
    if OTHER_STORE not in os.environ:
        for name, value in request.getfixturevalue("object_server").environment.items():
            monkeypatch.setenv(name, value)
    return f"{os.environ.get(OTHER_STORE, f's3://{BUCKET}')}/{uuid.uuid4().hex[:12]}"
