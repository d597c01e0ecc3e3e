"""Layers that a recipe treats otherwise than the rest: where a run of layers is cut, and weights that stay whole.

A recipe names the first so many layers. They keep their place in the stacked weights, so that state, first values and
gradients are those of every other program of the model; only the scan over them is cut in two.

Weights that are held are gathered once a step. Where it has several micro-batches, that is before the first of them,
and what each layer does with its weights sends their gradient to the shards they came from, scattered as always. Where
it has one, each layer gathers its own in the forward pass, beside what is computed then, and a policy keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
from flax import nnx

from asap_ray.recipe import Recipe
from asap_ray.stack import Remat
from asap_ray.trainer.gather import gathered, held
from asap_ray.trainer.spec import NotTrainedError, Spec

Path = tuple[Any, ...]
Whole = Mapping[Path, jax.Array]
"""Weights of some layers, gathered and in the compute format [layers, ...], by their path in the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Repeats of a run from `start` to `stop` that are treated alike: under a policy, with weights held or not."""

    start: int
    stop: int
    held: bool
    remat: Remat


def widened(remat: Remat, recipe: Recipe) -> Remat:
    """A policy that saves what a recipe names besides."""
    return replace(remat, saved=remat.saved | set(recipe.save))


def parts_of(spec: Spec, runs: Sequence[tuple[int, int]]) -> tuple[tuple[Part, ...], ...]:
    """How each run of layers is cut, given repeats and layers a repeat of the runs; a run that is not cut is one part.

    Raises:
        NotTrainedError: a recipe ends within a period of layers.
    """
    recipe, found, first = spec.recipe, [], 0
    ends = {recipe.hold, recipe.save_layers if recipe.save else 0}
    for repeats, period in runs:
        inside = sorted(end - first for end in ends if 0 < end - first < repeats * period)
        if any(end % period for end in inside):
            raise NotTrainedError(f"the trainer has no program for {recipe.line}: layers come in periods of {period}")
        cuts = [0, *(end // period for end in inside), repeats]
        found.append(tuple(_part(spec, first, period, *each) for each in pairwise(cuts)))
        first += repeats * period
    return tuple(found)


def _part(spec: Spec, first: int, period: int, start: int, stop: int) -> Part:
    recipe, end = spec.recipe, first + stop * period
    saves = recipe.save and end <= recipe.save_layers
    return Part(
        start=start, stop=stop, held=end <= recipe.hold, remat=widened(spec.remat, recipe) if saves else spec.remat
    )


def taken(run: nnx.List, part: Part) -> nnx.List:
    """The layers of a part of a run."""
    graph, weights = nnx.split(run)
    return nnx.merge(graph, jax.tree.map(lambda w: w[part.start : part.stop], weights))


def whole_of(spec: Spec, run: nnx.List) -> Whole:
    """Every weight of some layers that is sharded, gathered for all of them at once."""
    torus = spec.platform == "tpu"
    return {
        path: gathered(each[...].astype(spec.dtype), each.get_metadata("shards"), spec.plan, torus, leading=1)
        for path, each in nnx.to_flat_state(nnx.state(run))
        if any(each.get_metadata("shards"))
    }


def standing(spec: Spec, layers: nnx.List, whole: Whole) -> nnx.List:
    """One layer of each in a run, whose weights are used whole as they are, and send their gradients to the shards."""
    torus = spec.platform == "tpu"
    for path, each in nnx.to_flat_state(nnx.state(layers)):
        if path in whole:
            shards = each.get_metadata("shards")
            each.set_value(held(each[...].astype(spec.dtype), whole[path], shards, spec.plan, torus))
            each.set_metadata(shards=())
    return layers
