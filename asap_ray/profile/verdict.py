"""What bounds a traced step, by the trace alone: no model, no hardware and no floor are needed.

Shares of the step are held against the thresholds of XProf's smart suggestions (openxla/xprof,
xprof/convert/smart_suggestion/constants.h); of the parts above theirs the largest binds. Where the device waits for
input, for its host or for what is not known, no other mesh would help, and the verdict says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asap_ray.profile.summary import StepSummary
from asap_ray.profile.table import COLLECTIVES, Op, Profile

THRESHOLDS: Mapping[str, float] = {
    "input": 0.10,  # kInfeedPercentageThreshold
    "idle": 0.10,  # kTensorCoreIdleTimeThresholdInPercent
    "collectives": 0.30,  # kCollectiveBoundThresholdInPercent
    "copies": 0.30,  # kDataShuffleBoundThresholdInPercent
}
WAITED = 0.10
"""Share of the step for which the ends of asynchronous transfers are waited: kAsyncDoneThresholdInPercent."""
LOW, HIGH = 0.50, 0.70
"""Use of the matrix units and of HBM: kMxuUtilization… and kHbmUtilization…Threshold."""
STRAGGLES = 0.05
"""Share of the step that the slowest device's own work is longer than the usual one's, to be worth a word; ours."""
NOTHING_TO_GAIN = 0.05
"""As in `asap_ray.diagnosis`."""
WORDS: Mapping[str, str] = {
    "compute": "work of the cores",
    "hbm": "HBM",
    "collectives": "transfers between devices",
    "copies": "moves of data within a device",
    "input": "waiting for input",
    "host": "waiting for the host's launches and transfers",
    "idle": "nothing that the trace names",
}
NEXT: Mapping[str, str] = {
    "compute": "the ops that cost most: their shapes, precision and kernels; then recomputation",
    "hbm": "the ops that cost most: what could be fused, kept in lower precision, or not be written at all",
    "collectives": "the collectives that cost most: another mesh that moves less over the same links, or overlap",
    "copies": "the copies that cost most: layouts and transposes that a sharding or a reshape forces",
    "input": "the input pipeline: prefetch to the device, more workers, less work a batch",
    "host": "the loop around the step: asynchronous dispatch, donated buffers, fewer small programs and host reads",
    "idle": "a trace with Python's calls (python_tracer_level=1) and with the loop's own annotations, to name it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What bounds a step (one of `WORDS`), what speaks for it, what binds next, what to look at next.

    `mxu` and `hbm` are achieved over peak, None where the trace does not tell peaks or work; `abstains` says why no
    other mesh would help, or is None.
    """

    bound: str
    evidence: tuple[str, ...]
    next_wall: str
    look_at: str
    mxu: float | None
    hbm: float | None
    abstains: str | None


def verdict(summary: StepSummary, profile: Profile, peaks: tuple[float, float] = (0.0, 0.0)) -> Verdict:
    """Judge a trace; `peaks` are FLOP/s and bytes/s of HBM of a device, 0 where not known."""
    mxu = profile.mxu_use(peaks[0]) if peaks[0] and profile.total("flops") else None
    hbm = profile.hbm_use(peaks[1]) if peaks[1] and profile.total("hbm_bytes") else None
    bound = _bound(summary, mxu, hbm)
    others = {part: share for part, share in summary.shares.items() if part != bound}
    return Verdict(
        bound=bound,
        evidence=tuple(_evidence(summary, profile, mxu, hbm)),
        next_wall=max(others, key=lambda part: others[part]),
        look_at=_look_at(bound, summary, profile),
        mxu=mxu,
        hbm=hbm,
        abstains=_abstains(bound, summary),
    )


def _bound(summary: StepSummary, mxu: float | None, hbm: float | None) -> str:
    shares = summary.shares
    idle = "host" if shares["host"] > shares["idle"] else "idle"
    taken = {
        "input": (shares["input"], THRESHOLDS["input"]),
        idle: (shares["host"] + shares["idle"], THRESHOLDS["idle"]),
        "collectives": (shares["collectives"], THRESHOLDS["collectives"]),
        "copies": (shares["copies"], THRESHOLDS["copies"]),
    }
    above = {part: share for part, (share, least) in taken.items() if share > least}
    if above:
        return max(above, key=lambda part: above[part])
    return "hbm" if hbm is not None and hbm > HIGH and (mxu or 0.0) < HIGH else "compute"


def _evidence(summary: StepSummary, profile: Profile, mxu: float | None, hbm: float | None) -> list[str]:
    parts = ", ".join(f"{part} {share:.1%}" for part, share in summary.shares.items() if share >= 0.0005)
    lines = [f"of the step: {parts}"]
    overlap = profile.overlap()
    if overlap is not None:
        lines.append(f"of all time in collectives {overlap:.0%} hides under work of the cores")
    waited = summary.waited_s / summary.step_s if summary.step_s else 0.0
    if waited > WAITED:
        lines.append(f"the ends of asynchronous collectives are waited for {waited:.1%} of the step")
    for name, use in (("matrix units", mxu), ("HBM", hbm)):
        if use is not None:
            word = "low" if use < LOW else "high" if use > HIGH else "fair"
            lines.append(f"{name} at {use:.0%} of their peak, {word}" if name != "HBM" else f"HBM at {use:.0%}, {word}")
    if straggles(summary):
        lines.append(
            f"{summary.slowest} works {summary.skew:.0%} longer than the usual device; what the others wait for it "
            "counts as collectives"
        )
    if summary.steps > 1 and summary.slowest_s > 1.1 * summary.fastest_s:
        lines.append(f"steps vary from {summary.fastest_s:.3g} s to {summary.slowest_s:.3g} s")
    return lines


def straggles(summary: StepSummary) -> bool:
    """Whether one device's own work is so much longer than the usual one's that all wait for it."""
    own = summary.shares["compute"] + summary.shares["copies"]
    return len(summary.devices) > 1 and summary.skew * own > STRAGGLES


def _look_at(bound: str, summary: StepSummary, profile: Profile) -> str:
    if bound == "collectives" and straggles(summary):
        return f"{summary.slowest} first, which all others wait for: its clock, its input, its share of the work"
    named = _named(bound, profile)
    return f"{NEXT[bound]}: {named}" if named else NEXT[bound]


def _named(bound: str, profile: Profile) -> str:
    """The three ops of the bound's kind that cost most, by where they come from."""
    ops = [op for op in profile.ops if _of(op, bound)]
    return ", ".join(op.source or op.name for op in profile_top(ops))


def profile_top(ops: list[Op], count: int = 3) -> list[Op]:
    """The ops with the most exposed seconds, each place once."""
    found: dict[str, Op] = {}
    for op in sorted(ops, key=lambda each: -each.exposed_s):
        found.setdefault(op.source or op.name, op)
    return list(found.values())[:count]


def _of(op: Op, bound: str) -> bool:
    if bound == "collectives":
        return op.category in COLLECTIVES
    if bound == "copies":
        return op.category == "copy"
    return bound in ("compute", "hbm") and op.category not in (*COLLECTIVES, "copy", "input", "other")


def _abstains(bound: str, summary: StepSummary) -> str | None:
    shares = summary.shares
    if bound in ("input", "host", "idle"):
        return (
            f"the mesh is not the bottleneck: devices do nothing for {summary.waiting:.1%} of the step, "
            f"mostly {WORDS[bound]}, which is the same on every mesh"
        )
    if bound in ("compute", "hbm") and shares["collectives"] < NOTHING_TO_GAIN:
        return (
            f"the mesh is not the bottleneck: exposed collectives are {shares['collectives']:.1%} of the step; what is "
            "left is how well kernels use the chip, and recomputation"
        )
    return None
