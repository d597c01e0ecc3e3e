"""What the report says in words, for the terminal and the page alike. ASCII only, so that every terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.report import units
from asap_ray.report.answer import SliceAnswer, usd_per_million_tokens

if TYPE_CHECKING:
    from asap_ray.diagnosis import Diagnosis
    from asap_ray.hardware import Slice
    from asap_ray.physics.estimate import Estimate
    from asap_ray.workload import Workload

RESOURCES = {
    "compute": "compute",
    "hbm": "HBM bandwidth",
    "ici": "the links inside a slice",
    "dcn": "the network between slices",
    "pcie": "offloading to the host",
    "bubble": "the pipeline bubble",
    "host": "the host",
    "input": "the input pipeline",
}
NO_TRIAL = (
    "No trial stands behind these figures: they are the roofline's exact argmin over every legal plan, and the "
    "roofline can be wrong. Confirm the best few before relying on them."
)


COMPILED_ONLY = (
    "No chip has run these plans: memory and operations are a compiler's for asap_ray's own trainer, and step times "
    "are its estimate. Confirm the best few before relying on them."
)


MEASURED = (
    "Steps were timed on the devices named, with asap_ray's own trainer; for another trainer they are a guess until it "
    "is run itself (tiers=[roofline,command])."
)
COMMANDED = "Steps are those that the trainer itself wrote into its log."
NOTES: Mapping[str, str] = {"compile": COMPILED_ONLY, "run": MEASURED, "command": COMMANDED}
"""What figures are worth, by the tier that they are from."""


def note(slices: Sequence[SliceAnswer]) -> str:
    """What the figures of an answer are worth."""
    return next((NOTES[one.telling.source] for one in slices if one.telling), NO_TRIAL)


def workload_line(workload: Workload) -> str:
    """Parameters, tokens and model FLOPs of one step."""
    model = workload.architecture
    active = ""
    if model.active_parameters != model.parameters:
        active = f" ({units.parameters(model.active_parameters)} active)"
    return (
        f"{units.parameters(model.parameters)} parameters{active}, {workload.precision}, "
        f"{units.count(workload.global_batch)} x {units.count(workload.seq_len)} = "
        f"{units.scaled(workload.tokens_per_step)} tokens and {units.scaled(workload.model_flops, 'FLOP')} a step"
    )


def slice_line(where: Slice, precision: str) -> str:
    """Chips, their arrangement and links, and the datasheet's peaks."""
    chip = where.chip
    devices = f" ({where.devices} devices)" if where.devices != where.chips else ""
    peak = chip.peak_flops.get(precision)
    parts = [
        f"{units.count(where.chips)} {chip.name} chips{devices}, {arrangement(where)}",
        f"{units.scaled(peak, 'FLOP/s')} {precision}" if peak else "",
        f"{units.gigabytes(chip.hbm_bytes)} HBM at {units.scaled(chip.hbm_bytes_per_s, 'B/s')} a chip",
    ]
    return ", ".join(part for part in parts if part)


def arrangement(where: Slice) -> str:
    """How the chips are linked: `4x4x4 torus, all wrapped`, or `6 domains of 8 (switch)`."""
    several = f"{where.slices} slices of " if where.slices > 1 else ""
    if where.chip.fabric != "torus":
        domains = f"{where.slices} domains" if where.slices > 1 else "one domain"
        return f"{domains} of {where.ici_chips} ({where.chip.fabric})"
    shape = "x".join(str(size) for size in where.topology)
    torus = [axis for axis in where.axes if axis.size > 1 and not axis.on_chip]
    wrapped = [axis.name for axis in torus if axis.wrap]
    if not torus:
        return f"{several}{shape}"
    if not wrapped:
        return f"{several}{shape} grid, no wrap"
    wraps = "all wrapped" if len(wrapped) == len(torus) else f"wrapped on {' '.join(wrapped)} only"
    return f"{several}{shape} torus, {wraps}"


def space_line(answer: SliceAnswer) -> str:
    """How many plans there are, how many are legal and how many of those fit."""
    return f"{units.count(answer.total)} plans, {units.count(answer.legal)} legal, {units.count(answer.fitting)} fit"


def removed_line(answer: SliceAnswer) -> str:
    """How many plans each rule removed, most first."""
    return ", ".join(f"{rule} {units.count(n)}" for rule, n in removed(answer)) or "nothing"


def removed(answer: SliceAnswer) -> list[tuple[str, int]]:
    """The rules that removed a plan, most first."""
    return sorted(((rule, int(n)) for rule, n in answer.removed.items() if n), key=lambda pair: (-pair[1], pair[0]))


def speed_line(where: Slice, best: Estimate) -> str:
    """MFU and throughput."""
    return (
        f"{units.percent(best.mfu)} MFU, {units.scaled(best.tokens_per_s)} tokens/s, "
        f"{units.scaled(best.tokens_per_s / where.chips)} tokens/s/chip"
    )


def step_line(best: Estimate) -> str:
    """The step time with its interval."""
    low, high = best.interval_s
    return f"{units.seconds(best.step_time_s)}, likely {units.seconds(low)} to {units.seconds(high)}"


def floor_line(best: Estimate) -> str:
    """Where the step lies between the floor and the time with no overlap at all."""
    return (
        f"{units.seconds(best.floor_s)}: the step takes {units.times(best.step_time_s / best.floor_s)} of it; "
        f"with no overlap at all {units.seconds(best.serial_s)}"
    )


def memory_line(where: Slice, best: Estimate) -> str:
    """Memory used of what there is, for one device."""
    used = units.percent(best.hbm_bytes / best.hbm_limit_bytes)
    allowed, whole = units.gigabytes(best.hbm_limit_bytes), units.gigabytes(where.chip.device_hbm_bytes)
    there = "" if whole == allowed else f" of {whole}"
    return f"{units.gigabytes(best.hbm_bytes)} of {allowed} allowed{there} on a device ({used})"


def cost_line(where: Slice, best: Estimate) -> str:
    """Dollars for a million tokens, or that the price is not known."""
    cost = usd_per_million_tokens(where, best)
    price = where.chip.usd_per_chip_hour
    if cost is None or price is None:
        return f"not known: no price is given for {where.chip.name}"
    return f"{units.dollars(cost)} a million tokens at {units.dollars(price)} a chip-hour"


def baseline_line(baseline: Estimate, best: Estimate) -> str:
    """How the best plan compares with the user's own."""
    faster = units.times(baseline.step_time_s / best.step_time_s)
    misses = "" if baseline.fits else f", does not fit: {over_line(baseline)}"
    return f"{units.seconds(baseline.step_time_s)}{misses}; the best is {faster} as fast ({baseline.plan.line})"


def bound_line(diagnosis: Diagnosis) -> str:
    """What bounds the step, how far it is from its floor, how much traffic hides, and what work is done twice."""
    bound = RESOURCES.get(diagnosis.bound, diagnosis.bound)
    parts = [f"bound by {bound}", f"{units.percent(diagnosis.headroom)} of the step lies above its floor"]
    if diagnosis.overlap is not None:
        parts.append(f"{units.percent(diagnosis.overlap)} of the traffic is assumed to hide under compute")
    if diagnosis.redundant > 0.0005:
        parts.append(f"{units.percent(diagnosis.redundant)} more FLOPs than the model needs")
    return ", ".join(parts)


def wall_line(diagnosis: Diagnosis) -> str:
    """What would bind next."""
    return RESOURCES.get(diagnosis.next_wall, diagnosis.next_wall)


def parts_line(parts: Mapping[str, float], total: float) -> str:
    """The parts that make up at least one percent of the total, largest first, as shares of it."""
    shares = sorted(((value / total, name) for name, value in parts.items()), reverse=True)
    return ", ".join(f"{name} {100 * share:.0f}%" for share, name in shares if share >= 0.01)


def busy_line(best: Estimate) -> str:
    """How much of the step each resource is busy, whether hidden behind another or not."""
    return f"{parts_line(best.busy, best.step_time_s)} of the step"


def over_line(estimate: Estimate) -> str:
    """By how much a plan misses the memory."""
    over = estimate.hbm_bytes - estimate.hbm_limit_bytes
    return f"{units.gigabytes(over)} over ({units.gigabytes(estimate.hbm_bytes)})"


def plan_tokens(plan: Plan) -> dict[str, str]:
    """Every field of a plan as its line writes it, those at their default included."""
    written = dict(token.split("=", 1) for token in plan.line.split())
    every = dict.fromkeys(AXES, "1") | {knob: str(getattr(plan, knob)).lower() for knob in KNOBS}
    return every | written


def differences(plan: Plan, other: Plan) -> list[str]:
    """The fields of `plan` that differ from those of `other`, as `field=value`."""
    theirs = plan_tokens(other)
    return [f"{field}={value}" for field, value in plan_tokens(plan).items() if value != theirs[field]]
