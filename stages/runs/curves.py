"""A run's learning curves: columns of numbers that can also be read epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, overload

from pydantic import TypeAdapter, ValidationError

from stages.run import STRICT


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch of a run's curves.  `test_*` come from the observer, which training never sees."""

    __pydantic_config__: ClassVar = STRICT
    epoch: int
    steps: int
    lr: float
    train_loss: float
    train_accuracy: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None


COLUMNS = tuple(field.name for field in fields(EpochRow))
_COUNTS, _NUMBERS = TypeAdapter(list[int]), TypeAdapter(list[float])
_IN_EVERY_EPOCH: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(("epoch", "steps"), _COUNTS),
    **dict.fromkeys(("lr", "train_loss"), _NUMBERS),
}
_IN_SOME_EPOCHS = TypeAdapter(list[float | None])


class Curves(Sequence[EpochRow]):
    """Epochs whose numbers are stored by column: hundreds of thousands of rows are read, checked and recorded at once.

    A row is made on demand; iterating over all of them makes them once.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = dict(columns)
        self._rows: tuple[EpochRow, ...] | None = None

    @classmethod
    def read(cls, columns: Mapping[Any, Any]) -> Curves:
        """Read columns from a file.

        Raises:
            ValueError: a column is unknown, missing, shorter than another, or contains something other than numbers.
        """
        if unknown := [name for name in columns if name not in COLUMNS]:
            raise ValueError(f"unknown column {unknown[0]}; known: {', '.join(COLUMNS)}")
        if columns and (missing := [name for name in _IN_EVERY_EPOCH if name not in columns]):
            raise ValueError(f"column {missing[0]} is missing")
        read = {name: _read_column(name, column) for name, column in columns.items()}
        if len({len(column) for column in read.values()}) > 1:
            raise ValueError(f"columns have different lengths: {', '.join(f'{n} {len(read[n])}' for n in read)}")
        return cls(read)

    def column(self, name: str) -> Sequence[Any]:
        """One value per epoch; None where there is none."""
        return self._columns[name] if name in self._columns else [None] * len(self)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    @overload
    def __getitem__(self, index: int) -> EpochRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[EpochRow, ...]: ...
    def __getitem__(self, index: int | slice) -> EpochRow | tuple[EpochRow, ...]:
        if isinstance(index, slice):
            return self._all()[index]
        if self._rows is not None:
            return self._rows[index]
        return EpochRow(**{name: column[index] for name, column in self._columns.items()})

    def __iter__(self) -> Iterator[EpochRow]:
        return iter(self._all())

    def _all(self) -> tuple[EpochRow, ...]:
        if self._rows is None:
            columns = (self.column(name) for name in COLUMNS)
            self._rows = tuple(EpochRow(**dict(zip(COLUMNS, row, strict=True))) for row in zip(*columns, strict=True))
        return self._rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as that of any sequence that is compared by its values

    def __repr__(self) -> str:
        return f"Curves({self._columns!r})"


def _read_column(name: str, column: Any) -> Sequence[Any]:
    try:
        return _IN_EVERY_EPOCH.get(name, _IN_SOME_EPOCHS).validate_python(column, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join([name, *map(str, first["loc"])])
        raise ValueError(f"{key_path}: {first['msg']}") from None


def as_curves(rows: Sequence[EpochRow]) -> Curves:
    """Convert any epochs to columns."""
    if isinstance(rows, Curves):
        return rows
    return Curves({name: [getattr(row, name) for row in rows] for name in COLUMNS})


def given_columns(rows: Sequence[EpochRow]) -> dict[str, list[Any]]:
    """The columns in which some epoch has a value."""
    curves = as_curves(rows)
    columns = {name: curves.column(name) for name in COLUMNS}
    return {name: list(values) for name, values in columns.items() if any(value is not None for value in values)}
