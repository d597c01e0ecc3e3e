"""What is asked of a compiler and what comes back, as plain values that cross processes and are kept on disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from asap_ray.hardware import Slice
from asap_ray.plan import Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.stack import Stack
from asap_ray.workload import Workload

PROGRAM = "asap_ray.trainer.step:train_step"
"""The function that makes the program of a plan, as module:name."""
_COMPUTATIONS = re.compile(r"^(?:ENTRY )?%?[\w.-]+ .*\{$", re.MULTILINE)
_METADATA = re.compile(r", metadata=\{(?:[^{}\"]|\"[^\"]*\")*\}")
MESH = "asap_ray.trainer.sharding:device_mesh"
"""The function that lays a plan's mesh on devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One program to compile: the train step of a plan for a slice, with the compiler's options.

    `program` names a function (workload, plan, stack, mesh, platform=…) whose result has `jitted` and `arguments`,
    `mesh` one (plan, slice, devices) that makes the mesh. `recipe` is what the program has besides the plan, which only
    our own takes; its flags are among `flags`.
    """

    workload: Workload
    plan: Plan
    slice: Slice
    stack: Stack
    flags: tuple[tuple[str, str], ...] = ()
    program: str = PROGRAM
    mesh: str = MESH
    recipe: Recipe = PLAIN

    @property
    def platform(self) -> Literal["tpu", "cuda"]:
        """The platform as JAX names it."""
        return "tpu" if self.slice.chip.kind == "tpu" else "cuda"

    def key(self, sources: str, toolchain: Mapping[str, str]) -> str:
        """What decides the result, as one hash: of the request, the hash of the code, and the compiler's versions.

        Of the stack that is what the trainer reads: the axes that shard weights, and what the plan's policy saves. The
        same request has the same key in every process: nothing in it is a set.
        """
        chip = {"name": self.slice.chip.name, "topology": self.slice.topology, "slices": self.slice.slices}
        policy = next((each for each in self.stack.remat if each.name == self.plan.remat), None)
        kept = {name: _sorted(value) for name, value in asdict(policy).items() if name != "name"} if policy else {}
        stack = {"expert": self.stack.expert, "shards_weights": sorted(self.stack.shards_weights), "remat": kept}
        workload = asdict(self.workload)
        for name in ("name", "source"):  # what a model is called decides nothing
            del workload["architecture"][name]
        given = {
            "workload": workload,
            "plan": {**asdict(_canonical(self.plan)), "remat": ""},
            "chip": chip,
            "stack": stack,
            "flags": sorted(self.flags),
            "program": (self.program, self.mesh),
            "sources": sources,
            "toolchain": dict(toolchain),
        } | ({"recipe": self.recipe.program.line} if self.recipe.program else {})
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


def _sorted(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value


def _canonical(plan: Plan) -> Plan:
    """The plan without knobs that say nothing: a schedule needs a pipeline, a ZeRO stage needs replicas."""
    axes = plan.axes
    if axes["pipeline"] == 1:
        plan = replace(plan, schedule="none", virtual=1)
    return plan if axes["data"] > 1 else replace(plan, zero=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """What a compiler made of a request.

    `memory` holds the bytes of one device by `MEMORY` name, and `arguments` those of the program's arguments by the
    part of the state that they belong to. `needed_bytes` and `limit_bytes` are what the compiler says where a program
    does not fit (0: it does not say). `hlo` is the scheduled program as gzipped text, empty where there is none.
    `seconds` are by step (import, trace, lower, compile), with `cores` the seconds of all cores together; `peak_bytes`
    is the most memory that the process held.
    """

    status: Literal["complete", "infeasible", "failed"]
    reason: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, int] = field(default_factory=dict)
    needed_bytes: float = 0.0
    limit_bytes: float = 0.0
    over_bytes: float = 0.0
    hlo: bytes = b""
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int = 0

    @property
    def text(self) -> str:
        """The scheduled HLO."""
        return gzip.decompress(self.hlo).decode() if self.hlo else ""

    @property
    def digest(self) -> str:
        """A short hash of the program: two plans or flags with one digest are the same program.

        Where a line comes from in the sources is no part of it, nor is the compiler's own fingerprint of its input.
        """
        return program_digest(self.text) if self.hlo else ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `Build.from_dict` reads them back."""
        return asdict(replace(self, hlo=b"")) | {"hlo": self.text}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Build:
        """Read what `as_dict` wrote."""
        return cls(**{**given, "hlo": packed(given["hlo"])})


def program_digest(text: str) -> str:
    """A short hash of a program's text, as `Build.digest`."""
    return hashlib.sha256(_bare(text).encode()).hexdigest()[:16]


def _bare(text: str) -> str:
    """A program without its header, its tables of source lines, and what ops say of them."""
    found = _COMPUTATIONS.search(text)
    return _METADATA.sub("", text[found.start() :] if found else text)


def packed(text: str) -> bytes:
    """Text as gzip, the same bytes each time."""
    return gzip.compress(text.encode(), 6, mtime=0) if text else b""
