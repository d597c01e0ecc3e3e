"""How brains do on lessons that they have not seen: the best step after some trials, over the best there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from asap_ray.agents.brief import Brain
from asap_ray.agents.coordinator import Coordinator
from asap_ray.agents.learned import Policy, Weights
from asap_ray.agents.lessons import Lesson, result_of_row
from asap_ray.agents.playbook import Playbook
from asap_ray.knowledge import load_cards
from asap_ray.search.blackbox import InOrder, by_roofline
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Searcher
from asap_ray.search.study import Study

AFTER = (1, 3, 5, 10)
"""Trials after which it is looked."""
WIDTH = 3
LEAST = 10
"""Plans that a lesson has at least for a search of it to mean anything."""

Maker = Callable[[Pool], Searcher]


def makers(weights: Weights) -> Mapping[str, Maker]:
    """What is compared: the roofline's own order, the playbook, and the policy with some weights."""
    return {
        "roofline": lambda pool: InOrder(pool, "roofline", by_roofline(pool).tolist()),
        "playbook": lambda pool: _agents(pool, Playbook(cards=load_cards())),
        "policy": lambda pool: _agents(pool, Policy(weights=weights)),
    }


def _agents(pool: Pool, brain: Brain) -> Coordinator:
    return Coordinator(pool=pool, brain=brain, study=Study(pool, "random", 0))


def regrets(lessons: Sequence[Lesson], make: Maker) -> np.ndarray:
    """How much slower than the best the best found is after `AFTER` trials, on average [len(AFTER)].

    Where nothing that was tried by then runs, the slowest plan that does run counts.
    """
    return np.mean([_regret(each, make(each.pool)) for each in lessons], axis=0)


def _regret(lesson: Lesson, searcher: Searcher) -> list[float]:
    seen: list[float] = []
    while len(seen) < AFTER[-1] and (asked := searcher.ask(WIDTH)):
        rows = [(each, lesson.pool.row(each.plan)) for each in asked]
        told = [result_of_row(lesson, row, each) for each, row in rows if row is not None]
        seen += [each.step_time_s or np.inf for each in told]
        searcher.tell(told)
    slowest = lesson.steps_s[np.isfinite(lesson.steps_s)].max()
    best = np.minimum(np.minimum.accumulate(seen), slowest) / lesson.steps_s.min() - 1.0
    return [float(best[min(count, len(best)) - 1]) for count in AFTER]
