"""The results database: the tables of `data/results.db`, how it is opened, and how ours is compared to the paper's.

`tables` is the only place where a column is named; `comparison` holds the one comparison that service and report share.
"""

from stages.results.claim_tables import (
    ICONS,
    WORD_OF,
    ClaimChange,
    ClaimDeviation,
    ClaimExperiment,
    Deviation,
    Family,
    VerdictArm,
    VerdictRow,
    VerdictRun,
    Word,
)
from stages.results.claims import (
    AGAINST_THE_PAPER,
    FOR_THE_PAPER,
    ClaimFilter,
    ClaimRecord,
    JudgedClaim,
    PairGain,
    Standing,
    count_seen,
    error_of,
    find_judged,
    list_families,
    list_judged,
    rule_after,
)
from stages.results.comparison import compare, cut_of_each, describe_fidelity, fidelity_of, kind_of_run
from stages.results.comparison_rows import t_interval, wilson_interval
from stages.results.counts import (
    Counts,
    Discoveries,
    Levels,
    Outlook,
    Tally,
    ground_of,
    levels_of,
    read_rules,
    tally,
    tally_rows,
)
from stages.results.database import (
    Sessions,
    UnknownArm,
    UnknownCheckpoint,
    UnknownClaim,
    UnknownDataset,
    UnknownExperiment,
    UnknownMetric,
    UnknownName,
    UnknownPaper,
    UnknownProfile,
    UnknownRun,
    create_results,
    database_url,
    insert_rows,
    open_results,
)
from stages.results.estimates import ArmComparison, ArmVerdict, ExperimentComparison, as_csv, no_formula
from stages.results.metrics import METRICS, SHOWN_METRICS, MetricInfo
from stages.results.tables import (
    SCHEMA_VERSION,
    Arm,
    ArmMetric,
    Array,
    Base,
    Checkpoint,
    Claim,
    Cost,
    Dataset,
    Epoch,
    Experiment,
    JSONOf,
    Meta,
    Metric,
    ObservationRow,
    Paper,
    Profile,
    Result,
    ResultsUnavailable,
    damaged,
)
from stages.results.versus import ImagePair, SameModel, Side, Versus, models_on, versus
from stages.rules import Rules
from stages.runs.evidence import INEXACT_SHARE, unpack_confusion, unpack_correct
from stages.verdicts import Status
from stages.verdicts.kinds import KINDS
