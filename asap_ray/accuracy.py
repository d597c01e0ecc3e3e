"""How well predictions agree with measurements: errors, rankings, what fits, coverage of intervals. Pure statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TOP = (1, 3)
LARGE_GROUP = 8
"""Plans from which on a group counts among the large ones, where the best three are a choice and not nearly all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBlock:
    """Errors of some rows. `*_ape` are absolute errors over the measured value, `bias` the median of predicted over
    measured, minus 1; `inferred` counts rows that rest on an assumption."""

    name: str
    n: int
    inferred: int
    median_ape: float | None
    mean_ape: float | None
    p90_ape: float | None
    bias: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingBlock:
    """How predictions rank the plans of one workload on one slice.

    `regret_top1` and `regret_top3` are the best measured step among the predicted top k, over the best measured,
    minus 1.
    """

    name: str
    n: int
    kendall_tau: float | None
    regret_top1: float
    regret_top3: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingSummary:
    """Medians and 90% quantiles over ranking blocks; None where there are none."""

    name: str
    groups: int
    kendall_tau: float | None
    regret_top1: float | None
    regret_top1_p90: float | None
    regret_top3: float | None
    regret_top3_p90: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBlock:
    """Verdicts of "does not fit" (positive) against what happened."""

    name: str
    tp: int
    fp: int
    tn: int
    fn: int

    @property
    def recognised(self) -> float | None:
        """Share of the runs out of memory that were foreseen."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else None

    @property
    def refused(self) -> float | None:
        """Share of the runs that went well that would have been refused."""
        return self.fp / (self.fp + self.tn) if self.fp + self.tn else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CoverageBlock:
    """Share of measurements inside their intervals, the intervals' median half-width over the estimate, and the median
    error beside it; None where there are no rows."""

    name: str
    n: int
    share: float | None
    half_width: float | None
    median_ape: float | None


def error_block(name: str, predicted: np.ndarray, measured: np.ndarray, inferred: np.ndarray) -> ErrorBlock:
    """Errors of predictions [rows] against measurements [rows], both above 0; `inferred` [rows] is boolean."""
    if not len(measured):
        return ErrorBlock(name=name, n=0, inferred=0, median_ape=None, mean_ape=None, p90_ape=None, bias=None)
    ratio = predicted / measured
    ape = np.abs(ratio - 1.0)
    return ErrorBlock(
        name=name,
        n=len(measured),
        inferred=int(np.sum(inferred)),
        median_ape=float(np.median(ape)),
        mean_ape=float(np.mean(ape)),
        p90_ape=float(np.quantile(ape, 0.9)),
        bias=float(np.median(ratio)) - 1.0,
    )


def ranking_block(name: str, predicted: np.ndarray, measured: np.ndarray) -> RankingBlock:
    """Agreement of two rankings [plans]; tau (b, which counts ties) is None where either ranks nothing (all alike)."""
    from scipy import stats

    distinct = min(len(np.unique(predicted)), len(np.unique(measured)))
    tau = float(np.asarray(stats.kendalltau(predicted, measured))[0]) if distinct > 1 else None
    # Where several plans share a predicted time, the slower ones come first: no luck is counted as skill.
    order = np.lexsort((-measured, predicted))
    best = float(np.min(measured))
    regret = {k: float(np.min(measured[order[:k]])) / best - 1.0 for k in TOP}
    return RankingBlock(name=name, n=len(measured), kendall_tau=tau, regret_top1=regret[1], regret_top3=regret[3])


def ranking_summary(name: str, blocks: Sequence[RankingBlock]) -> RankingSummary:
    """What many ranking blocks say together; a block without a tau counts for its regrets only."""
    taus = [each.kendall_tau for each in blocks if each.kendall_tau is not None]
    first, third = [each.regret_top1 for each in blocks], [each.regret_top3 for each in blocks]
    return RankingSummary(
        name=name,
        groups=len(blocks),
        kendall_tau=_quantile(taus, 0.5),
        regret_top1=_quantile(first, 0.5),
        regret_top1_p90=_quantile(first, 0.9),
        regret_top3=_quantile(third, 0.5),
        regret_top3_p90=_quantile(third, 0.9),
    )


def _quantile(values: Sequence[float], at: float) -> float | None:
    return float(np.quantile(values, at)) if values else None


def memory_block(name: str, misses: np.ndarray, out_of_memory: np.ndarray) -> MemoryBlock:
    """Predicted misses of the memory [rows] against runs that ended out of memory [rows], both boolean."""
    return MemoryBlock(
        name=name,
        tp=int(np.sum(misses & out_of_memory)),
        fp=int(np.sum(misses & ~out_of_memory)),
        tn=int(np.sum(~misses & ~out_of_memory)),
        fn=int(np.sum(~misses & out_of_memory)),
    )


def coverage_block(
    name: str, predicted: np.ndarray, low: np.ndarray, high: np.ndarray, measured: np.ndarray
) -> CoverageBlock:
    """How often intervals [rows] hold the measurements [rows], and how wide they are for that."""
    if not len(measured):
        return CoverageBlock(name=name, n=0, share=None, half_width=None, median_ape=None)
    return CoverageBlock(
        name=name,
        n=len(measured),
        share=float(np.mean((low <= measured) & (measured <= high))),
        half_width=float(np.median((high - low) / 2 / predicted)),
        median_ape=float(np.median(np.abs(predicted / measured - 1.0))),
    )
