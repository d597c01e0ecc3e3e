"""What a trial says of one plan, whichever tier made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan

Status = Literal["complete", "pruned", "infeasible", "failed", "timeout"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """How the trial of a plan ended, and what it came to.

    `source` is the tier. `hbm_bytes` is what a device needs, `limit_bytes` what it has for a program, `over_bytes` how
    much is missing (0 where it fits); None where the trial came to no figure. `memory_parts` are bytes of one device
    and sum to `hbm_bytes`. `estimate` is there where there is a step time, `profile` where its program could be read.
    `seconds` is what the trial took when it was made, by step; `cached` says that it was made before. `evidence` names
    the trainer and what ran it, a compiler or devices: it is evidence for that trainer alone. `digest` is a hash of
    the program: the same digest is the same program. `output` is the end of what was written where it failed.
    `facts` are other figures of the trial, by name; `chip_hours` is what it held chips for. `lost` says that the plan
    is not to blame for the end, as in `Outcome`: the same command tries it again.
    """

    plan: Plan
    status: Status
    source: str = "compile"
    reason: str = ""
    hbm_bytes: float | None = None
    limit_bytes: float | None = None
    over_bytes: float = 0.0
    memory_parts: Mapping[str, float] = field(default_factory=dict)
    profile: Any = None
    estimate: Estimate | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    evidence: str = ""
    digest: str = ""
    output: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    chip_hours: float = 0.0
    lost: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the profile and the estimate, which are written on their own."""
        return {
            "plan": self.plan.line,
            "status": self.status,
            "source": self.source,
            "reason": self.reason,
            "hbm_bytes": self.hbm_bytes,
            "limit_bytes": self.limit_bytes,
            "over_bytes": self.over_bytes,
            "memory_parts": dict(self.memory_parts),
            "step_time_s": self.estimate.step_time_s if self.estimate else None,
            "seconds": dict(self.seconds),
            "cached": self.cached,
            "evidence": self.evidence,
            "digest": self.digest,
            "facts": dict(self.facts),
            "chip_hours": self.chip_hours,
            "lost": self.lost,
        }
