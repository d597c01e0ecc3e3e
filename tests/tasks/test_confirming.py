"""The last word: what runs again in turns, and what becomes of a plan that fails then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asap_ray.executor.local import Local
from asap_ray.tasks.confirming import Confirming
from asap_ray.tasks.trials import Clock
from asap_ray.tiers.protocol import Job


def plan(line: str) -> Any:
    return SimpleNamespace(plan=SimpleNamespace(line=line))


@pytest.mark.parametrize(("fails", "left"), [("", ["base", "a", "b"]), ("a", ["base", "b"]), ("base", [])])
def test_a_plan_that_fails_is_left_out_and_without_the_baseline_nothing_is_told(fails: str, left: list[str]) -> None:
    def read(outcome: Any) -> Any:
        good = outcome.value != fails
        estimate = SimpleNamespace(step_time_s=2.0) if good else None
        return SimpleNamespace(status="complete" if good else "failed", estimate=estimate, reason="", facts={})

    tier = SimpleNamespace(
        spread=0.01, read=read, job=lambda plan: Job(name=plan.line, work=str, arguments=(plan.line,))
    )
    told: list[Any] = []
    given: Any = {"tier": tier, "recorder": SimpleNamespace(told=lambda *each: told.append(each))}
    confirming = Confirming(where="local", executor=Local(workers=1), clock=Clock(), turns=2, **given)
    found = confirming.run([plan("base"), plan("a"), plan("b")], {("local", "b", 0): 3.0})
    assert [each.plan.line for each in found] == left
    assert [each.steps_s for each in found if each.plan.line == "b"] == ([(3.0, 2.0)] if left else [])
    assert len(told) == 5  # six turns, one of which was there before
