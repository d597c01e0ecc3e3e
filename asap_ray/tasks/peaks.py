"""Predicted peaks beside measured ones: the same figure, on the same devices, as the source of a row reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from asap_ray.interchange.measured import MeasuredRow
from asap_ray.physics.estimate import Estimate, summed
from asap_ray.physics.memory import FIGURES
from asap_ray.physics.roofline import Pricer
from asap_ray.space import Space
from asap_ray.tasks.predictions import CalibrationFor


def predicted_peaks(
    rows: Sequence[MeasuredRow], estimates: Sequence[Estimate | str], calibration_for: CalibrationFor
) -> list[float | None]:
    """Bytes that correspond to each row's `peak_bytes`; None where it states none, or has no estimate."""
    groups: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for i, (row, estimate) in enumerate(zip(rows, estimates, strict=True)):
        if row.peak_bytes and isinstance(estimate, Estimate):
            groups[id(row.problem), row.peak_figure, row.peak_stage].append(i)
    found: list[float | None] = [None] * len(rows)
    for (_, figure, stage), members in groups.items():
        first = rows[members[0]]
        plans = [rows[i].plan for i in members]
        pricer, space = Pricer(first.problem, calibration_for(first)), Space(problem=first.problem)
        parts = pricer.memory(space.columns(plans), stage)
        for i, bytes_ in zip(members, summed(parts[name] for name in FIGURES[figure]), strict=True):
            found[i] = float(bytes_)
    return found
