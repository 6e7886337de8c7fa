"""Comparisons as one flat table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from stages.results.estimates import ExperimentComparison

COLUMNS = (
    *("experiment", "paper", "dataset", "metric", "unit", "arm", "title", "role"),
    *("ours", "ours_low", "ours_high", "ours_std", "n_replicates", "n_diverged", "n_test"),
    *("paper_value", "paper_unit", "paper_claim", "difference", "difference_low", "difference_high"),
    *("rank_ours", "rank_paper", "profile", "provenance", "label"),
    *("train_seconds", "parameters", "flops_per_image", "peak_memory_bytes", "latency_seconds_per_sample"),
    *("latency_batch_size", "latency_warmup", "latency_repeats", "latency_device", "latency_threads"),
    *("latency_ratio", "paper_latency_ratio", "latency_baseline", "checkpoints", "run_keys", "sources", "changed_code"),
    "verdicts",
)
SHARED_COLUMNS = ("experiment", "paper", "dataset", "profile", "provenance", "label")


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def no_formula(text: str) -> str:
    """With an apostrophe in front where a spreadsheet would take the text for a formula and compute it."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else str(text)


def as_csv(comparisons: Sequence[ExperimentComparison]) -> str:
    """A row an arm; None is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for comparison in comparisons:
        shared = {name: getattr(comparison, name) for name in SHARED_COLUMNS}
        shared |= {"metric": comparison.metric.name, "unit": comparison.metric.unit}
        for arm in comparison.arms:
            cost = {name: value for name, value in vars(arm.cost).items() if name in COLUMNS}
            row = {**shared, **cost} | {
                "arm": arm.arm,
                "title": arm.title,
                "role": arm.role,
                "ours": arm.ours.mean,
                "ours_low": arm.ours.low,
                "ours_high": arm.ours.high,
                "ours_std": arm.ours.std,
                "n_replicates": arm.ours.n_replicates,
                "n_diverged": arm.ours.n_diverged,
                "n_test": arm.ours.n_test,
                "paper_value": arm.paper.value if arm.paper else None,
                "paper_unit": arm.paper.unit if arm.paper else None,
                "paper_claim": arm.paper.claim if arm.paper else None,
                "difference": arm.difference.value if arm.difference else None,
                "difference_low": arm.difference.low if arm.difference else None,
                "difference_high": arm.difference.high if arm.difference else None,
                "rank_ours": arm.rank_ours,
                "rank_paper": arm.rank_paper,
                "checkpoints": " ".join(arm.checkpoints),
                "run_keys": " ".join(arm.run_keys),
                "sources": " ".join(arm.sources),
                "changed_code": " ".join(arm.changed_code),
                "verdicts": "; ".join(f"{verdict.claim}: {verdict.status}" for verdict in arm.verdicts),
            }
            writer.writerow({name: no_formula(cell) if isinstance(cell, str) else cell for name, cell in row.items()})
    return buffer.getvalue()
