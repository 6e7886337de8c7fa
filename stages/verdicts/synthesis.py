"""The gain over the orders of a table by random effects, with how much the orders differ.

    gain = mean(g_i),    τ² = max(0, s²(g) − mean(v_i)),    Var gain = (τ² + mean(v_i))/k,    Student's t with k − 1 df

g_i and v_i are the gain of an order and its variance.  Orders weigh equally (Hedges, Olkin 1985, ch. 9): with five
folds each, weights by v_i would be mostly noise.  s²(g)/mean(v_i) follows F(k − 1, df of the mean) where orders don't
differ.
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
class Synthesis:
    """`tau`: standard deviation between orders beyond their own random error; `p_value`: of there being none.

    `share`: the part of the variance between orders that is τ², I².
    """

    gain: float
    half: float
    tau: float
    p_value: float
    share: float
    k: int


def synthesise(effects: Sequence[Effect], alpha: float) -> Synthesis | None:
    """The mean gain, with an interval that errs with probability alpha on each side; None below two effects."""
    k = len(effects)
    if k < 2:
        return None
    within, df = combine([(effect.stderr**2 / k, effect.df) for effect in effects])
    between = float(variance_of(np.array([effect.gain for effect in effects])))
    half, tau2, p_value = pool_effects(between, float(within), float(df), k, alpha)
    return Synthesis(
        gain=math.fsum(effect.gain for effect in effects) / k,
        half=float(half),
        tau=math.sqrt(tau2),
        p_value=float(p_value),
        share=float(tau2 / (tau2 + within)) if within or tau2 else 0.0,
        k=k,
    )


def pool_effects(
    between: Numbers, within: Numbers, df: Numbers, k: int, alpha: float
) -> tuple[Numbers, Numbers, Numbers]:
    """(half-width, τ², p of no difference) from s²(g), the mean of v_i with its df, and the number of orders."""
    tau2 = np.maximum(between - within, 0.0)
    ratio = np.divide(between, within, out=np.full(np.shape(between), np.inf), where=np.asarray(within) > 0)
    return half_width((tau2 + within) / k, k - 1.0, alpha), tau2, scipy.special.fdtrc(k - 1, df, ratio)
