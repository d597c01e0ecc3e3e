"""What many searches come to: figures by method with bootstrap intervals, and methods against each other in pairs.

Seeds of one ground are alike, so a ground is what counts as one: of each ground a method has the median over its seeds,
and intervals are of the bootstrap that draws grounds anew (percentile, 95%). A pair of methods is held against each
other ground by ground: who needs fewer trials to come within 1%, and, with Wilcoxon's signed-rank test, whether that is
more than luck.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asap_ray.contest.play import Played

WITHIN = (0.01, 0.05)
"""Shares above the best plan's step that count as found."""
AT = (1, 3, 5, 10, 20)
"""Trials after which regret is told."""
RESAMPLES = 2000
SURE = 0.95
AREA = 10
"""Trials whose mean regret is one figure of a whole search."""
WORST = 10.0
"""Regret that counts for a search in which nothing has run yet, and at most for any."""
Statistic = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Figure:
    """A statistic over grounds with the interval of its bootstrap; None where nothing was found by so many."""

    value: float | None
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        """The figure and the ends of its interval."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One method on each ground [grounds]; NaN where it was not played there.

    `trials` are those until within each share of `WITHIN` (inf where never), the median over seeds; `solved` the share
    of seeds that came so far; `regret` that after each of `AT` [at, grounds], `area` the mean over the first `AREA`;
    `chip_s` until within 1%, `hours` on the clock; `run` and `bad` count trials.
    """

    method: str
    grounds: tuple[str, ...]
    trials: np.ndarray
    solved: np.ndarray
    regret: np.ndarray
    area: np.ndarray
    chip_s: np.ndarray
    hours: np.ndarray
    run: np.ndarray
    bad: np.ndarray
    tokens: np.ndarray
    usd: np.ndarray

    @property
    def played(self) -> np.ndarray:
        """Where it was played at all [grounds], booleans."""
        return self.run > 0


def scores(method: str, played: Sequence[Played], grounds: Sequence[str]) -> Scores:
    """What one method came to on each of some grounds."""
    by_ground: dict[str, list[Played]] = {name: [] for name in grounds}
    for each in played:
        if each.method == method and each.ground in by_ground:
            by_ground[each.ground].append(each)
    found = [_of_ground(each) for each in by_ground.values()]
    columns = {name: np.array([each[name] for each in found]).T for name in found[0]} if found else {}
    return Scores(method=method, grounds=tuple(grounds), **columns)


def _of_ground(played: Sequence[Played]) -> dict[str, Any]:
    if not played:
        nothing: dict[str, Any] = dict.fromkeys(("area", "chip_s", "hours", "tokens", "usd"), np.nan)
        two, many = [np.nan] * len(WITHIN), [np.nan] * len(AT)
        return nothing | {"trials": two, "solved": two, "regret": many, "run": 0, "bad": 0}
    hits = [[hit(each, share) for share in WITHIN] for each in played]
    return {
        "trials": [_median([one[i] for one in hits]) for i in range(len(WITHIN))],
        "solved": [float(np.mean([math.isfinite(one[i]) for one in hits])) for i in range(len(WITHIN))],
        "regret": [_median([regret_after(each, k) for each in played]) for k in AT],
        "area": float(np.mean([area(each) for each in played])),
        "chip_s": _median([_until(each.chip_s, one[0]) for each, one in zip(played, hits, strict=True)]),
        "hours": _median([_ended(each, one[0]) / 3600.0 for each, one in zip(played, hits, strict=True)]),
        "run": sum(len(each.bad) for each in played),
        "bad": sum(map(sum, (each.bad for each in played))),
        "tokens": float(np.mean([each.llm[0] for each in played])),
        "usd": float(np.mean([each.llm[1] for each in played])),
    }


def hit(played: Played, share: float) -> float:
    """Trials until the best plan so far is within a share of the best there is; inf where it never is."""
    for i, regret in enumerate(played.regret, start=1):
        if regret is not None and regret <= share:
            return float(i)
    return math.inf


def regret_after(played: Played, trials: int) -> float:
    """Regret after so many trials, or after the last where there were fewer; inf where nothing had run."""
    regret = played.regret[min(trials, len(played.regret)) - 1] if played.regret else None
    return math.inf if regret is None else regret


def area(played: Played) -> float:
    """The mean regret after each of the first trials."""
    return float(np.mean([min(regret_after(played, k), WORST) for k in range(1, AREA + 1)]))


def _until(costs: Sequence[float], trials: float) -> float:
    return sum(costs[: int(trials)]) if math.isfinite(trials) else math.inf


def _ended(played: Played, trials: float) -> float:
    """When the trial of a number had ended on the clock."""
    return played.end_s[int(trials) - 1] if math.isfinite(trials) else math.inf


def _median(values: Sequence[float]) -> float:
    """The median; of an even number the upper one of the middle two where they are not both finite."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) / 2 if math.isfinite(high) else high if low != high else low


def figure(values: np.ndarray, statistic: Statistic, seed: int = 0) -> Figure:
    """A statistic of values [grounds, ...] with its interval; it takes [samples, grounds, ...]."""
    if not len(values):
        return Figure(None, None, None)
    draws = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    found = statistic(values[draws])
    tail = (1.0 - SURE) / 2
    low, high = np.quantile(found, [tail, 1.0 - tail], method="nearest")
    return Figure(*map(_finite, (float(statistic(values[None])[0]), float(low), float(high))))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def median(values: np.ndarray) -> np.ndarray:
    """Medians of samples [samples, grounds], infinite values among them."""
    ordered = np.sort(values, axis=1)
    n = ordered.shape[1]
    low, high = ordered[:, (n - 1) // 2], ordered[:, n // 2]
    with np.errstate(invalid="ignore"):
        return np.where(low == high, low, (low + high) / 2)


def mean(values: np.ndarray) -> np.ndarray:
    """Means of samples [samples, grounds]."""
    return values.mean(axis=1)


def ratio(values: np.ndarray) -> np.ndarray:
    """Sums over sums of samples [samples, grounds, 2]."""
    sums = values.sum(axis=1)
    return sums[:, 0] / np.maximum(sums[:, 1], 1)


def summary(found: Scores) -> dict[str, Any]:
    """The figures of one method, as they are printed under its name."""
    at = found.played
    told: dict[str, Any] = {"grounds": int(at.sum())}
    for i, share in enumerate(WITHIN):
        trials = found.trials[i, at]
        quartiles = [_finite(float(q)) for q in np.quantile(trials, [0.25, 0.75], method="nearest")] if at.any() else []
        told[f"trials_to_{share * 100:.0f}pct"] = {
            "median": figure(trials, median).as_dict(),
            "iqr": quartiles,
            "solved": figure(found.solved[i, at], mean).as_dict(),
        }
    told["regret_at"] = {str(k): figure(found.regret[i, at], median).as_dict() for i, k in enumerate(AT)}
    told["mean_regret_of_10"] = figure(found.area[at], mean).as_dict()
    told["within_after_3"] = {
        f"{share * 100:.0f}pct": figure((found.regret[AT.index(3), at] <= share) * 1.0, mean).as_dict()
        for share in WITHIN
    }
    told["infeasible_trials"] = figure(np.stack([found.bad[at], found.run[at]], axis=1), ratio).as_dict()
    told["chip_seconds_to_1pct"] = figure(found.chip_s[at], median).as_dict()
    told["clock_hours_to_1pct"] = figure(found.hours[at], median).as_dict()
    told["llm"] = {"tokens": _finite(float(found.tokens[at].mean())), "usd": _finite(float(found.usd[at].mean()))}
    return told


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two methods ground by ground: who needs fewer trials to within 1%, and by the mean regret of the first ten.

    `p_trials` and `p_regret` are of the paired tests that there is no difference.
    """

    first: str
    second: str
    grounds: int
    wins: int
    ties: int
    losses: int
    p_trials: float
    p_regret: float
    lower_regret: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def pairs(found: Sequence[Scores]) -> list[Pair]:
    """Every two methods, where both were played."""
    return [pair(a, b) for a, b in itertools.combinations(found, 2)]


def pair(first: Scores, second: Scores, among: np.ndarray | None = None) -> Pair:
    """Two methods on the grounds where both were played, and that are `among` some [grounds]."""
    at = first.played & second.played & (True if among is None else among)
    a, b = first.trials[0, at], second.trials[0, at]
    areas = first.area[at], second.area[at]
    return Pair(
        first=first.method,
        second=second.method,
        grounds=int(at.sum()),
        wins=int((a < b).sum()),
        ties=int((a == b).sum()),
        losses=int((a > b).sum()),
        p_trials=signed_rank(_capped(a), _capped(b)),
        p_regret=signed_rank(*areas),
        lower_regret=bool(np.mean(areas[0]) < np.mean(areas[1])) if at.any() else False,
    )


def _capped(trials: np.ndarray) -> np.ndarray:
    """Trials on a scale of ranks: never is one more than any number."""
    return np.where(np.isfinite(trials), trials, 1e6)


def signed_rank(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, ties left out; 1 where nothing differs."""
    from scipy.stats import wilcoxon

    differs = np.abs(a - b) > 1e-12
    if not differs.any():
        return 1.0
    _, p = wilcoxon(a[differs], b[differs])
    return float(np.asarray(p))


def leader(found: Mapping[str, Scores]) -> str | None:
    """The one method that is better than each other by the mean regret of the first ten trials, with the interval of
    the paired difference below 0; None where no method is."""
    for name, mine in found.items():
        others = [each for other, each in found.items() if other != name]
        if others and all(_is_less(mine, each) for each in others):
            return name
    return None


def _is_less(mine: Scores, other: Scores) -> bool:
    at = mine.played & other.played
    if not at.any() or at.sum() < mine.played.sum():
        return bool(at.any()) and _below(mine.area[at] - other.area[at])
    return _below(mine.area[at] - other.area[at])


def _below(differences: np.ndarray) -> bool:
    high = figure(differences, mean).high
    return high is not None and high < 0
