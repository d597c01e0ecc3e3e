"""Chips, the slices they come in, and the links between them.

A `Chip` is a datasheet (see `chip.py`), with per-device views beside it, because two TPU generations and one GPU show
each chip as two devices. A `Slice` is what a job gets: TPU chips on a torus, or GPUs in NVLink domains, once or several
times with the data-centre network between. Slices are parsed from the names that users type, not listed:

    v5p-128        64 chips (the name counts TensorCores, two a chip) as 4x4x4
    v5p:4x4x8      an explicit torus, in chips
    2xv5e-256      two 16x16 slices joined by the data-centre network
    h100x48        six domains of eight GPUs
    h100:6x4       six domains of four GPUs each
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from asap_ray.chip import Chip
from asap_ray.errors import ConfigError
from asap_ray.rates import IciAxis

MAX_CHIPS = 1 << 18  # above the largest cluster that has been reported; keeps a typing slip from asking for a billion
CUBE = 4  # v4, v5p and TPU7x slices are built from racks of 4x4x4 chips
AXIS_NAMES = ("x", "y", "z")
FORMS = "a slice such as v5p-128, v5e-256, 2xv5e-256, v5p:4x4x8, h100x48, gb200x72 or h100:6x8"

_NUMBER = "[1-9][0-9]{0,6}"
_PREFIX = re.compile(f"({_NUMBER})x(?=[a-z])")
_COUNT = {"tpu": re.compile("-([0-9]+)"), "gpu": re.compile("x([0-9]+)")}
_TOPOLOGY = re.compile(f":({_NUMBER}(?:x{_NUMBER}){{0,2}})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The chips of one job: `slices` alike groups with fast links inside, and the data-centre network between them.

    `topology` is in chips of one group: the torus dimensions, or (chips of the domain,). `axes` are in devices.
    """

    name: str
    chip: Chip
    topology: tuple[int, ...]
    axes: tuple[IciAxis, ...]
    slices: int

    @property
    def ici_bytes_per_s(self) -> float:
        """What a device can send over its links to other chips of the slice, all together, one way; the mean of all."""
        return sum(axis.device_bytes_per_s for axis in self.axes if not axis.on_chip)

    @property
    def ici_chips(self) -> int:
        """Chips in one slice or NVLink domain."""
        return math.prod(self.topology)

    @property
    def ici_devices(self) -> int:
        """Devices in one slice or NVLink domain."""
        return self.ici_chips * self.chip.devices_per_chip

    @property
    def chips(self) -> int:
        """All chips of the job."""
        return self.ici_chips * self.slices

    @property
    def devices(self) -> int:
        """All devices of the job."""
        return self.ici_devices * self.slices


def default_topology(chip: Chip, chips: int) -> tuple[int, ...] | None:
    """The shape that `chips` chips come in, or None where no slice has that many.

    It is the sold shape of that size; beyond a cube of 4x4x4 all dimensions are multiples of 4 and the box with the
    smallest surface is taken, which reproduces the tables of Google's documentation and of MaxText.
    """
    for shape in chip.shapes:
        if math.prod(shape) == chips:
            return shape
    cubes, rest = divmod(chips, CUBE**3)
    if chip.wrap != "cube" or rest or not 0 < chips <= chip.max_domain:
        return None
    return _most_cubic(cubes)


@lru_cache(maxsize=4096)
def _most_cubic(cubes: int) -> tuple[int, int, int]:
    boxes = [
        (a, b, cubes // a // b)
        for a in range(1, round(cubes ** (1 / 3)) + 1)
        if cubes % a == 0
        for b in range(a, math.isqrt(cubes // a) + 1)
        if (cubes // a) % b == 0
    ]
    a, b, c = min(boxes, key=lambda box: box[0] * box[1] + box[1] * box[2] + box[2] * box[0])
    return (a * CUBE, b * CUBE, c * CUBE)


def make_slice(chip: Chip, topology: tuple[int, ...], slices: int = 1) -> Slice:
    """A slice of known shape, with its axes and the name that parses to it."""
    if chip.fabric == "torus":
        axes = [
            IciAxis(
                name=AXIS_NAMES[i],
                size=size,
                wrap=_wraps(chip, topology, size),
                bytes_per_s=chip.link_bytes_per_s / chip.devices_per_chip,  # both dies of a chip share its links
                fabric="torus",
            )
            for i, size in enumerate(topology)
        ]
    else:
        egress = chip.link_bytes_per_s / chip.devices_per_chip
        name = "nvlink" if chip.vendor == "nvidia" else "xgmi"
        axes = [IciAxis(name=name, size=topology[0], wrap=False, bytes_per_s=egress, fabric=chip.fabric)]
    if chip.devices_per_chip > 1:
        axes.append(_die_axis(chip))
    return Slice(
        name=_slice_name(chip, topology, slices), chip=chip, topology=topology, axes=tuple(axes), slices=slices
    )


def _die_axis(chip: Chip) -> IciAxis:
    rate = chip.die_bytes_per_s
    return IciAxis(name="die", size=chip.devices_per_chip, wrap=False, bytes_per_s=rate, fabric="torus", on_chip=True)


def _wraps(chip: Chip, topology: tuple[int, ...], size: int) -> bool:
    if size <= 2:  # both ways round a ring of two are the same pair of links
        return False
    if chip.wrap == "cube":
        return all(dimension % CUBE == 0 for dimension in topology)
    if chip.wrap == "axis16":
        return size == 16
    return chip.wrap == "pod" and math.prod(topology) == chip.max_domain


def _slice_name(chip: Chip, topology: tuple[int, ...], slices: int) -> str:
    chips = math.prod(topology)
    if chip.kind == "gpu":
        whole = slices == 1 or chips == chip.max_domain
        stem = chip.name.removesuffix("x")  # mi300x64, not mi300xx64
        return f"{stem}x{chips * slices}" if whole else f"{chip.name}:{slices}x{chips}"
    prefix = f"{slices}x" if slices > 1 else ""
    if topology == default_topology(chip, chips):
        return f"{prefix}{chip.name}-{chips * chip.cores_per_chip}"
    return f"{prefix}{chip.name}:{'x'.join(map(str, topology))}"


def ladder(chip: Chip) -> Iterator[Slice]:
    """Slices of growing size, about two a doubling, up to `MAX_CHIPS`: the rungs for "the smallest slice that fits"."""
    steps = sorted({2**i for i in range(20)} | {3 * 2**i for i in range(19)})
    if chip.kind == "gpu":
        inside = [(n,) for n in steps if n < chip.max_domain] + [(chip.max_domain,)]
    else:
        cubes = steps if chip.wrap == "cube" else ()
        counts = {math.prod(shape) for shape in chip.shapes} | {n * CUBE**3 for n in cubes}
        inside = [shape for n in sorted(counts) if (shape := default_topology(chip, n))]
    yield from (make_slice(chip, shape) for shape in inside)
    top = inside[-1]
    yield from (make_slice(chip, top, n) for n in steps[1:] if n * math.prod(top) <= MAX_CHIPS)


def parse_slice(text: str, chips: Mapping[str, Chip]) -> Slice:
    """Parse what a user types for `hardware`; names are case-insensitive.

    Args:
        text: such as `v5p-128`, `2xv5e-256`, `v5p:4x4x8`, `h100x48` or `h100:6x8` (domains x GPUs in each).
        chips: every known chip by name.

    Raises:
        ConfigError: of key `hardware`, with what is allowed and the nearest name.
    """
    given = str(text).strip()
    name = given.lower()
    given = given if len(given) <= 60 else f"{given[:57]}..."
    if name == "local":
        return _local(given, chips)
    prefix = _PREFIX.match(name)
    body = "" if len(name) > 60 else name[prefix.end() :] if prefix else name  # no slice has a name that long
    for spelling, chip in sorted(_spellings(chips.values()).items(), key=lambda item: -len(item[0])):
        rest = body.removeprefix(spelling)
        if rest == body or (rest and rest[0] not in ":-x"):
            continue
        topology, slices = _group(given, rest, chip, int(prefix[1]) if prefix else 1)
        if math.prod(topology) * slices > MAX_CHIPS:
            raise ConfigError("hardware", given, f"at most {MAX_CHIPS} chips")
        return make_slice(chip, topology, slices)
    raise ConfigError("hardware", given, f"{FORMS}, of {', '.join(chips)}", _examples(chips.values()))


def _local(given: str, chips: Mapping[str, Chip]) -> Slice:
    """The machine at hand, whose measured datasheet is a chip named `local`: one whole domain of it."""
    if "local" not in chips:
        where = "hardware/local.yaml in the folder of --config-dir"
        raise ConfigError(
            "hardware",
            given,
            f"the machine at hand, described in {where}; task=calibrate hardware=local then measures it",
        )
    chip = chips["local"]
    return replace(make_slice(chip, chip.shapes[0] if chip.shapes else (chip.max_domain,)), name="local")


def _spellings(chips: Iterable[Chip]) -> dict[str, Chip]:
    return {spelling: chip for chip in chips for spelling in (chip.name, chip.name.removesuffix("x"), *chip.aliases)}


def _examples(chips: Iterable[Chip]) -> list[str]:
    return [rung.name for chip in chips for rung in ladder(chip) if rung.slices == 1 or chip.kind == "gpu"]


def _group(given: str, rest: str, chip: Chip, slices: int) -> tuple[tuple[int, ...], int]:
    """The topology of one group and the number of groups, from what stands behind the chip's name."""
    count, explicit = _COUNT[chip.kind].fullmatch(rest), _TOPOLOGY.fullmatch(rest)
    if chip.kind == "gpu":
        if slices > 1:
            form = f"{chip.name}:{slices}x{rest[1:] or chip.max_domain}"
            raise ConfigError(
                "hardware", given, f"domains of GPUs are written {chip.name}:DOMAINSxGPUS, such as {form}"
            )
        if explicit:
            return _domains(given, chip, tuple(map(int, explicit[1].split("x"))))
        if count:
            return _whole_domains(given, chip, int(count[1]))
        form = f"{chip.name.removesuffix('x')}xGPUS, or {chip.name}:DOMAINSxGPUS"
        raise ConfigError("hardware", given, form, _examples([chip]))
    if explicit:
        return _torus(given, chip, tuple(sorted(map(int, explicit[1].split("x"))))), slices
    if count:
        chips, rest_cores = divmod(int(count[1]), chip.cores_per_chip)
        shape = None if rest_cores else default_topology(chip, chips)
        if shape is None:
            raise _no_such_count(given, chip, int(count[1]) / chip.cores_per_chip, slices)
        return shape, slices
    form = f"{chip.name}-N, or {chip.name}:{'x'.join('ABC'[: chip.torus_rank])} in chips"
    raise ConfigError("hardware", given, form, _examples([chip]))


def _torus(given: str, chip: Chip, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as it is sold; the order of the dimensions is ours to choose, since axes are alike."""
    for sold in chip.shapes:
        if tuple(sorted(sold)) == shape:
            return sold
    cubes = chip.wrap == "cube" and len(shape) == chip.torus_rank and not any(size % CUBE for size in shape)
    if cubes and math.prod(shape) <= chip.max_domain:
        return shape
    sold = ", ".join("x".join(map(str, shape)) for shape in chip.shapes)
    more = f" or multiples of 4x4x4, at most {chip.max_domain} chips" if chip.wrap == "cube" else ""
    near = min(ladder(chip), key=lambda rung: (rung.slices, abs(math.log(math.prod(shape) / rung.ici_chips))))
    form = f"{chip.name}:{'x'.join(map(str, near.topology))}"
    raise ConfigError("hardware", given, f"{chip.name} comes as {sold}{more}; nearest {form}")


def _no_such_count(given: str, chip: Chip, chips: float, slices: int) -> ConfigError:
    counts = [n for n in range(1, chip.max_domain + 1) if default_topology(chip, n)]
    below, above = [n for n in counts if n < chips], [n for n in counts if n > chips]
    near = {below[-1] if below else counts[0], above[0] if above else counts[-1]}
    prefix = f"{slices}x" if slices > 1 else ""
    names = [f"{prefix}{chip.name}-{n * chip.cores_per_chip}" for n in sorted(near)]
    unit = "TensorCores, two a chip" if chip.cores_per_chip == 2 else "chips"
    top = chip.max_domain * chip.cores_per_chip
    allowed = f"{chip.name}-N counts {unit}, up to {top}; nearest {' and '.join(names)}"
    return ConfigError("hardware", given, allowed, names)


def _whole_domains(given: str, chip: Chip, gpus: int) -> tuple[tuple[int, ...], int]:
    domain = chip.max_domain
    if not 0 < gpus <= MAX_CHIPS:
        raise ConfigError("hardware", given, f"1 to {MAX_CHIPS} GPUs", _examples([chip]))
    if gpus <= domain:
        return (gpus,), 1
    if gpus % domain == 0:
        return (domain,), gpus // domain
    low = gpus // domain * domain
    names = [f"{chip.name}x{low}", f"{chip.name}x{low + domain}"]
    each = max(n for n in range(1, domain + 1) if gpus % n == 0)
    explicit = f"{chip.name}:{gpus // each}x{each}"
    allowed = f"up to {domain}, or whole domains of {domain}: {' or '.join(names)}; {explicit} for domains of {each}"
    raise ConfigError("hardware", given, allowed, names)


def _domains(given: str, chip: Chip, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    if len(sizes) != 2 or sizes[1] > chip.max_domain:
        form = f"{chip.name}:DOMAINSxGPUS with at most {chip.max_domain} GPUs in a domain"
        names = [f"{chip.name}:{n}x{chip.max_domain}" for n in (1, 2, 4, 8, 16, 32, 64)]
        raise ConfigError("hardware", given, form, names)
    return (sizes[1],), sizes[0]
