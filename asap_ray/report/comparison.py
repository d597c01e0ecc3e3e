"""A comparison of search methods as one JSON object: figures by method with intervals, pairs, and every ground."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.contest.figures import Scores, leader, pair, pairs, scores, summary
from asap_ray.contest.ground import Named
from asap_ray.contest.methods import Method
from asap_ray.contest.play import START_UP_S, STEPS, Budget, Played
from asap_ray.report.summary import finite

OFF = 0.10
"""Median error of the roofline from which a ground counts as one where it errs."""


@dataclass(frozen=True, kw_only=True)
class ComparisonAnswer:
    """What was played; `errors` says how far the roofline is off on the grounds of which that is known.

    `evaluator` says what a trial was, where it was no replay.
    """

    grounds: tuple[Named, ...]
    errors: Mapping[str, float]
    methods: tuple[Method, ...]
    played: tuple[Played, ...]
    budget: Budget
    seed: int
    resumed: bool
    command: str
    run_dir: Path
    wall_s: float
    versions: Mapping[str, str]
    evaluator: str = "what was recorded of each plan"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of ground, in their order."""
        return tuple(dict.fromkeys(each.kind for each in self.grounds))

    def scores(self, grounds: Sequence[Named]) -> dict[str, Scores]:
        """Each method on some grounds, those left out that were played on none."""
        names = [each.name for each in grounds]
        found = {each.name: scores(each.name, self.played, names) for each in self.methods}
        return {name: each for name, each in found.items() if each.played.any()}

    @cached_property
    def main(self) -> tuple[Named, ...]:
        """The grounds of the first kind: what the figures by method are of."""
        return tuple(each for each in self.grounds if each.kind == self.kinds[0])


def comparison_fields(answer: ComparisonAnswer) -> dict[str, Any]:
    """The object that `output=json` prints.

    `methods` has the figures over the grounds of the first kind, `by_source` the same for each source and for grounds
    of other kinds. `pairs` are over the first kind; `pairs_where_roofline_errs` where its median error is above 10%.
    """
    main = answer.scores(answer.main)
    told = {each.name: each for each in answer.methods}
    return finite(
        {
            "task": "compare",
            "seed": answer.seed,
            "evaluator": answer.evaluator,
            "grounds": _counts(answer),
            "budget": {**asdict(answer.budget), "start_up_s": START_UP_S, "steps": STEPS},
            "methods": {
                name: {"about": told[name].about, "seeds": _seeds(answer, name), **summary(each)}
                for name, each in main.items()
            },
            "leader": leader(main),
            "pairs": [each.as_dict() for each in pairs(list(main.values()))],
            "pairs_where_roofline_errs": _where_off(answer, main),
            "by_source": {
                name: {method: summary(each) for method, each in answer.scores(grounds).items()}
                for name, grounds in by_source(answer).items()
            },
            "each": [ground_fields(answer, each) for each in answer.grounds],
            "resumed": answer.resumed,
            "wall_s": answer.wall_s,
            "versions": dict(answer.versions),
        }
    )


def by_source(answer: ComparisonAnswer) -> dict[str, list[Named]]:
    """Grounds by who measured them."""
    found: dict[str, list[Named]] = {}
    for each in answer.grounds:
        found.setdefault(each.source, []).append(each)
    return found


def _counts(answer: ComparisonAnswer) -> dict[str, Any]:
    return {
        "total": len(answer.grounds),
        "by_kind": Counter(each.kind for each in answer.grounds),
        "by_source": Counter(each.source for each in answer.grounds),
        "constants": Counter(each.constants for each in answer.grounds),
    }


def _seeds(answer: ComparisonAnswer, method: str) -> int:
    return len({each.seed for each in answer.played if each.method == method})


def _where_off(answer: ComparisonAnswer, main: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Pairs on the grounds where the roofline errs by more than `OFF`."""
    off = np.array([answer.errors.get(each.name, 0.0) > OFF for each in answer.main], bool)
    names = list(main)
    return [pair(main[a], main[b], off).as_dict() for i, a in enumerate(names) for b in names[i + 1 :] if off.any()]


def ground_fields(answer: ComparisonAnswer, ground: Named) -> dict[str, Any]:
    """One ground: what the roofline's constants left out, how far it is off, and what each method needed."""
    found = answer.scores([ground])
    return {
        "name": ground.name,
        "kind": ground.kind,
        "source": ground.source,
        "constants": ground.constants,
        "roofline_error": answer.errors.get(ground.name),
        "methods": {
            name: {"trials_to_1pct": float(each.trials[0, 0]), "regret_at": dict(_regrets(each))}
            for name, each in found.items()
        },
    }


def _regrets(each: Scores) -> list[tuple[str, float]]:
    from asap_ray.contest.figures import AT

    return [(str(k), float(each.regret[i, 0])) for i, k in enumerate(AT)]
