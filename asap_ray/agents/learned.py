"""The policy: a brain that ranks legal moves by what it has learnt of the roofline's errors.

A few small networks, trained apart, each say by how much a step will be off from what the trials let expect. Their mean
counts as far as they agree: where they do not, such as far from all that they were trained on, nothing is corrected and
the policy is the roofline's ranking. They are used here with NumPy alone, since JAX would take hold of the devices that
trials need; `agents.learning` trains them.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from asap_ray.agents.brief import Brief
from asap_ray.agents.features import FEATURES, OF_MOVE, OF_PLAN, VERSION, features_of, state_of
from asap_ray.agents.playbook import changes, open_rows
from asap_ray.agents.proposal import Proposal, predict_change, predict_step
from asap_ray.plan import Plan

SCORED = 4096
"""Plans that are looked at, the fastest as expected; others keep their place behind them."""
DOUBT = 2.0
"""Times the members' variance that is taken off the square of what they say."""
MOST = 0.5
"""Of the logarithm of a step: how much is corrected at most."""
CLIPPED = 3.0
"""Standard deviations from the mean of what was trained on beyond which a figure counts as no further off."""
MOST_BYTES = 64 * 2**20
"""Of all arrays of a file of weights; ours have less than one MB."""
ARRAYS = ("mean", "scale", "w1", "b1", "w2", "b2", "w3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What weights were trained on: how many workloads of which sources, which were left out, and the seed."""

    version: int
    features: tuple[str, ...]
    workloads: int
    sources: tuple[str, ...]
    left_out: tuple[str, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Members of two hidden layers: `w1` [members, features, hidden], `b1` [members, hidden], `w2` [members, hidden,
    hidden], `b2` [members, hidden], `w3` [members, hidden]; `mean` and `scale` of the figures [features]."""

    arrays: dict[str, np.ndarray]
    origin: Origin

    def members(self, figures: np.ndarray) -> np.ndarray:
        """What each member says of some moves, over its mean of them [members, rows]."""
        found = forward(np, self.arrays, figures)
        return found - found.mean(1, keepdims=True)

    def residual(self, figures: np.ndarray) -> np.ndarray:
        """By how much the logarithm of a step will be off, as far as the members agree [rows]."""
        said = self.members(figures)
        mean, variance = said.mean(0), said.var(0)
        return mean * np.maximum(0.0, 1.0 - DOUBT * variance / np.maximum(mean**2, 1e-12))

    def save(self, path: Path) -> None:
        """Write them to a file.

        Raises:
            OSError: it cannot be written.
        """
        told = np.array(json.dumps(asdict(self.origin)))
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, origin=told, **{name: self.arrays[name] for name in ARRAYS})


def forward(xp: Any, weights: Any, figures: Any) -> Any:
    """The members' networks, in NumPy or in JAX's: `figures` [rows, features] to [members, rows]."""
    x = xp.clip((figures - weights["mean"]) / weights["scale"], -CLIPPED, CLIPPED)
    x = xp.tanh(xp.einsum("rf,mfh->mrh", x, weights["w1"]) + weights["b1"][:, None])
    x = xp.tanh(xp.einsum("mrh,mhk->mrk", x, weights["w2"]) + weights["b2"][:, None])
    return MOST * xp.tanh(xp.einsum("mrh,mh->mr", x, weights["w3"]))


def read_weights(path: Path) -> Weights:
    """Weights from a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no weights, or some of other features than these; the text says which.
    """
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            told = json.loads(str(file["origin"]))
            arrays = {name: np.asarray(file[name], np.float32) for name in ARRAYS}
        lists = {name: tuple(told[name]) for name in ("features", "sources", "left_out")}
        origin = Origin(**{**told, **lists})
    except (zipfile.BadZipFile, zlib.error, RecursionError, NotImplementedError, MemoryError) as error:
        raise ValueError("it holds no weights of a policy") from error
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, RuntimeError) as error:
        raise ValueError("it holds no weights of a policy") from error
    if origin.version != VERSION or origin.features != FEATURES:
        raise ValueError(f"it was trained on version {origin.version} of the features, and these are {VERSION}")
    _check(arrays)
    return Weights(arrays=arrays, origin=origin)


def _check_sizes(path: Path) -> None:
    """Refuse an archive that would not fit in memory, whatever the headers of its arrays say.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: it is too large, or no archive.
    """
    with zipfile.ZipFile(path) as archive:
        if len(archive.filelist) > len(ARRAYS) + 1 or sum(each.file_size for each in archive.filelist) > MOST_BYTES:
            raise ValueError("it is too large")


def _check(arrays: dict[str, np.ndarray]) -> None:
    members, _, hidden = arrays["w1"].shape if arrays["w1"].ndim == 3 else (0, 0, 0)
    shapes = {
        **{"mean": (len(FEATURES),), "scale": (len(FEATURES),), "w1": (members, len(FEATURES), hidden)},
        **{"b1": (members, hidden), "w2": (members, hidden, hidden), "b2": (members, hidden), "w3": (members, hidden)},
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not members or not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} has not the shape or the figures of weights")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Proposes the open plans that it expects to be fastest, spread over kinds as the playbook spreads them."""

    weights: Weights
    name: str = "policy"

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """The plans that the policy ranks first."""
        told = self.corrected(brief)
        return [self._proposal(brief, told, row) for row, _ in zip(open_rows(told, set()), range(count), strict=False)]

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """The next plan of the ranking."""
        told = self.corrected(brief)
        taken: AbstractSet[Plan] = {each.plan for each in (*others, refused)}
        rows: Iterator[int] = open_rows(told, taken)
        return next((self._proposal(brief, told, row) for row in rows), None)

    def corrected(self, brief: Brief) -> Brief:
        """The brief with steps as the policy expects them; of plans beyond the first `SCORED` as trials alone do."""
        rows = np.flatnonzero(brief.open)
        if not len(rows):
            return brief
        if len(rows) > SCORED:
            rows = rows[np.argpartition(brief.expected_s[rows], SCORED)[:SCORED]]
        expected = brief.expected_s.copy()
        expected[rows] *= np.exp(self.weights.residual(features_of(brief.pool, rows, state_of(brief))))
        return replace(brief, expected_s=expected)

    def _proposal(self, brief: Brief, told: Brief, row: int) -> Proposal:
        pool, best, state = brief.pool, brief.best, state_of(brief)
        here, there = pool.estimate(state.base), pool.estimate(row)
        learnt, expected = float(told.expected_s[row]), float(brief.expected_s[row])
        tried = best is not None and best.step_time_s is not None and state.base in brief.tried
        low, high = (learnt * end / there.step_time_s for end in there.interval_s)
        return Proposal(
            plan=pool.plan(row),
            hypothesis=(
                f"the policy, trained on {self.weights.origin.workloads} workloads, expects {learnt:.3g} s, where the "
                f"roofline as trials correct it expects {expected:.3g} s{self._because(brief, row, state.base)}"
            ),
            mechanism=f"{self.name}: {changes(pool, state.base, row)}" if row != state.base else "ranking",
            prediction=predict_change(best, here, there) if tried and best else predict_step(learnt, low, high),
            expected_s=learnt,
            base=best.candidate.number if tried and best else None,
        )

    def _because(self, brief: Brief, row: int, base: int) -> str:
        """The two figures that the correction hangs on most: those without which it would be another."""
        state = state_of(brief)
        figures = features_of(brief.pool, np.array([row, base]), state)
        names = [*OF_PLAN, *OF_MOVE]
        without = np.repeat(figures[:1], len(names) + 1, axis=0)
        without[np.arange(len(names)), np.arange(len(names))] = self.weights.arrays["mean"][: len(names)]
        said = forward(np, self.weights.arrays, without).mean(0)
        order = np.argsort(-np.abs(said[:-1] - said[-1]), kind="stable")[:2]
        return ", mostly for " + " and ".join(f"{names[i]} {figures[0, i]:.3g}" for i in order)
