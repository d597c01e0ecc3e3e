"""The datasheet of one accelerator, as `conf/hardware/` holds it, and its view per device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from asap_ray.errors import ConfigError

WORDS: Mapping[str, tuple[str, ...]] = {
    "kind": ("tpu", "gpu"),
    "fabric": ("torus", "switch", "mesh"),
    "wrap": ("cube", "axis16", "pod", "none"),
}


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

    def device_flops(self, dtype: str) -> float:
        """Peak FLOP/s of one device for matmuls in `dtype`; ConfigError where the chip has no such unit."""
        if dtype not in self.peak_flops:
            allowed = f"{self.name} multiplies {', '.join(self.peak_flops)}"
            raise ConfigError("precision", dtype, allowed, self.peak_flops)
        return self.peak_flops[dtype] / self.devices_per_chip

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
    types = {field.name: field.type for field in fields(Chip)}
    if unknown := set(mapping) - set(types):
        raise ConfigError(f"hardware.{name}", sorted(unknown)[0], "not a field of a chip", types)
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        where = f"hardware.{name}.{key}"
        if key == "peak_flops":
            values[key] = {str(dtype): _number(where, peak) for dtype, peak in _of(where, value, Mapping).items()}
        elif key == "shapes":
            values[key] = tuple(tuple(int(_number(where, n)) for n in shape) for shape in _of(where, value, list))
        elif types[key] == "int":
            values[key] = int(_number(where, value, least=0))
        elif types[key] in ("float", "float | None"):
            values[key] = None if value is None else _number(where, value, least=0)
        elif types[key] == "str":
            values[key] = _word(where, key, value)
        else:
            values[key] = tuple(_of(where, item, str) for item in _of(where, value, list))
    try:
        return Chip(**values)
    except TypeError as error:
        raise ConfigError(f"hardware.{name}", "incomplete", str(error).split("__init__() ")[-1]) from None


def _word(where: str, key: str, value: object) -> str:
    word, allowed = _of(where, value, str), WORDS.get(key)
    if allowed and word not in allowed:
        raise ConfigError(where, word, f"allowed: {', '.join(allowed)}", allowed)
    return word


def _of(where: str, value: object, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(where, value, f"a {kind.__name__.lower()}")
    return value


def _number(where: str, value: object, least: float = 1.0) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise ConfigError(where, value, f"a number of at least {least:g}")
    return number
