"""An Optuna study over the pool: what agents propose is enqueued, and samplers learn from every trial.

The space of a study never changes: a parameter for each column of the pool that takes more than one value, whole
positions in the sorted sizes where these are ordered, categories elsewhere. A sampler's point is snapped to the nearest
open plan, and the trial then holds the parameters of the plan that is evaluated, not those that were asked for.

What a sampler asks for costs as much as it has trials to learn from. So it learns from `LEARNT` of them at most: when
there are as many, a study begins anew with the fastest quarter of them and the latest quarter. Until then it is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from asap_ray.errors import AsapError
from asap_ray.plan import AXES
from asap_ray.problem import coding
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.search.pool import Pool
from asap_ray.search.protocol import Candidate, Result, trial_seed

ORDERED = (*(f"{axis}_{level}" for axis in AXES for level in ("ici", "dcn")), "micro_batch", "zero", "virtual")
UNORDERED = ("schedule", "sequence_parallel", "remat", "precision", "attention")
FAR = np.int16(2**14)
"""Further than any two plans are apart."""
LEARNT = 1000
"""Trials that a sampler learns from at most."""
ATTRIBUTES = ("author", "plan", "status", "reason", "step_time_s", "hbm_bytes", "over_bytes", "source")
"""What every trial holds about its plan, whoever asked for it and however it ended."""
SEQUENCE = "qmc"
"""What Optuna names the places in sequences of points by; all else that a study keeps is about trials by number."""
EXTRAS: Mapping[str, tuple[str, str]] = {"gp": ("torch", "gp"), "cmaes": ("cmaes", "cmaes")}
"""Samplers that need a package which is not always installed, and the extra that brings it."""


class Study:
    """Samples rows of a pool, and keeps what became of them."""

    def __init__(self, pool: Pool, sampler: str, seed: int, first: int = 0) -> None:
        """Prepare a study whose trials are numbered from `first` on.

        Raises:
            AsapError: the sampler needs a package that is not installed.
        """
        check_sampler(sampler)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.pool, self.seed, self._first = pool, seed, first
        self._make = _MAKERS[sampler]
        self._values = {name: _values(pool, name) for name in (*ORDERED, *UNORDERED)}
        self._values = {name: values for name, values in self._values.items() if len(values) > 1}
        self.distributions = {name: _distribution(pool, name, values) for name, values in self._values.items()}
        # Of each plan, its position in each parameter's values [parameters, plans]; small, for all are looked at often.
        self._codes = {
            name: np.searchsorted(values, pool.columns[name]).astype(np.int16) for name, values in self._values.items()
        }
        self.asked = 0
        self._begin()
        self._asked: dict[int, optuna.Trial] = {}

    def _begin(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        self.optuna = optuna.create_study(storage=self._storage, study_name="asap_ray", direction="minimize")
        self._held = 0

    def _begin_anew(self) -> None:
        """Let go of most trials, but not of where a sequence of points has come to."""
        trials, before = self.optuna.get_trials(deepcopy=False), self.optuna
        timed = sorted((each for each in trials if each.value is not None), key=lambda each: each.value or 0.0)
        fastest = {each.number for each in timed[: LEARNT // 4]}
        kept = [each for each in trials if each.number in fastest or each.number >= len(trials) - LEARNT // 4]
        attributes = self._storage.get_study_system_attrs(self._study_of(before))
        self._begin()
        self.optuna.add_trials(kept)
        self._held = len(kept)
        for name, value in attributes.items():
            if name.startswith(SEQUENCE):
                self._storage.set_study_system_attr(self._study_of(self.optuna), name, value)

    def _study_of(self, study: optuna.Study) -> int:
        return self._storage.get_study_id_from_name(study.study_name)

    def parameters(self, row: int) -> dict[str, int | str]:
        """The parameters of a plan."""
        return {name: _external(each, int(self._codes[name][row])) for name, each in self.distributions.items()}

    def enqueue(self, row: int, recipe: Recipe = PLAIN) -> int:
        """A trial of a given plan with a recipe, which is no parameter of the sampler's space; returns its number."""
        self._make_room()
        if self.distributions:
            self.optuna.enqueue_trial(self.parameters(row))
        number, trial = self._ask()
        if recipe:
            trial.set_user_attr("recipe", recipe.line)
        return number

    def sample(self, open_: np.ndarray) -> tuple[int, int] | None:
        """A trial of the open plan [plans] nearest to what the sampler asks for: its number and row.

        None where no plan is open; then there is no trial.
        """
        if not open_.any():
            return None
        self._make_room()
        number, trial = self._ask()
        row = self._nearest(trial.params, open_)
        self._store(trial.number, row)
        return number, row

    def tell(self, result: Result) -> None:
        """What became of a trial: what does not fit is pruned, with a constraint that carries the bytes over."""
        trial = self._asked.pop(result.candidate.number)
        for name, value in attributes(result.candidate, result).items():
            trial.set_user_attr(name, value)
        over = result.over_bytes or (1.0 if result.status == "infeasible" else 0.0)
        trial.set_constraint("hbm_over_bytes", over)
        if result.status == "complete":
            self.optuna.tell(trial, result.step_time_s)
        else:
            pruned = result.status in ("infeasible", "pruned")
            self.optuna.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def _make_room(self) -> None:
        if self._held >= LEARNT and not self._asked:  # trials that run belong to the study that they were asked of
            self._begin_anew()

    def _ask(self) -> tuple[int, optuna.Trial]:
        number = self._first + self.asked
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self.optuna.sampler = self._make(trial_seed(self.seed, number), self.seed)
            trial = self.optuna.ask(dict(self.distributions))
        self._asked[number] = trial
        self.asked, self._held = self.asked + 1, self._held + 1
        return number, trial

    def _nearest(self, parameters: Mapping[str, object], open_: np.ndarray) -> int:
        """The nearest open plan: ordered parameters by how many positions apart, others by whether they differ."""
        distance = np.where(open_, np.int16(0), FAR)
        for name, each in self.distributions.items():
            codes, wanted = self._codes[name], np.int16(each.to_internal_repr(parameters[name]))
            distance += abs(codes - wanted) if name in ORDERED else codes != wanted
        return int(np.argmin(distance))

    def _store(self, number: int, row: int) -> None:
        """Let a trial hold the parameters of the plan that is evaluated."""
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._study_of(self.optuna), number)
        for name, each in self.distributions.items():
            self._storage.set_trial_param(trial, name, float(self._codes[name][row]), each)


def attributes(candidate: Candidate, result: Result) -> dict[str, object]:
    """What a trial holds about its plan, under the keys of `ATTRIBUTES`."""
    values = (
        *(candidate.author, candidate.plan.line, result.status, result.reason),
        *(result.step_time_s, result.hbm_bytes, result.over_bytes, result.source),
    )
    return dict(zip(ATTRIBUTES, values, strict=True))


def check_sampler(name: str) -> None:
    """A sampler's own package is there.

    Raises:
        AsapError: it is not; the text names the extra that brings it.
    """
    if name not in EXTRAS:
        return
    package, extra = EXTRAS[name]
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise AsapError(f"search={name}: needs {package}: pip install 'asap-ray[{extra}]'")


def _values(pool: Pool, name: str) -> np.ndarray:
    return np.unique(pool.columns[name])


def _distribution(pool: Pool, name: str, values: np.ndarray) -> BaseDistribution:
    if name in ORDERED:
        return IntDistribution(0, len(values) - 1)
    names = coding(pool.problem).get(name)
    return CategoricalDistribution([names[int(code)] if names else int(code) for code in values])


def _external(distribution: BaseDistribution, code: int) -> int | str:
    return distribution.to_external_repr(float(code))


def _qmc(seed: int, run_seed: int) -> BaseSampler:
    # One sequence for the whole run: points of different sequences do not fill the space between each other.
    return optuna.samplers.QMCSampler(
        scramble=True, seed=run_seed, warn_independent_sampling=False, warn_asynchronous_seeding=False
    )


def _first(make: Callable[..., BaseSampler], seed: int, run_seed: int) -> BaseSampler:
    return make(seed=seed)


_MAKERS: Mapping[str, Callable[[int, int], BaseSampler]] = {
    "random": partial(_first, optuna.samplers.RandomSampler),
    "tpe": partial(_first, partial(optuna.samplers.TPESampler, n_startup_trials=4, multivariate=True)),
    "gp": partial(_first, partial(optuna.samplers.GPSampler, n_startup_trials=4)),
    "cmaes": partial(_first, partial(optuna.samplers.CmaEsSampler, warn_independent_sampling=False)),
    "nsga2": partial(_first, partial(optuna.samplers.NSGAIISampler, population_size=8)),
    "qmc": _qmc,
}
