"""Constants for runs that the fit has not seen: cross-validation by source and, for what a stack decides, by model.

For each source the chips' constants (and those of its links) are fitted without any row of that source. What a stack
decides needs its source, so it is fitted, with those constants of the chip, on all rows of the stack but those of the
same source and the same model; each model of a source is such a fold.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.fitting.observations import Observations
from asap_ray.fitting.parameters import Parameter, Scale, Values
from asap_ray.fitting.solve import Solution, solve, step
from asap_ray.interchange.measured import MeasuredRow
from asap_ray.physics.calibration import calibration_of

ENOUGH = 40.0
"""Rows of one source that count in full; more of them say the same again (their errors are alike)."""
MOST = 120
"""Rows of one source that are fitted to."""
STEPS = 2
"""Steps of a fold's fit."""
QUALITY = {"A": 1.0, "B": 0.25, "C": 0.06}
"""What a run counts by its quality (C are headlines, which `task=calibrate` leaves out altogether)."""
GUESSED = 0.25
"""What a run counts where a knob of its plan is a guess."""
Columns = Callable[[list[tuple[Values, np.ndarray]]], list[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Whole:
    """The fit to all rows: what was found, and there the errors [rows] and their slopes [rows, parameters]."""

    scale: Scale
    solution: Solution
    errors: np.ndarray
    slopes: np.ndarray

    @property
    def values(self) -> dict[Parameter, float]:
        """The constants."""
        return self.scale.values(self.solution.x)


@dataclass(frozen=True, slots=True)
class Fold:
    """Constants for the rows of one model of one source, fitted without them."""

    source: str
    model: str
    values: Values


def weights(rows: Sequence[MeasuredRow]) -> np.ndarray:
    """What each run counts [rows]: by quality, less where its source has many, or where its plan is guessed."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.source] = counts.get(row.source, 0) + 1
    quality = [QUALITY[row.quality or "A"] * (GUESSED if _guessed(row) else 1.0) for row in rows]
    return np.array([each / (1 + counts[row.source] / ENOUGH) for row, each in zip(rows, quality, strict=True)])


def _guessed(row: MeasuredRow) -> bool:
    """Whether a knob of the row's plan rests on nothing that its source says."""
    return any(": not stated" in reason for reason in row.inferred)


def sample(observed: Observations) -> np.ndarray:
    """Rows that are fitted to [rows], booleans: all problems of a source until it has `MOST` rows, then no more of it.

    Rows of one source are much alike, and each costs an estimate for every constant. Problems are taken in an order
    that depends on their names alone.
    """
    found, counts = np.zeros(len(observed.rows), bool), dict.fromkeys((row.source for row in observed.rows), 0)
    for group in sorted(observed.groups, key=lambda group: _shuffled(observed.rows[group.at[0]].id)):
        source = observed.rows[group.at[0]].source
        if counts[source] < MOST:
            found[group.at] = True
            counts[source] += len(group.at)
    return found


def _shuffled(text: str) -> bytes:
    return hashlib.blake2s(text.encode(), digest_size=8).digest()


class Fitter:
    """Fits parameters to observations; `columns` evaluates errors for many changed values, perhaps side by side."""

    def __init__(self, observed: Observations, columns: Columns) -> None:
        """Choose and weigh the rows once."""
        self.observed, self.columns = observed, columns
        self.sampled = sample(observed)
        chosen = [row for row, taken in zip(observed.rows, self.sampled, strict=True) if taken]
        self.weights = np.zeros(len(observed.rows))
        self.weights[self.sampled] = weights(chosen)
        self.parameters = tuple(observed.parameters())
        self.scale = Scale.of(self.parameters, [self._stated(parameter) for parameter in self.parameters])

    def _stated(self, parameter: Parameter) -> float:
        for group in self.observed.groups:
            if group.owners[parameter.constant] == parameter.file:
                chip, stack = group.problem.slice.chip, group.problem.stack.name
                return float(getattr(calibration_of(chip, stack, self.observed.beliefs.stated), parameter.constant))
        raise KeyError(parameter)

    def whole(self, rounds: int, told: Callable[[float], object] = lambda share: None) -> Whole:
        """Fit all parameters to all rows; `told` takes the share of the rounds that is done."""
        x, done = np.zeros(len(self.parameters)), itertools.count()

        def jacobian(x: np.ndarray) -> np.ndarray:
            told(next(done) / (rounds + 1))
            return self._jacobian(x)

        def errors(x: np.ndarray) -> np.ndarray:
            return self.observed.errors(self.scale.values(x), self.sampled)

        solution = solve(errors, jacobian, self.weights, x, self.scale.bounds, rounds)
        return Whole(self.scale, solution, errors(solution.x), jacobian(solution.x))

    def _jacobian(self, x: np.ndarray) -> np.ndarray:
        """Slopes of the errors [rows, parameters] by differences of a tenth of a belief, towards the wider side."""
        high, jobs, steps = self.scale.bounds[1], [], []
        for k, parameter in enumerate(self.parameters):
            moved = x.copy()
            steps.append(0.1 if x[k] + 0.1 <= high[k] else -0.1)
            moved[k] += steps[k]
            jobs.append((self.scale.values(moved), self.sampled & self.observed.touched(parameter)))
        now = self.observed.errors(self.scale.values(x), self.sampled)
        found = self.columns(jobs)
        return np.stack(
            [np.where(job[1], errors - now, 0.0) / h for job, errors, h in zip(jobs, found, steps, strict=True)], axis=1
        )

    def folds(self, whole: Whole) -> Iterator[Fold]:
        """Constants for the rows of each source and model, from the slopes at the solution for all rows."""
        observed, chips = self.observed, np.array([not p.file.startswith("stack_") for p in self.parameters])
        for source in sorted({row.source for row in observed.rows}):
            of_source = observed.where(row.source == source for row in observed.rows)
            own = np.array([of_source[observed.touched(p)].any() for p in self.parameters])
            without = self._again(whole, ~of_source, own, whole.solution.x)
            known = np.where(chips, without, whole.solution.x)
            for model in sorted({row.model for row in observed.rows if row.source == source}):
                rest = observed.where(row.source != source or row.model != model for row in observed.rows)
                found = self._again(whole, rest, own & ~chips, known)
                yield Fold(source, model, dict(itertools.compress(self.scale.values(found).items(), own)))

    def _again(self, whole: Whole, rows: np.ndarray, free: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Parameters [parameters] of which some are `free`, fitted to some of the rows, from `x` on.

        Slopes are those of the solution for all rows; errors are true ones, so that what they miss is made good by the
        next of the steps.
        """
        touched = np.any([self.observed.touched(p) for p in itertools.compress(self.parameters, free)], axis=0)
        wanted = self.sampled & rows & touched
        low, high = self.scale.bounds
        for _ in range(STEPS):
            errors = self.observed.errors(self.scale.values(x), wanted)[wanted]
            slopes, bounds = whole.slopes[wanted][:, free], (low[free], high[free])
            x = x.copy()
            x[free] = step(errors, slopes, self.weights[wanted], x[free], bounds)[0]
        return x
