"""What a learnt brain sees of a move: figures that mean the same for any workload, chip and number of devices.

Parts of the step are shares of it, memory is a share of what a device has, sizes are logarithms to the base of two, and
a move is told by what it changes of the plan that it starts from. Of two plans the one with the lower step is the
better one whatever a second costs there, so no figure is in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asap_ray.agents.brief import Brief
from asap_ray.agents.proposal import GROUPS
from asap_ray.diagnosis import diagnose
from asap_ray.knowledge import BOUNDS
from asap_ray.physics.estimate import TIME_PARTS
from asap_ray.plan import ATTENTION_KERNELS, AXES, SCHEDULES
from asap_ray.search.pool import Pool

VERSION = 1
"""Of the list below: weights that were trained on another do not fit."""
SIZES = ("micro_batch", "accumulation", "virtual")
OF_PLAN = (
    *(f"share.{group}" for group in GROUPS),
    *("floor", "low", "hbm"),
    *AXES,
    *(f"{axis}_dcn" for axis in AXES),
    *SIZES,
    *("zero", "sequence_parallel", "pipelined", "unfused"),
    *("tokens", "width", "depth"),
)
"""`floor` and `low` (the lower end of the interval) are over the step. `tokens` are those of a micro-batch on one
device, `width` is the model's own over the tensor axis, `depth` are the layers of a pipeline's stage."""
OF_MOVE = ("gain", "to.hbm", *(f"to.{axis}" for axis in AXES), "to.micro_batch")
"""`gain` is the logarithm of the expected step over that of the plan where the move starts."""
OF_STATE = ("trials", "devices", "gpu", *(f"bound.{bound}" for bound in BOUNDS))
"""How many trials there were, how many devices there are, and what bounds the plan where the move starts."""
FEATURES = (*OF_PLAN, *OF_MOVE, *OF_STATE)


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a search stands: `base` is the row of the best trial, before any that of the plan expected to be fastest,
    and `bound` what bounds it; `expected_s` are steps as the trials let expect them [plans]."""

    base: int
    bound: str
    trials: int
    expected_s: np.ndarray


def state_of(brief: Brief) -> State:
    """Where the search of a brief stands; some plan has to be open, or tried and complete."""
    best, pool = brief.best, brief.pool
    row = pool.row(best.candidate.plan) if best is not None else None
    if row is None:  # nothing was tried, or what is best is the user's own plan and not in the pool
        row = int(np.argmin(np.where(brief.open, brief.expected_s, np.inf)))
    told = best.diagnosis if best is not None else None
    bound = told.bound if told is not None else bound_of(pool, row)
    return State(base=row, bound=bound, trials=len(brief.tried), expected_s=brief.expected_s)


def bound_of(pool: Pool, row: int) -> str:
    """What bounds a plan by the roofline."""
    return diagnose(pool.estimate(row)).bound


def features_of(pool: Pool, rows: np.ndarray, state: State) -> np.ndarray:
    """The figures of moves to some plans of a pool [rows, features]."""
    here, base = _of_plan(pool, rows), _of_plan(pool, np.array([state.base]))
    slice_ = pool.problem.slice
    told: Mapping[str, np.ndarray | float] = {
        **here,
        "gain": np.log(state.expected_s[rows] / state.expected_s[state.base]),
        **{f"to.{name}": here[name] - base[name] for name in ("hbm", *AXES, "micro_batch")},
        "trials": float(np.log2(1 + state.trials)),
        "devices": float(np.log2(slice_.devices)),
        "gpu": float(slice_.chip.kind == "gpu"),
        **{f"bound.{bound}": float(bound == state.bound) for bound in BOUNDS},
    }
    return np.stack([np.broadcast_to(told[name], len(rows)) for name in FEATURES], axis=1).astype(np.float32)


def _of_plan(pool: Pool, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The figures of some plans, each [rows]."""
    columns, step = {name: column[rows] for name, column in pool.columns.items()}, pool.step_s[rows]
    place = {name: i for i, name in enumerate(TIME_PARTS)}
    shares = {
        f"share.{group}": pool.parts[rows][:, [place[name] for name in names]].sum(1) / step
        for group, names in GROUPS.items()
    }
    workload = pool.problem.workload
    return {
        **shares,
        "floor": pool.floor_s[rows] / step,
        "low": pool.low_s[rows] / step,
        "hbm": pool.hbm_bytes[rows] / pool.problem.slice.chip.usable_hbm_bytes,
        **{name: np.log2(columns[name]) for name in (*AXES, *(f"{axis}_dcn" for axis in AXES), *SIZES)},
        "zero": columns["zero"],
        "sequence_parallel": columns["sequence_parallel"],
        "pipelined": columns["schedule"] != SCHEDULES.index("none"),
        "unfused": columns["attention"] == ATTENTION_KERNELS.index("unfused"),
        "tokens": np.log2(columns["micro_batch"] * workload.seq_len / columns["context"]),
        "width": np.log2(workload.architecture.d_model / columns["tensor"]),
        "depth": np.log2(workload.architecture.layers / columns["pipeline"]),
    }
