"""Result lines: the results of one run in one environment, as JSON lines.

`evaluate` writes `data/results/<experiment>.jsonl`, whose bytes are the same for the same runs.  Seconds and memory,
which differ on every machine, go to `data/results/<experiment>.cost.jsonl`.  `claimcheck publish` joins both with their
provenance into `data/evidence/<experiment>.jsonl`, which is committed.  `claimcheck accept` adds what other labs
trained, as `data/evidence/labs/<lab>.jsonl`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, overload

import numpy as np
from pydantic import PlainValidator, TypeAdapter, ValidationError

from stages.faults import Mistake
from stages.run import STRICT, canonical_json, environment_digest


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch of a run's curves.  `test_*` are measured by an observer and never used in training."""

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
    """Epochs stored by column, so that hundreds of thousands of rows are read, checked and recorded at once.

    Rows are created on demand; iterating over all of them creates each once.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = dict(columns)
        self._rows: tuple[EpochRow, ...] | None = None

    @classmethod
    def read(cls, columns: Any) -> Curves:
        """Read columns from a file.

        Raises:
            ValueError: a column is unknown, missing, shorter than another, or contains something other than numbers.
        """
        if not isinstance(columns, Mapping):
            raise ValueError("expected an object with a list per column")
        if unknown := [name for name in columns if name not in COLUMNS]:
            raise ValueError(f"unknown column {unknown[0]}; known: {', '.join(COLUMNS)}")
        if columns and (missing := [name for name in _IN_EVERY_EPOCH if name not in columns]):
            raise ValueError(f"column {missing[0]} is missing")
        read = {}
        for name, column in columns.items():
            try:
                read[name] = _IN_EVERY_EPOCH.get(name, _IN_SOME_EPOCHS).validate_python(column, strict=False)
            except ValidationError as error:
                first = error.errors()[0]
                raise ValueError(f"{'.'.join([name, *map(str, first['loc'])])}: {first['msg']}") from None
        if len({len(column) for column in read.values()}) > 1:
            raise ValueError(f"columns have different lengths: {', '.join(f'{n} {len(read[n])}' for n in read)}")
        return cls(read)

    def column(self, name: str) -> Sequence[Any]:
        """Return one value per epoch, None for an epoch without one."""
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

    __hash__ = None  # type: ignore[assignment]  # as for any sequence compared by value

    def __repr__(self) -> str:
        return f"Curves({self._columns!r})"


def as_curves(rows: Sequence[EpochRow]) -> Curves:
    """Convert any epochs to columns."""
    if isinstance(rows, Curves):
        return rows
    return Curves({name: [getattr(row, name) for row in rows] for name in COLUMNS})


def given_columns(rows: Sequence[EpochRow]) -> dict[str, list[Any]]:
    """Return the columns in which some epoch has a value."""
    curves = as_curves(rows)
    columns = {name: curves.column(name) for name in COLUMNS}
    return {name: list(values) for name, values in columns.items() if any(value is not None for value in values)}


Provenance = Literal["embedded", "subset", "full"]
RunStatus = Literal["finished", "diverged"]
Moment = Literal["start", "trained"]
INEXACT_SHARE = 0.005  # if more than this share of the test rows is missing, a data set isn't `full`
Layers = Mapping[str, tuple[tuple[float | None, ...], ...]]
Line = TypeVar("Line")

EQUIVALENCES, LABS = "equivalences.jsonl", "labs"


class EvidenceError(Mistake, ValueError):
    """A result line can't be read; the message names its file and line."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured number; fractions are in [0, 1].  `n` is its sample size, None if it isn't a sample statistic.

    `by`, for a metric of another package: its `address`, `arguments` and what it `takes`, and the versions or digests
    of its `code`.
    """

    __pydantic_config__: ClassVar = STRICT
    metric: str
    split: Literal["train", "val", "test", "none"]
    value: float
    n: int | None = None
    by: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class DataUsed:
    """The packed data behind a result; `test_images` counts those scored, `excluded_test_images` those left out."""

    __pydantic_config__: ClassVar = STRICT
    dataset: str
    digest: str
    provenance: Provenance
    train_images: int
    test_images: int
    excluded_test_images: int = 0


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Point at which the loss stopped being finite: after `last_finite_step`, at `step` or earlier."""

    __pydantic_config__: ClassVar = STRICT
    step: int
    last_finite_step: int
    last_finite_loss: float | None


@dataclass(frozen=True, kw_only=True)
class ResultLine:
    """The result of one run in one environment, under one arm.

    A diverged run has no metrics; `divergence` says where it stopped.  `observed` has quantities measured inside the
    network before and after training, one number per block and head, or None if a number isn't defined.  It is absent
    if no paper reports such quantities, and in lines written before they were recorded.
    """

    __pydantic_config__: ClassVar = STRICT
    experiment: str
    arm: str
    replicate: int
    run_key: str
    profile: str
    cut: str
    status: RunStatus
    spec: Mapping[str, Any]
    data: DataUsed
    environment_digest: str
    environment: Mapping[str, Any]
    metrics: tuple[Measurement, ...]
    curves: Annotated[Sequence[EpochRow], PlainValidator(Curves.read)]
    weights_sha256: str | None = None
    correct: str | None = None
    confusion: str | None = None
    divergence: Divergence | None = None
    observed: Mapping[Moment, Layers] | None = None

    @property
    def name(self) -> str:
        return f"{self.experiment}.{self.arm}.{self.replicate}"

    @property
    def machine_digest(self) -> str:
        """Digest of the environment without fast paths and the canary, which differ between arms on one machine."""
        process = self.environment.get("process")
        if process is None:
            return self.environment_digest
        own = {name: value for name, value in process.items() if name not in ("canary", "fast_paths")}
        return environment_digest({**self.environment, "process": own})


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """Cost of a run on the machine that trained it, and of inference on the machine that evaluated it.

    Latency is the median of `latency_repeats` passes of a batch after `latency_warmup` uncounted ones, with the device
    synchronised before and after each pass; it is None if this replicate wasn't timed.  `energy_joules` is None if the
    device doesn't report its energy.  `train_tokens_per_second` is only for texts, which are trained on in windows of
    tokens.
    """

    __pydantic_config__: ClassVar = {**STRICT, "allow_inf_nan": False}
    experiment: str
    arm: str
    replicate: int
    run_key: str
    environment_digest: str
    train_seconds: float
    epoch_seconds: tuple[float, ...]
    samples_per_second: float
    peak_memory_bytes: int
    train_tokens_per_second: float | None = None
    energy_joules: float | None = None
    latency_seconds_per_sample: float | None = None
    latency_batch_size: int | None = None
    latency_warmup: int | None = None
    latency_repeats: int | None = None
    latency_device: str | None = None
    latency_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of an evidence line; `dirty` says whether relevant files differed from the git `revision`.

    `lab`: name of another lab that trained it; None for this project's own results.
    """

    __pydantic_config__: ClassVar = STRICT
    revision: str
    dirty: bool
    published: str
    versions: Mapping[str, str]
    lab: str | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """A checkpoint in `data/models/`, stored as `dtype`, and its score on the result's own test set.

    `same_class` is the share of the `n` test images that get the same class as with the unrounded weights.
    """

    __pydantic_config__: ClassVar = STRICT
    sha256: str
    dtype: str
    accuracy: float
    same_class: float
    n: int


@dataclass(frozen=True, kw_only=True)
class SealedLine(ABC):
    """A line with `digest`, the sha256 of the canonical line without it, which `write_lines` computes.

    A line without a digest, or with a wrong one, is rejected.
    """

    __pydantic_config__: ClassVar = STRICT
    digest: str | None = None

    @property
    @abstractmethod
    def remedy(self) -> str:
        """Advice on how to make such a line again."""


@dataclass(frozen=True, kw_only=True)
class EvidenceLine(SealedLine):
    """A published result with its cost and origin, and with `release` if its model is in git.

    `states`: sha256 of the resume states that its lab can deposit, by the number of epochs before them.
    """

    result: ResultLine
    cost: CostLine
    origin: Origin
    release: Release | None = None
    states: Mapping[str, str] | None = None

    @property
    def remedy(self) -> str:
        return f"publish {self.result.name} again (claimcheck publish {self.result.experiment})"


def write_lines(lines: Iterable[Any]) -> bytes:
    """Serialise each line as canonical JSON, in sorted order, so that equal lines give equal bytes.

    Optional fields that are None are left out.  Sealed lines get their digest.
    """
    texts = sorted(
        canonical_json(seal(_plain(line)) if isinstance(line, SealedLine) else _plain(line)) for line in lines
    )
    return "".join(f"{text}\n" for text in texts).encode()


def seal(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a line with its digest."""
    unsealed = {name: value for name, value in line.items() if name != "digest"}
    return unsealed | {"digest": hashlib.sha256(canonical_json(unsealed).encode()).hexdigest()}


def _plain(value: Any) -> Any:
    if isinstance(value, ResultLine):
        given = {name: _plain(part) for name, part in vars(value).items() if part is not None and name != "curves"}
        return given | {"curves": given_columns(value.curves)}
    if dataclasses.is_dataclass(value):
        pairs = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: _plain(item) for field, item in pairs if item is not None or field.default is not None}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


_adapter = cache(TypeAdapter)


def evidence_files(folder: Path) -> list[Path]:
    """List the files of published results in `folder`: one per experiment, then one per lab."""
    own = sorted(path for path in folder.glob("*.jsonl") if path.name != EQUIVALENCES)
    return [*own, *sorted((folder / LABS).glob("*.jsonl"))]


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Read all lines of `path` as `kind`; an absent file has none."""
    if not path.is_file():
        return []
    adapter: TypeAdapter[Line] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            line = adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            key_path = ".".join(str(part) for part in first["loc"])
            raise EvidenceError(f"{where}: {key_path or 'line'}: {first['msg']}") from None
        lines.append(line)
        if not isinstance(line, SealedLine):
            continue
        # text as written by `write_lines` needn't be parsed again
        unsealed = text.replace(f'"digest":"{line.digest}",'.encode(), b"", 1)
        if hashlib.sha256(unsealed).hexdigest() == line.digest:
            continue
        try:
            wanted = seal(json.loads(text))["digest"]
        except ValueError as error:
            raise EvidenceError(f"{where}: {error}") from None
        if line.digest != wanted:
            found = f"its digest is {line.digest[:12]}" if line.digest else "it has no digest"
            raise EvidenceError(
                f"{where}: {found}, its content gives {wanted[:12]}: it was changed after it was published; "
                f"restore it from git, or {line.remedy}"
            )
    return lines


def list_observed(observed: Mapping[Moment, Layers]) -> list[tuple[str, Moment, int, int, float | None]]:
    """List each number with its quantity, moment, block and head, both counted from 1."""
    return [
        (quantity, moment, block, head, value)
        for moment, layers in observed.items()
        for quantity, blocks in layers.items()
        for block, heads in enumerate(blocks, start=1)
        for head, value in enumerate(heads, start=1)
    ]


def pack_correct(correct: np.ndarray) -> str:
    """Encode whether each test image was classified correctly, bool [N], as packed bits in base64."""
    return base64.b64encode(np.packbits(correct.astype(bool)).tobytes()).decode()


def unpack_correct(text: str, n: int) -> np.ndarray:
    """Decode the text of `pack_correct` for n images: bool [n]."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(bits, count=n).astype(bool)


def pack_confusion(confusion: np.ndarray) -> str:
    """Encode counts [K, K], true by predicted class, as zlib-compressed little-endian uint32 in base64."""
    return base64.b64encode(zlib.compress(confusion.astype("<u4").tobytes(), 9)).decode()


def unpack_confusion(text: str, classes: int) -> np.ndarray:
    """Decode the text of `pack_confusion`: int64 [K, K]."""
    counts = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<u4")
    return counts.reshape(classes, classes).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A result with its cost, and the file and line that it was read from.

    - `origin`: None for a result of this working tree.
    - `is_planned`: the params give the arm the same model and the same protocol fields of its own today.
      `follows_plan`: the whole protocol and the replicate are the same, too.
    - `varied`: protocol fields in which the experiment's arms differ on purpose.
    - `changed_code`: modules of the result's fingerprint whose source differs in this tree or is missing from it.  It
      is empty if `equivalences` (line numbers) show that both versions of the code give the same results.
    - `outdated`: what has changed since, by metric of the user's own whose number is left out for that.
    - `digest`: the evidence line's digest, "" for a local result.  `states`: as in the evidence line.
    - `row`: the result's number in the database.
    """

    result: ResultLine
    cost: CostLine | None
    origin: Origin | None
    release: Release | None
    file: Path
    line: int
    is_planned: bool = True
    follows_plan: bool = True
    digest: str = ""
    states: Mapping[str, str] = dataclasses.field(default_factory=dict)
    varied: tuple[str, ...] = ()
    changed_code: tuple[str, ...] = ()
    equivalences: tuple[int, ...] = ()
    outdated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    row: int = 0

    @property
    def source(self) -> Literal["evidence", "local"]:
        return "local" if self.origin is None else "evidence"

    @property
    def lab(self) -> str:
        """Name of the other lab that trained it; "" for this project's own results."""
        return (self.origin and self.origin.lab) or ""

    @property
    def name(self) -> str:
        return f"{self.result.name}{f' of {self.lab}' if self.lab else ''}"

    @property
    def device(self) -> str:
        return str(self.result.environment.get("device_name", self.result.environment.get("device", "")))

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        line = self.result
        return line.run_key, line.environment_digest, line.experiment, line.arm, line.replicate

    @cached_property
    def conditions(self) -> str:
        """Digest of protocol, data, part of the test rows and lab, which must be equal for results to be compared."""
        shared = {name: value for name, value in self.result.spec["protocol"].items() if name not in self.varied}
        data = self.result.data
        left_out = data.excluded_test_images / (data.test_images + data.excluded_test_images)
        part = [data.test_images] if left_out > INEXACT_SHARE else []
        text = canonical_json([shared, data.digest, *part, *([self.lab] if self.lab else [])])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
