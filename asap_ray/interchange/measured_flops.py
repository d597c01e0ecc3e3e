"""Rows whose source prints TFLOP/s or MFU alone: the step time that its own FLOP formula makes of them.

Sources count different FLOPs for the same step: attention over the keys a query sees (`causal`), over all (`full`) or
not at all (`none`), recomputation or not (`passes`: forward passes that a step is worth, 3 or 4), the input embedding
as if it multiplied (6N; tied weights are in N once, as the head). A step of F such FLOPs at R FLOP/s on each of N chips
took F / (R N).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asap_ray.interchange.measured import MeasuredRow
from asap_ray.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopConvention:
    """How one source counts the FLOPs of a step.

    `passes` are forward passes of the layers; the head, which no source counts twice, is worth 3. `peak` names the
    format whose peak an MFU is of, or `own` for that of the row.
    """

    attention: str
    passes: float
    embedding: bool
    peak: str
    why: str

    def step_flops(self, workload: Workload) -> float:
        """FLOPs of a step as the source counts them."""
        parts = dict(replace(workload, causal=self.attention != "full").flops_by_part())
        attention, head = parts.pop("attention"), parts.pop("head")
        layers = sum(parts.values()) + (0.0 if self.attention == "none" else attention)
        model = workload.architecture
        looked_up = model.embedding_parameters if self.embedding and not model.tied else 0
        return self.passes * layers + 3.0 * (head + 2.0 * workload.tokens_per_step * looked_up)


def convention_of(row: MeasuredRow, conventions: Sequence[Mapping[str, Any]]) -> FlopConvention | None:
    """The first convention whose `match` is found in the row's source, if its `before` lies after the row's date."""
    for entry in conventions:
        if not re.search(entry["match"], row.source, re.IGNORECASE):
            continue
        if "before" in entry and not row.date < str(entry["before"]):
            continue
        return FlopConvention(
            attention=entry["attention"],
            passes=entry.get("passes", 3),
            embedding=entry.get("embedding", False),
            peak=entry.get("peak", "bf16"),
            why=entry["why"],
        )
    return None


def timed(row: MeasuredRow, conventions: Sequence[Mapping[str, Any]]) -> MeasuredRow:
    """The row with a step time made of its TFLOP/s, else of its MFU; as it is where it has a time, or has neither."""
    if row.step_time_s is not None or row.status != "ok":
        return row
    convention = convention_of(row, conventions)
    if convention is None:
        return row
    chip, chips = row.problem.slice.chip, row.problem.slice.chips
    precision = row.plan.precision if convention.peak == "own" else convention.peak
    peak = chip.peak_flops.get(precision, chip.peak_flops["bf16"])
    flops = convention.step_flops(row.problem.workload)
    if row.tflops_per_chip is not None and row.tflops_per_chip > 0:
        return replace(row, step_time_s=flops / (row.tflops_per_chip * 1e12 * chips), time_basis="tflops")
    if row.mfu_percent is not None and row.mfu_percent > 0:
        return replace(row, step_time_s=flops / (row.mfu_percent / 100 * peak * chips), time_basis="mfu")
    return row
