"""A command template: how a plan becomes the command line of the user's own trainer, and what its log says.

It is data (`conf/command/*.yaml`, or the same in a `config_dir`). The command is a list of words, never a line for a
shell. A knob that no word of the template speaks of is at the trainer's own value (`fixed`); a plan that wants another
is refused with that sentence, so that nothing of a plan is dropped in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from asap_ray.architecture import Architecture
from asap_ray.layers import Attention
from asap_ray.plan import AXES, KNOBS, Plan
from asap_ray.problem import Problem
from asap_ray.tiers.placeholders import RUN, Value, filled, names_in, values_of, written

FIXED: Mapping[str, str] = {
    "accumulation": "1",
    "zero": "0",
    "schedule": "none",
    "virtual": "1",
    "sequence_parallel": "false",
    "precision": "bf16",
    "attention": "flash",
}
"""What a trainer does that is not told, unless its template's `fixed` says otherwise."""
BATCH = ("micro_batch", "accumulation")
TOTAL, ONE = ("global_batch", "per_device_step_batch", "shard_batch"), ("micro_batch", "per_device_batch")
"""Placeholders that say how many sequences a step has, and how many a micro-batch."""
IMPLIES: Mapping[str, str] = {"layers_per_chunk": "virtual"}
"""Placeholders that say a knob in other words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """Holds where every name of `when` has one of its values, and not every one of `unless` has."""

    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether it holds for these values of placeholders."""
        met = _all_of(self.when, values)
        return met and not (self.unless and _all_of(self.unless, values))


def _all_of(wanted: Mapping[str, tuple[str, ...]], values: Mapping[str, Value]) -> bool:
    return all(written(values[name]) in allowed for name, allowed in wanted.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Words of a command line, there where the condition holds."""

    words: tuple[str, ...]
    condition: Condition = field(default_factory=Condition)


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """A line by which a trainer shows the plan that it runs: each named group is a placeholder, and must have its
    value. Such a line must come before steps count, where the condition holds."""

    pattern: str
    condition: Condition = field(default_factory=Condition)


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Regular expressions for lines of a log.

    `step` has the groups `seconds`, `ms`, `tokens_per_s` or `tokens_per_s_per_device`, and maybe `step` and `loss`.
    `oom` and `memory` have sizes (`needed`, `limit`, `tried`, `free`; `peak`), each with its unit in `NAME_unit` where
    it is not bytes. `diverged` is a line that says the loss is no number.
    """

    step: str
    oom: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    plan_used: tuple[Used, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file that is written for each trial: its name, its format by that name's ending, and what is in it."""

    name: str
    content: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """How one trainer is started with a plan and how its log is read.

    `stacks` are those whose plans it is for (none: any). `hosts` is `one` where the command starts the trainer on the
    machine that it runs on, `any` where it reaches all of them by itself. `module` must be importable by the user's
    interpreter, of `package` the version is evidence, `requires` is the oldest Python. `words` translates values.
    `models` gives placeholders of a model's own by its name; with `plain` sizes describe any other, if it is built as
    Llama is. `order` has the mesh axes as the trainer lays them, innermost first; `rest` is the one that takes the
    devices which others leave. `skip` first steps are not timed. `trace` is where a profile comes to lie, within
    `{trace_dir}`.
    """

    name: str
    argv: tuple[Words, ...]
    log: Log
    about: str = ""
    stacks: tuple[str, ...] = ()
    hosts: str = "one"
    module: str = ""
    package: str = ""
    requires: str = ""
    plain: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    file: File | None = None
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    rest: str = ""
    skip: int = 3
    steps: int = 10
    trace: str = ""
    sources: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of all that decides what is run and how its log is read."""
        given = {name: value for name, value in asdict(self).items() if name not in ("about", "sources")}
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:8]

    def values(self, problem: Problem, plan: Plan) -> dict[str, Value]:
        """Values of all placeholders but those of a trial."""
        own = self.models.get(problem.workload.architecture.name)
        return {**values_of(problem, plan, own is not None), **(own or {})}

    def spoken(self, values: Mapping[str, Value]) -> list[str]:
        """The words of the command for these values, not filled in."""
        return [word for each in self.argv if each.condition.holds(values) for word in each.words]

    def texts(self, values: Mapping[str, Value]) -> Iterator[str]:
        """Every text that is filled in for these values."""
        yield from self.spoken(values)
        yield from self.env.values()
        if self.file:
            yield from leaves(self.file.content)

    def translated(self, name: str, value: object) -> str:
        """A value in the trainer's own word."""
        text = written(value)
        return self.words.get(name, {}).get(text, text)

    def refusal(self, problem: Problem, plan: Plan) -> str | None:
        """Why the command cannot say a plan, in one line; None where it can."""
        values = self.values(problem, plan)
        named = {name for text in self.texts(values) for name in names_in(text)}
        for name in sorted(named & self.words.keys()):
            if written(values[name]) not in self.words[name]:
                known = ", ".join(self.words[name])
                return f"{name}={written(values[name])}: command={self.name} has a word for {known} only"
        model = problem.workload.architecture
        if (named - values.keys() - set(RUN)) or (self.plain and not values["known_model"] and not like_llama(model)):
            known = ", ".join((*self.models, *(["all that are built as Llama is"] if self.plain else [])))
            return (
                f"model {model.name}: command={self.name} has words for {known}; a template of your own may have more"
            )
        return self._of_axes(problem, plan, named) or self._of_knobs(problem, plan, values, named)

    def _of_axes(self, problem: Problem, plan: Plan, named: set[str]) -> str | None:
        for i, axis in enumerate(AXES):
            whole = axis in named or axis == self.rest
            inside = f"ici_{axis}" in named or plan.ici[i] == 1
            across = f"dcn_{axis}" in named or plan.dcn[i] == 1
            if not whole and not (inside and across):
                return f"{axis}={plan.axes[axis]}: command={self.name} has no word for this axis"
        chunks, layers = plan.axes["pipeline"] * plan.virtual, problem.workload.architecture.layers
        if layers % chunks:
            stages = f"pipeline {plan.axes['pipeline']} × virtual {plan.virtual}"
            return f"{stages}: command={self.name} splits {layers} layers evenly"
        if problem.slice.slices > 1 and not any(name.startswith("dcn_") for name in named):
            return self._of_order(problem, plan)
        return None

    def _of_order(self, problem: Problem, plan: Plan) -> str | None:
        """Where the trainer lays ranks by itself, a plan must lie as it does: inner axes fill a slice or node first."""
        if not self.order:
            return f"command={self.name} does not say how axes lie across the {problem.slice.slices} parts of the slice"
        left = problem.slice.ici_devices
        for axis in self.order:
            i, size = AXES.index(axis), plan.axes[axis]
            inside = min(size, left) if left % size == 0 or size % left == 0 else 0
            if inside != plan.ici[i]:
                return (
                    f"{axis}={plan.ici[i]}x{plan.dcn[i]}: command={self.name} lays {', '.join(self.order)} from the "
                    f"nearest ranks outwards, so that {inside or 'a broken part'} of it would be inside"
                )
            left //= inside
        return None

    def _of_knobs(self, problem: Problem, plan: Plan, values: Mapping[str, Value], named: set[str]) -> str | None:
        told = named | {IMPLIES[name] for name in named & IMPLIES.keys()} | self._conditions(values)
        if self._batch_told(named, plan):
            told |= {*BATCH}
        for knob in KNOBS:
            if knob in told or not _matters(problem, plan, knob):
                continue
            fixed = self.fixed.get(knob, FIXED.get(knob, ""))
            if written(getattr(plan, knob)) != fixed:
                runs = f", and the trainer runs {fixed}" if fixed else ""
                return f"{knob}={written(getattr(plan, knob))}: command={self.name} has no word for it{runs}"
        return None

    def _conditions(self, values: Mapping[str, Value]) -> set[str]:
        """Names whose value some words were chosen for."""
        return {name for each in self.argv if each.condition.holds(values) for name in each.condition.when}

    def _batch_told(self, named: set[str], plan: Plan) -> bool:
        """Whether what is said leaves no doubt about micro-batch and accumulation: two of total, one, and count."""
        total, one = bool(named & set(TOTAL)), bool(named & set(ONE))
        once = written(plan.accumulation) == self.fixed.get("accumulation", FIXED["accumulation"])
        return total + one + ("accumulation" in named) >= 2 or ((total or one) and once)


def _matters(problem: Problem, plan: Plan, knob: str) -> bool:
    """Whether a knob's value is the plan's choice: a stack with one value for it has it as it is."""
    stack = problem.stack
    only = {
        "zero": len(stack.zero) == 1 or plan.axes["data"] == 1,
        "sequence_parallel": len(stack.sequence_parallel) == 1 or plan.axes["tensor"] == 1,
        "attention": len(stack.attention) == 1,
        "remat": len(stack.remat) == 1,
        "schedule": plan.axes["pipeline"] == 1,
    }
    return not only.get(knob, False)


def like_llama(model: Architecture) -> bool:
    """Whether sizes say all of a model: grouped queries without biases, norms or windows of their own, a gated SiLU."""
    attention, ffn = model.attention, model.ffn
    if not isinstance(attention, Attention) or ffn is None or model.experts is not None:
        return False
    plain = Attention(heads=attention.heads, kv_heads=attention.kv_heads, head_dim=attention.head_dim)
    same = (model.norm, model.norms_per_layer, model.learned_positions, model.dropout) == ("rms", 2, 0, False)
    return same and attention == plain and ffn.gated and not ffn.bias and ffn.activation in ("", "silu")


def leaves(content: object) -> Iterator[str]:
    """The texts of nested mappings and lists."""
    if isinstance(content, Mapping):
        for value in content.values():
            yield from leaves(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from leaves(value)
    elif isinstance(content, str):
        yield content


def fill(template: Template, values: Mapping[str, Value], run: Mapping[str, str]) -> Filled:
    """The command of one trial, with every placeholder in place."""
    words = {name: template.translated(name, value) for name, value in values.items()} | dict(run)
    typed = {**values, **run}

    def content(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {str(key): content(value) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [content(value) for value in node]
        if not isinstance(node, str):
            return node
        whole = node[1:-1] if node.startswith("{") and node.endswith("}") else ""
        if whole in typed and whole not in template.words:
            return typed[whole]  # a placeholder alone keeps its type
        return filled(node, words)

    return Filled(
        argv=tuple(filled(word, words) for word in template.spoken(values)),
        env={name: filled(text, words) for name, text in template.env.items()},
        content=content(template.file.content) if template.file else {},
        wanted=words,
        plan_used=tuple(each.pattern for each in template.log.plan_used if each.condition.holds(values)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """A template's command for one trial: its words, environment, the content of its file, the value that each
    placeholder has in the trainer's words, and the patterns of lines that must show the plan."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    content: Mapping[str, Any]
    wanted: Mapping[str, str]
    plan_used: tuple[str, ...]
