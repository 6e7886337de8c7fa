"""Types of answers about counts of verdicts: of a paper, by what decides them, and what the plans can show."""

from __future__ import annotations

from pydantic import Field

from service.database.claim_schemas import FamilyOut
from service.database.schemas import Out


class CountsOut(Out):
    """Verdicts of claims that can be decided here, now or later."""

    decidable: int
    in_favour: int = Field(description="reproduced, supported, holds, if only under a reading")
    plainly: int = Field(description="of those in favour: without a reading; the pages say of these that they hold")
    under_reading: int = Field(description="of those in favour: true only if the words are read in one way")
    opposed: int = Field(validation_alias="against", description="not reproduced, reversed, fails, contradicted")
    open: int = Field(description="there is evidence that doesn't decide yet")
    waiting: int = Field(description="not run yet")


class OutlookOut(Out):
    """What the planned trainings can show of the waiting claims, by the power of their plans."""

    waiting: int = Field(description="claims that wait for training")
    hopeless: int = Field(description="even if the paper is right, confirmed with probability below 5 %")
    order_only: int = Field(description="the order can be confirmed, the size of the difference can't")
    unlikely: int = Field(description="of the others, confirmed with probability below 50 % if the paper is right")
    unknown: int = Field(description="no size is printed or no spread is known, so nothing can be reckoned")
    assumed: int = Field(description="of all but the unknown: the spread of a run is neither measured nor printed")


class DiscoveriesOut(Out):
    """Decided claims of a paper that survive a false discovery rate of 5 % (Benjamini, Hochberg 1995)."""

    tested: int = Field(description="claims judged by training with a p-value on a sign, open ones as well")
    decided: int = Field(description="of these")
    survive: int = Field(description="of the decided, with a false discovery rate of at most 5 %")
    without: int = Field(description="decided by training without a p-value on a sign, counted apart")


class TallyOut(CountsOut):
    """Verdicts of a paper's claims; the badge is in_favour of decidable.  An error at several places counts once."""

    paper: str
    claims: int
    trained: CountsOut = Field(description="those that trained models decide")
    computed: CountsOut = Field(description="those that are computed without training")
    data: CountsOut = Field(description="sizes and ranges of data sets")
    outlook: OutlookOut = Field(description="of the claims that wait for training")
    discoveries: DiscoveriesOut
    settings: int = Field(description="settings of trainings, which can't hold or fail")
    untestable: int = Field(description="other claims that nothing planned here can decide")
    by_verdict: dict[str, int]
    by_kind: dict[str, dict[str, int]]
    errors: dict[str, int] = Field(examples=[{"inference times in nanoseconds": 12}], description="places of each")


class VerdictsOut(Out):
    papers: list[TallyOut]
    tables: list[FamilyOut]
