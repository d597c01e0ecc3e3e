"""What JAX, its compilers and the chips of this machine are good for; what loads JAX is a job in a fresh process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from asap_ray.chip import Chip
from asap_ray.compiler import here, toolchain
from asap_ray.config import Config
from asap_ray.hardware import Slice
from asap_ray.report import units
from asap_ray.report.health import Check
from asap_ray.tasks.health.machine import NAME, install, requires_of, unmet
from asap_ray.tasks.machine import LOCAL, gpus_here
from asap_ray.tiers.protocol import Job, Outcome

AREA = "Devices and compilers"
LOOK_S = 60.0
"""How long JAX may take to say what it finds: a TPU runtime that another process holds may wait for ever."""
OWN = "devices"
"""The name of the job that looks for this machine's devices; the others are called after their slices."""
PCI = Path("/sys/bus/pci/devices")
TPU_VENDOR = "0x1ae0"
TPU_DEVICES = ("0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")
"""PCI numbers of TPUs v3, v4, v5p, v5e, v6e and TPU7x, as JAX has them (jax._src.hardware_utils)."""
PAIRS: Mapping[str, tuple[str, ...]] = {"tpu": ("libtpu",), "cuda12": ("jax-cuda12-plugin",)}
"""What must be of the version that JAX was released with, by JAX's own extra."""


def tpus_here(pci: Path = PCI) -> int:
    """TPU chips on this machine's PCI bus."""
    return sum(_text(each / "vendor") == TPU_VENDOR and _text(each / "device") in TPU_DEVICES for each in _listed(pci))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def platform_here() -> tuple[str, str]:
    """The platform of this machine's accelerators as JAX names it, with what the machine says of them."""
    if count := tpus_here():
        return "tpu", f"{count} TPU chips on the PCI bus"
    if names := gpus_here():
        return "cuda", f"{len(names)} x {names[0]}"
    return "cpu", ""


def device_jobs(platform: str, slices: Sequence[Slice]) -> list[Job]:
    """The work that asks JAX: for its devices here, and for each chip of the command whose compiler is installed."""
    jobs = [Job(name=OWN, work=here.own_devices, arguments=(platform,), timeout_s=LOOK_S, isolated=True)]
    for each in slices:
        if each.name != LOCAL and not toolchain.missing(each.chip):
            jobs.append(Job(name=each.name, work=here.known, arguments=(each,), timeout_s=LOOK_S, isolated=True))
    return jobs


def devices(
    config: Config, platform: str, seen: str, slices: Sequence[Slice], outcomes: Mapping[str, Outcome]
) -> Iterator[Check]:
    """All checks of devices and compilers, given how the jobs ended, by name."""
    yield pairing(requires_of("jax"))
    yield own(config, platform, seen, outcomes[OWN])
    for each in slices:
        if each.name != LOCAL:
            yield compiler(config, each, outcomes.get(each.name))


def pairing(wanted: Sequence[Requirement]) -> Check:
    """Whether jaxlib, and the libtpu and CUDA plug-in that are installed, are those that JAX was released with."""
    lacking = unmet(wanted)
    pairs = ["jax", "jaxlib"]
    for extra, names in PAIRS.items():
        for name in names:
            if toolchain.installed_version(name):
                pairs.append(name)
                lacking += [each for each in unmet(wanted, extra) if each.startswith(name)]
    found = ", ".join(f"{name} {toolchain.installed_version(name) or 'missing'}" for name in pairs)
    if not lacking:
        return Check(area=AREA, name="jax", status="ok", found=found)
    text = f"{found}, but this jax goes with {', '.join(lacking)}"
    return Check(area=AREA, name="jax", status="lacking", found=text, fix=install(lacking))


def own(config: Config, platform: str, seen: str, outcome: Outcome) -> Check:
    """The devices of this machine. They are needed only where trials are to run on them."""
    asked = config.measures and LOCAL in config.hardware.slices
    bad = "lacking" if asked or platform == "cpu" else "without"  # without any device JAX itself does not work
    if outcome.status != "complete":
        why = f"JAX cannot use them: {_line(outcome)}" if seen else f"JAX does not start: {_line(outcome)}"
        wanted = {"tpu": [f"{NAME}[tpu]"], "cuda": ["jax[cuda12]"]}.get(platform, ["jax"])
        found = f"{seen}; {why}" if seen else why
        return Check(area=AREA, name=OWN, status=bad, found=found, fix=install(wanted))
    got: here.Found = outcome.value
    if platform == "cpu":
        found = "no TPU or NVIDIA GPU; hardware=local stands for the processor's cores"
        return Check(area=AREA, name=OWN, status="ok", found=found)
    memory = f", {units.gigabytes(got.memory_bytes)} each for a program" if got.memory_bytes else ""
    return Check(area=AREA, name=OWN, status="ok", found=f"{got.count} x {got.kind}{memory} ({seen})")


def compiler(config: Config, slice_: Slice, outcome: Outcome | None) -> Check:
    """Whether plans for a slice can be compiled on this machine, which is needed only where that is asked for."""
    name, bad = f"compiler of {slice_.chip.name}", "lacking" if config.compiles else "without"
    if outcome is None:
        text = toolchain.missing(slice_.chip)
        return Check(area=AREA, name=name, status=bad, found=text, fix=_compiler_fix(slice_.chip))
    if outcome.status == "complete":
        found = f"knows {slice_.name}: {outcome.value} devices, with no chip here"
        return Check(area=AREA, name=name, status="ok", found=found)
    wanted = f"hardware=SLICE of another shape than {slice_.name}, or tiers=roofline"
    return Check(area=AREA, name=name, status=bad, found=_line(outcome), fix=wanted)


def _compiler_fix(chip: Chip) -> str:
    if chip.vendor not in toolchain.EXTRAS or chip.name in toolchain.TOO_OLD:
        return "tiers=roofline"
    if chip.vendor == "google":  # by JAX's own words: another libtpu compiles, but what it made cannot be read
        return install(unmet(requires_of("jax"), "tpu"))
    return install(unmet(requires_of(NAME), toolchain.EXTRAS[chip.vendor]))


def _line(outcome: Outcome) -> str:
    return " ".join(outcome.reason.split())[:300]
