"""The mean gain of the orders of a table, with how much the orders differ.

    gain = Σ_d k_d m̄_d / k,    Var = Σ_d (k_d/k)² s²(m_d)/n_d,    df by Welch–Satterthwaite

m_d holds the mean gain of the k_d orders on data set d in each of n_d replicates.  Orders on one data set share folds,
test images and arms, so their errors depend on each other; the replicates' means contain that, whatever it is.  The
statement is about these orders: the 16 of a table are of two data sets or fewer than would stand for others.

    τ² = max(0, s²(g_i) − mean(v_i)),    s²(g)/mean(v_i) follows F(k − 1, df of the mean) if orders don't differ

g_i and v_i are the gain of an order and its variance.  Errors that have something in common make τ too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from stages.verdicts.intervals import Numbers, combine, half_width, variance_of


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The gain of one order, its standard error and that error's df."""

    gain: float
    stderr: float
    df: float


@dataclass(frozen=True, kw_only=True)
class Differences:
    """`tau`: standard deviation between orders beyond their own random error; `p_value`: of there being none.

    `share`: the part of the variance between orders that is τ², I².
    """

    tau: float
    p_value: float
    share: float


def mean_gain(datasets: Sequence[Numbers], alpha: Numbers) -> tuple[Numbers, Numbers]:
    """(gain, half-width) from each data set's gains [..., orders, replicates]; alpha is the error on each side."""
    orders = sum(gains.shape[-2] for gains in datasets)
    total, parts = 0.0, []
    for gains in datasets:
        weight, means = gains.shape[-2] / orders, gains.mean(axis=-2)
        total = total + weight * means.mean(axis=-1)
        n = means.shape[-1]
        parts.append((weight**2 * variance_of(means) / n, n - 1.0))
    return total, half_width(*combine(parts), alpha)


def differences(effects: Sequence[Effect]) -> Differences | None:
    """How much orders differ; None below two."""
    k = len(effects)
    if k < 2:
        return None
    within, df = (float(number) for number in combine([(effect.stderr**2 / k, effect.df) for effect in effects]))
    between = float(variance_of(np.array([effect.gain for effect in effects])))
    tau2 = max(between - within, 0.0)
    ratio = between / within if within else math.inf
    return Differences(
        tau=math.sqrt(tau2),
        p_value=float(scipy.special.fdtrc(k - 1, df, ratio)),
        share=tau2 / (tau2 + within) if within or tau2 else 0.0,
    )
