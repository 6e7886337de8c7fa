"""Verdicts: what replicates say of a printed number, as pure functions of arrays.

One family a file: `value` (two one-sided tests), `difference` (sign and size of a gain), `grid_part` (of a part of a
grid), `uniform` (a gain alike at every level), `families` (a table's sentence, by `synthesis`, and a paper's own
counts), `others` (counts, ranges, proportions, …), `indicative` (what short runs may say).
Rules, margins and looks are fixed before running (`stages.rules`); `curves` turns the curves of folds into an arm's
metric.  Needs NumPy and SciPy only.
"""

from stages.rules import Margins, Rules
from stages.verdicts.curves import ArmMetric, min_over_epochs, pseudo_values, window_error
from stages.verdicts.difference import GainClaim, judge_gain
from stages.verdicts.families import Order, TableSentence, judge_table, judge_tally, judge_wins
from stages.verdicts.grid_part import GridPart
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
from stages.verdicts.uniform import UniformClaim, judge_uniform
from stages.verdicts.value import ValueClaim, judge_value
from stages.verdicts.verdict import DuplicateReplicate, Replicate, Sample, Status, Verdict

__all__ = [
    "ArmMetric",
    "DuplicateReplicate",
    "GainClaim",
    "GridPart",
    "Margins",
    "Order",
    "Replicate",
    "Rules",
    "Sample",
    "Standing",
    "Status",
    "TableSentence",
    "UniformClaim",
    "ValueClaim",
    "Verdict",
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
    "judge_uniform",
    "judge_value",
    "judge_wins",
    "min_over_epochs",
    "not_tested",
    "pseudo_values",
    "standing",
    "window_error",
]
