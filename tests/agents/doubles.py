"""A compile tier that compiles nothing: the roofline's own figures, with planted faults that it cannot see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.playbook import Playbook
from asap_ray.diagnosis import diagnose, diagnose_observed
from asap_ray.knowledge import Card, load_cards
from asap_ray.observation import Avoidable, CostlyOp, Observation, Unpredicted, Wire
from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, Searcher
from asap_ray.search.study import Study
from tests.search.test_pool import pool_of, tier_of

EVIDENCE = "ours@12345678, jax 0.10.2, libtpu 0.0.42"
Fault = Callable[[Estimate, Observation], tuple[Estimate, Observation]]


@dataclass(frozen=True)
class Double:
    """Tries plans of a pool: each takes `scale` times the roofline's parts, and what faults add, and `memory` times its
    bytes; plans in `too_big` do not fit."""

    pool: Pool
    faults: Sequence[Fault] = ()
    scale: float = 1.1
    memory: float = 1.0
    too_big: Callable[[Plan], bool] = lambda plan: False

    def run(self, candidates: Sequence[Candidate]) -> list[Result]:
        return [self.one(each) for each in candidates]

    def one(self, candidate: Candidate) -> Result:
        row = self.pool.row(candidate.plan)
        assert row is not None, candidate.plan.line
        priced = self.pool.estimate(row)
        known: dict[str, Any] = {"candidate": candidate, "roofline": priced, "source": "compile", "evidence": EVIDENCE}
        if self.too_big(candidate.plan):
            needed, over = self.memory * priced.hbm_bytes, 0.1 * priced.hbm_bytes
            return Result(**known, status="infeasible", hbm_bytes=needed, over_bytes=over, reason="out of memory")
        estimate = more(priced, {name: (self.scale - 1) * s for name, s in priced.time_parts.items()})
        seen = observation(estimate)
        for fault in self.faults:
            estimate, seen = fault(estimate, seen)
        seen = replace(seen, step_time_s=estimate.step_time_s)
        return Result(
            **known,
            status="complete",
            step_time_s=estimate.step_time_s,
            hbm_bytes=self.memory * priced.hbm_bytes,
            estimate=estimate,
            observation=seen,
            diagnosis=diagnose_observed(seen) if self.faults else diagnose(estimate),
            digest=candidate.plan.line,
        )


def more(estimate: Estimate, seconds: dict[str, float]) -> Estimate:
    """An estimate with seconds added to parts."""
    parts = {name: value + seconds.get(name, 0.0) for name, value in estimate.time_parts.items()}
    step = sum(parts.values())
    return replace(estimate, time_parts=parts, step_time_s=step, interval_s=(0.8 * step, 1.2 * step), source="compile")


def observation(estimate: Estimate) -> Observation:
    """A healthy profile of an estimate."""
    parts = estimate.time_parts
    return Observation(
        source="compile",
        step_time_s=estimate.step_time_s,
        floor_s=estimate.floor_s,
        serial_s=estimate.serial_s,
        seconds=dict(parts),
        resources={"compute": sum(parts[name] for name in ("matmul", "attention", "elementwise", "recompute", "head"))},
        mxu=0.5,
        hbm=0.2,
        top=(),
        wires=(),
        unpredicted=(),
        avoidable=Avoidable(compiler="XLA:TPU"),
        flops={"forward": 1.0},
        redone_flops=0.0,
        model_flops=1.0,
        policy_flops=0.0,
        memory={},
    )


def resharding(axis: str) -> Fault:
    """Under one axis the trainer reshards activations by an all-to-all that takes as long as the whole step."""

    def fault(estimate: Estimate, seen: Observation) -> tuple[Estimate, Observation]:
        if estimate.plan.axes[axis] == 1:
            return estimate, seen
        lost = estimate.step_time_s
        wire = Wire(
            category="all_to_all",
            axes=(axis,),
            level="ici",
            wire_bytes=1e9,
            seconds=lost,
            exposed_s=lost,
            predicted=False,
        )
        more_sent = Unpredicted(category="all_to_all", axes=(axis,), level="ici", wire_bytes=1e9)
        return more(estimate, {"context": lost}), replace(seen, wires=(wire,), unpredicted=(more_sent,))

    return fault


def slow_link(axis: str, part: str) -> Fault:
    """The links of one axis are so slow that its traffic shows for as long as the whole step."""

    def fault(estimate: Estimate, seen: Observation) -> tuple[Estimate, Observation]:
        return (estimate if estimate.plan.axes[axis] == 1 else more(estimate, {part: estimate.step_time_s})), seen

    return fault


def slow_kernel(part: str, shape: Callable[[Plan], bool]) -> Fault:
    """At some shapes the kernels of one kind take longer by the whole step."""

    def fault(estimate: Estimate, seen: Observation) -> tuple[Estimate, Observation]:
        if not shape(estimate.plan):
            return estimate, seen
        op = CostlyOp(
            name="splash.7", category=part, phase="forward", source="attention.py:91", count=1.0,
            seconds=1.0, exposed_s=1.0, share=0.5, mxu=0.1, hbm=0.1,
        )  # fmt: skip
        return more(estimate, {part: estimate.step_time_s}), replace(seen, top=(op,))

    return fault


def small_pool(slice_: str = "v5e-8", stack: str = "maxtext", **changes: Any) -> Pool:
    """The pool of a small problem."""
    return pool_of(tier_of(slice_, stack, **changes))


def agents(pool: Pool, *, cards: tuple[Card, ...] | None = None, seed: int = 0, **rules: Any) -> Coordinator:
    """The playbook's agents over a pool."""
    brain = Playbook(cards=load_cards() if cards is None else cards)
    return Coordinator(pool=pool, brain=brain, study=Study(pool, "tpe", seed), rules=Rules(**rules))


def play(searcher: Searcher, double: Double, rounds: int, width: int = 3) -> list[Result]:
    """Some rounds of a search."""
    found: list[Result] = []
    for _ in range(rounds):
        told = double.run(searcher.ask(width))
        searcher.tell(told)
        found += told
    return found
