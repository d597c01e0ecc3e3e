"""The datasheet of one accelerator, as `conf/hardware/` holds it, and its view per device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from asap_ray.errors import ConfigError

WORDS: Mapping[str, tuple[str, ...]] = {
    "kind": ("tpu", "gpu"),
    "fabric": ("torus", "switch", "mesh"),
    "wrap": ("cube", "axis16", "pod", "none"),
}

KIN: Mapping[str, str] = {"mxfp8": "fp8", "mxfp4": "nvfp4"}
"""Block-scaled formats that run on the units of another one."""
MAY_BE_ABSENT = ("torus_rank", "die_bytes_per_s")
"""Figures that are 0 where a chip has no torus or only one die; every other one is above 0."""
KINDS: Mapping[type, str] = {str: "text", list: "a list", Mapping: "a mapping"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One accelerator's datasheet. All figures are per chip unless the name says device.

    `fabric` is how the chips of one slice are linked: `torus` (each chip to its neighbours, `link_bytes_per_s` one way
    per link), `switch` (`link_bytes_per_s` is the chip's whole egress) or `mesh` (a link from each chip to each other).
    `wrap` names the rule by which torus axes close to rings: `cube` (all, when every dimension is a multiple of 4),
    `axis16` (an axis of 16), `pod` (the full pod only) or `none`. `shapes` are the slice shapes that are sold; with
    `cube`, larger multiples of 4x4x4 come on top. `matrix_units` are MXUs or SMs, counted so that
    units x tile^2 x 2 x clock is the bf16 peak of a TPU. `die_bytes_per_s` is one way, from one die of the chip to the
    other; `usable_hbm_bytes` is of one device, what a training program can really get.
    """

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str
    kind: str
    devices_per_chip: int = 1
    cores_per_chip: int = 1
    peak_flops: Mapping[str, float]
    hbm_bytes: float
    usable_hbm_bytes: float
    hbm_bytes_per_s: float
    clock_hz: float
    matrix_tile: int
    matrix_units: int
    on_chip_bytes: float
    fabric: str
    torus_rank: int = 0
    wrap: str = "none"
    shapes: tuple[tuple[int, ...], ...] = ()
    link_bytes_per_s: float
    die_bytes_per_s: float = 0.0
    max_domain: int
    nic_bytes_per_s: float
    pcie_bytes_per_s: float
    chips_per_host: int
    usd_per_chip_hour: float | None = None
    sources: tuple[str, ...]

    def multiplies(self, dtype: str) -> bool:
        """Whether the chip has matrix units for a format."""
        return dtype in self.peak_flops or KIN.get(dtype) in self.peak_flops

    @property
    def device_hbm_bytes(self) -> float:
        """HBM of one device in bytes; a training program gets only `usable_hbm_bytes` of it."""
        return self.hbm_bytes / self.devices_per_chip

    @property
    def device_hbm_bytes_per_s(self) -> float:
        """HBM bandwidth of one device, bytes/s."""
        return self.hbm_bytes_per_s / self.devices_per_chip

    @property
    def device_nic_bytes_per_s(self) -> float:
        """One device's share of the data-centre network, bytes/s one way."""
        return self.nic_bytes_per_s / self.devices_per_chip

    @property
    def device_pcie_bytes_per_s(self) -> float:
        """One device's share of the link to its host, bytes/s one way."""
        return self.pcie_bytes_per_s / self.devices_per_chip

    @property
    def device_matrix_units(self) -> float:
        """MXUs or SMs of one device."""
        return self.matrix_units / self.devices_per_chip


def chip_from_mapping(mapping: Mapping[str, object]) -> Chip:
    """Build a chip from one file of `conf/hardware/`.

    Raises:
        ConfigError: of the key that is missing, unknown or not a finite number of the right sign.
    """
    name = str(mapping.get("name"))
    kinds = get_type_hints(Chip)
    if unknown := set(mapping) - set(kinds):
        raise ConfigError(f"hardware.{name}", sorted(map(str, unknown))[0], "not a field of a chip", kinds)
    values = {key: _read(f"hardware.{name}.{key}", key, kinds[key], value) for key, value in mapping.items()}
    try:
        chip = Chip(**values)
    except TypeError as error:
        raise ConfigError(f"hardware.{name}", "incomplete", str(error).split("__init__() ")[-1]) from None
    if chip.fabric == "torus" and not chip.torus_rank:
        raise ConfigError(
            f"hardware.{name}.torus_rank", 0, "allowed: a whole number from 1, since the fabric is a torus"
        )
    if chip.devices_per_chip > 1 and not chip.die_bytes_per_s:
        raise ConfigError(
            f"hardware.{name}.die_bytes_per_s", 0, "allowed: a number above 0, since a chip has several dies"
        )
    return chip


def _read(where: str, key: str, kind: object, value: object) -> Any:
    least = 0 if key in MAY_BE_ABSENT else 1
    if key == "peak_flops":
        peaks = {str(dtype): _number(where, peak) for dtype, peak in _of(where, value, Mapping).items()}
        if not peaks:
            raise ConfigError(where, peaks, "allowed: a mapping of number formats to FLOP/s, at least one")
        return peaks
    if key == "shapes":
        return tuple(tuple(_whole(where, n) for n in _of(where, shape, list)) for shape in _of(where, value, list))
    if kind is int:
        return _whole(where, value, least)
    if kind in (float, float | None):
        return None if value is None and kind is not float else _number(where, value, above=least > 0)
    if kind is str:
        return _word(where, key, value)
    if kind == tuple[str, ...]:
        return tuple(_of(where, item, str) for item in _of(where, value, list))
    raise TypeError(f"a chip's {key} has no check: {kind}")


def _word(where: str, key: str, value: object) -> str:
    word, allowed = _of(where, value, str), WORDS.get(key)
    if allowed and word not in allowed:
        raise ConfigError(where, word, f"allowed: {', '.join(allowed)}", allowed)
    return word


def _of(where: str, value: object, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(where, value, f"allowed: {KINDS[kind]}")
    return value


def _whole(where: str, value: object, least: int = 1) -> int:
    number = _number(where, value, above=least > 0)
    if not number.is_integer():
        raise ConfigError(where, value, f"allowed: a whole number from {least}")
    return int(number)


def _number(where: str, value: object, above: bool = True) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and (number > 0 or (number == 0 and not above))):
        raise ConfigError(where, value, f"allowed: a number {'above 0' if above else 'from 0'}")
    return number
