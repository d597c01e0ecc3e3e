"""Slices parse to the shapes that Google, xpk and MaxText publish; chips agree with figures found elsewhere."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from asap_ray import hardware
from asap_ray.chip import Chip, chip_from_mapping
from asap_ray.errors import ConfigError
from asap_ray.hardware import default_topology, ladder, make_slice, parse_slice
from asap_ray.physics.calibration import peak_flops

CONF = Path(__file__).parents[1] / "conf" / "hardware"
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("*.yaml")}
CHIPS = {chip.name: chip for chip in map(chip_from_mapping, FILES.values())}

# AI-Hypercomputer/maxtext MaxText/accelerator_to_spec_map.py, all of them fully wrapped
MAXTEXT_CUBES = """v4-128 4x4x4  v4-256 4x4x8  v4-384 4x4x12  v4-512 4x8x8  v4-1024 8x8x8  v4-1536 8x8x12
    v4-2048 8x8x16  v4-4096 8x16x16
    v5p-128 4x4x4  v5p-256 4x4x8  v5p-384 4x4x12  v5p-512 4x8x8  v5p-640 4x4x20  v5p-768 4x8x12
    v5p-896 4x4x28  v5p-1024 8x8x8  v5p-1152 4x12x12  v5p-1280 4x8x20  v5p-1408 4x4x44  v5p-1536 8x8x12
    v5p-1664 4x4x52  v5p-1792 4x8x28  v5p-1920 4x12x20  v5p-2048 8x8x16  v5p-2304 8x12x12  v5p-2560 8x8x20
    v5p-2688 4x12x28  v5p-2816 4x8x44  v5p-3072 8x12x16  v5p-3200 4x20x20  v5p-3456 12x12x12  v5p-4608 12x12x16
    v5p-5760 12x12x20  v5p-6144 12x16x16  v5p-8192 16x16x16  v5p-8448 8x12x44  v5p-8960 8x20x28  v5p-9216 12x16x24
    v5p-10368 12x12x36  v5p-11520 12x20x24  v5p-12288 16x16x24  v5p-13824 12x24x24  v5p-17920 16x20x28"""
# Google's documentation of each generation; `tpu7x` from AI-Hypercomputer/xpk system_characteristics.py
SMALL = """v4-8 2x2x1  v4-16 2x2x2  v4-32 2x2x4  v4-64 2x4x4  v5p-8 2x2x1  v5p-16 2x2x2  v5p-32 2x2x4  v5p-64 2x4x4
    v5e-1 1x1  v5e-4 2x2  v5e-8 2x4  v5e-16 4x4  v5e-32 4x8  v5e-64 8x8  v6e-8 2x4  v6e-16 4x4  v6e-64 8x8
    tpu7x-2 1x1x1  tpu7x-8 2x2x1  tpu7x-16 2x2x2  tpu7x-32 2x2x4  tpu7x-64 2x4x4  v3-8 2x2  v3-32 4x4  v3-1024 16x32"""


def pairs(table: str) -> list[tuple[str, str]]:
    words = table.split()
    return list(zip(words[::2], words[1::2], strict=True))


def shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


@pytest.mark.parametrize(("name", "topology"), pairs(MAXTEXT_CUBES))
def test_slices_of_whole_cubes_have_maxtexts_shape_and_wrap_on_all_axes(name: str, topology: str) -> None:
    found = parse_slice(name, CHIPS)
    assert found.topology == shape(topology)
    assert all(axis.wrap for axis in found.axes)
    assert found.devices * 2 == int(name.split("-")[1])


@pytest.mark.parametrize(("name", "topology"), pairs(SMALL))
def test_small_slices_have_the_documented_shape_and_no_wrap(name: str, topology: str) -> None:
    found = parse_slice(name, CHIPS)
    assert found.topology == shape(topology)
    assert not any(axis.wrap for axis in found.axes)


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("v5e-128", (False, True)),
        ("v5e-256", (True, True)),
        ("v6e-256", (True, True)),
        ("v3-2048", (True, True, False)),
    ],
)
def test_flat_tori_wrap_only_where_documented(name: str, wrap: tuple[bool, ...]) -> None:
    assert tuple(axis.wrap for axis in parse_slice(name, CHIPS).axes) == wrap


def test_two_device_chips_end_in_a_die_axis_and_halve_everything() -> None:
    found = parse_slice("tpu7x-128", CHIPS)  # 64 chips in xpk, 128 JAX devices
    assert (found.chips, found.devices, found.ici_devices) == (64, 128, 128)
    assert [(axis.name, axis.size) for axis in found.axes] == [("x", 4), ("y", 4), ("z", 4), ("die", 2)]
    chip = found.chip
    assert found.axes[0].bytes_per_s * 2 == chip.link_bytes_per_s
    assert found.axes[-1].bytes_per_s == 6 * chip.link_bytes_per_s  # Google: six times a 1D ICI link
    assert peak_flops(chip, ("fp8",)) == 4614e12 / 2
    assert chip.device_hbm_bytes == 96 * 2**30
    assert chip.device_hbm_bytes_per_s == 7.38e12 / 2


@pytest.mark.parametrize(
    ("text", "name", "topology", "slices", "devices"),
    [
        ("h100x48", "h100x48", (8,), 6, 48),
        ("h100:6x8", "h100x48", (8,), 6, 48),
        ("h100:6x4", "h100:6x4", (4,), 6, 24),
        ("h100x4", "h100x4", (4,), 1, 4),
        ("gb200x72", "gb200x72", (72,), 1, 72),
        ("gb200x144", "gb200x144", (72,), 2, 144),
        ("gb200x36", "gb200x36", (36,), 1, 36),
        ("a100-40x64", "a100-40x64", (8,), 8, 64),
        ("A100-80x16", "a100x16", (8,), 2, 16),
        ("mi300x8", "mi300x8", (8,), 1, 8),
        ("mi300xx64", "mi300x64", (8,), 8, 64),
        ("mi250x4", "mi250x4", (4,), 1, 8),
        (" V5P-128 ", "v5p-128", (4, 4, 4), 1, 64),
        ("2xv5e-256", "2xv5e-256", (16, 16), 2, 512),
        ("2xv5p:4x4x4", "2xv5p-128", (4, 4, 4), 2, 128),
        ("v5p:8x4x4", "v5p-256", (4, 4, 8), 1, 128),
        ("v5p:4x4x16", "v5p:4x4x16", (4, 4, 16), 1, 256),
        ("v5litepod-16", "v5e-16", (4, 4), 1, 16),
        ("tpu7x:2x2x1", "tpu7x-8", (2, 2, 1), 1, 8),
    ],
)
def test_names_users_type(text: str, name: str, topology: tuple[int, ...], slices: int, devices: int) -> None:
    found = parse_slice(text, CHIPS)
    assert (found.name, found.topology, found.slices, found.devices) == (name, topology, slices, devices)
    assert parse_slice(found.name, CHIPS) == found


def test_local_is_the_measured_machine() -> None:
    measured = replace(CHIPS["h100"], name="local", max_domain=2, hbm_bytes_per_s=1e12)
    found = parse_slice("local", {**CHIPS, "local": measured})
    assert (found.name, found.devices, found.slices) == ("local", 2, 1)
    assert found.chip.hbm_bytes_per_s == 1e12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a slice such as"),
        ("local", "task=calibrate"),
        ("v5p", "v5p-N"),
        ("v5p-127", "did you mean v5p-128?"),
        ("v5p-0", "did you mean v5p-8?"),
        ("v5p--8", "did you mean v5p-8?"),
        ("v7p-128", "did you mean v5p-128?"),
        ("v5p-99999999999", "nearest v5p-17920"),
        ("v5p:3x3x3", "multiples of 4x4x4"),
        ("v5p:64x64x64", "at most 8960 chips"),
        ("v5e-24", "nearest v5e-16 and v5e-32"),
        ("v5e:32x32", "16x16"),
        ("0xv5e-256", "did you mean v5e-256?"),
        ("9999999xv5e-256", "at most 262144 chips"),
        ("h100x0", "1 to 262144 GPUs"),
        ("h100x1000000000", "1 to 262144 GPUs"),
        ("h100x12", "h100x8 or h100x16; h100:2x6"),
        ("gb200x100", "gb200x72 or gb200x144; gb200:2x50"),
        ("h100:2x9", "at most 8 GPUs"),
        ("h100-8", "did you mean h100x8?"),
        ("2xh100x8", "h100:DOMAINSxGPUS"),
        ("v5p-٣", "v5p-N"),
        ("v5p-128\nv5e-16", "v5p-N"),
        ("v5p-" + "1" * 10_000, "a slice such as"),
        ("x" * 10_000, "a slice such as"),
    ],
)
def test_bad_names_end_in_one_short_line_after_bounded_work(text: str, says: str) -> None:
    calls = itertools.count()
    profile = sys.getprofile()
    hardware._most_cubic.cache_clear()
    sys.setprofile(lambda *_: next(calls))
    try:
        with pytest.raises(ConfigError) as caught:
            parse_slice(text, CHIPS)
    finally:
        sys.setprofile(profile)
    assert next(calls) < 300_000  # calls and returns; 130,000 look through all sizes of a chip, whatever was asked for
    line = str(caught.value)
    assert caught.value.key == "hardware"
    assert line.startswith("hardware=")
    assert says in line
    assert "\n" not in line
    assert len(line) < 400


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{0,3}x?(v5p|v5e|h100|gb200|tpu7x)[-x:][0-9x]{0,9}", fullmatch=True))
def test_any_text_gives_a_slice_that_parses_to_itself_or_a_config_error(text: str) -> None:
    try:
        found = parse_slice(text, CHIPS)
    except ConfigError:
        return
    assert parse_slice(found.name, CHIPS) == found
    assert math.prod(axis.size for axis in found.axes) == found.ici_devices


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_ladder_climbs_and_each_rung_parses(chip: Chip) -> None:
    rungs = list(ladder(chip))
    assert all(low.chips < high.chips for low, high in itertools.pairwise(rungs))
    assert rungs[0].chips <= 4
    assert rungs[-1].chips > 131_072
    assert all(parse_slice(rung.name, CHIPS) == rung for rung in rungs)


def test_the_box_of_whole_cubes_has_the_smallest_surface_by_brute_force() -> None:
    v5p = CHIPS["v5p"]
    for cubes in range(1, 141):
        sides = [d for d in range(1, cubes + 1) if cubes % d == 0]
        boxes = [(a, b, cubes // a // b) for a in sides for b in sides if cubes % (a * b) == 0]
        best = min(a * b + b * c + a * c for a, b, c in boxes)
        a, b, c = (side // 4 for side in default_topology(v5p, cubes * 64) or ())
        assert a * b * c == cubes
        assert a * b + b * c + a * c == best


# name, dense bf16 TFLOP/s, HBM GB/s, one-way GB/s of a chip's links, chips of a domain: the vendors' pages
DATASHEETS = [
    ("v3", 123, 900, 400, 1024), ("v4", 275, 1200, 300, 4096), ("v5e", 197, 819, 200, 256),
    ("v5p", 459, 2765, 600, 8960), ("v6e", 918, 1638, 400, 256), ("tpu7x", 2307, 7380, 600, 9216),
    ("a100", 312, 2039, 300, 8), ("a100-40", 312, 1555, 300, 8), ("h100", 989.5, 3350, 450, 8),
    ("h200", 989.5, 4800, 450, 8), ("h800", 989.5, 3350, 200, 8), ("b200", 2250, 8000, 900, 8),
    ("gb200", 2500, 8000, 900, 72), ("gb300", 2500, 8000, 900, 72), ("b300", 2250, 8000, 900, 8),
    ("mi250x", 383, 3277, 300, 4), ("mi300x", 1307.4, 5300, 448, 8), ("h100-efa", 989.5, 3350, 450, 8),
    ("h100-96", 989.5, 2400, 450, 8),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tflops", "hbm", "links", "domain"), DATASHEETS)
def test_datasheets(name: str, tflops: float, hbm: float, links: float, domain: int) -> None:
    chip = CHIPS[name]
    count = {"torus": 2 * chip.torus_rank, "switch": 1, "mesh": domain - 1}[chip.fabric]
    assert chip.peak_flops["bf16"] == pytest.approx(tflops * 1e12, rel=0.002)
    assert chip.hbm_bytes_per_s == pytest.approx(hbm * 1e9, rel=0.026)
    assert chip.link_bytes_per_s * count == pytest.approx(links * 1e9)
    assert chip.max_domain == domain
    assert 0.9 * chip.device_hbm_bytes < chip.usable_hbm_bytes <= chip.device_hbm_bytes
    assert all(source.startswith("https://") for source in chip.sources)


def test_every_chip_of_the_design_is_there() -> None:
    assert set(CHIPS) == {row[0] for row in DATASHEETS}


@pytest.mark.parametrize("name", ["v3", "v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_a_tpus_clock_and_mxus_give_its_peak(name: str) -> None:
    chip = CHIPS[name]
    peak = chip.matrix_units * chip.matrix_tile**2 * 2 * chip.clock_hz
    assert peak == pytest.approx(chip.peak_flops["bf16"], rel=0.003)


# FLOP of one SM or compute unit in a clock, dense bf16: the white papers of Ampere, Hopper, Blackwell and CDNA
@pytest.mark.parametrize(
    ("name", "flops"), [("a100", 2048), ("h100", 4096), ("b200", 8192), ("mi250x", 1024), ("mi300x", 2048)]
)
def test_a_gpus_clock_and_units_reach_its_peak(name: str, flops: int) -> None:
    chip = CHIPS[name]
    assert chip.matrix_units * flops * chip.clock_hz >= 0.999 * chip.peak_flops["bf16"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hbm_bytes": "lots"}, "hardware.v5e.hbm_bytes=lots"),
        ({"hbm_bytes": float("nan")}, "hardware.v5e.hbm_bytes=nan"),
        ({"clock_hz": -1}, "hardware.v5e.clock_hz=-1"),
        ({"peak_flops": {"bf16": 0}}, "hardware.v5e.peak_flops=0"),
        ({"sources": [{"https": "//"}]}, "hardware.v5e.sources"),
        ({"hmb_bytes": 1}, "did you mean hbm_bytes?"),
        ({"peak_flops": {}}, "hardware.v5e.peak_flops={}"),
        ({"matrix_tile": 1.5}, "hardware.v5e.matrix_tile=1.5: allowed: a whole number from 1"),
        ({"torus_rank": 0}, "hardware.v5e.torus_rank=0"),
        ({"devices_per_chip": 2}, "hardware.v5e.die_bytes_per_s=0"),
        ({"usd_per_chip_hour": 0}, "hardware.v5e.usd_per_chip_hour=0: allowed: a number above 0"),
    ],
)
def test_a_faulty_chip_file_is_refused(change: Mapping[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chip_from_mapping({**FILES["v5e"], **change})
    assert says in str(caught.value)


NUMBERS = sorted(key for key, value in FILES["v5e"].items() if isinstance(value, int | float))


@pytest.mark.parametrize("key", NUMBERS)
def test_no_figure_of_a_chip_is_zero(key: str) -> None:
    assert len(NUMBERS) > 12
    with pytest.raises(ConfigError, match=rf"hardware\.v5e\.{key}=0: allowed: "):
        chip_from_mapping({**FILES["v5e"], key: 0})


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Chip)])
def test_every_field_of_a_chip_is_checked(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"\.{key}="):
        chip_from_mapping({**FILES["v5e"], key: object()})


def test_an_incomplete_chip_file_names_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="clock_hz"):
        chip_from_mapping({key: value for key, value in FILES["v5e"].items() if key != "clock_hz"})


def test_axes_of_two_are_one_pair_of_links() -> None:
    assert not any(axis.wrap for axis in make_slice(CHIPS["v5p"], (2, 2, 2)).axes)


@pytest.mark.parametrize("name", ["v5p-128", "v5e-16", "v5e-256", "v5p-32", "tpu7x-16", "h100x8", "mi300x8", "v5e-1"])
def test_what_a_device_can_send_is_its_share_of_all_links(name: str) -> None:
    slice_ = parse_slice(name, CHIPS)
    between = [axis for axis in slice_.axes if not axis.on_chip]
    total = 0.0
    for axis in between:
        if axis.fabric == "switch":
            total += slice_.ici_devices * axis.bytes_per_s
            continue
        others = slice_.ici_devices // axis.size
        if axis.fabric == "mesh":
            pairs = [(i, j) for i in range(axis.size) for j in range(axis.size) if i != j]
        else:
            steps = [(i, i + way) for i in range(axis.size) for way in (1, -1)]
            pairs = [(i, j) for i, j in steps if axis.size > 1 and (axis.wrap or 0 <= j < axis.size)]
        total += others * len(pairs) * axis.bytes_per_s
    assert slice_.ici_bytes_per_s == pytest.approx(total / slice_.ici_devices)
    assert (len(between) < len(slice_.axes)) == (slice_.chip.devices_per_chip > 1)
