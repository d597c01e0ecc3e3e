"""Policies for a comparison: one for each publisher of tables, that has seen nothing of what it is tried on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asap_ray.agents.learned import Weights
from asap_ray.agents.lessons import Lesson
from asap_ray.contest.methods import publisher_of
from asap_ray.errors import ConfigError
from asap_ray.tasks.lessons import lessons_made_up, lessons_of_tables
from asap_ray.tasks.training import trained
from asap_ray.tasks.validate import carried_tables

MADE_UP, STEPS = 16, 600
"""Workloads with made-up errors beside the tables, and steps of training: as many as task=train_policy takes."""


def policies_for(sources: Iterable[str], tables: Sequence[str] | None, seed: int) -> dict[str, Weights]:
    """Weights by publisher of a source, trained on the tables of all others; about 20 s each.

    Raises:
        ConfigError: a table cannot be used, or the others have nothing to learn from.
    """
    lessons = lessons_of_tables(tables or carried_tables())
    return {each: _without(each, lessons, seed) for each in sorted({publisher_of(source) for source in sources})}


def _without(publisher: str, lessons: Sequence[Lesson], seed: int) -> Weights:
    others = [each for each in lessons if publisher_of(each.source) != publisher]
    if not others:
        raise ConfigError("compare.methods", "policy", f"with tables of somebody besides {publisher} to learn from")
    made_up = lessons_made_up(MADE_UP, seed)
    return trained([*others, *made_up], left_out=(publisher,), seed=seed, steps=STEPS)
