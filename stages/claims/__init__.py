"""Claims: every statement of the papers, what decides it, and the verdict.

`stages.verdicts` has the statistics; this package finds the evidence and the test for each claim.
"""

from stages.claims.history import Change, read_history
from stages.claims.judging import judge_claim, judge_claims, judge_labs
from stages.claims.kinds import Facts
from stages.claims.kinds.counts import param_values
from stages.claims.lines import (
    ClaimLine,
    ClaimsError,
    Judgement,
    PaperDeviations,
    RecordedDeviation,
    place_claims,
    read_claims,
    read_deviations,
    touched,
)
from stages.claims.trials import gather
from stages.runs.evidence import Trial
