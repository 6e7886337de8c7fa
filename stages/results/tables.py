"""The tables of `data/results.db`.  Fractions are in [0, 1], times in seconds, memory in bytes; names include units.

Rows keep the order of the params files and of the result lines in `position` and `id`, so that no answer depends on a
database's text collation.  The database is a build product of `record`: no migrations, a changed table raises
`SCHEMA_VERSION`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column, relationship

from stages.faults import Mistake
from stages.results.estimates import Measured, mark_of
from stages.runs.evidence import Provenance
from stages.verdicts import WORD_OF, Status, Word
from stages.verdicts.kinds import KINDS, KindFacts


class ResultsUnavailable(Mistake, RuntimeError):
    """The database can't answer: it is absent, unreadable, or built by another version of the tables."""


def damaged(reason: object) -> ResultsUnavailable:
    return ResultsUnavailable(f"the results database is damaged ({reason}); `claimcheck stage record` rebuilds it")


class JSONOf(TypeDecorator):
    """JSON of one kind, `dict` or `list`; with `or_none`, the column may also be NULL."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type, *, or_none: bool = False) -> None:
        super().__init__(none_as_null=True)
        self.kind, self.or_none = kind, or_none

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if not isinstance(value, self.kind) and not (self.or_none and value is None):
            raise damaged(f"a column of {self.kind.__name__}s holds a {type(value).__name__}")
        return value


SCHEMA_VERSION = 23


_IN_KEY_ORDER = {"sqlite_with_rowid": False}
"""For tables with many short rows: SQLite keeps them in their primary key alone, not in a table and an index."""


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        float: Double,
        int: BigInteger,  # a text has more tokens than 32 bits count
        dict[str, Any]: JSONOf(dict),
        list[Any]: JSONOf(list),
        str: String,
    }


class Meta(Base):
    """Facts about the database: `schema_version`, digests (`content`, `record`), `rules` as JSON, `newest_result`."""

    __tablename__ = "meta"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class Paper(Base):
    """A paper.  `title` and `summary` are the first two paragraphs of the docstring of its package.

    `repository` is the address of its authors' public code, if any.  `before_use` is what readers of its comparison
    must know first.  `called` is its short name, `asks` its main question, answered by claims that match `answered_by`.
    """

    __tablename__ = "papers"
    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    title: Mapped[str]
    summary: Mapped[str]
    repository: Mapped[str | None]
    before_use: Mapped[list[Any]]
    called: Mapped[str]
    asks: Mapped[str | None]
    answered_by: Mapped[list[Any]]


class ProfileRow(Base):
    """A budget; a higher `rank` is stronger evidence (the order of `params.yaml`)."""

    __tablename__ = "profiles"
    name: Mapped[str] = mapped_column(primary_key=True)
    rank: Mapped[int]
    data: Mapped[str]


class Dataset(Base):
    """A data set (images, table or text, or its task: `kind`), its official counts and the `shape` of one sample."""

    __tablename__ = "datasets"
    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    title: Mapped[str]
    kind: Mapped[str]
    shape: Mapped[list[Any]] = mapped_column()
    classes: Mapped[int]
    class_names: Mapped[list[Any]]
    train_images: Mapped[int]
    test_images: Mapped[int]
    licence: Mapped[str]
    homepage: Mapped[str]
    has_images: Mapped[bool] = column_property(func.json_array_length(shape) == 3)  # [C, H, W]


class ExperimentRow(Base):
    """A table or figure of a paper, on one data set."""

    __tablename__ = "experiments"
    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    title: Mapped[str]
    paper: Mapped[str] = mapped_column(ForeignKey("papers.name"), index=True)
    dataset: Mapped[str] = mapped_column(ForeignKey("datasets.name"), index=True)
    protocol: Mapped[dict[str, Any]] = mapped_column(doc="as printed, before the profile's cuts")
    seeds: Mapped[list[Any]]
    arms: Mapped[list[ArmRow]] = relationship(order_by="ArmRow.position")

    @property
    def replicates(self) -> int:
        """Number of printed replicates: every seed, with every fold if the split has folds."""
        return len(self.seeds) * (self.protocol["split"]["folds"] or 1)


class ArmRow(Base):
    """A model of an experiment, compared with the arm `against`.

    `protocol` has the fields that differ from the experiment's.  `hours` is the planned duration of one training as
    printed on each kind of device; it is empty if the operations of the model weren't counted.
    """

    __tablename__ = "arms"
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    role: Mapped[str]
    title: Mapped[str]
    model: Mapped[dict[str, Any]]
    protocol: Mapped[dict[str, Any]]
    against: Mapped[str | None]
    hours: Mapped[dict[str, Any]]


_CHOICE = ("experiment", "is_selected", "profile", "arm", "provenance", "source")


class Result(Base):
    """Result of one run in one environment, under one arm.

    `machine_digest` is the environment's digest without what differs between arms; `source` is evidence or local.
    `conditions` is a digest of protocol and data: only results under equal conditions are compared.  Results with equal
    profile and conditions form a group.  `group_position` counts an experiment's groups from 0, the strongest; it is
    None if the run is no longer planned.  `is_selected` marks the one result of a replicate that enters a comparison.
    `changed_code` lists modules whose source has changed since the training, unless `equivalences` (line numbers of
    data/evidence/equivalences.jsonl) show that no number changed.  Lists are sorted by `accuracy`, on the test set, and
    `train_seconds`, which repeat numbers of `metrics` and `costs`.
    """

    __tablename__ = "results"
    __table_args__ = (
        UniqueConstraint("run_key", "environment_digest", "experiment", "arm", "replicate"),
        ForeignKeyConstraint(["experiment", "arm"], ["arms.experiment", "arms.name"]),
        # Each index has all columns that a list of results is filtered and sorted by, so no row is read for it.
        Index("results_by_experiment", *_CHOICE[:3], "id", *_CHOICE[3:], "accuracy", "train_seconds"),
        Index("results_in_order", "id", *_CHOICE),
        Index("results_by_accuracy", "accuracy", "id", *_CHOICE),
        Index("results_by_train_seconds", "train_seconds", "id", *_CHOICE),
        Index("results_by_key", "run_key"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_key: Mapped[str]
    environment_digest: Mapped[str]
    machine_digest: Mapped[str]
    experiment: Mapped[str]
    arm: Mapped[str]
    replicate: Mapped[int]
    source: Mapped[str]
    is_selected: Mapped[bool]
    changed_code: Mapped[list[Any]]
    equivalences: Mapped[list[Any]]
    profile: Mapped[str] = mapped_column(ForeignKey("profiles.name"))
    provenance: Mapped[Provenance] = mapped_column(String)
    cut: Mapped[str]
    conditions: Mapped[str]
    group_position: Mapped[int | None]
    status: Mapped[str]
    data_digest: Mapped[str]
    train_images: Mapped[int]
    test_images: Mapped[int]
    excluded_test_images: Mapped[int]
    accuracy: Mapped[float | None]
    train_seconds: Mapped[float | None]
    weights_sha256: Mapped[str | None]
    spec: Mapped[dict[str, Any]]
    environment: Mapped[dict[str, Any]]
    divergence: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    metrics: Mapped[list[Metric]] = relationship(order_by="Metric.position")
    epochs: Mapped[list[Epoch]] = relationship(order_by="Epoch.epoch")
    cost: Mapped[Cost | None] = relationship()
    arrays: Mapped[list[Array]] = relationship(order_by="Array.kind")
    observations: Mapped[list[ObservationRow]] = relationship(order_by="ObservationRow.position")


class Metric(Base):
    """One number of a result; `n` counts the samples behind it."""

    __tablename__ = "metrics"
    __table_args__ = _IN_KEY_ORDER
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    split: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    value: Mapped[float]
    n: Mapped[int | None]


class ArmMetricRow(Base):
    """A metric of an arm as a whole, from the curves of its selected, finished results under equal conditions.

    `stderr` is as the paper computes it at the chosen `epoch`, None for one result.  `shares` lists [replicate, its
    share in `value`]; the mean of the shares is `value`.
    """

    __tablename__ = "arm_metrics"
    __table_args__ = (ForeignKeyConstraint(["experiment", "arm"], ["arms.experiment", "arms.name"]),)
    experiment: Mapped[str] = mapped_column(primary_key=True)
    arm: Mapped[str] = mapped_column(primary_key=True)
    profile: Mapped[str] = mapped_column(ForeignKey("profiles.name"), primary_key=True)
    conditions: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float]
    stderr: Mapped[float | None]
    epoch: Mapped[int]
    shares: Mapped[list[Any]]


class Epoch(Base):
    """One point of a result's curves."""

    __tablename__ = "epochs"
    __table_args__ = _IN_KEY_ORDER
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    steps: Mapped[int]
    lr: Mapped[float]
    train_loss: Mapped[float]
    train_accuracy: Mapped[float | None]
    val_loss: Mapped[float | None]
    val_accuracy: Mapped[float | None]
    test_loss: Mapped[float | None]
    test_accuracy: Mapped[float | None]


class Cost(Base):
    """The cost of a result on its machine."""

    __tablename__ = "costs"
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), primary_key=True)
    train_seconds: Mapped[float]
    epoch_seconds: Mapped[list[Any]]
    samples_per_second: Mapped[float]
    peak_memory_bytes: Mapped[int]
    energy_joules: Mapped[float | None] = mapped_column(doc="energy reported by the device")
    train_tokens_per_second: Mapped[float | None]
    latency_seconds_per_sample: Mapped[float | None]
    latency_batch_size: Mapped[int | None]
    latency_warmup: Mapped[int | None]
    latency_repeats: Mapped[int | None]
    latency_device: Mapped[str | None]
    latency_threads: Mapped[int | None]


class Array(Base):
    """A packed array, in the text form of `stages.runs.evidence`; `kind` is correct or confusion."""

    __tablename__ = "arrays"
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[str] = mapped_column(Text)


class ObservationRow(Base):
    """A number from inside a network, such as the width of a kernel, which is undefined if its β became negative."""

    __tablename__ = "observations"
    __table_args__ = (Index("observations_by_quantity", "quantity", "result_id"), _IN_KEY_ORDER)
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    quantity: Mapped[str]
    moment: Mapped[str] = mapped_column(doc="start (its initial weights) or trained")
    block: Mapped[int] = mapped_column(doc="from 1, as heads")
    head: Mapped[int]
    value: Mapped[float | None] = mapped_column(doc="null if not defined")


class Checkpoint(Base):
    """Weights that can be served; `id` is `<experiment>.<arm>.<replicate>`, `path` relative to the repository root.

    Weights that were rounded to be kept in git have their own `dtype` and `accuracy`, measured on the same test set.
    Both are None for the weights as trained, whose accuracy is that of the result.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (Index("checkpoints_by_experiment", "experiment", "position"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(index=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"))
    path: Mapped[str]
    sha256: Mapped[str]
    size_bytes: Mapped[int]
    dtype: Mapped[str | None]
    accuracy: Mapped[float | None]
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), index=True)
    result: Mapped[Result] = relationship()


class Claim(Base):
    """A statement of a paper, from `data/claims.csv`; `value` in `unit`, accuracies as fractions.

    The columns up to `reading` are described in `stages.claims.lines.ClaimLine`.  `finding` is what `analyse` computed
    without training (status, computed, explanation, readings, error).
    """

    __tablename__ = "claims"
    __table_args__ = (Index("claims_by_experiment", "experiment", "metric"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    paper: Mapped[str] = mapped_column(index=True)
    place: Mapped[str]
    experiment: Mapped[str | None]
    arm: Mapped[str | None]
    metric: Mapped[str]
    kind: Mapped[str]
    value: Mapped[float | None]
    unit: Mapped[str | None]
    precision: Mapped[float | None]
    stderr: Mapped[float | None]
    n: Mapped[int | None]
    baseline_arm: Mapped[str | None]
    better: Mapped[str | None]
    note: Mapped[str | None]
    high: Mapped[float | None] = mapped_column(doc="end of a range")
    trials: Mapped[int | None] = mapped_column(doc="total of which `value` is counted")
    factor: Mapped[str | None] = mapped_column(doc="factor over whose levels a gain is uniform")
    family: Mapped[str | None] = mapped_column(doc="family of claims judged together")
    statement: Mapped[str | None] = mapped_column(doc="the claim's words, if it has no number")
    reason: Mapped[str | None] = mapped_column(doc="why it can't be tested here")
    reading: Mapped[str | None] = mapped_column(doc="our reading of an unclear text; a result can't refute the claim")
    finding: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))

    @property
    def qualifier(self) -> str:
        """The words after the printed number and its unit: "or more", "by width"; usually none."""
        return f"by {self.factor}" if self.factor else self.facts.qualifier

    @property
    def facts(self) -> KindFacts:
        return KINDS[self.kind]


NOT_OF_SIZE = ("n_diverged", "p_value", "stderr", "size", "prediction", "spread", "share", "scope")
"""Fields of a verdict that the verdict on the size of a difference is recorded without."""


class VerdictRow(Base):
    """Verdict on a claim; every claim has one.

    Columns with the names of fields of `stages.verdicts.Verdict` or `stages.claims.Judgement` have their meaning.
    `registration`, for a verdict by training, has the fields of `stages.claims.history.RegistrationMark`.
    `device_seconds` to `usd` are the cost of all runs behind the verdict, each counted once.  `labs` has the verdict by
    each lab's results alone, if another lab has any; `pooled`, the one by the labs' means.
    """

    __tablename__ = "verdicts"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    status: Mapped[str] = mapped_column(index=True)
    explanation: Mapped[str] = mapped_column(doc="the verdict in words, with its numbers, or why there is none")
    basis: Mapped[str]
    is_decidable: Mapped[bool] = mapped_column(
        doc="true if the claim can be decided here, now or later; badges count these"
    )
    ours: Mapped[float | None]
    estimate: Mapped[float | None] = mapped_column(doc="ours − paper, or proposed − baseline (positive is better)")
    low: Mapped[float | None] = mapped_column(doc="interval of the estimate at `confidence`")
    high: Mapped[float | None]
    confidence: Mapped[float | None]
    margin: Mapped[float | None] = mapped_column(doc="largest difference that counts as equal")
    n: Mapped[int] = mapped_column(doc="replicates judged, including diverged ones")
    n_diverged: Mapped[int]
    replicates_expected: Mapped[int | None] = mapped_column(doc="replicates at which the present estimate would decide")
    p_value: Mapped[float | None] = mapped_column(doc="two-sided, not adjusted for other claims")
    size: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    prediction_low: Mapped[float | None] = mapped_column(
        doc="lower end of the interval predicted for the paper's own rerun"
    )
    prediction_high: Mapped[float | None] = mapped_column(doc="upper end of that interval, in the claim's unit")
    prediction_confidence: Mapped[float | None]
    is_predicted: Mapped[bool | None] = mapped_column(doc="true if the paper's number lies in it")
    power: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    scope: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    seen_before_rule: Mapped[int | None] = mapped_column(
        doc="results (or pairs) seen before its rule was written; null if none"
    )
    registration: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    false_discovery_rate: Mapped[float | None] = mapped_column(
        doc="q-value (Benjamini, Hochberg 1995): expected share of wrong decisions among the paper's claims on a sign "
        "with at most this p-value; null without a p-value"
    )
    by_margin: Mapped[list[Any]]
    posterior: Mapped[float | None] = mapped_column(
        doc="chance (flat prior) that the truth is within the margin or, for an order, that the gain has the claimed "
        "sign; decides nothing"
    )
    rules: Mapped[str] = mapped_column(doc="sha256 of the numbers of the rules in params.yaml")
    digest: Mapped[str] = mapped_column(
        doc="sha256 of rules, the claim's row with its metric, judging code, and finding"
    )
    variants: Mapped[list[Any]]
    device_seconds: Mapped[float | None]
    flops: Mapped[float | None]
    peak_memory_bytes: Mapped[int | None]
    energy_joules: Mapped[float | None]
    usd: Mapped[float | None]
    labs: Mapped[list[Any]]
    pooled: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    runs: Mapped[list[VerdictRun]] = relationship(order_by="VerdictRun.position")
    arms: Mapped[list[VerdictArm]] = relationship(order_by="VerdictArm.position")

    @property
    def mark(self) -> str:
        """`confirmatory`, `exploratory` or `registration unknown`; empty if no trained model was judged."""
        return mark_of(self.registration)

    @property
    def word(self) -> Word:
        return WORD_OF[Status(self.status)]

    @property
    def marked_status(self) -> str:
        """Status with its mark, as "supported (exploratory)"."""
        return f"{self.status} ({self.mark})" if self.mark else self.status


class VerdictRun(Base):
    """One run behind a verdict: its side and arm, its replicate, and its value.

    `value` is None if the run diverged, or if the claim counts how runs ended, which the result says.
    """

    __tablename__ = "verdict_runs"
    __table_args__ = _IN_KEY_ORDER
    claim: Mapped[str] = mapped_column(ForeignKey("verdicts.claim"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    side: Mapped[str]
    arm: Mapped[str]
    replicate: Mapped[int]
    value: Mapped[float | None]
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), index=True)
    result: Mapped[Result] = relationship()


class ClaimChange(Base):
    """A change of a claim's row, or of the rules or the code that judge it, from `data/claims-history.jsonl`.

    The columns have the meaning of the fields of `stages.claims.Change`.
    """

    __tablename__ = "claim_changes"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    date: Mapped[str]
    subject: Mapped[str]
    changed: Mapped[dict[str, Any]]
    after_evidence: Mapped[bool] = mapped_column(doc="true if results of its experiments had been published")
    alters: Mapped[bool] = mapped_column(doc="true if it changed a rule, a metric, a statement or a verdict")
    seen: Mapped[int | None] = mapped_column(doc="for a rule: number of the claim's results (or pairs) seen before it")
    why: Mapped[str]


class VerdictArm(Base):
    """An arm of a claim whose metric chooses an epoch for all folds together (`stages.claims.lines.ArmSummary`)."""

    __tablename__ = "verdict_arms"
    claim: Mapped[str] = mapped_column(ForeignKey("verdicts.claim"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"))
    arm: Mapped[str]
    role: Mapped[str]
    n: Mapped[int] = mapped_column(doc="folds")
    value: Mapped[float] = mapped_column(doc="in the claim's metric, at the chosen epoch")
    stderr: Mapped[float] = mapped_column(doc="as the paper computes it")
    low: Mapped[float] = mapped_column(doc="95 % interval of the mean, including the choice of the epoch")
    high: Mapped[float]
    epoch: Mapped[int]
    epochs: Mapped[int]
    flops: Mapped[float | None]
    parameters: Mapped[float | None]


class DeviationRow(Base):
    """A recorded difference from a paper, as in `stages.claims.RecordedDeviation`; `id` is `<paper>.<name>`."""

    __tablename__ = "deviations"
    id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    paper: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str]
    says: Mapped[str] = mapped_column(doc="what the paper says")
    code: Mapped[str | None]
    ours: Mapped[str]
    why: Mapped[str | None]
    departs: Mapped[bool] = mapped_column(
        doc="true if we differ from the paper or, if it is silent, from its authors' code"
    )
    explains: Mapped[str | None]
    tested_by: Mapped[str | None]
    in_titles: Mapped[str | None]


class ClaimDeviation(Base):
    """A deviation that touches a claim."""

    __tablename__ = "claim_deviations"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    deviation: Mapped[str] = mapped_column(ForeignKey("deviations.id"), primary_key=True)


class ClaimExperiment(Base):
    """An experiment that tests a claim; a claim with a `*` has several."""

    __tablename__ = "claim_experiments"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"), primary_key=True)


class Family(Base):
    """The sentence of a table (`stages.verdicts.TableSentence`) about its `orders`, of which `tested` have evidence."""

    __tablename__ = "families"
    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    paper: Mapped[str] = mapped_column(index=True)
    text: Mapped[str]
    status: Mapped[str]
    gain: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    confidence: Mapped[float | None]
    tau: Mapped[float | None] = mapped_column(doc="standard deviation between orders beyond chance")
    p_heterogeneity: Mapped[float | None] = mapped_column(doc="p-value for orders that don't differ")
    i2: Mapped[float | None] = mapped_column(doc="share of the variance between orders that is tau²")
    ahead: Mapped[int] = mapped_column(doc="tested orders with a gain above 0")
    tested: Mapped[int]
    orders: Mapped[int]

    @property
    def ours(self) -> Measured | None:
        return None if self.gain is None else Measured(value=self.gain, low=self.low, high=self.high, n=None)
