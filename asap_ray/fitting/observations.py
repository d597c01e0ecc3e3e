"""Measured runs as a function of the constants: the logarithm of each run's step as estimated, over as measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.fitting.parameters import Beliefs, Parameter, Values, stack_file
from asap_ray.interchange.measured import MeasuredRow, by_problem
from asap_ray.physics.calibration import calibration_of
from asap_ray.physics.estimate import Prices, kinds_of_time
from asap_ray.physics.roofline import Pricer
from asap_ray.problem import Problem
from asap_ray.space import PlanColumns, Space


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs of one problem: positions of its rows, their plans, and the file that each constant is fitted in."""

    problem: Problem
    pricer: Pricer
    plans: PlanColumns
    at: np.ndarray
    owners: Mapping[str, str]


class Observations:
    """Runs with a measured step time [rows], grouped by problem."""

    def __init__(self, rows: Sequence[MeasuredRow], beliefs: Beliefs) -> None:
        """Lay out the plans of all runs once."""
        self.rows, self.beliefs = tuple(rows), beliefs
        self.measured = np.log([row.step_time_s or np.nan for row in rows])
        place = {id(row): i for i, row in enumerate(rows)}
        self.groups = []
        for problem, alike in by_problem(rows):
            plans = Space(problem=problem).columns([row.plan for row in alike])
            chip, stack = problem.slice.chip, problem.stack.name
            pricer = Pricer(problem, calibration_of(chip, stack, beliefs.stated))
            pricer.price(plans)  # what the meshes decide is worked out once, for all constants
            at = np.array([place[id(row)] for row in alike])
            self.groups.append(_Group(problem, pricer, plans, at, beliefs.owners(chip, stack)))

    def parameters(self) -> list[Parameter]:
        """All that these runs may say something about."""
        pairs = {tuple(g.owners.values()): (g.problem.slice.chip, g.problem.stack.name) for g in self.groups}
        return self.beliefs.parameters(pairs.values())

    def touched(self, parameter: Parameter) -> np.ndarray:
        """Rows whose estimates a parameter decides [rows], booleans."""
        found = np.zeros(len(self.rows), bool)
        for group in self.groups:
            found[group.at] = group.owners[parameter.constant] == parameter.file
        return found

    def of_file(self, file: str) -> np.ndarray:
        """Rows whose estimates any constant of a file decides [rows], booleans."""
        found = np.zeros(len(self.rows), bool)
        for group in self.groups:
            found[group.at] = file in group.owners.values()
        return found

    @property
    def stack_files(self) -> list[str]:
        """The stack's file of each row."""
        return [stack_file(row.problem.stack.name) for row in self.rows]

    def shares(self, values: Values) -> np.ndarray:
        """Shares of compute, traffic and host in each estimated step [rows, 3]."""
        found = np.zeros((len(self.rows), 3))
        for group in self.groups:
            found[group.at] = kinds_of_time(self._priced(group, values).time_parts)
        return found

    def _priced(self, group: _Group, values: Values) -> Prices:
        chip, stack = group.problem.slice.chip, group.problem.stack.name
        constants = self.beliefs.calibration(chip, group.owners, stack, values)
        return group.pricer.recalibrated(constants).price(group.plans)

    def errors(self, values: Values, wanted: np.ndarray | None = None) -> np.ndarray:
        """log(estimated / measured) [rows]; 0 where a row is not `wanted`."""
        found = np.zeros(len(self.rows))
        for group in self.groups:
            if wanted is None or wanted[group.at].any():
                steps = self._priced(group, values).step_time_s
                found[group.at] = np.log(steps) - self.measured[group.at]
        return found if wanted is None else np.where(wanted, found, 0.0)

    def where(self, test: Iterable[bool]) -> np.ndarray:
        """Rows for which a test holds [rows], booleans."""
        return np.fromiter(test, bool, len(self.rows))
