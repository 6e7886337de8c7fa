"""PostgreSQL as the database: the same content and answers as SQLite."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import BigInteger, Integer, make_url, select, text
from sqlalchemy.orm import Session

from benchmarks.server import free_port
from service.app import create_app
from service.http import middleware
from service.settings import Settings
from stages import record as verb
from stages.recording.builder import record
from stages.recording.sources import RecordError
from stages.results import Base, Meta, Result, ResultsUnavailable, Sessions, create_results, database_url, open_results
from tests.postgres import find_programs
from tests.project import REPOSITORY

pytestmark = pytest.mark.slow

Create = Callable[[], str]


@pytest.fixture
def opened() -> Iterator[Callable[[str], Sessions]]:
    """`open_results`, whose connections are closed at teardown."""
    made: list[Sessions] = []

    def open_place(place: str) -> Sessions:
        made.append(open_results(place))
        return made[-1]

    yield open_place
    for sessions in made:
        sessions.kw["bind"].dispose()


def open_client(root: Path, place: str) -> TestClient:
    app = create_app(Settings(root=root, database=place))
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def content(sessions: Sessions) -> str:
    with sessions() as session:
        return session.scalars(select(Meta.value).where(Meta.name == "content")).one()


def test_compose_service_has_read_only_access(
    root: Path, postgresql: Create, opened: Callable[[str], Sessions]
) -> None:
    url = postgresql()
    compose = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
    script = compose["configs"]["reader"]["content"].replace(
        "DATABASE claimcheck", f"DATABASE {url.rpartition('/')[2]}"
    )
    psql = shutil.which("psql") or f"{find_programs()}/psql"
    done = subprocess.run(
        [psql, "-v", "ON_ERROR_STOP=1", url], input=script, env={**os.environ, "READER_PASSWORD": "it's"}, text=True
    )
    assert done.returncode == 0
    record(root, url)
    place = make_url(database_url(url)).set(username="reader", password="it's").render_as_string(False)
    with open_client(root, place) as client:
        assert client.get("/api/v1/runs").json()
    with psycopg.connect(place.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        for statement in ("DELETE FROM meta", "CREATE TABLE x (y int)", "CREATE TEMPORARY TABLE x (y int)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def answers(client: TestClient) -> dict[str, tuple[int, Any]]:
    """Collect the responses of every address reachable from the lists, and of some invalid ones."""
    found: dict[str, tuple[int, Any]] = {}
    queue = [
        "/compare",
        "/compare?dataset=cifar100&format=csv",
        "/compare?metric=inference_time",
        "/compare?dataset=no",
    ]
    document = client.get("/api/v1/openapi.json").json()
    queue += [path for path, item in document["paths"].items() if "get" in item and path.startswith("/api/v1/")]
    while queue:
        address = queue.pop()
        if "{" in address or address in found:
            continue
        answer = client.get(address)
        is_json = answer.headers["content-type"].endswith("json")
        found[address] = answer.status_code, answer.json() if is_json else answer.text
        for item in answer.json() if is_json and isinstance(answer.json(), list) else []:
            name = item.get("name") or item.get("id") or item.get("run_key")
            queue.append(f"{address.partition('?')[0]}/{name}")
        queue += re.findall(r"/api/v1/runs/\w+/\w+", answer.text)
    return found


def test_postgresql_and_sqlite_give_the_same_answers(root: Path, postgresql: Create) -> None:
    url = postgresql()
    record(root, url)
    clients = [open_client(root, place) for place in (url, "data/results.db")]
    ours, expected = (answers(client) for client in clients)
    clients[0].app.state.claimcheck.reading.dispose()
    assert ours == expected
    assert len(ours) > 60 and {status for status, _ in ours.values()} == {200, 404, 422}  # two models are missing


def test_next_request_sees_a_rebuilt_database(root: Path, postgresql: Create, tmp_path: Path) -> None:
    """Enough requests for the driver to prepare its statements permanently."""
    root = Path(shutil.copytree(root, tmp_path / "root"))
    url = postgresql()
    record(root, url)
    client = open_client(root, url)

    def runs() -> list[int]:
        (comparison,) = client.get("/compare?dataset=cifar10").json()["comparisons"]
        return [len(arm["run_keys"]) for arm in comparison["arms"]]

    before = [runs() for _ in range(8)]
    (root / "data" / "results" / "ninformer-cifar10.jsonl").unlink()
    record(root, url)
    time.sleep(middleware.FRESH_SECONDS)
    after = [runs() for _ in range(8)]
    client.app.state.claimcheck.reading.dispose()
    assert before == [[1] * 4] * 8
    assert after == [[0] * 4] * 8


def test_failed_recording_keeps_the_old_rows(
    root: Path, postgresql: Create, opened: Callable[[str], Sessions], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    url = postgresql()
    record(root, url)
    before = content(sessions := opened(url))
    lines = root / "data" / "results" / "ninformer-cifar10.jsonl"
    lines.write_text(lines.read_text(encoding="utf-8").replace('"code":', '"cod":'), encoding="utf-8")
    with pytest.raises(RecordError, match="has no code"):
        record(root, url)

    def fail(session: Session) -> None:
        raise KeyError("half way")

    with pytest.raises(KeyError):
        create_results(url, fail)
    assert content(sessions) == before


def test_database_with_an_older_schema_is_rebuilt(
    root: Path, postgresql: Create, opened: Callable[[str], Sessions]
) -> None:
    """A removed table refers to one that still exists."""
    url = postgresql()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE results (id integer PRIMARY KEY)")
        connection.execute("CREATE TABLE remarks (result_id integer REFERENCES results (id), remark text)")
        connection.execute("CREATE TABLE meta (name text PRIMARY KEY, value text)")
        connection.execute("INSERT INTO meta VALUES ('schema_version', '1')")
    with pytest.raises(ResultsUnavailable, match="schema version 1, expected"), opened(url)() as session:
        session.execute(text("SELECT 1"))
    record(root, url)
    with opened(url)() as session:
        assert session.query(Result).count() == 24


def test_every_integer_column_has_64_bits() -> None:
    """A text's token count exceeds 32 bits, which PostgreSQL rejects and SQLite accepts."""
    columns = [column for table in Base.metadata.sorted_tables for column in table.columns]
    narrow = [
        column for column in columns if isinstance(column.type, Integer) and not isinstance(column.type, BigInteger)
    ]
    assert [str(column) for column in narrow] == []


def test_service_connection_is_read_only(root: Path, postgresql: Create, opened: Callable[[str], Sessions]) -> None:
    url = postgresql()
    record(root, url)
    with opened(url)() as session, pytest.raises(Exception, match="read-only transaction"):
        session.execute(text("DELETE FROM meta"))


def test_unreachable_server_is_reported_without_its_password(root: Path) -> None:
    url = f"postgresql://reader:hunter2@127.0.0.1:{free_port()}/results"
    with pytest.raises(ResultsUnavailable, match=r"can't write postgresql://reader:\*\*\*@127") as failure:
        record(root, url)
    assert "hunter2" not in str(failure.value)
    answer = open_client(root, url).get("/compare")
    assert answer.status_code == 503
    assert "hunter2" not in answer.text


def test_record_writes_the_tracked_file_and_the_named_database(
    root: Path,
    postgresql: Create,
    opened: Callable[[str], Sessions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shutil.copytree(root, tmp_path / "root"))
    Path("data/results.db").unlink()
    url = postgresql().replace("claimcheck@", "claimcheck:secret@")
    monkeypatch.setenv("CLAIMCHECK_DATABASE", url)
    assert verb.main() == 0
    assert content(opened("data/results.db")) == content(opened(url))
    printed = capsys.readouterr().out
    assert "record: postgresql://claimcheck:***@127.0.0.1" in printed and "secret" not in printed
