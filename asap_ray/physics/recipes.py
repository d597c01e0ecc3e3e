"""What a recipe does to the price of a plan: gathers that are spared, bytes that are held, policies that are mixed.

- Held layers gather their weights once a step instead of twice a micro-batch, and their weights lie whole, in the
  compute format, on every device: `hold / layers` of all of a rank's parameters.
- A save list is a policy of its own, which so many of the layers have: whatever is linear in layers (what is computed
  again, sent again, kept) is the mean of both policies.
- Tiles and flags have no price here: what they do is found out by trying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from asap_ray.physics.state import StateShards
from asap_ray.physics.units import NUMBER_BYTES
from asap_ray.problem import Problem
from asap_ray.recipe import Recipe

HELD_PASSES = 5.0
"""Times that held weights pass through HBM beside what is computed, where a step has one micro-batch: they are written
into the stack of all layers and read from it. From compiled programs: 43 ms for 7.0 GB on v5e (docs/recipes.md)."""


@dataclass(frozen=True, slots=True)
class Shares:
    """A recipe as shares of all layers: `held` ones, and ones with the `wider` policy; the stack of `problem` has,
    after each of its own `policies` in order, the same ones made wider."""

    problem: Problem
    policies: int
    held: float
    wider: float

    def mixed(self, table: np.ndarray) -> np.ndarray:
        """A table of policies and wider ones [..., 2 policies] as what layers have on average [..., policies]."""
        plain = table[..., : self.policies]
        if not self.wider:
            return plain
        return (1.0 - self.wider) * plain + self.wider * table[..., self.policies :]

    def gathers(self, accumulation: np.ndarray) -> np.ndarray:
        """Gathers of a layer's weights in one micro-batch, on average [plans]."""
        return 2.0 * (1.0 - self.held) + self.held / accumulation

    def held_bytes(self, state: StateShards, c: Mapping[str, np.ndarray]) -> np.ndarray:
        """Bytes of weights that lie whole on a device [plans]."""
        pairs = ((state.dense, state.dense_shards), (state.routed, state.routed_shards))
        whole = sum(np.where(shards > 1, numbers, 0.0) for numbers, shards in pairs)
        return self.held * NUMBER_BYTES[c["precision"]] * whole


def shares_of(problem: Problem, recipe: Recipe) -> Shares:
    """The shares of a recipe, with the problem whose stack has the policies that it needs."""
    layers, stack = problem.workload.architecture.layers, problem.stack
    policies, wider = len(stack.remat), 0.0
    if recipe.save:
        more = (replace(each, name=f"{each.name}+", saved=each.saved | set(recipe.save)) for each in stack.remat)
        problem = replace(problem, stack=replace(stack, remat=(*stack.remat, *more)))
        wider = (recipe.save_layers or layers) / layers
    return Shares(problem, policies, recipe.hold / layers, wider)
