"""What physics says must move, against every collective of the trainer's own program, as traced.

A trace is what the trainer asks for, before a compiler: loops have their lengths, and each collective its axes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from asap_ray.architecture import Architecture
from asap_ray.layers import Attention, FeedForward
from asap_ray.physics.wire import predicted_collectives
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem
from tests.problems import make_problem

jax = pytest.importorskip("jax")

ATTENTION = Attention(heads=8, kv_heads=4, head_dim=8)
DENSE = Architecture(
    name="dense", layers=4, d_model=64, vocab=128, attention=ATTENTION, ffn=FeedForward(d_ff=96), tied=False
)
KINDS = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "psum": "all_reduce",
    "pmax": "all_reduce",
    "ppermute": "permute",
    "all_to_all": "all_to_all",
}
LEAST = 0.01
"""Of all that moves: what is smaller (scalars, a few vectors) is not compared."""


def traced(problem: Problem, plan: Plan) -> dict[tuple[str, tuple[str, ...]], float]:
    """Bytes that a device sends, by kind and axes."""
    from jax.sharding import AbstractMesh

    from asap_ray.trainer.step import train_step

    step = train_step(problem.workload, plan, problem.stack, AbstractMesh(plan.sizes, AXES), platform="tpu")
    found: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    _walk(step.jitted.trace(*step.arguments).jaxpr.jaxpr, 1.0, plan.axes, found)
    return dict(found)


def _walk(jaxpr: Any, times: float, sizes: dict[str, int], found: Any) -> None:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in KINDS:
            given = equation.params.get("axes") or equation.params.get("axis_name")
            axes = tuple(a for a in AXES if a in ((given,) if isinstance(given, str) else given) and sizes[a] > 1)
            ranks = 1
            for axis in axes:
                ranks *= sizes[axis]
            own = sum(v.aval.size * v.aval.dtype.itemsize for v in equation.invars)
            sent = {"all_gather": own * (ranks - 1), "permute": own * (ranks > 1)}
            share = own * (ranks - 1) / ranks * (2 if KINDS[name] == "all_reduce" else 1)
            found[KINDS[name], axes] += times * sent.get(KINDS[name], share)
        turns = times * (equation.params["length"] if name == "scan" else 1)
        for value in equation.params.values():
            for part in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    _walk(inner, turns, sizes, found)


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        ("fsdp=4 tensor=4 micro_batch=1 accumulation=2 sequence_parallel=true remat=full", 8),
        ("data=2 fsdp=2 tensor=4 micro_batch=1 zero=1 sequence_parallel=true remat=save_dots", 4),
        ("data=2 fsdp=2 context=4 micro_batch=1 remat=full", 4),
    ],
)
def test_what_must_move_is_what_the_trainer_asks_for(line: str, batch: int) -> None:
    problem = make_problem("v5e-16", "ours", model=DENSE, batch=batch, seq_len=128)
    plan = Plan.parse(line)
    asked = traced(problem, plan)
    predicted = {(kind, axes): sent for (kind, axes, _), sent in predicted_collectives(problem, plan).items()}
    least = LEAST * sum(asked.values())
    for key in asked.keys() | predicted.keys():
        if max(asked.get(key, 0.0), predicted.get(key, 0.0)) > least:
            assert predicted.get(key, 0.0) == pytest.approx(asked.get(key, 0.0), rel=0.02), key
