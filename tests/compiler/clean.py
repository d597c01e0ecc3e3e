"""Programs of the project's own trainer for real plans, one for each way to split a model, in `dumps/clean_*`.

`python -m tests.compiler.clean FOLDER` (from the root of a checkout, with libtpu and the CUDA plug-in installed) takes
them from a folder of compile results, compiles what is not there (minutes each), and writes their texts, cut down to
what FLOPs, collectives and loops are read from.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from asap_ray.compiler.hlo import Instruction, Module, parse
from asap_ray.compiler.request import packed
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from tests.compiler.programs import DUMPS
from tests.problems import make_problem

_KEPT = (
    re.compile(r'"known_trip_count":\{[^}]*\}'),
    re.compile(r'"cost_estimate":\{[^}]*\}'),
    re.compile(r'"estimated_cycles":"?\d+"?'),
    re.compile(r'"lhs_contracting_dimensions":\[[^\]]*\]'),
    re.compile(r'chain_id="?\d+"?'),
)
"""What readers look for in the parts of an instruction that are cut off."""
_METADATA = re.compile(r",? ?metadata=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*\}")
_CONFIG = re.compile(r",? ?backend_config=")


@dataclass(frozen=True, slots=True)
class Clean:
    """A plan whose program is kept: slice, model, sequences a step, and the plan's line; 4096 tokens a sequence."""

    slice: str
    model: str
    batch: int
    line: str

    @property
    def problem(self) -> Problem:
        """What the plan is for."""
        return make_problem(self.slice, "ours", model=self.model, batch=self.batch, seq_len=4096)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return Plan.parse(self.line)


PROGRAMS = {
    "fsdp": Clean("v5e-16", "llama3_8b", 16, "fsdp=16@4.4 micro_batch=1 accumulation=1 remat=full"),
    "three_links": Clean("v5p-128", "llama2_70b", 128, "fsdp=64@4.4.4 micro_batch=2 accumulation=1 remat=full"),
    "tensor": Clean(
        "v5p-128",
        "llama2_70b",
        128,
        "fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=4 accumulation=2 sequence_parallel=true remat=save_qkv",
    ),
    "context": Clean(
        "v5p-128", "llama2_70b", 64, "fsdp=16@4.4.1 context=4@1.1.4 micro_batch=4 accumulation=1 remat=full"
    ),
    "pipeline": Clean(
        "v5p-128",
        "llama2_70b",
        128,
        "fsdp=16@4.4.1 pipeline=4@1.1.4 micro_batch=1 accumulation=8 schedule=gpipe remat=full",
    ),
    "expert": Clean("v5p-64", "mixtral8x7b", 32, "fsdp=4@1.2.2 expert=8@2.2.2 micro_batch=1 accumulation=1 remat=full"),
    "zero": Clean("v6e-16", "llama3_8b", 32, "data=4@2.2 fsdp=4@2.2 micro_batch=2 accumulation=1 zero=1 remat=full"),
    "slices": Clean("2xv5e-16", "llama3_8b", 32, "data=1x2 fsdp=16@4.4 micro_batch=1 accumulation=1 remat=full"),
    "h100": Clean(
        "h100x8", "llama3_8b", 8, "fsdp=4 tensor=2 micro_batch=2 accumulation=1 sequence_parallel=true remat=full"
    ),
}


def trimmed(module: Module) -> str:
    """A program's text without what says where ops come from and how kernels are tiled."""
    lines = [f"HloModule clean, num_partitions={module.partitions}", ""]
    for name, computation in module.computations.items():
        lines.append(f"{'ENTRY ' if name == module.entry else ''}%{name} () -> () {{")
        lines += map(_line, computation.instructions)
        lines += ["}", ""]
    return "\n".join(lines)


def _line(each: Instruction) -> str:
    attributes = _without_metadata(each)
    found = _CONFIG.search(attributes)
    if found:
        kept = [match[0] for pattern in _KEPT for match in pattern.finditer(attributes, found.end())]
        attributes = attributes[: found.start()] + (f", backend_config={{{','.join(kept)}}}" if kept else "")
    attributes = f", {attributes.lstrip(', ')}" if attributes.strip(", ") else ""
    return f"  {'ROOT ' if each.root else ''}%{each.name} = {each.shape} {each.opcode}({each.literal}){attributes}"


def _without_metadata(each: Instruction) -> str:
    """Attributes up to the backend's own; a custom call keeps its scope, which says how many pairs a head sees."""
    scope = f', metadata={{op_name="{each.op_name}"}}' if each.opcode == "custom-call" and each.op_name else ""
    bare = _METADATA.sub("", each.attributes)
    found = _CONFIG.search(bare)
    place = found.start() if found else len(bare)
    return bare[:place] + scope + bare[place:]


def main(folder: str) -> None:
    """Write the texts of all programs, from a folder of results or compiled anew."""
    from asap_ray.executor import local
    from asap_ray.tiers.cache import Cache
    from asap_ray.tiers.compile import Compile, CompileOptions
    from tests.compiler.conftest import calibrated

    for name, given in PROGRAMS.items():
        problem, options = given.problem, CompileOptions(cache=Path(folder), timeout_s=3600.0)
        job = Compile(problem=problem, calibration=calibrated(problem), options=options).job(given.plan)
        build = Cache(Path(folder)).read(job.arguments[1])
        if build is None:
            (outcome,) = local.run([job], workers=1)
            build = outcome.value
        (DUMPS / f"clean_{name}.txt.gz").write_bytes(packed(trimmed(parse(build.text))))


if __name__ == "__main__":
    main(sys.argv[1])
