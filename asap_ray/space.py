"""The space: every legal plan of a problem, enumerated exactly and once, column by column and in chunks.

The raw space is a product: meshes × micro-batches × pipeline schedules × knobs. It is expanded one factor at a time,
and each rule is applied as soon as its columns exist, so that illegal plans cost nothing later; what a rule removes is
counted with everything it would have grown into. So is what only repeats another plan (`duplicates.py`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from asap_ray.duplicates import DUPLICATES
from asap_ray.meshes import Meshes, MeshProduct, build_meshes, meshes_of
from asap_ray.narrowing import Narrowing
from asap_ray.plan import ATTENTION_KERNELS, KNOBS, PRECISIONS, SCHEDULES, Plan
from asap_ray.problem import INTERLEAVED, MESH_COLUMNS, Problem, batch_shards, coding, columns_of
from asap_ray.rules import RULES

CHUNK = 1 << 15
MESH_BLOCK = 1 << 13


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanColumns(Mapping[str, np.ndarray]):
    """Plans as columns: an index into the meshes and one integer array a knob, all of one length [plans].

    It reads like a mapping: a mesh column (`tensor`, `fsdp_dcn`, …) is looked up through the index.
    """

    meshes: Meshes
    mesh: np.ndarray
    knobs: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        """One column by name; KeyError where it is not there yet."""
        return self.knobs[name] if name in self.knobs else self.meshes.columns[name][self.mesh]

    def __len__(self) -> int:
        """Number of plans."""
        return len(self.mesh)

    def __iter__(self) -> Iterator[str]:
        """Names of the columns there are."""
        return itertools.chain(MESH_COLUMNS, self.knobs)

    def take(self, rows: np.ndarray) -> PlanColumns:
        """The rows of a mask or an index."""
        return replace(self, mesh=self.mesh[rows], knobs={k: v[rows] for k, v in self.knobs.items()})

    def compact(self) -> PlanColumns:
        """The same rows over the meshes that they use, for rows that each have a mesh of their own."""
        return replace(self, meshes=self.meshes.take(self.mesh), mesh=np.arange(len(self)))

    def expanded(self, domain: Mapping[str, np.ndarray]) -> PlanColumns:
        """Every row with every row of `domain`, which brings new knobs."""
        n, m = len(self), len(next(iter(domain.values())))
        old = {k: np.repeat(v, m) for k, v in self.knobs.items()}
        new = {k: np.tile(v, n) for k, v in domain.items()}
        return replace(self, mesh=np.repeat(self.mesh, m), knobs=old | new)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """How many plans there are: in the raw product, legal and open, and removed by each rule or narrowing."""

    total: int
    legal: int
    removed: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The legal plans of a problem under some narrowings."""

    problem: Problem
    narrowings: tuple[Narrowing, ...] = ()

    @cached_property
    def meshes(self) -> MeshProduct:
        """Every useful mesh of the slice, legal or not."""
        return build_meshes(self.problem)

    @cached_property
    def domains(self) -> tuple[dict[str, np.ndarray], ...]:
        """The factors of the raw product after the meshes, in the order of expansion."""
        batch = {"micro_batch": np.array(divisors(self.problem.workload.global_batch))}
        return batch, _schedules(self.problem), _knobs(self.problem)

    @property
    def total(self) -> int:
        """Size of the raw product."""
        return len(self.meshes) * math.prod(len(next(iter(d.values()))) for d in self.domains)

    def narrowed(self, *more: Narrowing) -> Space:
        """The same space with further narrowings."""
        return replace(self, narrowings=self.narrowings + more)

    def lifted(self, narrowing: Narrowing) -> Space:
        """The same space without one of its narrowings."""
        return replace(self, narrowings=tuple(n for n in self.narrowings if n is not narrowing))

    def chunks(self, removed: Counter[str] | None = None) -> Iterator[PlanColumns]:
        """Yield the legal plans in a fixed order; `removed`, if given, counts what each rule took away."""
        removed = Counter() if removed is None else removed
        for start in range(0, len(self.meshes), MESH_BLOCK):
            meshes = self.meshes.take(np.arange(start, min(start + MESH_BLOCK, len(self.meshes))))
            rows = PlanColumns(meshes=meshes, mesh=np.arange(len(meshes)), knobs={})
            yield from self._grow(self._legal(rows, 0, removed).compact(), 0, removed)

    def _grow(self, rows: PlanColumns, stage: int, removed: Counter[str]) -> Iterator[PlanColumns]:
        if stage == len(self.domains):
            yield from (rows,) if len(rows) else ()
            return
        domain = self.domains[stage]
        block = max(1, CHUNK // len(next(iter(domain.values()))))
        for start in range(0, len(rows), block):
            part = rows.take(np.arange(start, min(start + block, len(rows)))).expanded(domain)
            part = _accumulated(self.problem, part) if stage == 0 else part
            yield from self._grow(self._legal(part, stage + 1, removed), stage + 1, removed)

    def _legal(self, rows: PlanColumns, stage: int, removed: Counter[str]) -> PlanColumns:
        weight = math.prod(len(next(iter(d.values()))) for d in self.domains[stage:])
        for name, open_rows in self._tests(stage):
            keep = np.broadcast_to(open_rows(rows), len(rows))
            kept = int(keep.sum())
            if kept < len(rows):
                removed[name] += (len(rows) - kept) * weight
                rows = rows.take(keep)
        return rows

    def _tests(self, stage: int) -> Iterator[tuple[str, Callable[[PlanColumns], np.ndarray]]]:
        known = [frozenset(MESH_COLUMNS).union(*self.domains[:k], ["accumulation"] if k else []) for k in range(4)]
        before = known[stage - 1] if stage else frozenset()
        for rule in (*RULES, *DUPLICATES):
            if rule.reads <= known[stage] and not (stage and rule.reads <= before):
                yield rule.name, lambda rows, rule=rule: rule.holds(self.problem, rows)
        for narrowing in self.narrowings:
            if narrowing.reads <= known[stage] and not (stage and narrowing.reads <= before):
                yield narrowing.name, narrowing.open

    def survey(self) -> Survey:
        """Count the space without pricing it."""
        removed: Counter[str] = Counter()
        legal = sum(len(chunk) for chunk in self.chunks(removed))
        return Survey(total=self.total, legal=legal, removed=dict(removed))

    def plan(self, rows: PlanColumns, i: int) -> Plan:
        """Row `i` as a plan."""
        value = {knob: int(rows.knobs[knob][i]) for knob in KNOBS}
        name = {knob: names[value[knob]] for knob, names in coding(self.problem).items()}
        ici, dcn, layout = rows.meshes.plan_fields(int(rows.mesh[i]))
        return Plan(
            ici=ici,
            dcn=dcn,
            layout=layout,
            micro_batch=value["micro_batch"],
            accumulation=value["accumulation"],
            zero=value["zero"],
            schedule=name["schedule"],
            virtual=value["virtual"],
            sequence_parallel=bool(value["sequence_parallel"]),
            remat=name["remat"],
            precision=name["precision"],
            attention=name["attention"],
        )

    def columns(self, plans: list[Plan]) -> PlanColumns:
        """Given plans as columns over meshes of their own; a plan without a layout takes the first useful one.

        Raises:
            ConfigError: a plan's mesh does not fill the slice, or its layout is not a useful one.
        """
        columns = columns_of(self.problem, plans)
        return PlanColumns(
            meshes=meshes_of(self.problem, plans),
            mesh=np.arange(len(plans)),
            knobs={knob: columns[knob] for knob in KNOBS},
        )

    def sample(self, count: int, seed: int) -> list[Plan]:
        """Draw plans uniformly from the legal ones, without repetition; all of them if there are no more than
        `count`."""
        legal = self.survey().legal
        rng = np.random.default_rng(seed)
        wanted = np.sort(rng.choice(legal, size=min(count, legal), replace=False))
        plans, start = [], 0
        for chunk in self.chunks():
            inside = wanted[(wanted >= start) & (wanted < start + len(chunk))] - start
            plans.extend(self.plan(chunk, int(i)) for i in inside)
            start += len(chunk)
        return plans


@lru_cache(maxsize=1024)
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def _accumulated(problem: Problem, rows: PlanColumns) -> PlanColumns:
    # Accumulation is what the batch leaves; where it does not divide, the batch rule removes the row.
    share = batch_shards(problem.stack, rows) * rows["micro_batch"]
    return replace(rows, knobs={**rows.knobs, "accumulation": np.maximum(problem.workload.global_batch // share, 1)})


def _schedules(problem: Problem) -> dict[str, np.ndarray]:
    stack, layers = problem.stack, problem.workload.architecture.layers
    pairs = [(code, 1) for code, name in enumerate(SCHEDULES) if name in stack.schedules and code != INTERLEAVED]
    if "interleaved" in stack.schedules:
        chunks = range(2, layers + 1) if stack.uneven_layers else divisors(layers)
        pairs += [(INTERLEAVED, v) for v in chunks if 2 <= v <= stack.max_virtual]
    codes, virtual = zip(*pairs, strict=True)
    return {"schedule": np.array(codes), "virtual": np.array(virtual)}


def _knobs(problem: Problem) -> dict[str, np.ndarray]:
    stack = problem.stack
    domain = {
        "zero": stack.zero,
        "sequence_parallel": (0, 1),
        "remat": range(len(stack.remat)),
        "precision": [PRECISIONS.index(name) for name in problem.precisions],
        "attention": [ATTENTION_KERNELS.index(name) for name in stack.attention],
    }
    rows = np.array(list(itertools.product(*domain.values())))
    return {name: rows[:, i] for i, name in enumerate(domain)}
