"""Coordinators that lack a part, to see what it is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from asap_ray.agents.analyzer import Analysis
from asap_ray.agents.coordinator import Coordinator
from asap_ray.search.pool import Pool


@dataclass(kw_only=True)
class Unnarrowed(Coordinator):
    """Faults are named and counted in what is expected, but close nothing."""

    def _narrow(self) -> None:
        """Narrow nothing."""


@dataclass(kw_only=True)
class Uncalibrated(Coordinator):
    """The roofline stays as it is, whatever trials say."""

    @property
    def analysis(self) -> Analysis:
        """What all trials come to, with no correction of any part."""
        found = super().analysis
        return replace(found, ratios=np.ones_like(found.ratios), penalties={}, expected_s=self.pool.step_s)


def unpruned(pool: Pool) -> Pool:
    """The pool with floors that prune nothing."""
    return replace(pool, floor_s=np.full(len(pool), 1e-12))
