"""What trials say beyond the parts of a step: effects that plans of one size of an axis, or of one policy, share.

What a trial's step takes over what is expected of it is a sum of an effect for each thing that the plan has (a size of
an axis, a micro-batch, a policy) and of what is its own. Before any trial each effect is normal around nothing, so that
few trials move only what they speak of, and plans that have nothing in common with them keep their price.
"""

from __future__ import annotations

import numpy as np

from asap_ray.problem import Columns
from asap_ray.search.pool import COLUMNS, Pool

EFFECT = 0.03
"""Standard deviation of the logarithm of one effect before any trial."""
LEFT = 0.01
"""That of what is a plan's own. Both were chosen on planted truths that no figure is told of (docs/comparison.md)."""


def effects(pool: Pool, tried: Columns, errors: np.ndarray) -> np.ndarray:
    """The logarithm by which the step of each plan of a pool is longer than expected [plans].

    Args:
        pool: whose plans they are.
        tried: columns of the plans that were tried [trials].
        errors: the logarithm of their steps over what is expected of them [trials].
    """
    shared = np.sum([tried[name][:, None] == tried[name][None, :] for name in COLUMNS], axis=0)
    # The mean of a linear model with normal beliefs, as weights of trials (Rasmussen, Williams 2006, equation 2.25).
    weights = EFFECT**2 * np.linalg.solve(EFFECT**2 * shared + LEFT**2 * np.eye(len(errors)), errors)
    found = np.zeros(len(pool))
    for name in COLUMNS:
        found += _summed(tried[name], weights, pool.columns[name])
    return found


def _summed(codes: np.ndarray, weights: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The sum of the weights of trials with the code of each plan [plans]; codes are small whole numbers."""
    most = max(int(codes.max()), int(of.max(initial=0)))
    return np.bincount(codes, weights, minlength=most + 1)[of]
