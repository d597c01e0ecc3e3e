"""Figures that an answer may cite: what a trial, or an option's price, says, by name, as a reader of text is shown it.

A claim that rests on a figure can then be checked: the figure exists, and the value is the one that was shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from asap_ray.agents.proposal import STEP, grouped
from asap_ray.cases import clean
from asap_ray.observation import Observation
from asap_ray.physics.estimate import Estimate
from asap_ray.search.protocol import Result

DIGITS = 3
"""Significant digits that figures are shown with."""
WITHIN = 0.01
"""Relative error that a cited value may have: models round."""
TELLING = 0.005
"""Of the step: parts that take less are not shown."""
OPS, WIRES = 5, 4
NAME, TEXT = 48, 400
"""Characters of a name of an op or a place, and of a sentence of somebody else's, at most."""
_ODD = re.compile(r"[^A-Za-z0-9_.:/%@+-]+")

FIXED = ("floor_s", "serial_s", "mfu", "hbm_share")
"""Figures that a trial repeats, or that follow from others."""
Figures = Mapping[str, float]


def shown(value: float) -> float:
    """A figure as it is shown."""
    return float(f"{value:.{DIGITS}g}")


def name_of(text: str) -> str:
    """A name from a profile or a log, made inert: no spaces, no signs that could end what it stands in."""
    return _ODD.sub("_", text)[:NAME]


def sentence(text: str, most: int = TEXT) -> str:
    """Text of somebody else's on one line, without control characters and angle brackets, cut where it is long."""
    return clean(text.replace("<", "(").replace(">", ")"), most)


def figures_of_result(result: Result) -> dict[str, float]:
    """What one trial shows: step, floor, parts, what was predicted of them, memory, and what its profile has."""
    found: dict[str, float] = {}
    if result.roofline is not None:
        told = _of_estimate(result.roofline)
        found |= {f"predicted.{name}": value for name, value in told.items() if name not in FIXED}
    if result.estimate is not None:
        found |= _of_estimate(result.estimate)
    if result.step_time_s is not None:
        found[STEP] = result.step_time_s
    if result.hbm_bytes is not None:
        found["hbm_gb"] = result.hbm_bytes / 1e9
    if result.over_bytes:
        found["over_gb"] = result.over_bytes / 1e9
    if result.observation is not None:
        found |= _of_profile(result.observation)
    return {name: shown(value) for name, value in found.items()}


def figures_of_option(estimate: Estimate, expected_s: float) -> dict[str, float]:
    """What the roofline says of a plan, and the step that is expected of it as trials correct that."""
    told = _of_estimate(estimate)
    return {name: shown(value) for name, value in {"expected_s": expected_s, **told}.items()}


def cited(figures: Mapping[str, Figures], source: str, figure: str, value: float) -> str | None:
    """Why a citation is false; None where the figure exists and has that value."""
    known = figures.get(source)
    if known is None:
        return f"{sentence(source, NAME)!r} was not shown; sources: {', '.join(list(figures)[:20])}"
    if figure not in known:
        return f"{source} shows no {sentence(figure, NAME)!r}; it shows {', '.join(list(known)[:24])}"
    if not abs(value - known[figure]) <= WITHIN * abs(known[figure]) + 1e-9:
        return f"{figure} of {source} is {known[figure]:g}, not {value:g}"
    return None


def _of_estimate(estimate: Estimate) -> dict[str, float]:
    step = estimate.step_time_s
    parts = {f"{name}_s": s for name, s in grouped(estimate.time_parts).items() if s > TELLING * step}
    limit = {"hbm_share": estimate.hbm_bytes / estimate.hbm_limit_bytes} if estimate.hbm_limit_bytes else {}
    return {
        STEP: step,
        "floor_s": estimate.floor_s,
        "serial_s": estimate.serial_s,
        "mfu": estimate.mfu,
        "hbm_gb": estimate.hbm_bytes / 1e9,
        **limit,
        **parts,
    }


def _of_profile(seen: Observation) -> dict[str, float]:
    found = {"mxu": seen.mxu, "hbm_use": seen.hbm, "redundant": seen.redundant, "place": seen.place}
    for i, op in enumerate(seen.top[:OPS], 1):
        found |= {f"top{i}.share": op.share, f"top{i}.s": op.exposed_s, f"top{i}.mxu": op.mxu, f"top{i}.hbm": op.hbm}
    for wire in seen.wires[:WIRES]:
        name = f"exposed.{name_of(wire.over)}_s"
        found[name] = found.get(name, 0.0) + wire.exposed_s
    for each in seen.unpredicted[:WIRES]:
        found[f"unpredicted.{name_of(each.over)}_gb"] = each.wire_bytes / 1e9
    return found
