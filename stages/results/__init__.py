"""The results database: the tables of `data/results.db`, how it is opened, and how ours is compared to the paper's.

`tables` declares the columns; service and report share the comparison of `comparison`.
"""

from stages.faults import UnknownName
from stages.results.claims import (
    AGAINST_THE_PAPER,
    FOR_THE_PAPER,
    ClaimFilter,
    ClaimRecord,
    Counts,
    Discoveries,
    JudgedClaim,
    Outlook,
    PairGain,
    Standing,
    Tally,
    count_seen,
    error_of,
    find_judged,
    ground_of,
    list_families,
    list_judged,
    rule_after,
    tally,
    tally_rows,
)
from stages.results.comparison import Question, compare, fidelity_of
from stages.results.database import (
    Sessions,
    UnknownArm,
    UnknownCheckpoint,
    UnknownClaim,
    UnknownDataset,
    UnknownExperiment,
    UnknownMetric,
    UnknownPaper,
    UnknownProfile,
    UnknownRun,
    create_results,
    database_url,
    insert_rows,
    known_metrics,
    levels_of,
    open_results,
    read_rules,
)
from stages.results.estimates import (
    SHOWN_METRICS,
    ArmComparison,
    ArmVerdict,
    Estimate,
    ExperimentComparison,
    as_csv,
    cut_of_each,
    describe_fidelity,
    kind_of_run,
    no_formula,
)
from stages.results.tables import (
    NOT_OF_SIZE,
    SCHEMA_VERSION,
    ArmMetricRow,
    ArmRow,
    Array,
    Base,
    Checkpoint,
    Claim,
    ClaimChange,
    ClaimDeviation,
    Cost,
    Dataset,
    DeviationRow,
    Epoch,
    ExperimentRow,
    Family,
    JSONOf,
    Meta,
    Metric,
    ObservationRow,
    Paper,
    Result,
    ResultsUnavailable,
    VerdictArm,
    VerdictRow,
    VerdictRun,
    damaged,
)
from stages.results.versus import ImagePair, SameModel, Versus, versus
from stages.rules import Rules
from stages.runs.evidence import INEXACT_SHARE, Provenance, unpack_confusion, unpack_correct
from stages.verdicts import ICONS, WORD_OF, Power, Scope, Status, Verdict, Word
from stages.verdicts.kinds import KINDS
from stages.verdicts.metrics import METRICS, MetricInfo
