"""Measured runs beside estimates whose figures are given by hand, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from asap_ray.comparison import Compared
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from tests.problems import make_problem

GPU = make_problem("h100x8", "megatron")
TPU = make_problem("v5e-4", "maxtext")


def make_compared(measured_s: float | None = 2.0, predicted_s: float = 1.0, **changed: Any) -> Compared:
    """One run; what is not given is at a harmless default, and of the estimate only what is compared is filled in."""
    estimate = Estimate(
        plan=changed.pop("plan", Plan(micro_batch=1)),
        step_time_s=predicted_s,
        interval_s=changed.pop("interval_s", (0.9 * predicted_s, 1.2 * predicted_s)),
        floor_s=changed.pop("floor_s", 0.5 * predicted_s),
        serial_s=2 * predicted_s,
        mfu=0.4,
        tokens_per_s=1.0,
        hbm_bytes=changed.pop("hbm_bytes", 40e9),
        hbm_limit_bytes=80e9,
        time_parts=changed.pop("time_parts", {"matmul": 0.7 * predicted_s, "tensor": 0.3 * predicted_s}),
        busy={},
        memory_parts={},
        floor_parts={},
        redundant=0.0,
    )
    fields: dict[str, Any] = {
        "id": "run-1",
        "table": "training",
        "source": "a source",
        "url": "https://example.org/run",
        "model": "a model",
        "group": "one",
        "headline": True,
        "ranks": (),
        "problem": GPU,
        "estimate": estimate,
        "measured_s": measured_s,
        "time_basis": "metric" if measured_s else "",
        "status": "ok",
        "quality": "A",
        "inferred": (),
        "peak_bytes": None,
        "predicted_peak_bytes": estimate.hbm_bytes if changed.get("peak_bytes") else None,
    }
    return Compared(**{**fields, **changed})
