"""The answers of one model's runs to the test images, as they were measured: none is computed here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.curves import are_of
from stages.results import Array, ExperimentComparison, Result, unpack_confusion, unpack_correct


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Answers of `runs` runs: `confusion` counts them by true and answered class, `right` the right runs by image."""

    runs: int
    data_digest: str
    confusion: np.ndarray
    right: np.ndarray

    def mistakes(self, most: int) -> list[tuple[int, int, int]]:
        """The most frequent wrong answers, as (true class, answered class, count)."""
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        found = [(int(true), int(answer)) for true, answer in zip(*np.unravel_index(order, wrong.shape), strict=True)]
        return [(true, answer, int(wrong[true, answer])) for true, answer in found if wrong[true, answer]]


def list_runs_of(session: Session, comparison: ExperimentComparison, arm: str) -> list[Result]:
    """The results that this model enters the comparison with, by replicate."""
    query = select(Result).where(*are_of(comparison), Result.arm == arm).order_by(Result.replicate)
    return list(session.scalars(query))


def answers_of(session: Session, results: list[Result], classes: int) -> Answered | None:
    """The kept answers of these results, added up; None of real data's images alone."""
    query = select(Array).where(
        Array.result_id.in_([result.id for result in results if result.provenance != "embedded"])
    )
    kept = {(row.result_id, row.kind): row.content for row in session.scalars(query)}
    whole = [one for one in results if {(one.id, "correct"), (one.id, "confusion")} <= kept.keys()]
    if not whole:
        return None
    return Answered(
        runs=len(whole),
        data_digest=whole[0].data_digest,
        confusion=np.sum([unpack_confusion(kept[one.id, "confusion"], classes) for one in whole], axis=0),
        right=np.sum([unpack_correct(kept[one.id, "correct"], one.test_images) for one in whole], axis=0),
    )
