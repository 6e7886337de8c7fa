"""Opens and creates the results database; errors for names that it doesn't contain."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic_core import from_json
from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from stages.faults import FAULTS, UnknownName, describe_fault
from stages.results.tables import SCHEMA_VERSION, Base, Meta, ResultsUnavailable, damaged
from stages.rules import Rules
from stages.verdicts.intervals import level, looks_of_numbers, looks_of_plan
from stages.verdicts.metrics import METRICS, MetricInfo

Sessions = sessionmaker[Session]
_ROWS_AT_ONCE = 100_000
CONNECT_SECONDS, LOCK_SECONDS, STATEMENT_SECONDS = 3, 2, 30
SILENT_SECONDS = STATEMENT_SECONDS + 5
"""Time to wait for a server that should have ended the statement by then."""
_BUILT_IN = "claimcheck_new"
_SWAP_SECONDS, _SWAPS = 0.2, 300
"""Longest wait for a lock, after which the writer lets readers finish and tries again; and the number of tries."""
_UNSTORABLE = re.compile("[\\0\\ud800-\\udfff]")


class UnknownPaper(UnknownName): ...


class UnknownDataset(UnknownName): ...


class UnknownExperiment(UnknownName): ...


class UnknownArm(UnknownName): ...


class UnknownProfile(UnknownName): ...


class UnknownMetric(UnknownName): ...


class UnknownRun(UnknownName): ...


class UnknownCheckpoint(UnknownName): ...


class UnknownClaim(UnknownName): ...


def database_url(database: str) -> str:
    """Return the SQLAlchemy URL of a database; a plain path means a SQLite file."""
    return database if "://" in database else f"sqlite:///{database}"


def open_results(database: str, *, connections: int = 8) -> Sessions:
    """Return read-only sessions on `database`, a path or a URL with at most this many `connections`.

    Every SQLite session reopens the file: the next session sees a database that `record` swaps in, while a session in
    progress finishes on the old file.
    """
    url = make_url(database_url(database))
    if url.get_backend_name() == "sqlite":
        creator = partial(_connect_read_only, Path(url.database or ""))
        engine = create_engine("sqlite://", creator=creator, poolclass=NullPool, json_deserializer=_parse_json)
    else:
        engine = create_engine(url, pool_pre_ping=True, pool_size=connections, max_overflow=0, pool_timeout=5)
        event.listen(engine, "do_connect", _connect_with_limits)
        engine = engine.execution_options(postgresql_readonly=True)
    event.listen(engine, "connect", _schema_check(engine))
    event.listen(engine, "handle_error", _refuse_damaged)
    event.listen(
        engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, parameters, _context, _many: (statement, _storable(parameters)),
        retval=True,
    )
    return sessionmaker(engine)


def _connect_read_only(path: Path) -> sqlite3.Connection:
    try:
        address = f"file:{quote(str(path))}?mode=ro"
        return sqlite3.connect(address, timeout=LOCK_SECONDS, uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        words = " at the moment"
        try:  # SQLite doesn't say why
            path.open("rb").close()
        except FileNotFoundError:
            raise ResultsUnavailable(
                "there is no results database yet: `make serve` builds it from the evidence in git, `make repro` by "
                "training"
            ) from error
        except OSError as fault:
            words = f": {fault.strerror}"
        raise ResultsUnavailable(f"the results database can't be opened{words}") from error


def _connect_with_limits(_dialect: object, _record: object, arguments: Any, options: dict[str, Any]) -> Any:
    """Connect to PostgreSQL with timeouts, so that nothing waits forever, even for a server that hangs."""
    import psycopg

    class Limited(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            try:
                return super().wait(gen, interval, SILENT_SECONDS if timeout is None else timeout)
            except psycopg.OperationalError:
                if self.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    self.pgconn.finish()  # the answer may still come, to another question
                raise

    limits = f"-c lock_timeout={LOCK_SECONDS}s -c statement_timeout={STATEMENT_SECONDS}s"
    given = f"{options.get('options', '')} {limits}".strip()
    return Limited.connect(*arguments, **{"connect_timeout": CONNECT_SECONDS, **options, "options": given})


def _storable(value: Any) -> Any:
    """Replace what no database can store in parameters: it matches nothing, and each driver fails in its own way."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {name: _storable(part) for name, part in value.items()}
    return type(value)(map(_storable, value)) if isinstance(value, list | tuple) else value


def _refuse_damaged(context: ExceptionContext) -> None:
    """Raise for a damaged page or text, which SQLite finds when it reads it, long after opening the file."""
    error = context.original_exception
    if type(error) is sqlite3.DatabaseError or str(error).startswith("Could not decode to UTF-8"):
        raise damaged(str(error).partition(" with text")[0])


def _parse_json(text: str) -> Any:
    try:
        return from_json(text)  # in half the time of `json`
    except ValueError as error:
        raise damaged(error) from None


def _schema_check(engine: Engine) -> Callable[[Any, Any], None]:
    errors = engine.dialect.loaded_dbapi.Error

    def check(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        try:
            cursor.execute("SELECT value FROM meta WHERE name = 'schema_version'")
            row = cursor.fetchone()
            cursor.close()
            connection.rollback()
        except errors as error:
            connection.close()
            raise ResultsUnavailable("the results database can't be read; `dvc repro` rebuilds it") from error
        if row is None or row[0] != str(SCHEMA_VERSION):
            connection.close()
            found = "none" if row is None else row[0]
            raise ResultsUnavailable(
                f"the results database has schema version {found}, expected {SCHEMA_VERSION}; `dvc repro` rebuilds it"
            )

    return check


def create_results(url: str, fill: Callable[[Session], None]) -> None:
    """Build the database at `url` from nothing and `fill` it in one transaction: all of it or the previous state.

    PostgreSQL gets the tables in a schema of their own, which are swapped in at the end, so readers don't wait.
    """
    engine = create_engine(url, json_serializer=lambda value: json.dumps(value, sort_keys=True))
    if engine.dialect.name == "sqlite":  # references are checked only when asked for
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    try:
        with engine.begin() as connection:
            is_postgresql = connection.dialect.name == "postgresql"
            target = connection.scalar(text("SELECT current_schema()")) if is_postgresql else None
            if is_postgresql:  # next to the tables that are read meanwhile
                connection.execute(text(f"CREATE SCHEMA {_BUILT_IN}"))
                connection.execute(text(f"SET LOCAL search_path TO {_BUILT_IN}"))
            else:
                Base.metadata.drop_all(connection)
            Base.metadata.create_all(connection)
            with Session(connection) as session:
                fill(session)
                session.flush()
                if target is not None:
                    _swap(connection, target)
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error  # without the statement and the address of SQLAlchemy's manual
        words = describe_fault(reason) if isinstance(reason, FAULTS) else reason
        raise ResultsUnavailable(f"can't write {make_url(url).render_as_string()}: {words}") from error
    finally:
        engine.dispose()


def insert_rows(session: Session, table: type[Base], rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert rows of plain values, in the order of the table's columns, without the ORM's work per row."""
    connection, columns = session.connection(), list(table.__table__.columns.keys())
    statement = insert(table).compile(dialect=connection.dialect, column_keys=columns)
    every = iter(rows)
    while part := list(islice(every, _ROWS_AT_ONCE)):
        if statement.positional:
            connection.exec_driver_sql(str(statement), part)
        else:
            connection.exec_driver_sql(str(statement), [dict(zip(columns, row, strict=True)) for row in part])


def _swap(connection: Connection, target: str) -> None:
    """Replace the tables in the schema `target` by the new ones, with whatever refers to them in an older version.

    Raises:
        OperationalError: readers held the tables at every try.
    """
    names = [f'"{table.name}"' for table in Base.metadata.sorted_tables]
    connection.execute(text(f"SET LOCAL lock_timeout = '{_SWAP_SECONDS}s'"))
    for left in reversed(range(_SWAPS)):
        try:
            with connection.begin_nested():
                for name in names:
                    connection.execute(text(f'DROP TABLE IF EXISTS "{target}".{name} CASCADE'))
                    connection.execute(text(f'ALTER TABLE {_BUILT_IN}.{name} SET SCHEMA "{target}"'))
                connection.execute(text(f"DROP SCHEMA {_BUILT_IN}"))
            return
        except OperationalError:
            if not left:
                raise
            time.sleep(_SWAP_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Levels:
    """`{replicates: confidence of the interval}` for each question that an interim analysis answers.

    `order`: which of two models is better.  `same` and `other`: whether a number, or the size of a difference, is the
    paper's or another one.  `with_error`: as `same`, if the paper prints its own error.
    """

    planned: int
    order: dict[int, float]
    same: dict[int, float]
    with_error: dict[int, float]
    other: dict[int, float]


def read_rules(session: Session) -> Rules:
    """Read the numbers of the rules by which the verdicts were reached."""
    found = session.scalar(select(Meta.value).where(Meta.name == "rules"))
    if found is None:
        raise damaged("it doesn't hold the numbers of the rules")
    return TypeAdapter(Rules).validate_json(found)


def known_metrics(session: Session) -> Mapping[str, MetricInfo]:
    """Return the metrics in which models can be compared: ours, and those of other packages."""
    found = json.loads(session.scalar(select(Meta.value).where(Meta.name == "metrics")) or "{}")
    own = {
        name: MetricInfo(name=name, title=name.replace("_", " ").capitalize(), unit=unit, better=better, split="test")
        for name, (unit, better) in found.items()
    }
    return {**METRICS, **own}


def levels_of(rules: Rules, planned: int) -> Levels:
    """Return the confidence of every question at each interim analysis of a plan, as `stages.verdicts` asks it."""
    orders = looks_of_plan(rules.looks, planned)
    values, printed = (
        looks_of_plan(looks_of_numbers(rules, is_error_printed=is_printed), planned) for is_printed in (False, True)
    )

    def confidence(looks: dict[int, float], alpha: float) -> dict[int, float]:
        return {n: 1 - level(looks, n, alpha) for n in looks}

    return Levels(
        planned=planned,
        order=confidence(orders, rules.alpha_outside),
        same=confidence(values, 2 * rules.alpha_within),
        with_error=confidence(printed, 2 * rules.alpha_within),
        other=confidence(values, rules.alpha_outside),
    )
