"""What the compile tier makes of what comes back: figures of made-up builds, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from asap_ray.compiler import toolchain
from asap_ray.compiler.request import Build, packed
from asap_ray.physics.calibration import calibration_of, calibrations_from_mappings
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.tiers.cache import Cache
from asap_ray.tiers.compile import Compile, CompileOptions, compiled
from asap_ray.tiers.parts import part_of, time_parts
from asap_ray.tiers.protocol import Outcome
from asap_ray.tiers.reading import memory_parts
from tests.problems import make_problem

PLAN = Plan.parse("fsdp=8 micro_batch=2 accumulation=1 remat=full")
# Arguments of 90 bytes that the compiler lays out in 100; 5 of 60 bytes of outputs are new, and 30 more at the peak.
MEMORY = {"arguments": 100, "outputs": 60, "aliased": 55, "temporaries": 70, "code": 7, "peak": 135}
ARGUMENTS = {"0.weights": 30, "0.optimizer": 45, "1": 10, "2": 5}
BUILD = Build(status="complete", memory=MEMORY, arguments=ARGUMENTS, hlo=packed("no program"))


def tier(slice_: str = "v5p-16", **options: object) -> Compile:
    problem = make_problem(slice_, "ours", batch=16)
    calibrations = calibrations_from_mappings(load_group("calibration"))
    calibration = calibration_of(problem.slice.chip, "ours", calibrations)
    return Compile(problem=problem, calibration=calibration, options=CompileOptions(**{"cache": None, **options}))  # type: ignore[arg-type]


def outcome(of: Compile, **said: object) -> Outcome:
    return Outcome(job=of.job(PLAN), **{"status": "complete", **said})  # type: ignore[arg-type]


class TestMemory:
    def test_parts_are_the_state_by_kind_and_what_is_alive_at_the_peak(self) -> None:
        assert memory_parts(BUILD) == pytest.approx(
            {
                "weights": 100 * 30 / 90,
                "optimizer": 100 * 45 / 90,
                "arguments": 100 * 15 / 90,
                "outputs": 5,
                "temporaries": 135 - 100 - 5,
                "code": 7,
            }
        )

    def test_what_lies_on_the_host_is_no_memory_of_the_device(self) -> None:
        # A compiler's peak of a program that offloads is the host's: 900 of 1000 here; temporaries are 80 at most.
        offloaded = MEMORY | {"peak": 1000, "host": 900, "temporaries": 80}
        parts = memory_parts(replace(BUILD, memory=offloaded))
        assert parts["temporaries"] == 80
        assert sum(parts.values()) == pytest.approx(100 + 5 + 80 + 7)

    def test_they_sum_to_what_a_device_needs(self) -> None:
        assert tier().read(outcome(tier(), value=BUILD)).hbm_bytes == pytest.approx(135 + 7)

    def test_on_a_gpu_the_limit_is_what_its_context_leaves(self) -> None:
        of = tier("h100x8")
        told = of.read(outcome(of, value=BUILD))
        assert told.limit_bytes == of.problem.slice.chip.usable_hbm_bytes - of.calibration.workspace_bytes
        assert told.status == "complete"

    def test_a_program_that_is_too_large_for_a_gpu_does_not_fit(self) -> None:
        of = tier("h100x8")
        limit = of.problem.slice.chip.usable_hbm_bytes - of.calibration.workspace_bytes
        large = replace(BUILD, memory=MEMORY | {"peak": int(limit) + 1000, "code": 0})
        told = of.read(outcome(of, value=large))
        assert told.status == "infeasible"
        assert told.over_bytes == pytest.approx(1000, abs=1)
        assert told.estimate is None
        assert told.reason.startswith("it needs 8")

    def test_on_a_tpu_the_compiler_decides(self) -> None:
        large = replace(BUILD, memory=MEMORY | {"peak": int(1e15)})
        assert tier().read(outcome(tier(), value=large)).status == "complete"


class TestOutcomes:
    def test_a_refusal_says_by_how_much(self) -> None:
        refused = Build(status="infeasible", reason="r", needed_bytes=12.0, limit_bytes=10.0, over_bytes=2.0)
        told = tier().read(outcome(tier(), value=refused))
        assert (told.status, told.reason) == ("infeasible", "r")
        assert (told.hbm_bytes, told.limit_bytes, told.over_bytes) == (12.0, 10.0, 2.0)

    def test_one_without_figures_names_none(self) -> None:
        told = tier().read(outcome(tier(), value=Build(status="infeasible")))
        assert told.hbm_bytes is None
        assert told.limit_bytes == tier().problem.slice.chip.usable_hbm_bytes

    @pytest.mark.parametrize("status", ["failed", "timeout"])
    def test_a_crash_and_a_hang_keep_their_reason_and_the_last_words(self, status: str) -> None:
        told = tier().read(outcome(tier(), status=status, reason="its process was ended by SIGSEGV", output="F0000 x"))
        assert (told.plan, told.status, told.reason) == (PLAN, status, "its process was ended by SIGSEGV")
        assert told.output == "F0000 x"
        assert told.evidence.startswith("ours@")

    def test_a_program_that_no_reader_knows_still_tells_its_memory(self) -> None:
        told = tier().read(outcome(tier(), value=BUILD))
        assert told.status == "complete"
        assert told.reason.startswith("its program cannot be read")
        assert told.hbm_bytes == pytest.approx(142)

    def test_every_result_names_trainer_and_compiler(self) -> None:
        names = tier().read(outcome(tier(), value=BUILD)).evidence
        assert names.split(", ")[0] == f"ours@{toolchain.source_hash(toolchain.TRAINER)[:8]}"
        assert ", jax " in names
        assert ", libtpu " in names
        assert "jax-cuda12-pjrt" in tier("h100x8").read(outcome(tier("h100x8"), value=BUILD)).evidence


class TestJobs:
    def test_a_job_has_a_process_of_its_own_a_deadline_and_memory(self) -> None:
        job = tier(timeout_s=77.0, memory_bytes=3e9).job(PLAN)
        assert (job.isolated, job.timeout_s, job.memory_bytes) == (True, 77.0, 3e9)
        assert PLAN.line in job.name

    def test_what_was_compiled_before_is_known(self, tmp_path: Path) -> None:
        of = tier(cache=tmp_path)
        assert of.known(PLAN) is None
        _, key, folder = of.job(PLAN).arguments
        Cache(Path(folder)).write(key, BUILD)
        found = of.known(PLAN)
        assert found is not None
        assert found.cached
        assert replace(found, cached=False) == of.read(outcome(of, value=BUILD))
        assert tier(cache=tmp_path, flags={"a": "b"}).known(PLAN) is None
        assert tier().known(PLAN) is None

    def test_a_full_disk_does_not_cost_the_result(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("asap_ray.tiers.compile.compile_plan", lambda request: BUILD)
        (tmp_path / "file").touch()
        request, key, _ = tier(cache=tmp_path).job(PLAN).arguments
        assert compiled(request, key, str(tmp_path / "file")) == BUILD


def op(category: str, phase: str = "forward", axes: tuple[str, ...] = (), exposed_s: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(category=category, phase=phase, axes=axes, exposed_s=exposed_s)


@pytest.mark.parametrize(
    ("one", "part"),
    [
        (op("matmul"), "matmul"),
        (op("attention", "backward"), "attention"),
        (op("matmul", "recompute"), "recompute"),
        (op("elementwise", "optimizer"), "optimizer"),
        (op("copy"), "elementwise"),
        (op("custom"), "elementwise"),
        (op("other"), "host"),
        (op("all_gather", axes=("fsdp",)), "fsdp"),
        (op("all_gather", axes=("fsdp", "context")), "fsdp"),
        (op("reduce_scatter", "backward", ("context",)), "fsdp"),
        (op("all_reduce", "backward", ("data",)), "gradient"),
        (op("all_reduce", "backward", ("data", "fsdp")), "gradient"),
        (op("reduce_scatter", "optimizer", ("data",)), "gradient"),
        (op("all_gather", axes=("tensor",)), "tensor"),
        (op("reduce_scatter", "recompute", ("tensor",)), "tensor"),
        (op("permute", axes=("context",)), "context"),
        (op("permute", axes=("pipeline",)), "pipeline"),
        (op("permute", axes=("tensor",)), "tensor"),
        (op("all_to_all", axes=("expert",)), "expert"),
    ],
)
def test_each_kind_of_op_is_a_part_that_physics_knows(one: SimpleNamespace, part: str) -> None:
    assert part_of(one.category, one.phase, one.axes) == part
    assert part in TIME_PARTS


def test_parts_sum_to_the_step() -> None:
    ops = [op("matmul", exposed_s=3.0), op("all_gather", axes=("fsdp",), exposed_s=0.5)]
    parts = time_parts(SimpleNamespace(ops=ops, step_time_s=4.0))
    assert (parts["matmul"], parts["fsdp"], parts["host"]) == (3.0, 0.5, 0.5)
    assert sum(parts.values()) == 4.0
    assert tuple(parts) == TIME_PARTS
