"""The measured plans of one workload side by side: how they are ranked, and whether a certificate would have held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.accuracy import TOP, RankingBlock, ranking_block
from asap_ray.certificate import PROBABILITY, check
from asap_ray.comparison import Compared

LEAST_PLANS = 3
"""Distinct plans that a ranking needs to say anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """The distinct plans of one workload that were measured [plans]; runs of one plan count by their median."""

    name: str
    predicted_s: np.ndarray
    low_s: np.ndarray
    measured_s: np.ndarray


def ranked(rows: Iterable[Compared]) -> list[Ranked]:
    """The workloads of which at least three plans were measured, in the order of first appearance."""
    workloads: dict[tuple[str, str], defaultdict[tuple[object, ...], list[Compared]]] = {}
    for row in rows:
        if row.status == "ok" and row.measured_s:
            for name in row.ranks:
                plans = workloads.setdefault((row.source, name), defaultdict(list))
                plans[row.problem.stack.name, row.problem.workload.architecture, row.estimate.plan].append(row)
    return [
        Ranked(
            name=name,
            predicted_s=_medians(plans, lambda row: row.estimate.step_time_s),
            low_s=_medians(plans, lambda row: row.estimate.interval_s[0]),
            measured_s=_medians(plans, lambda row: row.measured_s or 0.0),
        )
        for (_, name), plans in workloads.items()
        if len(plans) >= LEAST_PLANS
    ]


def _medians(plans: Mapping[tuple[object, ...], Sequence[Compared]], figure: Callable[[Compared], float]) -> np.ndarray:
    return np.array([np.median([figure(row) for row in alike]) for alike in plans.values()])


def rankings(rows: Iterable[Compared]) -> list[RankingBlock]:
    """One block for each ranked workload."""
    return [ranking_block(each.name, each.predicted_s, each.measured_s) for each in ranked(rows)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateBlock:
    """How often the credible certificate held, had only the predicted best `tried` plans of each ranked workload been
    run: `holds` is a share of the workloads; `above` the share of the untried plans that took at least their lower end,
    for which `probability` is stated."""

    tried: int
    groups: int
    holds: float | None
    above: float | None
    probability: float


def certificates(rows: Iterable[Compared]) -> list[CertificateBlock]:
    """The certificate after the best predicted plan is tried, and after the best three."""
    found = ranked(rows)
    blocks = []
    for tried in TOP:
        checks = [
            check(each.predicted_s, each.low_s, each.measured_s, tried)
            for each in found
            if len(each.measured_s) > tried
        ]
        untried = sum(each.untried for each in checks)
        blocks.append(
            CertificateBlock(
                tried=tried,
                groups=len(checks),
                holds=sum(each.holds for each in checks) / len(checks) if checks else None,
                above=sum(each.above for each in checks) / untried if untried else None,
                probability=PROBABILITY,
            )
        )
    return blocks
