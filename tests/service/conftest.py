import dataclasses
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from filelock import FileLock
from PIL import Image
from playwright.sync_api import Browser, Page

from service.app import create_app
from service.http.access import digest_of
from service.settings import Settings
from stages.analyse import hours, lines, papers
from stages.params.experiment import load_params
from stages.recording.builder import record
from tests.service.browsing import chromium, open_page, watched
from tests.service.results_factory import REPOSITORY
from tests.service.running import Running, running

IN_GIT = ("claims-history.jsonl", "claims.csv", "evidence", "models", "registrations", "samples")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def settings(root: Path) -> Settings:
    limits = {"max_image_bytes": 300_000, "max_body_bytes": 1_000_000, "max_images": 4, "max_pixels": 40_000_000}
    return Settings(root=root, workers=1, **limits)


@pytest.fixture(scope="session")
def service(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service in its own process with default settings."""
    with running(root, tmp_path_factory.mktemp("service-log")) as service:
        yield service


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """Yield a client of a started and warm service, which ends with the block."""
    app = create_app(settings)
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        while not app.state.claimcheck.readiness.is_warm:
            time.sleep(0.01)
        yield client


@contextmanager
def reading(settings: Settings, *, peer: str = "testclient") -> Iterator[TestClient]:
    """Yield a client, with the address `peer`, of a service that shows results but isn't started: no model answers."""
    client = (peer, 50_000)
    yield TestClient(create_app(settings), "http://127.0.0.1", raise_server_exceptions=False, client=client)


@pytest.fixture(scope="session")
def client(settings: Settings) -> Iterator[TestClient]:
    with serving(settings.model_copy(update={"workers": 2})) as client:
        yield client


@pytest.fixture(scope="session")
def published_client(published: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a service on the evidence and models in git, without this clone's packed data."""
    root = tmp_path_factory.mktemp("published")
    link(root)
    with serving(Settings(root=root, database=published)) as client:
        yield client


def link(root: Path) -> None:
    """Link the repository's files into `root`, except data that aren't in git."""
    (root / "data").mkdir(parents=True)
    names = [path.name for path in REPOSITORY.iterdir() if path.name != "data" and not path.name.startswith(".")]
    for name in (*names, *(f"data/{name}" for name in IN_GIT)):
        (root / name).symlink_to(REPOSITORY / name)


@pytest.fixture(scope="session")
def computed_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evidence and models in git plus findings that need no training.

    The first test process builds it for all.
    """
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "computed"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            link(root)
            margins = load_params(root).verdicts.margins
            found = {paper: import_module(f"stages.papers.{paper}.findings").findings(margins) for paper in papers()}
            (root / "data" / "findings.jsonl").write_bytes(lines(found))
            params = load_params(root)
            few = {name: params.experiments[name] for name in ("ninformer-cifar10",)}
            estimated = hours(dataclasses.replace(params, experiments=few))
            (root / "data" / "hours.json").write_text(json.dumps(estimated), encoding="utf-8")
            record(root, "data/results.db")
    return root


@pytest.fixture(scope="session")
def computed_client(computed_root: Path) -> Iterator[TestClient]:
    """A client of a service on `computed_root`."""
    with serving(Settings(root=computed_root, database="data/results.db")) as client:
        yield client


@pytest.fixture(scope="session")
def published_service(computed_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service in its own process on `computed_root`."""
    folder = tmp_path_factory.mktemp("published-log")
    with running(computed_root, folder, CLAIMCHECK_DATABASE="data/results.db") as service:
        yield service


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def open_tab(browser: Browser, service: Running) -> Iterator[Page]:
    with open_page(browser, service.address) as page:
        yield page


@pytest.fixture
def page(open_tab: Page, service: Running) -> Iterator[Page]:
    """A page of `service`, shared by a module's tests one after another; see `watched`."""
    with watched(open_tab, service.address) as page:
        yield page


def png(seed: int = 0, size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    """Return a noise image."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def keys_file(folder: Path, **named: str) -> Path:
    """Write a file of keys, each given as the lines of its table or just the key."""
    place = folder / "keys.toml"
    tables = [
        f"[{name}]\n" + (lines if "=" in lines else f'sha256 = ["{digest_of(lines)}"]') for name, lines in named.items()
    ]
    place.write_text("\n".join(tables) + "\n", encoding="utf-8")
    return place
