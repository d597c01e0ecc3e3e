"""Say what a Pallas kernel costs where its library does not: to the compiler's scheduler, and to a reader of the HLO.

XLA schedules a custom call as if it took no time unless it carries a cost, and then hides no transfer behind it. The
cost is what the kernel executes, masked parts of its tiles included. The name of each call's scope says how many of
its (query, key) pairs a head of the model sees: `.../pairs=131328/...`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.extend.core import jaxpr_as_fun


def priced(function: Callable[..., Any], cost: pl.CostEstimate, scope: str) -> Callable[..., Any]:
    """The same function of arrays, whose one Pallas call carries this cost, in a scope of this name."""

    def run(*operands: Any) -> Any:
        with jax.named_scope(scope):
            closed, shape = jax.make_jaxpr(function, return_shape=True)(*operands)
            equations = [
                each.replace(params={**each.params, "cost_estimate": cost})
                if each.primitive.name == "pallas_call"
                else each
                for each in closed.jaxpr.eqns
            ]
            program = closed.replace(jaxpr=closed.jaxpr.replace(eqns=equations))
            return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(program)(*jax.tree.leaves(operands)))

    return run
