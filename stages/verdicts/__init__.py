"""Verdicts: what replicates say of a printed number, as pure functions of arrays.

One family a file: `value` (two one-sided tests), `difference` (sign and size of a gain), `families` (a table's
sentence, Holm-adjusted, and a paper's own counts), `others` (counts, ranges, proportions, …), `indicative` (what
short runs may say).
Rules, margins and looks are fixed before running (`stages.rules`); `curves` turns the curves of folds into an arm's
metric.  Needs NumPy and SciPy only.
"""

from stages.rules import Margins, Rules
from stages.verdicts.curves import (
    ARM_METRICS,
    ArmMetric,
    NoCurves,
    arm_metric,
    min_over_epochs,
    pseudo_values,
    window_error,
)
from stages.verdicts.difference import GainClaim, GridPart, judge_gain
from stages.verdicts.families import TableSentence, judge_table, judge_tally, judge_wins
from stages.verdicts.indicative import Standing, indicate_order, standing
from stages.verdicts.others import (
    fisher_p,
    judge_count,
    judge_hardware,
    judge_proportion,
    judge_proportions,
    judge_range,
    judge_shown,
    not_tested,
)
from stages.verdicts.value import ValueClaim, judge_value
from stages.verdicts.verdict import DuplicateReplicate, Replicate, Sample, Status, Verdict

__all__ = [
    "ARM_METRICS",
    "ArmMetric",
    "DuplicateReplicate",
    "GainClaim",
    "GridPart",
    "Margins",
    "NoCurves",
    "Replicate",
    "Rules",
    "Sample",
    "Standing",
    "Status",
    "TableSentence",
    "ValueClaim",
    "Verdict",
    "arm_metric",
    "fisher_p",
    "indicate_order",
    "judge_count",
    "judge_gain",
    "judge_hardware",
    "judge_proportion",
    "judge_proportions",
    "judge_range",
    "judge_shown",
    "judge_table",
    "judge_tally",
    "judge_value",
    "judge_wins",
    "min_over_epochs",
    "not_tested",
    "pseudo_values",
    "standing",
    "window_error",
]
