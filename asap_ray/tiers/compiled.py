"""What the compile tier says of one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """How the compilation of a plan ended, and what the compiler says of it.

    `hbm_bytes` is what a device needs, `limit_bytes` what it has for a program, `over_bytes` how much is missing (0
    where it fits); None where the compiler came to no figure. `memory_parts` are bytes of one device and sum to
    `hbm_bytes`. `estimate` and `profile` are there where the status is complete. `seconds` is what the compilation
    took when it was made, by step; `cached` says that it was made before. `compiled_with` names the trainer and the
    compiler: it is evidence for that trainer alone. `digest` is a hash of the program: the same digest is the same
    program. `output` is the end of what the compiler wrote where it failed.
    """

    plan: Plan
    status: Literal["complete", "infeasible", "failed", "timeout"]
    reason: str = ""
    hbm_bytes: float | None = None
    limit_bytes: float | None = None
    over_bytes: float = 0.0
    memory_parts: Mapping[str, float] = field(default_factory=dict)
    profile: Any = None
    estimate: Estimate | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    compiled_with: str = ""
    digest: str = ""
    output: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the profile and the estimate, which are written on their own."""
        return {
            "plan": self.plan.line,
            "status": self.status,
            "reason": self.reason,
            "hbm_bytes": self.hbm_bytes,
            "limit_bytes": self.limit_bytes,
            "over_bytes": self.over_bytes,
            "memory_parts": dict(self.memory_parts),
            "step_time_s": self.estimate.step_time_s if self.estimate else None,
            "seconds": dict(self.seconds),
            "cached": self.cached,
            "compiled_with": self.compiled_with,
            "digest": self.digest,
        }
