"""Large spaces in which the roofline is wrong in known ways: truth is the roofline with distortions planted in it.

What is planted is of the kinds and sizes that public runs show (docs/accuracy.md): every part of a step is off by a
factor of its own, sizes of axes, micro-batches and recomputation policies have effects that no part explains, one
mechanism is sick (the links of an axis, or the kernels from a size of an axis on), memory is off by a few percent, and
two runs of one plan differ by half a percent. All of it follows from the ground's seed. The best plan is known, since
the truth of every plan of the pool is worked out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from asap_ray.agents.proposal import GROUPS
from asap_ray.contest.ground import Field
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import TIME_PARTS, Estimate, summed
from asap_ray.physics.roofline import Pricer
from asap_ray.problem import Problem
from asap_ray.search.pool import COLUMNS, Pool, pool_of_space
from asap_ray.space import PlanColumns, Space

APART = 0.25
"""Standard deviation of the logarithm of a part's factor."""
EFFECT = 0.03
"""That of the effect of one size of an axis, micro-batch or policy on the whole step."""
MEMORY = 0.02
"""That of what a plan needs over its price."""
RUN_TO_RUN = 0.005
"""That of one run among runs of a plan."""
SICK = (1.5, 4.0)
"""What a sick part takes over a healthy one: between these."""
LINKS = (("tensor", "tensor"), ("context", "context"), ("expert", "expert"), ("fsdp", "fsdp"), ("pipeline", "pipeline"))
"""Axes whose links may be sick, each with its part of the step."""
EFFECTS = ("tensor", "pipeline", "context", "micro_batch", "remat")
MOST = 60_000
"""Plans of a pool that fit, the fastest by the roofline; a fourth as many that do not stand beside them."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A workload on a slice, with a truth that `seed` decides."""

    name: str
    problem: Problem
    calibration: Calibration
    seed: int
    kind: str = "planted"
    source: str = "planted"
    constants: str = "those from which the truth departs"

    @property
    def digest(self) -> str:
        """A hash of the problem, the constants and the seed."""
        told = repr((self.name, self.problem, self.calibration, self.seed, MOST, APART, EFFECT, MEMORY, SICK))
        return hashlib.blake2s(told.encode(), digest_size=8).hexdigest()

    def field(self) -> Field:
        """Its plans and their outcomes."""
        return _field(self)

    def __hash__(self) -> int:
        """By its name, which says all that it is made of."""
        return hash((self.name, self.seed))


@lru_cache(maxsize=1)
def _field(ground: Planted) -> Field:
    pool, gate = _pool(ground)
    truth = Truth(pool, ground.seed)
    fits = pool.hbm_bytes * truth.memory <= ground.problem.slice.chip.usable_hbm_bytes
    return Field(
        pool=pool,
        gate=gate,
        step_s=np.where(fits, truth.step_s, np.nan),
        status=np.where(fits, "complete", "infeasible"),
        noise=truth.noise,
        seen=truth.seen,
    )


_POOLS: dict[str, tuple[Pool, np.ndarray]] = {}
"""The last pool of this process: truths of one problem share it, and a large one takes a minute."""


def _pool(ground: Planted) -> tuple[Pool, np.ndarray]:
    key = hashlib.blake2s(repr((ground.problem, ground.calibration)).encode()).hexdigest()
    if key not in _POOLS:
        _POOLS.clear()
        _POOLS[key] = whole_pool(ground.problem, ground.calibration)
    return _POOLS[key]


def whole_pool(problem: Problem, calibration: Calibration, most: int = MOST) -> tuple[Pool, np.ndarray]:
    """The plans of a problem, those that do not fit by the roofline too; and which fit [plans]."""
    space, pricer = Space(problem=problem), Pricer(problem, calibration)
    limit = problem.hbm_limit_bytes

    def kept(rows: PlanColumns, fitting: bool) -> PlanColumns:
        return rows.take((summed(pricer.memory(rows).values()) <= limit) == fitting)

    inside = pool_of_space(space, pricer, (kept(rows, True) for rows in space.chunks()), most=most)
    beside = pool_of_space(space, pricer, (kept(rows, False) for rows in space.chunks()), most=most // 4)
    return joined(inside, beside), np.arange(len(inside) + len(beside)) < len(inside)


def joined(first: Pool, second: Pool) -> Pool:
    """The plans of two pools of one problem, one after the other."""
    n = len(first)
    return replace(
        first,
        columns={name: np.concatenate([first.columns[name], second.columns[name]]) for name in COLUMNS},
        **{
            name: np.concatenate([getattr(first, name), getattr(second, name)])
            for name in ("step_s", "low_s", "floor_s", "hbm_bytes", "parts")
        },
        plan=lambda row: first.plan(row) if row < n else second.plan(row - n),
        estimate=lambda row: first.estimate(row) if row < n else second.estimate(row - n),
        left_out=first.left_out + second.left_out,
    )


class Truth:
    """What really happens to the plans of a pool."""

    def __init__(self, pool: Pool, seed: int) -> None:
        """Plant what `seed` says."""
        self._pool, self._seed, rng = pool, seed, np.random.default_rng(seed)
        factors = {group: float(np.exp(rng.normal(0.0, APART))) for group in GROUPS}
        of_part = {name: factors[group] for group, names in GROUPS.items() for name in names}
        self._scale = np.tile([of_part[name] for name in TIME_PARTS], (len(pool), 1))
        self.sick = self._plant(rng)
        effect = np.zeros(len(pool))
        for name in EFFECTS:
            codes, of = np.unique(pool.columns[name], return_inverse=True)
            effect += rng.normal(0.0, EFFECT, len(codes))[of]
        self._scale *= np.exp(effect)[:, None]
        policies, of = np.unique(pool.columns["remat"], return_inverse=True)
        self.memory = np.exp(rng.normal(0.0, MEMORY) + rng.normal(0.0, MEMORY / 2, len(policies)))[of]

    def _plant(self, rng: np.random.Generator) -> str:
        """Make one mechanism sick; returns what it is."""
        columns = self._pool.columns
        links = [each for each in LINKS if (columns[each[0]] > 1).any()]
        times = float(rng.uniform(*SICK))
        if links and rng.random() < 0.5:
            axis, part = links[int(rng.integers(len(links)))]
            self._scale[columns[axis] > 1, TIME_PARTS.index(part)] *= times
            return f"traffic over {axis} takes {times:.2f} times as long"
        sizes = np.unique(columns["tensor"])
        least = int(sizes[int(rng.integers(len(sizes)))])
        times = 1.0 + (times - 1.0) / 6.0
        self._scale[columns["tensor"] >= least, TIME_PARTS.index("matmul")] *= times
        return f"matmuls take {times:.2f} times as long from tensor {least} on"

    @cached_property
    def step_s(self) -> np.ndarray:
        """Steps [plans]; none is below its floor."""
        return np.maximum((self._pool.parts * self._scale).sum(1), self._pool.floor_s)

    def noise(self, row: int, seed: int) -> float:
        """What one run takes over what its plan takes on average."""
        digest = hashlib.blake2s(f"{self._seed}/{row}/{seed}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "big"))
        return float(np.exp(rng.normal(0.0, RUN_TO_RUN)))

    def seen(self, row: int) -> Estimate:
        """What a profile shows of a plan's parts."""
        priced = self._pool.estimate(row)
        parts = dict(zip(TIME_PARTS, (self._pool.parts[row] * self._scale[row]).tolist(), strict=True))
        step = float(self.step_s[row])
        return replace(priced, time_parts=parts, step_time_s=step, interval_s=(step, step), source="replay")


def planted(problems: Sequence[tuple[str, Problem, Calibration]], truths: int) -> list[Planted]:
    """Grounds of some problems by name, each with as many truths."""
    return [
        Planted(name=f"planted: {name}, truth {seed}", problem=problem, calibration=calibration, seed=_seed(name, seed))
        for name, problem, calibration in problems
        for seed in range(truths)
    ]


def _seed(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2s(f"{name}/{seed}".encode(), digest_size=4).digest(), "big")
