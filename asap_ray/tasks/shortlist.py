"""Which of the ranked plans are worth a compilation, and in which order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from asap_ray.physics.estimate import Estimate
from asap_ray.plan import Plan

LENGTH = 400
"""Ranked plans among which those to compile are looked for; layouts of one mesh alone can be dozens of them."""


def shortlist(ranked: Iterable[Estimate]) -> list[Estimate]:
    """The plans to compile, first the fastest of each mesh and recomputation policy, then the others, each fastest
    first.

    The roofline is wrong in much the same way for plans of one mesh and policy, so a second one of them tells less than
    the first of another. Of plans that differ only in how the mesh lies on the torus the fastest stays: their programs
    have the same operations.
    """
    first: dict[Hashable, Estimate] = {}
    others: list[Estimate] = []
    seen: set[Plan] = set()
    for each in ranked:
        program = replace(each.plan, layout=())
        if program in seen:
            continue
        seen.add(program)
        if first.setdefault((program.ici, program.dcn, program.remat), each) is not each:
            others.append(each)
    return [*first.values(), *others]
