"""Plans that say the same in other words: legal, but enumerated once.

A recomputation policy may keep the same tensors as another one of its stack (without scores, Megatron's `selective` is
`none`), and a ZeRO stage shards nothing where the data axis has one rank. A user may name either; the space keeps the
first of those that do the same.
"""

from __future__ import annotations

import numpy as np

from asap_ray.plan import ATTENTION_KERNELS
from asap_ray.problem import FLASH, UNFUSED, Columns, Problem
from asap_ray.rules import Rule
from asap_ray.stack import Remat


def effective_policies(problem: Problem, kernel: int) -> tuple[frozenset[str], ...]:
    """What each policy of the stack keeps of the tensors that this model and attention kernel have at all."""
    architecture = problem.workload.architecture
    absent = {"scores"} if kernel == FLASH else set()
    if architecture.experts is None:
        absent |= {"router", "expert_in", "expert_gate_up", "expert_act", "expert_out"}
    elif all(group.moe for group in architecture.groups) and not architecture.experts.shared:
        absent |= {"gate_up", "act"}

    def effect(policy: Remat) -> frozenset[str]:
        layer_input = {"input"} if policy.offload_input else set()
        marks = [(policy.saved, ""), (policy.offloaded | layer_input, "@host")]
        return frozenset(name + mark for names, mark in marks for name in names if name not in absent)

    return tuple(effect(policy) for policy in problem.stack.remat)


def _first_of_its_kind(problem: Problem, c: Columns) -> np.ndarray:
    first = np.zeros((len(ATTENTION_KERNELS), len(problem.stack.remat)), bool)
    for kernel in (FLASH, UNFUSED):
        policies = effective_policies(problem, kernel)
        first[kernel] = [policies.index(policy) == i for i, policy in enumerate(policies)]
    return first[c["attention"], c["remat"]]


DUPLICATES: tuple[Rule, ...] = (
    Rule(
        name="same_zero",
        reads=frozenset({"data", "zero"}),
        holds=lambda p, c: (c["data"] > 1) | (c["zero"] == min(p.stack.zero)),
        why=lambda p, plan: f"zero {plan.zero} shards nothing with data 1: the same as zero {min(p.stack.zero)}",
    ),
    Rule(
        name="same_remat",
        reads=frozenset({"attention", "remat"}),
        holds=_first_of_its_kind,
        why=lambda p, plan: f"remat {plan.remat} does the same here as a policy listed before it",
    ),
)
"""Conditions that the first of several alike plans meets, in the form of rules."""


def duplicate(problem: Problem, columns: Columns) -> np.ndarray:
    """Whether each plan says what another one says already [plans]."""
    return ~np.logical_and.reduce([rule.holds(problem, columns) for rule in DUPLICATES])
