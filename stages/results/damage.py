"""A database that can't answer, and columns that say so when they hold something else than they should."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Dialect, TypeDecorator


class ResultsUnavailable(RuntimeError):
    """The database can't answer: it is absent, unreadable, or built by another version of the tables."""


def damaged(reason: object) -> ResultsUnavailable:
    return ResultsUnavailable(f"the results database is damaged ({reason}); `python -m stages.record` rebuilds it")


class JSONOf(TypeDecorator):
    """JSON of one kind, `dict` or `list`; None, where there may be none, is SQL's NULL.

    Raises:
        ResultsUnavailable: a row holds JSON of another kind.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type, *, or_none: bool = False) -> None:
        super().__init__(none_as_null=True)
        self.kind, self.or_none = kind, or_none

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if not isinstance(value, self.kind) and not (self.or_none and value is None):
            raise damaged(f"a column of {self.kind.__name__}s holds a {type(value).__name__}")
        return value
