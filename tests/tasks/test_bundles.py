"""Bundles of compiler flags: all that are carried can be read, and each chip gets its own values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.compiler import toolchain
from asap_ray.errors import ConfigError
from asap_ray.executor import local
from asap_ray.hardware import parse_slice
from asap_ray.settings import load_group
from asap_ray.tasks.bundles import bundle_from_mapping, load_bundles
from asap_ray.tiers.protocol import Job
from tests.problems import CHIPS
from tests.tasks.bundle_chore import compile_each

CARRIED = {name: bundle_from_mapping(name, given) for name, given in load_group("xla").items()}
COMPILED = ("v4", "v5e", "v5p", "v6e", "tpu7x", "h100", "h200", "b200", "a100")


@pytest.mark.parametrize("name", CARRIED)
def test_what_is_carried_says_what_it_is_for_and_from_where(name: str) -> None:
    bundle = CARRIED[name]
    assert bundle.about
    assert bundle.sources or name == "default"
    for chip, flags in bundle.flags.items():
        assert chip in ("tpu", "gpu", *CHIPS)
        prefixes = (
            ("xla_gpu_",) if chip in ("gpu", "h100") else ("xla_tpu_", "xla_enable_", "xla_sc_", "xla_l", "xla_sh")
        )
        assert all(flag.startswith(prefixes) for flag in flags)


def test_the_default_has_no_flags_and_is_for_every_chip() -> None:
    assert {chip: CARRIED["default"].flags_for(CHIPS[chip]) for chip in COMPILED} == {chip: {} for chip in COMPILED}


def test_no_two_bundles_are_the_same_for_a_chip() -> None:
    for chip in COMPILED:
        flags = [
            sorted(found.items()) for each in CARRIED.values() if (found := each.flags_for(CHIPS[chip])) is not None
        ]
        assert all(flags.count(each) == 1 for each in flags)


def test_a_chips_own_values_go_before_those_of_its_kind() -> None:
    given = {"about": "x", "flags": {"tpu": {"xla_a": True}, "v6e": {"xla_a": 3}}}
    bundle = bundle_from_mapping("mine", given)
    assert bundle.flags_for(CHIPS["v6e"]) == {"xla_a": "3"}
    assert bundle.flags_for(CHIPS["v5p"]) == {"xla_a": "true"}
    assert bundle.flags_for(CHIPS["h100"]) is None


def test_truth_values_are_written_as_each_compiler_reads_them() -> None:
    given = {"about": "x", "flags": {"gpu": {"xla_gpu_a": True, "xla_gpu_n": 3}, "tpu": {"xla_tpu_a": False}}}
    bundle = bundle_from_mapping("mine", given)
    assert bundle.flags_for(CHIPS["h100"]) == {"xla_gpu_a": "True", "xla_gpu_n": "3"}
    assert bundle.flags_for(CHIPS["v5p"]) == {"xla_tpu_a": "false"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"about": "x", "flags": {}, "flag": 1}, "xla.mine.flag=1: allowed: name, about"),
        ({"flags": {}}, "xla.mine.about="),
        ({"about": "x", "flags": {"tpu": 3}}, "xla.mine.flags="),
    ],
)
def test_a_bundle_that_is_none_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        bundle_from_mapping("mine", given)


def test_names_are_known_and_fit_the_chip() -> None:
    with pytest.raises(ConfigError, match=r"compile\.xla=asynk: did you mean async\?"):
        load_bundles(["asynk"], [CHIPS["v5p"]], None)
    with pytest.raises(ConfigError, match=r"compile\.xla=sparse_core: not for h100; allowed: async, "):
        load_bundles(["sparse_core"], [CHIPS["v5p"], CHIPS["h100"]], None)


def test_a_users_folder_adds_bundles(tmp_path: Path) -> None:
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla" / "mine.yaml").write_text("about: x\nflags: {v5p: {xla_tpu_a: false}}\n")
    (found,) = load_bundles(["mine"], [CHIPS["v5p"]], str(tmp_path))
    assert found.flags_for(CHIPS["v5p"]) == {"xla_tpu_a": "false"}


@pytest.mark.parametrize("where", ["v5e-4", "v5p-8", "v6e-4", "h100x8"])
def test_the_installed_compiler_takes_every_bundle(where: str) -> None:
    slice_ = parse_slice(where, CHIPS)
    if lacking := toolchain.missing(slice_.chip):
        pytest.skip(lacking)
    bundles = {name: flags for name, each in CARRIED.items() if (flags := each.flags_for(slice_.chip)) is not None}
    job = Job(name=where, work=compile_each, arguments=(slice_, {**bundles, "odd": {"xla_no_such_flag": "1"}}))
    (outcome,) = local.run([replace(job, isolated=True)], 1)
    assert outcome.status == "complete", outcome.reason + outcome.output
    said = dict(outcome.value)
    assert "xla_no_such_flag" in said.pop("odd"), "a flag that a compiler does not know is refused"
    assert said == dict.fromkeys(bundles, "")
