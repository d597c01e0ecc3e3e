"""Every method of the contest by its name: what is told of it, whether a seed changes it, and how it is made.

A name that ends in `_gated` sees the plans that pass the gate that agents have (legal, fits by the roofline with the
margin kept free); the same method without it sees every plan of the ground. A brain of agents is a method by its own
name, alone, and as `<brain>_mixed` with the sampler's share in between: `BRAINS` is where one is added. A brain that is
an adviser too is asked for its advice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from asap_ray.agents.brief import Brain
from asap_ray.agents.chat import Asker
from asap_ray.agents.coordinator import Coordinator, Rules
from asap_ray.agents.learned import Policy, Weights
from asap_ray.agents.playbook import Playbook
from asap_ray.agents.reasoning import Reasoner
from asap_ray.contest.buckets import in_buckets
from asap_ray.contest.ground import Field
from asap_ray.contest.relief import Relief
from asap_ray.errors import AsapError, ConfigError
from asap_ray.knowledge import Card, load_cards
from asap_ray.recall import Recall
from asap_ray.search.blackbox import BlackBox, InOrder, by_roofline
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Searcher
from asap_ray.search.study import Study, check_sampler

SAMPLERS = ("random", "tpe", "gp", "cmaes", "nsga2", "qmc")
SLOW = ("gp", "gp_gated", "cmaes", "cmaes_gated")
"""Methods that are played on a subset of the grounds only, unless they are asked for by name."""
SEEDED_WITH = 3
"""Plans of the roofline's ranking with which `tpe_seeded` begins: as many as agents propose at first."""
SHARE = 0.2
"""The sampler's share of the trials beside agents that are mixed."""
DEFAULT = (
    *("random", "random_gated", "tpe", "tpe_gated", "tpe_seeded", "exhaustive", "buckets", "relief", "greedy"),
    *("playbook", "playbook_mixed"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A way to search; `seeded` says whether a seed changes what it does, `gated` whether it sees the gated plans."""

    name: str
    about: str
    make: Callable[[Field, int], Searcher]
    seeded: bool = False
    gated: bool = True


def publisher_of(source: str) -> str:
    """Whose table it is: what stands before the first comma, so that two tables of one paper are one."""
    return source.split(",")[0]


def _black_box(sampler: str, gated: bool, field: Field, seed: int) -> Searcher:
    return BlackBox(field.gated if gated else field.pool, sampler, seed)


def _seeded(field: Field, seed: int) -> Searcher:
    return BlackBox(field.gated, "tpe", seed, first=by_roofline(field.gated)[:SEEDED_WITH].tolist())


def _exhaustive(gated: bool, field: Field, seed: int) -> Searcher:
    pool = field.gated if gated else field.pool
    return InOrder(pool, "exhaustive", range(len(pool)))


def _greedy(field: Field, seed: int) -> Searcher:
    return InOrder(field.gated, "greedy", by_roofline(field.gated).tolist())


def _buckets(field: Field, seed: int) -> Searcher:
    return InOrder(field.pool, "buckets", in_buckets(field.pool))


def _relief(field: Field, seed: int) -> Searcher:
    return Relief(field.gated)


@cache
def _cards() -> tuple[Card, ...]:
    return load_cards()


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """What brains need besides a ground; `asker` makes who asks the language model, anew for each search.

    `policies` are the weights of the policy by the publisher whose tables they were trained without, `policy` those for
    one ground.
    """

    asker: Callable[[], Asker] | None = None
    policies: Mapping[str, Weights] = field(default_factory=dict)
    policy: Weights | None = None

    def on(self, source: str) -> Means:
        """What is needed on a ground of some source."""
        return replace(self, policies={}, policy=self.policies.get(publisher_of(source)))


Maker = Callable[[Pool, Means], Brain]


def _playbook(pool: Pool, means: Means) -> Brain:
    return Playbook(cards=_cards())


def _policy(pool: Pool, means: Means) -> Brain:
    if means.policy is None:
        raise ConfigError("compare.methods", "policy", "on tables: nothing was trained for this ground")
    return Policy(weights=means.policy)


def _llm(pool: Pool, means: Means) -> Brain:
    if means.asker is None:
        raise ConfigError("compare.methods", "llm", "with a language model to ask: llm.base_url or a key")
    return Reasoner(asker=means.asker(), rules=_playbook(pool, means), problem=pool.problem, cards=_cards())


BRAINS: dict[str, Maker] = {"playbook": _playbook, "policy": _policy, "llm": _llm}
"""Brains of agents by name."""
TAUGHT = ("policy", "policy_mixed")
"""Methods that are trained for each ground without its source."""
ASKING = ("llm", "llm_mixed")
"""Methods that ask a language model: never part of `all`."""


def _agents(brain: Maker, means: Means, rules: Rules, pool_of: str, field: Field, seed: int) -> Searcher:
    pool = field.gated if pool_of == "gated" else field.pool
    made = brain(pool, means)
    return Coordinator(
        pool=pool,
        brain=made,
        adviser=made if isinstance(made, Reasoner) else None,
        study=Study(pool, "tpe", seed),
        rules=rules,
        recall=field.recall,
    )


def _methods(means: Means) -> dict[str, Method]:
    found = []
    for name in SAMPLERS:
        found.append(_sampler(name, gated=False))
        found.append(_sampler(name, gated=True))
    found += [
        Method(name="tpe_seeded", about="TPE that begins with the roofline's first three", make=_seeded, seeded=True),
        Method(name="exhaustive", about="every plan as enumerated", make=partial(_exhaustive, False), gated=False),
        Method(name="exhaustive_gated", about="every plan as enumerated, gated", make=partial(_exhaustive, True)),
        Method(name="greedy", about="the roofline's own order", make=_greedy),
        Method(name="buckets", about="grid by model size (NeMo, DeepSpeed)", make=_buckets, gated=False),
        Method(name="relief", about="hill climbing that relieves the bottleneck (Aceso)", make=_relief),
    ]
    for name, brain in BRAINS.items():
        found += _of_brain(name, brain, means)
    return {each.name: each for each in found}


def _sampler(name: str, *, gated: bool) -> Method:
    about = f"Optuna's {name} sampler{', gated' if gated else ''}"
    make = partial(_black_box, name, gated)
    return Method(name=f"{name}_gated" if gated else name, about=about, make=make, seeded=True, gated=gated)


def _of_brain(name: str, brain: Maker, means: Means) -> list[Method]:
    alone, mixed = (partial(_agents, brain, means, Rules(share=share), "gated") for share in (0.0, SHARE))
    return [
        Method(name=name, about=f"agents led by the {name}", make=alone, seeded=name in ASKING),
        Method(name=f"{name}_mixed", about=f"the {name} with TPE in between", make=mixed, seeded=True),
    ]


def methods_named(names: tuple[str, ...], means: Means | None = None) -> list[Method]:
    """The methods of some names, in their order; `auto` is the usual set and `all` everything that is installed.

    Raises:
        ConfigError: there is none of that name, or it needs a package that is not installed.
    """
    known = _methods(means or Means()) | {each.name: each for each in ablations()}
    wanted: dict[str, Method] = {}
    for name in names:
        several = {
            "auto": DEFAULT,
            "all": tuple(filter(_installed, known)),
            "ablations": ("playbook", *(each.name for each in ablations())),
        }
        for each in several.get(name, (name,)):
            if each not in known:
                allowed = ("auto", "all", "ablations", *known)
                raise ConfigError("compare.methods", each, f"allowed: {', '.join(allowed)}", allowed)
            wanted[each] = known[each]
    for each in wanted:
        check_sampler(each.removesuffix("_gated"))
    return list(wanted.values())


def _installed(name: str) -> bool:
    """Whether what a method needs is here, and costs nothing."""
    if name in ASKING:
        return False
    try:
        check_sampler(name.removesuffix("_gated"))
    except AsapError:
        return False
    return True


def ablations() -> list[Method]:
    """The playbook without one of its parts each."""
    from asap_ray.contest.ablated import Uncalibrated, Unnarrowed, unpruned

    alone, means = Rules(share=0.0), Means()

    def made(kind: type[Coordinator], brain: Maker, rules: Rules) -> Callable[[Field, int], Searcher]:
        def make(field: Field, seed: int) -> Searcher:
            pool = field.gated
            study = Study(pool, "tpe", seed)
            return kind(pool=pool, brain=brain(pool, means), study=study, rules=rules, recall=field.recall)

        return make

    def without_floors(field: Field, seed: int) -> Searcher:
        return made(Coordinator, _playbook, alone)(replace(field, pool=unpruned(field.pool)), seed)

    def without_memory(field: Field, seed: int) -> Searcher:
        return made(Coordinator, _playbook, alone)(replace(field, recall=Recall()), seed)

    def cardless(pool: Pool, means: Means) -> Brain:
        return Playbook(cards=())

    parts = {
        "no_gate": ("the memory and legality gate", partial(_agents, _playbook, means, alone, "raw")),
        "no_floors": ("pruning by floors", without_floors),
        "no_cards": ("cards", made(Coordinator, cardless, alone)),
        "no_memory": ("memory of other sources", without_memory),
        "no_diagnosis": ("diagnosis", made(Coordinator, _playbook, replace(alone, diagnosing=False))),
        "no_narrowing": ("narrowing", made(Unnarrowed, _playbook, alone)),
        "no_calibration": ("correction of the roofline by trials", made(Uncalibrated, _playbook, alone)),
    }
    return [
        Method(name=f"playbook_{name}", about=f"the playbook without {what}", make=make, gated=name != "no_gate")
        for name, (what, make) in parts.items()
    ]


def seeds_of(method: Method, seeds: int) -> range:
    """The seeds that a method is played with: one where seeds change nothing."""
    return range(seeds if method.seeded else 1)
