"""The last word of measured trials: the baseline and the best few once more, alone and in turns.

Trials of a search run beside each other, at different times, and the best of many is in part the luckiest. So a gain is
what is left when the plans run again with nothing beside them, in turns, so that what drifts hits all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asap_ray.executor.protocol import Executor
from asap_ray.physics.estimate import Estimate
from asap_ray.report.answer import Confirmed, Searched, Tried
from asap_ray.tasks.recorder import Recorder
from asap_ray.tasks.trials import Clock
from asap_ray.tiers.command import Command
from asap_ray.tiers.protocol import Job
from asap_ray.tiers.run import Run

Turns = Mapping[tuple[str, str, int], float]
"""Steps of turns that an earlier start of the same command has finished, by slice, plan and turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirming:
    """Runs plans of one slice again: `turns` times each."""

    where: str
    tier: Run | Command
    executor: Executor
    recorder: Recorder
    clock: Clock
    turns: int

    def run(self, plans: Sequence[Estimate], before: Turns) -> tuple[Confirmed, ...]:
        """Run plans in turns, the first of them the baseline; those that did not work each time are left out, and all
        are where that is the baseline or time was over.

        Args:
            plans: what the roofline says of each.
            before: steps of turns that an earlier run of the same command has finished, by slice, plan and turn.
        """
        steps: dict[str, list[float]] = {each.plan.line: [] for each in plans}
        for turn in range(self.turns):
            for each in _rotated(plans, turn):
                step = before.get((self.where, each.plan.line, turn)) or self._once(each, turn)
                steps[each.plan.line] += [step] if step is not None else []
        return tuple(
            Confirmed(
                plan=each.plan, baseline=place == 0, steps_s=tuple(steps[each.plan.line]), spread=self.tier.spread
            )
            for place, each in enumerate(plans)
            if len(steps[each.plan.line]) == self.turns == len(steps[plans[0].plan.line])
        )

    def _once(self, estimate: Estimate, turn: int) -> float | None:
        """One more run; None where time is over or it did not work."""
        if self.clock.over:
            return None
        tier = self.tier
        if isinstance(tier, Run):  # to its end, and with nothing beside it
            tier = replace(tier, hopeless_s=None, options=replace(tier.options, trace=False))
        jobs: Iterator[Job] = iter([replace(tier.job(estimate.plan), name=f"turn {turn + 1} of {estimate.plan.line}")])
        (outcome,) = self.executor.stream(lambda: next(jobs, None))
        finding = tier.read(outcome)
        measured = finding.estimate if finding.status == "complete" else None
        step = measured.step_time_s if measured else None
        fields: dict[str, Any] = {"plan": estimate.plan.line, "turn": turn, "status": finding.status}
        fields |= {"step_time_s": step, "reason": finding.reason, "facts": dict(finding.facts)}
        self.recorder.told(self.where, "confirmed", fields)
        return step


def _rotated(plans: Sequence[Estimate], turn: int) -> Sequence[Estimate]:
    """In another order each turn, so that none always follows the same one."""
    first = turn % len(plans)
    return [*plans[first:], *plans[:first]]


def to_confirm(found: Searched, baseline: Estimate | None, best: int) -> list[Estimate]:
    """What is run again: the baseline, or the first trial where none is given, and the best few; no plan twice."""
    first = baseline or next((each.roofline for each in found.trials if each.finding.status == "complete"), None)
    wanted = [first] if first is not None else []
    wanted += [each.roofline for each in found.ranked[:best]]
    return list({each.plan: each for each in wanted}.values())


def finished_turns(events: Sequence[Mapping[str, Any]], tried: Sequence[Tried]) -> dict[tuple[str, str, int], float]:
    """Steps of confirming runs that a ledger holds, as long as what they confirm is still there."""
    plans = {(each.where, each.finding.plan.line) for each in tried}
    return {
        (event["slice"], event["plan"], event["turn"]): event["step_time_s"]
        for event in events
        if event["kind"] == "confirmed" and event["step_time_s"] and (event["slice"], event["plan"]) in plans
    }
