"""What a search may vary besides plans, by what was asked for, and what the roofline says of it."""

from __future__ import annotations

from functools import lru_cache, partial

from asap_ray.agents.brief import Price
from asap_ray.config import Config
from asap_ray.physics.calibration import Calibration
from asap_ray.physics.estimate import Estimate
from asap_ray.physics.roofline import Pricer
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.recipe import PROGRAM_GENES, Genes, Recipe
from asap_ray.space import Space
from asap_ray.tasks.trial_tiers import TrialTiers
from asap_ray.tiers.compile import Compile
from asap_ray.tiers.run import Run


def prices_of(problem: Problem, calibration: Calibration) -> Price:
    """What the roofline says of plans with recipes; each recipe's pricer is made once."""
    pricer = lru_cache(maxsize=64)(partial(Pricer, problem, calibration))
    space = Space(problem=problem)

    def price(plan: Plan, recipe: Recipe) -> Estimate:
        return pricer(recipe).estimates(space.columns([plan]), [plan])[0]

    return lru_cache(maxsize=4096)(price)


def genes_of(config: Config, tiers: TrialTiers) -> Genes:
    """What a search may vary besides plans."""
    vary = config.search.vary
    further = {each.name: each.about for each in tiers.bundles[1:]} if "flags" in vary else {}
    # Only our own trainer takes other programs, and a proxy's layers are not those of the whole.
    tier = next(iter(tiers.tiers.values()))
    ours = isinstance(tier, Compile) or (isinstance(tier, Run) and tier.proxy is None)
    others = tuple(name for name in vary if name in PROGRAM_GENES) if ours else ()
    return Genes(flags=tuple(further), about=further, others=others)
