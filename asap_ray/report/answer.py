"""The exact answer of one call, as the report reads it: one Answer, with a SliceAnswer for each slice asked about.

Plain values only. The task fills them, the report shows them; nothing in the report prices a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from asap_ray.step_times import pooled

if TYPE_CHECKING:
    import numpy as np

    from asap_ray.certificate import Certificate
    from asap_ray.diagnosis import Diagnosis
    from asap_ray.hardware import Slice
    from asap_ray.observation import Observation
    from asap_ray.physics.estimate import Estimate
    from asap_ray.plan import Plan
    from asap_ray.recall import Recall
    from asap_ray.report.rounds import Round
    from asap_ray.tiers.finding import Finding
    from asap_ray.workload import Workload

CORES = "cores"
"""Among the seconds of a compilation: those of all cores together, which is no step of it."""
FLAGS = "flags"
"""The author of trials after a search: the best plans with each further bundle of compiler flags."""
COMPILER = "compiler"
"""What plans are counted under that a compiler found not to fit, where others of its plans are run."""
TRIAL_ENDS = ("complete", "pruned", "infeasible", "failed", "timeout")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A plan that went to a compiler: for the slice named `where`, with a recipe (`bundle` is its line: a bundle of
    flags and what else is changed besides the plan), and what the roofline had said of it.

    It is trial `number` of its slice, asked for by `author`. `observed` is what its program shows. `elapsed_s` is what
    the search had spent when it ended; `cut` says that it was ended because time was over.
    """

    where: str
    bundle: str
    roofline: Estimate
    finding: Finding
    number: int = 0
    author: str = ""
    observed: Observation | None = None
    elapsed_s: float = 0.0
    cut: bool = False

    @property
    def took_s(self) -> float | None:
        """What the compilation took when it was made, in seconds; None where that is not known."""
        steps = [value for name, value in self.finding.seconds.items() if name != CORES]
        return sum(steps) if steps else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmed:
    """A plan that was run again at the end, alone and in turns with others: the median step of each run, in seconds,
    in the order of the turns; `baseline` is what gains are held against, `spread` how far such medians are known to lie
    apart (`step_times`)."""

    plan: Plan
    baseline: bool
    steps_s: tuple[float, ...]
    spread: float

    @property
    def pooled(self) -> tuple[float, tuple[float, float]]:
        """The step that its runs come to, with the interval that holds 90%."""
        return pooled(self.steps_s, self.spread)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What trials said of the plans of one slice; `source` is the tier that they went through.

    `trials` are in the order in which they were known, those with the first bundle of flags (`base`) before the others.
    `refused` counts plans that fit and that our trainer has no program for, by rule, or a program that does not fit,
    under "memory"; `stopped` says why no more were compiled. `observed` is what the best plan's program shows. `rounds`
    is what the agents decided, `recall` what they had recalled of earlier runs (None: they have no memory), `confirmed`
    what was run again at the end.
    """

    base: str
    trials: tuple[Tried, ...]
    source: str = "compile"
    refused: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""
    observed: Observation | None = None
    rounds: tuple[Round, ...] = ()
    recall: Recall | None = None
    confirmed: tuple[Confirmed, ...] = ()

    @cached_property
    def ranked(self) -> tuple[Tried, ...]:
        """The plans that compiled with the first bundle, fastest first."""
        return tuple(sorted(self._complete(base=True), key=_step_of))

    @property
    def flagged(self) -> tuple[Tried, ...]:
        """What compiled, or did not, with another bundle of flags."""
        return tuple(each for each in self.trials if each.bundle != self.base)

    @property
    def unfinished(self) -> tuple[Tried, ...]:
        """What did not compile with the first bundle."""
        return tuple(each for each in self.trials if each.bundle == self.base and each.finding.estimate is None)

    @property
    def best(self) -> Tried | None:
        """The fastest of all bundles; of programs that are the same the one with the first bundle. Where plans were run
        again at the end, the fastest of those then, with its step as it was then."""
        if self.confirmed and (found := self._confirmed_best()):
            return found
        return min(
            self._complete(base=False), key=lambda each: (_step_of(each), each.bundle != self.base), default=None
        )

    def _confirmed_best(self) -> Tried | None:
        tried = {each.plan: found for each in self.confirmed if (found := self.of(each.plan, self.base))}
        again = [each for each in self.confirmed if each.plan in tried]
        best = min(again, key=lambda each: each.pooled, default=None)
        if best is None or (estimate := tried[best.plan].finding.estimate) is None:
            return None
        step, interval = best.pooled
        ratio = step / estimate.step_time_s
        now = replace(
            estimate,
            step_time_s=step,
            interval_s=interval,
            mfu=estimate.mfu / ratio,
            tokens_per_s=estimate.tokens_per_s / ratio,
            time_parts={name: value * ratio for name, value in estimate.time_parts.items()},
        )
        return replace(tried[best.plan], finding=replace(tried[best.plan].finding, estimate=now))

    def of(self, plan: Plan, bundle: str) -> Tried | None:
        """What came of a plan with a bundle."""
        return self._by_plan.get((plan, bundle))

    @cached_property
    def _by_plan(self) -> dict[tuple[Plan, str], Tried]:
        """The first trial of each plan with each bundle."""
        return {(each.finding.plan, each.bundle): each for each in reversed(self.trials)}

    def no_op(self, tried: Tried) -> bool:
        """Whether another bundle of flags has left the program as it was, instruction by instruction."""
        base = self.of(tried.finding.plan, self.base)
        return base is not None and base is not tried and base.finding.digest == tried.finding.digest != ""

    def _complete(self, *, base: bool) -> list[Tried]:
        return [
            each for each in self.trials if each.finding.estimate is not None and (each.bundle == self.base or not base)
        ]


def _step_of(tried: Tried) -> float:
    assert tried.finding.estimate is not None
    return tried.finding.estimate.step_time_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceAnswer:
    """What the whole space of one slice came to.

    `removed` says how many plans each rule took, "memory" among them; `reasons` has one sentence for each plan of
    `ranked`; `too_big` holds the fastest plans that miss the memory. `ranked` is empty, and `diagnosis` None, where no
    plan fits.

    `sample` holds columns of up to a few thousand plans for the map of the space: step_time_s, floor_s, hbm_bytes,
    fits, remat, micro_batch and the six mesh axes, each of shape [plans]. `certificate` bounds how much faster than the
    best another plan can be. All of these are the roofline's; `searched` is what trials said then, and `compiled` what
    the compiler had said before, where the best of its plans were run.
    """

    slice: Slice
    total: int
    legal: int
    fitting: int
    removed: Mapping[str, int]
    ranked: tuple[Estimate, ...]
    reasons: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    too_big: tuple[Estimate, ...] = ()
    sample: Mapping[str, np.ndarray] = field(default_factory=dict)
    certificate: Certificate | None = None
    searched: Searched | None = None
    compiled: Searched | None = None

    @property
    def searches(self) -> tuple[Searched, ...]:
        """All searches on this slice, in their order."""
        return tuple(each for each in (self.compiled, self.searched) if each is not None)

    @property
    def recall(self) -> Recall | None:
        """What the searches on this slice had recalled, the same for all of them; None where they have no memory."""
        return next((each.recall for each in self.searches if each.recall is not None), None)

    @property
    def trials(self) -> tuple[Tried, ...]:
        """All trials on this slice, by number."""
        return tuple(trial for each in self.searches for trial in each.trials)

    @property
    def priced(self) -> Estimate | None:
        """The roofline's fastest plan that fits, where one does."""
        return self.ranked[0] if self.ranked else None

    @property
    def telling(self) -> Searched | None:
        """The last search in which a plan worked."""
        return next((each for each in reversed(self.searches) if each.best), None)

    @property
    def proven(self) -> Estimate | None:
        """The fastest plan by trials, where one has worked."""
        found = self.telling
        if found is None or found.best is None:
            return None
        failed = (
            {each.finding.plan for each in self.searched.trials if self.searched is not found} if self.searched else ()
        )
        best = next((each for each in found.ranked if each.finding.plan not in failed), None) if failed else found.best
        return best.finding.estimate if best else None

    @property
    def best(self) -> Estimate | None:
        """The fastest plan that fits by the best evidence there is: the compiler's, or the roofline's."""
        return self.proven or next((each for each in self.ranked if self._may_fit(each.plan)), None)

    def _may_fit(self, plan: Plan) -> bool:
        """Whether no compiler has found that a plan does not fit, on whichever of its layouts."""
        too_big = {replace(each.finding.plan, layout=()) for each in self.trials if each.finding.status == "infeasible"}
        return replace(plan, layout=()) not in too_big

    @property
    def usd_per_million_tokens(self) -> float | None:
        """What a million tokens cost at the best plan, in dollars; None where the chip's price or a plan is missing."""
        return None if self.best is None else usd_per_million_tokens(self.slice, self.best)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One workload on one or more slices, in the order they were asked for.

    The fields after `stop_reason` describe a search with trials; the exact answer has none and leaves them.
    """

    task: str
    model: str
    workload: Workload
    stack: str
    seed: int
    slices: tuple[SliceAnswer, ...]
    wall_s: float
    versions: Mapping[str, str]
    run_dir: Path
    stop_reason: str
    command: str = ""
    baseline: Estimate | None = None
    resumed: bool = False
    trials: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TRIAL_ENDS, 0))
    agents: Mapping[str, object] = field(
        default_factory=lambda: {"brain": "none", "rounds": 0, "proposals": 0, "refused": 0}
    )
    llm: Mapping[str, float] = field(default_factory=lambda: {"calls": 0, "tokens": 0, "usd": 0.0})

    @property
    def by_step_time(self) -> tuple[SliceAnswer, ...]:
        """The slices, fastest step first; those where nothing fits come last, in the order given."""
        return tuple(sorted(self.slices, key=lambda each: each.best.step_time_s if each.best else float("inf")))

    @property
    def winner(self) -> SliceAnswer:
        """The slice with the fastest step."""
        return self.by_step_time[0]


def usd_per_million_tokens(where: Slice, estimate: Estimate) -> float | None:
    """Dollars for a million tokens at this estimate's rate; None where the chip's price is not known."""
    price = where.chip.usd_per_chip_hour
    if price is None or not estimate.tokens_per_s > 0:
        return None
    return price * where.chips / 3600 / estimate.tokens_per_s * 1e6
