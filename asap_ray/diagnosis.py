"""What bounds a step, how sure that is, what binds next, and whether the mesh is the problem at all.

The critical path is read by resource. A step is called bound by what is not compute only where that takes more of it
than a threshold: 30% for collectives, HBM and PCIe, 10% for idle time of any kind, as in XProf's smart suggestions
(openxla/xprof, signal thresholds). A kernel's time is compute as far as its matrix units work, and HBM as far as they
wait for it: a matmul with too few rows counts as both. Traffic is judged as a whole and laid to the wire that has more
of it, so that a collective over both levels is not split below the threshold. Of what exceeds its threshold the one
that takes most of the step binds it; where nothing does, the step is compute-bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asap_ray.observation import Observation
from asap_ray.physics.estimate import KERNEL_PARTS, Estimate

THRESHOLDS: Mapping[str, float] = {
    "hbm": 0.30,
    "ici": 0.30,
    "dcn": 0.30,
    "pcie": 0.30,
    "bubble": 0.10,
    "host": 0.10,
    "input": 0.10,
}
WIRES = ("tensor", "context", "expert", "fsdp", "gradient", "pipeline")
LABELS: Mapping[str, str] = {
    "bubble": "pipeline bubble",
    "hbm": "waiting for HBM",
    "pcie": "offloading to the host",
    "host": "launches and host",
    "input": "waiting for input",
}
NOTHING_TO_GAIN = 0.05
"""Below this share of the step, what another plan could save is not worth looking for one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What bounds a step and what speaks for it.

    `bound` and `next_wall` are resources (compute, hbm, ici, dcn, pcie, bubble, host, input), the latter the one that
    would be busy longest if the bound cost nothing; `headroom` is 1 - floor/step; `overlap` is the share of all
    traffic that hides under compute, None where there is none; `redundant` the FLOPs of recomputation over the
    model's own. `abstains` says why no other mesh would help much, or is None.
    """

    bound: str
    evidence: tuple[str, ...]
    next_wall: str
    headroom: float
    overlap: float | None
    redundant: float
    abstains: str | None


def resource_seconds(estimate: Estimate) -> dict[str, float]:
    """The critical path by resource, in seconds; exposed traffic is split between ICI and DCN as the wires are busy.

    Kernels are compute while the matrix units are busy, and HBM while they wait for it.
    """
    parts, busy = estimate.time_parts, estimate.busy
    exposed = sum(parts[name] for name in WIRES)
    wires = busy["ici"] + busy["dcn"]
    across = busy["dcn"] / wires if wires else 0.0
    return {
        "compute": busy["compute"],
        "hbm": max(sum(parts[name] for name in KERNEL_PARTS) - busy["compute"], 0.0) + parts["optimizer"],
        "ici": exposed * (1.0 - across),
        "dcn": exposed * across,
        "bubble": parts["bubble"],
        "pcie": parts["offload"],
        "host": parts["host"],
        "input": parts["input"],
    }


def diagnose(estimate: Estimate) -> Diagnosis:
    """Diagnose one estimate."""
    step, seconds = estimate.step_time_s, resource_seconds(estimate)
    wires = estimate.busy["ici"] + estimate.busy["dcn"]
    exposed = seconds["ici"] + seconds["dcn"]
    bound = _bound(seconds, exposed, step)
    # What binds next does so in full: traffic and HBM count as long as they are busy, hidden today or not.
    others = {name: max(value, estimate.busy.get(name, 0.0)) for name, value in seconds.items() if name != bound}
    return Diagnosis(
        bound=bound,
        evidence=tuple(_evidence(estimate, seconds, exposed, wires)),
        next_wall=max(others, key=lambda name: others[name]),
        headroom=1.0 - estimate.floor_s / step,
        overlap=max(0.0, 1.0 - exposed / wires) if wires else None,
        redundant=estimate.redundant,
        abstains=_abstains(estimate, bound, exposed),
    )


def _bound(seconds: Mapping[str, float], exposed: float, step: float) -> str:
    wire = "dcn" if seconds["dcn"] > seconds["ici"] else "ici"
    taken = {name: seconds[name] for name in seconds if name in THRESHOLDS and name not in ("ici", "dcn")}
    above = {name: each for name, each in {**taken, wire: exposed}.items() if each >= THRESHOLDS[name] * step}
    return max(above, key=lambda name: above[name]) if above else "compute"


def _evidence(estimate: Estimate, seconds: Mapping[str, float], exposed: float, wires: float) -> list[str]:
    step = estimate.step_time_s
    lines = [f"compute {seconds['compute']:.3g} s of {step:.3g} s ({seconds['compute'] / step:.0%})"]
    if wires:
        kinds = {name: estimate.time_parts[name] for name in WIRES if estimate.time_parts[name] > 0.005 * step}
        worst = ", ".join(f"{name} {value:.3g} s" for name, value in sorted(kinds.items(), key=lambda kv: -kv[1]))
        lines.append(
            f"traffic {wires:.3g} s, of which {exposed:.3g} s ({exposed / step:.0%} of the step) does not hide"
            + (f": {worst}" if worst else "")
        )
    for name, label in LABELS.items():
        if seconds[name] > 0.02 * step:
            lines.append(f"{label} {seconds[name]:.3g} s ({seconds[name] / step:.0%})")
    if estimate.redundant > 0.01:
        lines.append(f"recomputation {estimate.redundant:.0%} more FLOPs, {estimate.time_parts['recompute']:.3g} s")
    binding = max(estimate.floor_parts, key=lambda name: estimate.floor_parts[name])
    lines.append(f"floor {estimate.floor_s:.3g} s, set by {binding}")
    return lines


def _abstains(estimate: Estimate, bound: str, exposed: float) -> str | None:
    """Why no other plan would help much; a few host seconds are the same in all plans, launches are not."""
    parts, step = estimate.time_parts, estimate.step_time_s
    launches = parts["host"] - estimate.overhead_s
    movable = exposed + parts["bubble"] + parts["recompute"] + parts["offload"]
    if bound == "compute" and movable < NOTHING_TO_GAIN * step:
        return (
            f"traffic, bubble and recomputation are {movable / step:.1%} of the step: what is left above the floor is "
            "how well kernels use the chip"
        )
    if bound == "host" and movable + launches < NOTHING_TO_GAIN * step:
        return f"{estimate.overhead_s:.3g} s of the step ({estimate.overhead_s / step:.0%}) are the same in every plan"
    return None


def diagnose_observed(seen: Observation) -> Diagnosis:
    """Diagnose what a profile shows, by the same thresholds as an estimate."""
    step, seconds = seen.step_time_s, {**dict.fromkeys(THRESHOLDS, 0.0), **seen.resources}
    wires = sum(each.seconds for each in seen.wires)
    exposed = sum(each.exposed_s for each in seen.wires)
    bound = _bound(seconds, exposed, step)
    across = sum(each.seconds for each in seen.wires if each.level == "dcn")
    busy = {"ici": wires - across, "dcn": across}
    others = {name: max(value, busy.get(name, 0.0)) for name, value in seconds.items() if name != bound}
    return Diagnosis(
        bound=bound,
        evidence=tuple(_seen(seen, wires, exposed)),
        next_wall=max(others, key=lambda name: others[name]),
        headroom=1.0 - seen.floor_s / step,
        overlap=max(0.0, 1.0 - exposed / wires) if wires else None,
        redundant=seen.redundant,
        abstains=_abstains_seen(seen, bound, exposed),
    )


def _seen(seen: Observation, wires: float, exposed: float) -> list[str]:
    step = seen.step_time_s
    kinds = ", ".join(f"{kind} {value:.3g} s ({value / step:.0%})" for kind, value in list(seen.seconds.items())[:5])
    lines = [f"on the critical path: {kinds}", f"matrix units at {seen.mxu:.0%} of their peak, HBM at {seen.hbm:.0%}"]
    if wires:
        worst = ", ".join(f"{each.over} {each.exposed_s:.3g} s" for each in seen.wires[:3] if each.exposed_s > 0)
        lines.append(
            f"collectives {wires:.3g} s, of which {exposed:.3g} s ({exposed / step:.0%} of the step) do not hide"
            + (f": {worst}" if worst else "")
        )
    lines.append(redundant_words(seen))
    for each in seen.unpredicted:
        lines.append(f"not predicted: {each.category} over {each.over}, {each.wire_bytes / 1e9:.3g} GB a device")
    if avoidable := avoidable_words(seen):
        lines.append(avoidable)
    lines.append(place_words(seen))
    lines += [f"not certain: {doubt}" for doubt in seen.doubts]
    return lines


def redundant_words(seen: Observation) -> str:
    """The work that is done beyond the model's own, by what asked for it."""
    policy = seen.policy_flops / seen.model_flops
    words = f"recomputation {seen.recomputed:+.1%} FLOPs (the policy is priced at {policy:+.1%})"
    kernels = f", kernels {seen.redone_flops / seen.model_flops:+.1%}" if seen.redone_flops else ""
    idle = f", idle ticks of the pipeline {seen.idle:+.1%}" if seen.idle else ""
    return f"{words}{kernels}{idle}, all else {seen.surplus:+.1%} of the model's own"


def avoidable_words(seen: Observation) -> str:
    """What the compiler sends because it runs all-reduces where reduce-scatters would do; nothing where it does not.

    With libtpu 0.0.42.1 a reduce-scatter over one link axis of a torus stays one. Over three it becomes an all-reduce
    and a slice, and over two it does on some slices and in some programs.
    """
    more = seen.avoidable
    if not more.wire_bytes:
        return ""
    why = (
        "XLA:TPU runs an all-reduce where a reduce-scatter over several link axes of a torus would do"
        if more.compiler == "XLA:TPU"
        else f"{more.compiler} runs all-reduces where reduce-scatters would do"
    )
    return (
        f"{why}; it moves {more.wire_bytes / 1e9:.3g} GB more, {more.seconds:.3g} s on the links, "
        f"{more.exposed_s:.3g} s of the step ({more.exposed_s / seen.step_time_s:.0%})"
    )


def place_words(seen: Observation) -> str:
    """Where the step lies between its floor and the time with no overlap at all."""
    where = (
        f"{seen.place:.0%} of the way from the floor {seen.floor_s:.3g} s to no overlap at all {seen.serial_s:.3g} s"
    )
    return f"step {seen.step_time_s:.3g} s: {where}" + ("; above it something is sick" if seen.place > 1 else "")


def _abstains_seen(seen: Observation, bound: str, exposed: float) -> str | None:
    if seen.source == "trace" and bound in ("host", "input"):
        share = (seen.resources["host"] + seen.resources.get("input", 0.0)) / seen.step_time_s
        return f"the mesh is not the bottleneck: devices do nothing for {share:.1%} of the step, mostly {LABELS[bound]}"
    again = seen.redundant
    movable = exposed + again / (1.0 + again) * seen.resources["compute"]
    if bound != "compute" or movable >= NOTHING_TO_GAIN * seen.step_time_s:
        return None
    return (
        f"exposed collectives and redundant work are {movable / seen.step_time_s:.1%} of the step: what is left above "
        "the floor is how well kernels use the chip"
    )


def compare(estimate: Estimate, best: Estimate) -> str:
    """One sentence: why a plan is slower than the best, by the parts that differ most."""
    if estimate.plan == best.plan:
        seconds = resource_seconds(best)
        largest = max((n for n in seconds if n != "compute"), key=lambda n: seconds[n])
        share = seconds["compute"] / best.step_time_s
        return (
            f"{share:.0%} of the step is compute; the largest other cost, {largest}, takes "
            f"{seconds[largest] / best.step_time_s:.1%}"
        )
    slower = estimate.step_time_s - best.step_time_s
    change = {name: estimate.time_parts[name] - best.time_parts[name] for name in estimate.time_parts}
    told = sorted((n for n in change if abs(change[n]) > 0.1 * abs(slower)), key=lambda n: -abs(change[n]))[:3]
    changes = ", ".join(f"{name} {change[name]:+.3g} s" for name in told)
    return f"{slower / best.step_time_s:+.1%}: {changes or 'no part differs much'}"
