"""What a recipe changes of the program leaves what it computes: losses, norms and weights are those without it.

Held weights are gathered once and sums are made in the same order: tolerances are those of `test_step`.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from asap_ray.recipe import PLAIN, Recipe
from asap_ray.stack import Remat
from asap_ray.trainer.groups import Part, parts_of
from asap_ray.trainer.spec import NotTrainedError, Spec, spec_of
from tests.trainer.jobs import check_alike, ours, step_on_host, trained, workload

HALVES = "fsdp=4 tensor=2 sequence_parallel=true micro_batch=1 accumulation=2 remat=full"
CASES = (
    ("dense", "fsdp=8 micro_batch=1 accumulation=1 remat=full", "hold=4"),
    ("dense", HALVES, "hold=3"),
    ("dense", HALVES, "hold=1 save=gate_up+act/2"),
    ("dense", "fsdp=2 context=4 micro_batch=2 accumulation=2 remat=save_qkv", "hold=2"),
    ("dense", HALVES, "save=query+key_value"),
    ("grouped", "tensor=2 fsdp=4 sequence_parallel=true micro_batch=2 accumulation=1 remat=full", "hold=2 save=out/3"),
    ("gpt", "data=2 fsdp=2 micro_batch=1 accumulation=2 remat=full", "hold=2"),
    ("windows", "fsdp=4 micro_batch=1 accumulation=2 remat=full", "hold=2 save=act/4"),
    ("experts", "expert=4 fsdp=2 micro_batch=1 accumulation=1 remat=full", "save=expert_act/2"),
)


@pytest.mark.parametrize(("model", "line", "recipe"), CASES, ids=[f"{m}: {r}" for m, _, r in CASES])
def test_a_recipe_trains_the_same_model(model: str, line: str, recipe: str) -> None:
    job = workload(model)
    check_alike(trained(job, line, recipe=Recipe.parse(recipe)), trained(job, line), rtol=1e-6)


def collectives(line: str, recipe: Recipe) -> tuple[int, int]:
    """How often a program says all-gather and reduce-scatter: a loop's body counts once."""
    made = step_on_host(workload("dense"), line, recipe)
    text = made.jitted.lower(*made.arguments).as_text()
    return text.count('"stablehlo.all_gather"'), text.count('"stablehlo.reduce_scatter"')


@pytest.mark.parametrize(
    "line", ["fsdp=8 micro_batch=1 accumulation=1 remat=full", "fsdp=4 micro_batch=1 accumulation=2 remat=full"]
)
def test_layers_that_are_held_are_gathered_once(line: str) -> None:
    """7 weights a layer: 7 gathers forward and 7 backward. Held, the 7 of the backward pass are gone, and with several
    micro-batches those of the forward pass stand before the loop."""
    gathers, scatters = collectives(line, PLAIN)
    assert collectives(line, Recipe(hold=4)) == (gathers - 7, scatters)
    assert collectives(line, Recipe(hold=2)) == (gathers + 7, scatters + 7), "two loops, one of which is held"


def test_a_policy_for_some_layers_saves_in_these_alone() -> None:
    made = step_on_host(workload("dense"), HALVES, Recipe(save=("act",), save_layers=3))
    text = str(jax.make_jaxpr(made.jitted)(*made.arguments))
    stacked = "f32[3,1,16,32]"  # layers, sequences, positions, hidden units over tensor
    assert stacked in text
    plain = step_on_host(workload("dense"), HALVES)
    assert stacked not in str(jax.make_jaxpr(plain.jitted)(*plain.arguments))


def spec(recipe: str, model: str = "dense", line: str = HALVES) -> Spec:
    from asap_ray.plan import Plan

    return spec_of(
        workload(model), replace(Plan.parse(line), precision="fp32"), ours(), "cpu", recipe=Recipe.parse(recipe)
    )


def test_a_run_is_cut_where_rules_begin_and_end() -> None:
    full = Remat(name="full", saved=frozenset())
    more = replace(full, saved=frozenset({"act"}))
    assert parts_of(spec(""), [(4, 1)]) == ((Part(start=0, stop=4, held=False, remat=full),),)
    assert parts_of(spec("hold=1 save=act/3"), [(4, 1)]) == (
        (
            Part(start=0, stop=1, held=True, remat=more),
            Part(start=1, stop=3, held=False, remat=more),
            Part(start=3, stop=4, held=False, remat=full),
        ),
    )
    two_runs = parts_of(spec("hold=3"), [(1, 1), (3, 1)])
    assert [[(each.start, each.stop, each.held) for each in run] for run in two_runs] == [
        [(0, 1, True)],
        [(0, 2, True), (2, 3, False)],
    ]


def test_what_has_no_program_is_refused() -> None:
    with pytest.raises(NotTrainedError, match="layers come in periods of 2"):
        parts_of(spec("hold=3"), [(2, 2)])
    with pytest.raises(NotTrainedError, match="hold=2 with experts"):
        spec("hold=2", "experts")
    with pytest.raises(NotTrainedError, match="save=act/2 with a pipeline"):
        spec("save=act/2", line="pipeline=2 schedule=gpipe micro_batch=4 accumulation=2 remat=full")
    spec("save=act", line="pipeline=2 schedule=gpipe micro_batch=4 accumulation=2 remat=full")
