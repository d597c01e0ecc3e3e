"""Another source of programs for the compile tier: the user's own trainer, compiled without a chip by itself.

MaxText's `train_compile` takes the words of its training and a topology, and compiles the train step that would run.
The scheduled program that it has then, and the memory that it prints, are a `Build`, which is read as those of our own
trainer are. What comes of it is evidence for MaxText as it is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from asap_ray.compiler import hlo
from asap_ray.compiler.lower import SIZES
from asap_ray.compiler.refusal import refusal
from asap_ray.compiler.request import Build, packed
from asap_ray.errors import shown
from asap_ray.physics.calibration import Calibration
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.tiers.cache import Cache, default_cache
from asap_ray.tiers.finding import Finding
from asap_ray.tiers.launch import Order, Ran, ran
from asap_ray.tiers.protocol import Job, Outcome
from asap_ray.tiers.reading import Reader
from asap_ray.tiers.template import Log, Template, Words
from asap_ray.tiers.trainer_process import GRACE_S

TRAIN = ("-m", "maxtext.trainers.pre_train.train")
COMPILE = """
import os
from absl import app
from maxtext.trainers.pre_train import train_compile
inner = train_compile.jit_and_compile
def outer(*arguments, **named):
    compiled = inner(*arguments, **named)
    with open(os.environ["ASAP_RAY_PROGRAM"], "w") as file:
        file.write(compiled.as_text())
    print(f"peak_memory_in_bytes={compiled.memory_analysis().peak_memory_in_bytes}", flush=True)
    return compiled
train_compile.jit_and_compile = outer
app.run(train_compile.main)
"""
"""MaxText's `train_compile` as it is, but that the program is kept and its peak printed, by which the compiler decides.
XLA's own dump after code generation is no substitute: an element of a tuple is `%x#1` there, and read as all of it."""
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "ASAP_RAY_PROGRAM": "{trace_dir}/program.hlo",
}
"""So that no chip is looked for, several compile side by side, and the program of the step is written down."""
PROGRAM = "program.hlo"
NEVER = r"(?!)(?P<seconds>)"
KINDS = (("optimizer", r"opt_state|\.mu\b|\.nu\b|optimizer"), ("weights", r"params|model|embedder|decoder"))
"""Whose an argument of the program is, by its path in MaxText's train state."""
MARKS = ("RESOURCE_EXHAUSTED", "CompileTimeHbmOom", "Ran out of memory")
"""Words of the line that says what memory a program lacks (`compiler.refusal`)."""
MOST_LOG = 64 * 2**20
"""Bytes of a log's end that are read."""
_STATS = re.compile(r"(\w+_in_bytes)=(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileWithOptions:
    """How the trainer compiles: by whose interpreter (and what is installed there), with which flags, a deadline, and
    where results are kept (None: nowhere)."""

    python: str
    trainer: str
    flags: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 900.0
    cache: Path | None = field(default_factory=default_cache)
    memory_bytes: float = 4.0e9
    pass_env: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompileWith:
    """As `compile.Compile`, with programs that MaxText makes; `template` is that of its training."""

    problem: Problem
    calibration: Calibration
    template: Template
    options: CompileWithOptions
    name: str = "compile"

    @property
    def missing(self) -> str:
        """Why it compiles for no such slice, in one line; empty where it can be tried."""
        slice_ = self.problem.slice
        if slice_.chip.vendor != "google":
            return f"hardware={slice_.name}: compile.with=maxtext compiles for TPUs"
        if ":" in slice_.name:
            return f"hardware={slice_.name}: compile.with=maxtext knows slices of the shapes that are sold, by name"
        return ""

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trial is given up."""
        return self.options.timeout_s

    @property
    def evidence(self) -> str:
        """The trainer and the compiler that its results are evidence for."""
        return f"maxtext@{self._program.digest}, {self.options.trainer}"

    def expressible(self, plan: Plan) -> str | None:
        """Why MaxText's command cannot say a plan, in one line; None where it can."""
        return self.template.refusal(self.problem, plan)

    def job(self, plan: Plan, recipe: Recipe = PLAIN) -> Job:
        """The work that has MaxText compile a plan."""
        order, options = self._order(plan), self.options
        return Job(
            name=f"{self.problem.slice.name} {plan.line}",
            work=compiled_with,
            arguments=(order, self._key(order), str(options.cache) if options.cache else None),
            timeout_s=options.timeout_s + 2 * GRACE_S,
            memory_bytes=options.memory_bytes,
            isolated=True,
        )

    def known(self, plan: Plan, recipe: Recipe = PLAIN) -> Finding | None:
        """What is said of a plan that was compiled before with all the same; None where it was not."""
        if self.options.cache is None:
            return None
        build = Cache(self.options.cache).read(self._key(self._order(plan)))
        return self._read(plan, build, cached=True) if build else None

    def read(self, outcome: Outcome) -> Finding:
        """What is said of a plan, from how its job ended."""
        plan = outcome.job.arguments[0].plan
        if outcome.status == "complete":
            return self._read(plan, outcome.value)
        return Finding(
            plan=plan,
            status=outcome.status,
            reason=" ".join(outcome.reason.split()),
            evidence=self.evidence,
            output=outcome.output,
            lost=outcome.lost,
        )

    def _read(self, plan: Plan, build: Build, *, cached: bool = False) -> Finding:
        return replace(self._reader.read(plan, build, cached=cached), evidence=self.evidence)

    def _order(self, plan: Plan) -> Order:
        return Order(
            plan=plan,
            template=self._program,
            values=self.template.values(self.problem, plan),
            tokens_per_step=self.problem.workload.tokens_per_step,
            python=self.options.python,
            script="",
            steps=1,
            timeout_s=self.options.timeout_s,
            pass_env=self.options.pass_env,
        )

    @cached_property
    def _program(self) -> Template:
        """The template of the training, whose command compiles in place of running."""
        template, slice_ = self.template, self.problem.slice
        name = slice_.name.removeprefix(f"{slice_.slices}x")
        flags = " ".join(f"--{flag}={value}" for flag, value in sorted(self.options.flags.items()))
        more = [f"compile_topology={name}", f"compile_topology_num_slices={slice_.slices}"]
        more += [f"compile_xla_flags={flags}"] if flags else []
        argv = [replace(each, words=_compiling(each.words)) for each in template.argv]
        return replace(
            template,
            argv=(*argv, Words(words=tuple(more))),
            env={**template.env, **ENVIRONMENT},
            log=Log(step=NEVER, plan_used=tuple(each for each in template.log.plan_used if "Num_dev" in each.pattern)),
            trace=PROGRAM,
        )

    def _key(self, order: Order) -> str:
        given = {
            "evidence": self.evidence,
            "values": dict(order.values),
            "slice": self.problem.slice.name,
            "layout": [list(each) for each in order.plan.layout],
        }
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _reader(self) -> Reader:
        return Reader(problem=self.problem, calibration=self.calibration)


def _compiling(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words that start a training, as those that compile it."""
    if words[1:] != TRAIN:
        return words
    return (words[0], "-c", COMPILE.replace("{", "{{").replace("}", "}}"))


def compiled_with(order: Order, key: str, folder: str | None) -> Build:
    """Have the trainer compile, and keep the result: the work of a job."""
    with tempfile.TemporaryDirectory(prefix="asap_ray_") as place:
        build = build_of(ran(replace(order, folder=place)))
    if folder is not None:
        with contextlib.suppress(OSError):  # a full disk costs the next run a compilation, not this one its result
            Cache(Path(folder)).write(key, build)
    return build


def build_of(run: Ran) -> Build:
    """What a trainer's compilation came to, from its log and the program that it has left."""
    with open(run.log, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - MOST_LOG, 0))
        log = file.read(MOST_LOG).decode(errors="replace")
    seconds = {"compile": round(run.wall_s, 3)}
    if refused := refusal(log):
        line = next((line for line in log.splitlines() if any(mark in line for mark in MARKS)), "out of memory")
        return Build(
            status="infeasible",
            reason=" ".join(line.split()),
            needed_bytes=refused.needed_bytes,
            limit_bytes=refused.limit_bytes,
            over_bytes=refused.over_bytes,
            seconds=seconds,
        )
    if fault := _fault(run):
        return Build(status="failed", reason=fault, seconds=seconds)
    memory = _sizes(log)
    if not run.trace or "arguments" not in memory:
        return Build(status="failed", reason="the trainer left no program, or did not say its memory", seconds=seconds)
    try:
        text = (Path(run.trace) / PROGRAM).read_text()
        arguments, peak = argument_bytes(text), _all_of(memory)
    except (OSError, ValueError, LookupError) as error:  # cut off, or of another version
        return Build(status="failed", reason=f"the trainer's program cannot be read: {shown(error)}", seconds=seconds)
    return Build(
        status="complete", memory={"peak": peak, **memory}, arguments=arguments, hlo=packed(text), seconds=seconds
    )


def _sizes(log: str) -> dict[str, int]:
    """Bytes that MaxText prints of its program, by their names in `Build.memory`."""
    said = dict(_STATS.findall(log))
    return {name: int(said[field]) for name, field in SIZES.items() if len(said.get(field, "0" * 20)) < 20}


def _all_of(memory: Mapping[str, int]) -> int:
    """All that a program holds at any time, where nothing says what is alive at once."""
    return memory["arguments"] + memory["outputs"] - memory["aliased"] + memory["temporaries"]


def _fault(run: Ran) -> str:
    last = " | ".join(line.strip() for line in run.tail[-3:])
    if run.other:
        return (
            f"the trainer compiled for another plan: {', '.join(f'{name}={each}' for name, each in run.other.items())}"
        )
    if run.ended == "deadline":
        return f"{run.reason}; last lines: {last}"
    if run.ended != "exited" or run.status:
        return f"the trainer ended with status {run.status}; last lines: {last}"
    return ""


def argument_bytes(text: str) -> dict[str, int]:
    """Bytes of one device by the kind of state that an argument of a program is of, as `Build.arguments` has them."""
    sizes: defaultdict[str, int] = defaultdict(int)
    module = hlo.parse(text)
    for each in module.computations[module.entry].parameters:
        kind = next((kind for kind, mark in KINDS if re.search(mark, each.op_name)), "")
        sizes[f"0.{kind}" if kind else "1"] += sum(int(array.bytes) for array in each.arrays)
    return dict(sizes)
