"""Which recipes there are for a plan: the domain of each gene, and named rules of legality, as `rules.py` for plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from asap_ray.plan import Plan
from asap_ray.problem import Problem, sharding_axes
from asap_ray.recipe import PLAIN, Genes, Recipe
from asap_ray.stack import Remat

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the layers: how many of them a gene of layers may name, besides all those that fit."""
TILES = (256, 512, 1024, 2048)
"""Tiles of attention that are tried; a kernel's lie in 16 MB of VMEM."""
LANES = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneRule:
    """A named condition: `why` says what a recipe breaks of it with a plan of a problem; empty where it holds."""

    name: str
    why: Callable[[Problem, Plan, Recipe], str]


def policy_of(problem: Problem, plan: Plan) -> Remat:
    """The recomputation policy of a plan."""
    return next(each for each in problem.stack.remat if each.name == plan.remat)


def tensors_of(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What layers compute that the plan's policy does not keep, and a save list may."""
    architecture, policy = problem.workload.architecture, policy_of(problem, plan)
    names = ["attn_in", "query", "key_value", "context", "out", "mlp_in"]
    if architecture.ffn is not None:
        names += ["gate_up", "act"]
    if architecture.experts is not None:
        names += ["expert_in", "expert_gate_up", "expert_act"]
    if plan.attention != "flash":
        names.remove("context")
    return tuple(name for name in names if name not in policy.kept)


def _alike(problem: Problem) -> bool:
    return len(problem.workload.architecture.groups) == 1


def _hold(problem: Problem, plan: Plan, recipe: Recipe) -> str:
    layers = problem.workload.architecture.layers
    if not recipe.hold:
        return ""
    if not 0 < recipe.hold <= layers:
        return f"hold={recipe.hold}: the model has {layers} layers"
    if all(plan.axes[axis] == 1 for axis in sharding_axes(problem.stack)):
        return f"hold={recipe.hold}: the plan shards no weights over fsdp"
    return "hold: experts are not held" if problem.workload.architecture.experts else ""


def _save(problem: Problem, plan: Plan, recipe: Recipe) -> str:
    if not recipe.save:
        return "save: a number of layers, and no tensor" if recipe.save_layers else ""
    if not 0 <= recipe.save_layers < problem.workload.architecture.layers:
        return f"save=…/{recipe.save_layers}: the model has {problem.workload.architecture.layers} layers"
    if wrong := [name for name in recipe.save if name not in tensors_of(problem, plan)]:
        return f"save={'+'.join(wrong)}: {plan.remat} leaves {', '.join(tensors_of(problem, plan)) or 'nothing'}"
    return "save: each tensor once" if len(set(recipe.save)) < len(recipe.save) else ""


def _groups(problem: Problem, plan: Plan, recipe: Recipe) -> str:
    cut = [n for n in (recipe.hold, recipe.save_layers) if n]
    if cut and plan.axes["pipeline"] > 1:
        return "layers of a pipeline are all treated alike"
    if any(n < problem.workload.architecture.layers for n in cut) and not _alike(problem):
        return "some layers alone: only where the model's layers are all alike"
    return ""


def _blocks(problem: Problem, plan: Plan, recipe: Recipe) -> str:
    tiles = [n for n in (recipe.block_q, recipe.block_kv) if n]
    if not tiles:
        return ""
    if problem.slice.chip.kind != "tpu" or plan.attention != "flash":
        return "blocks: only splash attention, on TPUs, has these tiles"
    chunks = plan.axes["context"] * (problem.stack.context_chunks if plan.axes["context"] > 1 else 1)
    rows = problem.workload.seq_len // chunks
    if wrong := [n for n in tiles if n % LANES or rows % n or n > max(TILES)]:
        return f"blocks: {wrong[0]} is no multiple of {LANES} that divides {rows} positions, up to {max(TILES)}"
    return ""


RULES: tuple[GeneRule, ...] = tuple(
    GeneRule(name=name, why=why)
    for name, why in (("hold", _hold), ("save", _save), ("groups", _groups), ("blocks", _blocks))
)


def broken_gene(problem: Problem, plan: Plan, recipe: Recipe, genes: Genes) -> tuple[str, str] | None:
    """The first rule that a recipe breaks with a legal plan, as (name, sentence), or None if it is legal.

    Args:
        problem: as the trainer sees it that is tried.
        plan: of the problem.
        recipe: is to be tried with it.
        genes: what the search may vary.
    """
    if recipe.flags and recipe.flags not in genes.flags:
        return "flags", f"{recipe.flags}: the search has {', '.join(genes.flags) or 'no other bundle'}"
    for gene in genes_used(recipe):
        if gene != "flags" and gene not in genes.others:
            return "vary", f"{gene} is not among search.vary"
    return next(((rule.name, text) for rule in RULES if (text := rule.why(problem, plan, recipe))), None)


def genes_used(recipe: Recipe) -> tuple[str, ...]:
    """Names of the genes that a recipe sets."""
    used = {
        "flags": recipe.flags,
        "hold": recipe.hold,
        "save": recipe.save or recipe.save_layers,
        "blocks": recipe.block_q or recipe.block_kv,
    }
    return tuple(name for name, value in used.items() if value)


def gene_moves(problem: Problem, plan: Plan, recipe: Recipe, genes: Genes) -> Iterator[Recipe]:
    """Legal recipes that differ from one in a single gene, in a fixed order."""
    layers = problem.workload.architecture.layers
    some = sorted({round(share * layers) for share in SHARES})
    found: list[Recipe] = [replace(recipe, flags=name) for name in ("", *genes.flags)]
    found += [replace(recipe, hold=n) for n in (0, *some)]
    found.append(replace(recipe, save=(), save_layers=0))
    for name in tensors_of(problem, plan):
        kept = tuple(each for each in recipe.save if each != name)
        save = kept if name in recipe.save else tuple(sorted((*kept, name)))
        if save:
            found += [replace(recipe, save=save, save_layers=n % layers) for n in some]
    found += [replace(recipe, block_q=n) for n in (0, *TILES)]
    found += [replace(recipe, block_kv=n) for n in (0, *TILES)]
    for each in dict.fromkeys(found):
        if each != recipe and (each == PLAIN or broken_gene(problem, plan, each, genes) is None):
            yield each
