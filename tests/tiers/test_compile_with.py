"""MaxText's own compilation as a source of programs: words, and what is made of its log and its program."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asap_ray.executor import local
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tiers.compile_with import COMPILE, CompileWith, CompileWithOptions, argument_bytes, build_of
from asap_ray.tiers.launch import Ran
from asap_ray.tiers.placeholders import RUN
from asap_ray.tiers.template import fill
from asap_ray.tiers.templates import template_from_mapping
from tests.problems import make_problem

PLAN = Plan.parse("fsdp=64 micro_batch=2 remat=full")
PROGRAM = """HloModule jit_train_step, num_partitions=64

ENTRY %main (p0: f32[8,4], p1: f32[8,4], p2: s32[2]) -> f32[8,4] {
  %p0 = f32[8,4]{1,0} parameter(0), metadata={op_name="state.model.decoder.layers.mlp.wi.value"}
  %p1 = f32[8,4]{1,0} parameter(1), metadata={op_name="state.optimizer.opt_state[0].mu.decoder.layers.mlp.wi.value"}
  %p2 = s32[2]{0} parameter(2), metadata={op_name="batch['inputs']"}
  ROOT %add = f32[8,4]{1,0} add(%p0, %p1)
}
"""
STATS = (
    "Memory analysis: CompiledMemoryStats(generated_code_size_in_bytes=7, argument_size_in_bytes=264, "
    "output_size_in_bytes=128, alias_size_in_bytes=128, temp_size_in_bytes=70, host_generated_code_size_in_bytes=0, "
    "host_argument_size_in_bytes=0, host_output_size_in_bytes=0, host_alias_size_in_bytes=0, "
    "host_temp_size_in_bytes=0)\n"
)


def tier(slice_: str = "v5p-128", **options: object) -> CompileWith:
    problem = make_problem(slice_, "maxtext", "llama2_70b", batch=128, seq_len=4096)
    constants = calibration_of(problem.slice.chip, "maxtext", calibrations_from_mappings(load_group("calibration")))
    given = {"python": "python", "trainer": "maxtext 0.2.5", "cache": None, **options}
    return CompileWith(
        problem=problem,
        calibration=constants,
        template=template_from_mapping("maxtext", load_group("command")["maxtext"]),
        options=CompileWithOptions(**given),  # type: ignore[arg-type]
    )


def left(tmp_path: Path, log: str, program: str = PROGRAM, **ran: object) -> Ran:
    """What a compilation has left behind."""
    (tmp_path / "trainer.log").write_text(log)
    if program:
        (tmp_path / "program.hlo").write_text(program)
    given = {"ended": "exited", "status": 0, "log": str(tmp_path / "trainer.log"), "trace": str(tmp_path), **ran}
    return Ran(**given)  # type: ignore[arg-type]


class TestWords:
    def test_they_are_those_of_the_training_with_a_topology(self) -> None:
        order = tier(flags={"xla_b": "true", "xla_a": "1"}).job(PLAN).arguments[0]
        trial: dict[str, str] = dict.fromkeys(RUN, "X")
        made = fill(order.template, order.values, trial)
        assert made.argv[:3] == ("X", "-c", COMPILE)
        assert "maxtext.trainers.pre_train.train" not in made.argv
        assert {"model_name=llama2-70b", "ici_fsdp_parallelism=64", "per_device_batch_size=2"} < {*made.argv}
        assert made.argv[-3:] == (
            "compile_topology=v5p-128",
            "compile_topology_num_slices=1",
            "compile_xla_flags=--xla_a=1 --xla_b=true",
        )
        assert made.env["JAX_PLATFORMS"] == "cpu"
        assert made.env["ASAP_RAY_PROGRAM"] == "X/program.hlo"

    def test_several_slices_are_one_shape_and_a_number(self) -> None:
        of = tier("2xv5e-256")
        plan = Plan.parse("data=1x2 fsdp=256 micro_batch=1 accumulation=1 remat=full")
        words = [word for each in of.job(plan).arguments[0].template.argv for word in each.words]
        assert words[-2:] == ["compile_topology=v5e-256", "compile_topology_num_slices=2"]

    def test_what_it_cannot_compile_for_is_said(self) -> None:
        assert tier().missing == ""
        assert "compiles for TPUs" in tier("h100x64").missing
        assert "shapes that are sold" in tier("v5p:4x4x16").missing

    def test_another_version_is_another_compilation(self) -> None:
        one, other = tier(), tier(trainer="maxtext 0.2.6")
        assert one.job(PLAN).arguments[1] != other.job(PLAN).arguments[1]
        assert one.job(PLAN).arguments[1] == tier().job(PLAN).arguments[1]


class TestBuild:
    def test_memory_is_what_maxtext_prints_and_state_is_told_by_its_path(self, tmp_path: Path) -> None:
        build = build_of(left(tmp_path, f"…\n{STATS}"))
        assert build.status == "complete"
        assert build.memory["peak"] == 264 + 128 - 128 + 70
        assert build.memory["temporaries"] == 70
        assert build.arguments == {"0.weights": 128, "0.optimizer": 128, "1": 8}
        assert build.text == PROGRAM
        assert argument_bytes(PROGRAM) == build.arguments

    def test_the_peak_is_what_is_alive_at_once_where_it_is_printed(self, tmp_path: Path) -> None:
        assert build_of(left(tmp_path, f"peak_memory_in_bytes=300\n{STATS}")).memory["peak"] == 300

    def test_a_program_that_does_not_fit_has_its_bytes(self, tmp_path: Path) -> None:
        said = (
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: the total memory required for "
            "HLO temporaries (123.05G) exceeds available HBM (95.73G)\n"
        )
        build = build_of(left(tmp_path, said, program="", status=1))
        assert build.status == "infeasible"
        assert build.needed_bytes == pytest.approx(123.05 * 2**30)
        assert build.limit_bytes == pytest.approx(95.73 * 2**30)

    @pytest.mark.parametrize(
        ("ran", "sentence"),
        [
            (
                {"status": 1, "tail": ("a", "ValueError: no")},
                "the trainer ended with status 1; last lines: a | ValueError: no",
            ),
            ({"ended": "deadline", "status": None, "reason": "not done after 9 s"}, "not done after 9 s; last lines: "),
            ({"other": {"fsdp": "32"}}, "the trainer compiled for another plan: fsdp=32"),
            ({"trace": ""}, "the trainer left no program, or did not say its memory"),
        ],
    )
    def test_faults_are_told(self, tmp_path: Path, ran: dict[str, Any], sentence: str) -> None:
        build = build_of(left(tmp_path, STATS, **ran))
        assert (build.status, build.reason) == ("failed", sentence)


MAXTEXT = os.environ.get("ASAP_RAY_MAXTEXT_PYTHON", "")


@pytest.mark.skipif(not MAXTEXT, reason="ASAP_RAY_MAXTEXT_PYTHON names no interpreter with MaxText")
def test_a_small_model_compiles_for_a_slice(tmp_path: Path) -> None:
    problem = make_problem("v5e-4", "maxtext", "tiny", batch=8, seq_len=256)
    of = tier(python=MAXTEXT, cache=tmp_path)
    of = replace(of, problem=problem)
    (outcome,) = local.run([of.job(Plan.parse("fsdp=4 micro_batch=2 remat=full"))], 1)
    found = of.read(outcome)
    assert (found.status, found.reason) == ("complete", "")
    assert found.estimate is not None
    assert found.estimate.floor_s < found.estimate.step_time_s < 1.0
    known = of.known(Plan.parse("fsdp=4 micro_batch=2 remat=full"))
    assert known is not None
    assert known.estimate == found.estimate
