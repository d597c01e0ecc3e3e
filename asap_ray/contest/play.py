"""One search on one ground: rounds of trials on a virtual clock, side by side as on as many slices.

A trial of a plan that runs takes its start-up and 20 of its steps; one that does not fit, or fails, the start-up alone.
Either holds all chips of the slice for so long. All methods have the same rounds, slots and number of trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.coordinator import Coordinator
from asap_ray.agents.reasoning import Reasoner
from asap_ray.contest.ground import Field, Ground
from asap_ray.contest.methods import Means, Method, methods_named
from asap_ray.diagnosis import diagnose
from asap_ray.executor.simulated import Recorded, Simulated
from asap_ray.search.protocol import Candidate, Result, Searcher
from asap_ray.tiers.protocol import Job

START_UP_S = 120.0
"""Seconds from the start of a trial to its first step: processes, weights and compilation (assumed)."""
STEPS = 20
"""Steps of a trial."""
EVIDENCE = "replay"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What every method has: `trials` at most, asked for `width` at a time and run on so many slots; once the best plan
    was found the rest is played until `least` trials, since its method would not know."""

    trials: int = 100
    least: int = 20
    width: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What one search did, trial by trial in the order of their numbers [trials].

    `regret` is how much slower than the best plan the best one so far really is, None before any ran; `bad` whether
    the trial did not run; `chip_s` the chip-seconds of each trial, `end_s` when it ended on the virtual clock.
    `why` are the agents' words for each trial, empty for others. `stopped` is why the method itself ended.
    """

    method: str
    ground: str
    seed: int
    regret: tuple[float | None, ...]
    bad: tuple[bool, ...]
    chip_s: tuple[float, ...]
    end_s: tuple[float, ...]
    plans: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    stopped: str = ""
    llm: tuple[int, float] = (0, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, short ones."""
        return {
            "method": self.method,
            "ground": self.ground,
            "seed": self.seed,
            "regret": [None if each is None else float(f"{each:.5g}") for each in self.regret],
            "bad": [int(each) for each in self.bad],
            "chip_s": [float(f"{each:.6g}") for each in self.chip_s],
            "end_s": [float(f"{each:.6g}") for each in self.end_s],
            "plans": list(self.plans),
            "why": list(self.why),
            "stopped": self.stopped,
            "llm": list(self.llm),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Played:
        """What `as_dict` wrote."""
        return cls(
            method=str(given["method"]),
            ground=str(given["ground"]),
            seed=int(given["seed"]),
            regret=tuple(None if each is None else float(each) for each in given["regret"]),
            bad=tuple(bool(each) for each in given["bad"]),
            chip_s=tuple(map(float, given["chip_s"])),
            end_s=tuple(map(float, given["end_s"])),
            plans=tuple(map(str, given["plans"])),
            why=tuple(map(str, given["why"])),
            stopped=str(given["stopped"]),
            llm=(int(given["llm"][0]), float(given["llm"][1])),
        )


def play(field: Field, ground: str, method: Method, seed: int, budget: Budget, *, told: bool = False) -> Played:
    """Let a method search a field.

    Args:
        field: the plans and their outcomes.
        ground: the name of where this is.
        method: who searches.
        seed: of the sampler, and of the noise of trials.
        budget: the same for all methods.
        told: keep plans and the agents' words.
    """
    searcher = method.make(field, seed)
    match = _Match(field, seed, budget)
    while (stopped := match.over() or searcher.finished()) is None:
        asked = searcher.ask(min(budget.width, budget.trials - len(match.rows)))
        if not asked:
            stopped = "nothing is left to try"
            break
        results = match.run(asked)
        if isinstance(searcher, Coordinator):
            for each in results:
                searcher.seen(each)
        searcher.tell(results)
        searcher.drain()
    return Played(
        method=method.name,
        ground=ground,
        seed=seed,
        regret=tuple(match.regret),
        bad=tuple(match.bad),
        chip_s=tuple(match.chip_s),
        end_s=tuple(match.end_s),
        plans=tuple(field.pool.plan(row).line for row in match.rows) if told else (),
        why=tuple(match.why) if told else (),
        stopped=stopped,
        llm=spent(searcher),
    )


def spent(searcher: Searcher) -> tuple[int, float]:
    """Tokens and dollars that a searcher's brain has spent on a language model."""
    brain = searcher.brain if isinstance(searcher, Coordinator) else None
    asker = brain.asker if isinstance(brain, Reasoner) else None
    budget = asker.budget if isinstance(asker, Cascade) else None
    return (budget.tokens, budget.usd or 0.0) if budget else (0, 0.0)


class _Match:
    """What has happened so far in one search."""

    def __init__(self, field: Field, seed: int, budget: Budget) -> None:
        self.field, self.seed, self.budget = field, seed, budget
        self.rows: list[int] = []
        self.regret: list[float | None] = []
        self.bad: list[bool] = []
        self.chip_s: list[float] = []
        self.end_s: list[float] = []
        self.why: list[str] = []
        self._records: dict[str, Recorded] = {}
        self._clock = Simulated(records=self._records, workers=budget.width)
        self._best = (np.inf, np.inf)  # as measured, and what it really is

    def over(self) -> str | None:
        """Why no more is played."""
        done = len(self.rows)
        if done >= self.budget.trials:
            return f"{done} trials are done"
        if done >= self.budget.least and self.regret[-1] == 0.0:
            return "the best plan is found"
        return None

    def run(self, asked: list[Candidate]) -> list[Result]:
        """A round: all its trials side by side, and what came of them in their order."""
        results, chips = [self._result(each) for each in asked], self.field.pool.problem.slice.chips
        jobs = iter([Job(name=f"{each.candidate.number}", work=print) for each in results])
        for each in results:
            seconds = START_UP_S + STEPS * (each.step_time_s or 0.0)
            self._records[f"{each.candidate.number}"] = Recorded(seconds=seconds)
            self.chip_s.append(seconds * chips)
        ends = {outcome.job.name: self._clock.now for outcome in self._clock.stream(lambda: next(jobs, None))}
        self.end_s += [ends[f"{each.candidate.number}"] for each in results]
        return results

    def _result(self, candidate: Candidate) -> Result:
        field = self.field
        row = field.pool.row(candidate.plan)
        assert row is not None, f"{candidate.author} asks for a plan that has no outcome: {candidate.plan.line}"
        status, true, roofline = str(field.status[row]), float(field.step_s[row]), field.pool.estimate(row)
        complete = status == "complete"
        measured = true * field.noise(row, self.seed) if complete else None
        self._note(row, candidate, measured, true)
        seen = field.seen(row) if complete and field.seen else None
        told = replace(seen, step_time_s=measured) if seen and measured else None
        return Result(
            candidate=candidate,
            status=status,  # pyright: ignore[reportArgumentType]
            step_time_s=measured,
            reason="" if complete else "as recorded",
            source="replay",
            evidence=EVIDENCE,
            estimate=told,
            roofline=roofline,
            diagnosis=diagnose(told or roofline),
        )

    def _note(self, row: int, candidate: Candidate, measured: float | None, true: float) -> None:
        self.rows.append(row)
        self.bad.append(measured is None)
        if measured is not None:
            self._best = min(self._best, (measured, true))
        known = np.isfinite(self._best[1])
        self.regret.append(self._best[1] / self.field.best_s - 1.0 if known else None)
        proposal = candidate.proposal
        self.why.append(f"{proposal.mechanism}: {proposal.hypothesis}" if proposal else "")


def play_many(
    ground: Ground, methods: Sequence[str], seeds: Sequence[int], budget: Budget, means: Means | None = None
) -> list[dict[str, Any]]:
    """All searches of some methods on one ground, as plain values: one job of a comparison.

    Plans and the agents' words are kept of the first seed.
    """
    field, found = ground.field(), []
    for method in methods_named(tuple(methods), means):
        for seed in seeds if method.seeded else seeds[:1]:
            told = seed == seeds[0]
            found.append(play(field, ground.name, method, seed, budget, told=told).as_dict())
    return found
