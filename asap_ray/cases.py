"""Cases: trials of finished runs, as plain data, and how much alike the situations are that they were made in.

What a case says is data, whoever wrote it: texts are cut and hold no control characters, figures are finite, the plan
is one that can be read, and nothing in it is ever a path or executed. A case is known by a hash of what it is evidence
of, so that the same trial told twice is one case.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from asap_ray.errors import ConfigError
from asap_ray.knowledge import BOUNDS
from asap_ray.plan import Plan
from asap_ray.problem import Problem

STATUSES = ("complete", "pruned", "infeasible", "failed", "timeout")
VERDICTS = ("", "confirmed", "refuted", "no-op", "invalid")
SHORT, LONG = 80, 400
"""Characters of a name and of a text at most."""
CASE = "case:"
"""What stands before the id of a case where a proposal names it."""
WEIGHTS: Mapping[str, float] = {
    "family": 0.25,
    "size": 0.20,
    "chip": 0.20,
    "scale": 0.15,
    "seq": 0.10,
    "bound": 0.05,
    "stack": 0.05,
}
"""What of a situation counts how much; they sum to 1."""
OCTAVES = 4.0
"""Doublings after which two sizes have nothing in common."""
SAME_SIZE = 2.0
"""How far the parameters or the sequences of two workloads of one class lie apart at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What was trained on what, as far as it says which plans do well; `family` is dense or moe, `kind` tpu or gpu."""

    model: str
    family: str
    parameters: int
    seq_len: int
    global_batch: int
    precision: str
    chip: str
    kind: str
    slice: str
    devices: int
    stack: str

    @property
    def words(self) -> str:
        """The situation in a few words."""
        size = f"{self.parameters / 1e9:.3g}B"
        return f"{self.model} ({self.family}, {size}), {self.global_batch} x {self.seq_len:,} tokens on {self.slice}"

    def akin(self, other: Situation) -> bool:
        """Whether the other is of the same class: the same family and chip, sizes and sequences within a factor."""
        near = all(
            max(a, b) <= SAME_SIZE * min(a, b)
            for a, b in ((self.parameters, other.parameters), (self.seq_len, other.seq_len))
        )
        return near and (self.family, self.chip) == (other.family, other.chip)


def situation_of(problem: Problem) -> Situation:
    """The situation that a problem is."""
    job, where = problem.workload, problem.slice
    return Situation(
        model=clean(job.architecture.name, SHORT),
        family="moe" if job.architecture.experts else "dense",
        parameters=job.architecture.parameters,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        precision=job.precision,
        chip=clean(where.chip.name, SHORT),
        kind=where.chip.kind,
        slice=clean(where.name, SHORT),
        devices=where.devices,
        stack=clean(problem.stack.name, SHORT),
    )


def similarity(a: Situation, b: Situation, bounds: tuple[str, str] = ("", "")) -> float:
    """How much alike two situations are, from 0 to 1; `bounds` is what bounds the step in each, "" where unknown.

    Sizes that are a factor of 2 apart have 3/4 in common, of 4 half, of 16 nothing; two chips of one kind are half the
    same.
    """
    alike = {
        "family": float(a.family == b.family),
        "size": near(a.parameters, b.parameters),
        "chip": 1.0 if a.chip == b.chip else 0.5 if a.kind == b.kind else 0.0,
        "scale": near(a.devices, b.devices),
        "seq": near(a.seq_len, b.seq_len),
        "bound": float(bounds[0] == bounds[1] != ""),
        "stack": float(a.stack == b.stack),
    }
    return sum(WEIGHTS[name] * value for name, value in alike.items())


def near(a: float, b: float) -> float:
    """What two positive sizes have in common, from 0 to 1."""
    return max(0.0, 1.0 - abs(math.log2(a / b)) / OCTAVES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trial that ended: where, of which plan, and how.

    `source` is its tier, `evidence` the trainer and compiler or devices that it is evidence for, `bundle` the recipe
    beside the plan. `by` is the card or
    case (`case:ID`) behind its proposal, from the plan `base`, bound by `base_bound`; "" where there is none. `verdict`
    is what became of the prediction, `told` in words; `diagnosis` is what its profile showed, `bound` in one word.
    """

    situation: Situation
    source: str
    evidence: str
    bundle: str
    plan: str
    status: str
    roofline_s: float
    step_time_s: float | None = None
    hbm_bytes: float | None = None
    bound: str = ""
    by: str = ""
    base: str = ""
    base_bound: str = ""
    verdict: str = ""
    told: str = ""
    hypothesis: str = ""
    diagnosis: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits of what the case is evidence of: its texts and versions are not part of that."""
        kept = asdict(self.situation) | {name: getattr(self, name) for name in EVIDENCE}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"id": self.id, **asdict(self)}


EVIDENCE = ("source", "evidence", "bundle", "plan", "status", "step_time_s", "by", "base", "verdict")
_TEXTS: Mapping[str, int] = {
    **dict.fromkeys(("source", "status", "bound", "by", "base_bound", "verdict"), SHORT),
    **dict.fromkeys(("evidence", "bundle", "plan", "base", "told", "hypothesis", "diagnosis"), LONG),
}
_SIZES = ("parameters", "seq_len", "global_batch", "devices")


def read_case(given: object) -> Case:
    """A case from plain data that anyone may have written.

    Raises:
        ValueError: it is none; the text says why.
    """
    told = _mapping(given, "case")
    texts = {name: _text(told, name, most) for name, most in _TEXTS.items()}
    roofline = _number(told, "roofline_s")
    if roofline is None or texts["status"] not in STATUSES or texts["verdict"] not in VERDICTS:
        raise ValueError("it lacks a price, a status or a verdict")
    if not {texts["bound"], texts["base_bound"]} <= {"", *BOUNDS}:
        raise ValueError("it is bound by what is no bound")
    for line in (texts["plan"], texts["base"]):
        _check_plan(line)
    if not texts["plan"]:
        raise ValueError("it has no plan")
    versions = _mapping(told.get("versions", {}), "versions")
    kept = {clean(str(name), SHORT): clean(str(value), SHORT) for name, value in list(versions.items())[:20]}
    place = _situation(_mapping(told.get("situation"), "situation"))
    return Case(
        situation=place,
        roofline_s=roofline,
        step_time_s=_number(told, "step_time_s"),
        hbm_bytes=_number(told, "hbm_bytes"),
        versions=kept,
        **texts,
    )


def _situation(told: Mapping[str, Any]) -> Situation:
    sizes = {}
    for name in _SIZES:
        size = told.get(name)
        if type(size) is not int or not 0 < size < 2**53:
            raise ValueError(f"{name} is no size")
        sizes[name] = size
    texts = {each.name: _text(told, each.name, SHORT) for each in fields(Situation) if each.name not in _SIZES}
    if texts["family"] not in ("dense", "moe") or texts["kind"] not in ("tpu", "gpu"):
        raise ValueError("it is of no family or kind of chip")
    return Situation(**texts, **sizes)


def _mapping(given: object, name: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{name} is no mapping")
    return given


def _text(told: Mapping[str, Any], name: str, most: int) -> str:
    text = told.get(name, "")
    if not isinstance(text, str):
        raise ValueError(f"{name} is no text")
    return clean(text, most)


def _number(told: Mapping[str, Any], name: str) -> float | None:
    number = told.get(name)
    if number is None:
        return None
    if type(number) not in (int, float) or not 0 < number < 1e30:
        raise ValueError(f"{name} is no positive number")
    return float(number)


def _check_plan(line: str) -> None:
    try:
        Plan.parse(line)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def clean(text: str, most: int) -> str:
    """A text in one line of at most `most` characters, without what moves cursors, changes colours or is not seen."""
    shown = text[: 4 * most]
    if not shown.isprintable():  # most texts are, and there are many in a memory
        shown = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in shown)
    words = " ".join(shown.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
