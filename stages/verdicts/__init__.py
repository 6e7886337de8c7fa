"""Verdicts: pure functions of arrays that judge a printed number by our replicates.

One family per file: `value` (two one-sided tests, the side of a bound), `difference` (sign and size of a gain,
non-inferiority), `grid_part` (a gain over part of a grid, the same gain at every level), `families` (the sentence of a
table, a paper's own counts, and whether seeds explain a spread), `others` (counts, ranges, proportions, and what short
runs may show), `power` (what a plan can show in advance), `anytime` (intervals that hold at any number of replicates);
`kinds` has the facts about each kind of claim for pages and API.  Rules, margins and interim analyses are fixed before
running (`stages.rules`); `curves` turns the curves of folds into an arm's metric.  Needs NumPy and SciPy only.
"""

from stages.verdicts.curves import (
    ARM_METRICS,
    ArmMeasurement,
    NoCurves,
    arm_metric,
    min_over_epochs,
    pseudo_values,
    window_error,
)
from stages.verdicts.difference import ComparableClaim, ComparedArms, GainClaim, judge_comparable, judge_gain, judge_gap
from stages.verdicts.families import (
    PrintedOrder,
    TableSentence,
    design_effect,
    false_discovery_rates,
    judge_noise,
    judge_table,
    judge_tally,
    judge_wins,
    tally_tests,
)
from stages.verdicts.grid_part import GridPart, UniformClaim, judge_uniform
from stages.verdicts.others import (
    EvidenceLevel,
    Failures,
    evidence_level_of,
    fisher_p,
    indicate_order,
    judge_count,
    judge_hardware,
    judge_proportion,
    judge_proportions,
    judge_shown,
    not_tested,
    weigh_gap,
)
from stages.verdicts.power import Design, Power, power_of_comparable, power_of_gain, power_of_value
from stages.verdicts.value import ValueClaim, judge_side, judge_value
from stages.verdicts.verdict import (
    ICONS,
    WORD_OF,
    DuplicateObservation,
    Observation,
    Sample,
    Scope,
    Status,
    Verdict,
    Word,
)
