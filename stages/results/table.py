"""Comparisons as one flat table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from stages.results.estimates import ExperimentComparison

COLUMNS = (
    *("experiment", "paper", "dataset", "metric", "unit", "arm", "title", "role"),
    *("ours", "ours_low", "ours_high", "ours_std", "ours_stderr", "n_replicates", "n_diverged", "n_test", "epoch"),
    *("reason", "paper_value", "paper_stderr", "paper_n", "paper_unit", "paper_claim"),
    *(
        "difference",
        "difference_low",
        "difference_high",
        "gain_against",
        "gain_ours",
        "gain_low",
        "gain_high",
        "gain_n",
    ),
    *("gain_paper", "gain_paper_stderr", "gain_paper_n", "gain_claim"),
    *("rank_ours", "rank_paper", "profile", "provenance", "label"),
    *("train_seconds", "parameters", "flops_per_image", "peak_memory_bytes", "latency_seconds_per_sample"),
    *("latency_batch_size", "latency_warmup", "latency_repeats", "latency_device", "latency_threads"),
    *("latency_ratio", "paper_latency_ratio", "latency_baseline", "checkpoints", "run_keys", "sources", "changed_code"),
    "verdicts",
)
SHARED_COLUMNS = ("experiment", "paper", "dataset", "profile", "provenance", "label")

# column: field of an arm's part
OURS = {"ours": "mean", "ours_low": "low", "ours_high": "high", "ours_std": "std", "ours_stderr": "stderr"}
OURS |= {name: name for name in ("n_replicates", "n_diverged", "n_test", "epoch")}
PAPER = {"paper_value": "value", "paper_stderr": "stderr", "paper_n": "n", "paper_unit": "unit", "paper_claim": "claim"}
DIFFERENCE = {"difference": "value", "difference_low": "low", "difference_high": "high"}
GAIN = {"gain_against": "against", "gain_ours": "ours", "gain_low": "low", "gain_high": "high", "gain_n": "n"}
GAIN_OF_PAPER = {"gain_paper": "value", "gain_paper_stderr": "stderr", "gain_paper_n": "n", "gain_claim": "claim"}


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def no_formula(text: str) -> str:
    """The text, prefixed with an apostrophe where a spreadsheet would take it for a formula and compute it."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else str(text)


def as_csv(comparisons: Sequence[ExperimentComparison]) -> str:
    """One row per arm; None is empty."""
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
                **_cells(arm.ours, OURS),
                "reason": arm.reason,
                **_cells(arm.paper, PAPER),
                **_cells(arm.difference, DIFFERENCE),
                **_cells(arm.gain, GAIN),
                **_cells(arm.gain.paper if arm.gain else None, GAIN_OF_PAPER),
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


def _cells(part: object | None, columns: Mapping[str, str]) -> dict[str, object]:
    """The fields of a part of an arm's comparison; empty if the part is None."""
    return {} if part is None else {column: getattr(part, name) for column, name in columns.items()}
