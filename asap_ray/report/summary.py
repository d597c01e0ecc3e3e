"""`summary.json`: the answer as one finite JSON object, the same that `output=json` prints.

Its keys are a contract (see the command line's documentation). What is not known is null: no NaN, no infinity, and no
zero for a price nobody gave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from asap_ray.diagnosis import diagnose_observed
from asap_ray.report.answer import Answer, Searched, SliceAnswer, Tried
from asap_ray.report.certified import certificate_fields
from asap_ray.step_times import gain

if TYPE_CHECKING:
    from asap_ray.observation import Observation
    from asap_ray.physics.estimate import Estimate


PLANS = 1000
"""Trials of a search that a summary lists, the first of them; all are in `trials.parquet`."""


def summary(answer: Answer) -> dict[str, Any]:
    """The answer as a JSON object: `best`, `certificate` and `space` are those of the slice with the fastest step.

    With more than one slice, `hardware_ranking` lists them all, fastest first; where plans were compiled, `compilation`
    has what came of each.
    """
    winner = answer.winner
    found: dict[str, Any] = {
        "task": answer.task,
        "model": answer.model,
        "hardware": winner.slice.name,
        "stack": answer.stack,
        "seed": answer.seed,
        "best": estimate_fields(winner.best),
        "certificate": certificate_fields(winner.certificate),
        "baseline": estimate_fields(answer.baseline),
        "space": space_fields(winner),
        "trials": dict(answer.trials),
        "resumed": answer.resumed,
        "stop_reason": answer.stop_reason,
        "agents": dict(answer.agents),
        "llm": dict(answer.llm),
        "wall_s": answer.wall_s,
        "versions": dict(answer.versions),
    }
    if winner.searched is not None:
        found["searched"] = searched_fields(winner.searched)
    if winner.compiled is not None:
        found["compiled"] = searched_fields(winner.compiled)
    if len(answer.slices) > 1:
        found["hardware_ranking"] = hardware_ranking(answer)
    return finite(found)


def summary_text(answer: Answer) -> str:
    """The summary as indented JSON text, as it lies in a file."""
    return json.dumps(summary(answer), indent=2, allow_nan=False)


def summary_line(answer: Answer) -> str:
    """The summary on one line, as a program reads it from stdout: the jobs of one sweep are then one object a line."""
    return json.dumps(summary(answer), allow_nan=False)


def estimate_fields(estimate: Estimate | None) -> dict[str, Any] | None:
    """The figures of one estimate under the names of `summary.json`; None where there is none."""
    if estimate is None:
        return None
    return {
        "plan": estimate.plan.as_dict(),
        "line": estimate.plan.line,
        "step_time_s": estimate.step_time_s,
        "interval_s": list(estimate.interval_s),
        "floor_s": estimate.floor_s,
        "serial_s": estimate.serial_s,
        "mfu": estimate.mfu,
        "tokens_per_s": estimate.tokens_per_s,
        "hbm_bytes": estimate.hbm_bytes,
        "source": estimate.source,
    }


def searched_fields(found: Searched | None) -> dict[str, Any] | None:
    """The compilations under the names of `summary.json`; None where nothing was to be compiled."""
    if found is None:
        return None
    return {
        "evidence": found.trials[0].finding.evidence if found.trials else "",
        "stopped": found.stopped,
        "refused": dict(found.refused),
        "observed": observed_fields(found.observed),
        "confirmed": confirmed_fields(found),
        "plans": [tried_fields(each) | {"no_op": found.no_op(each)} for each in found.trials[:PLANS]],
        **({"plans_left_out": len(found.trials) - PLANS} if len(found.trials) > PLANS else {}),
    }


def confirmed_fields(found: Searched | None) -> list[dict[str, Any]]:
    """What was run again at the end, with the gain over the baseline and its interval; empty where nothing was."""
    base = next((each for each in found.confirmed if each.baseline), None) if found else None
    if found is None or base is None:
        return []
    fields = []
    for each in found.confirmed:
        share, ends = gain(base.steps_s, each.steps_s, each.spread) if each is not base else (0.0, (0.0, 0.0))
        told = {"plan": each.plan.line, "baseline": each is base, "steps_s": list(each.steps_s)}
        fields.append(told | {"step_time_s": each.pooled[0], "gain": share, "gain_interval": list(ends)})
    return fields


def tried_fields(each: Tried) -> dict[str, Any]:
    """How the compilation of a plan ended, beside what the roofline had said of it."""
    return {
        "bundle": each.bundle,
        **each.finding.as_dict(),
        "interval_s": list(each.finding.estimate.interval_s) if each.finding.estimate else None,
        "time_parts_s": dict(each.finding.estimate.time_parts) if each.finding.estimate else None,
        "roofline": estimate_fields(each.roofline),
    }


def observed_fields(seen: Observation | None) -> dict[str, Any] | None:
    """An observation as plain values, with its diagnosis; None where there is none."""
    if seen is None:
        return None
    extra = {
        "place": seen.place,
        "recomputed": seen.recomputed,
        "idle": seen.idle,
        "surplus": seen.surplus,
        "diagnosis": asdict(diagnose_observed(seen)),
    }
    return asdict(seen) | extra


def space_fields(answer: SliceAnswer) -> dict[str, Any]:
    """How many plans there were, how many are legal, how many of those fit in memory, and how many each rule removed.

    `removed["memory"]` counts legal plans: it is legal less fitting, and all else in `removed` is total less legal.
    """
    counts = {"total": answer.total, "legal": answer.legal, "fitting": answer.fitting}
    return {**counts, "removed": dict(answer.removed)}


def hardware_ranking(answer: Answer) -> list[dict[str, Any]]:
    """Each slice's best plan, fastest step first, with its place by step time, throughput and cost.

    Where nothing fits or the price is not known the figure and the place are null.
    """
    ranked = answer.by_step_time
    throughput = [each.best.tokens_per_s if each.best else None for each in ranked]
    cost = [each.usd_per_million_tokens for each in ranked]
    by_time = places([each.best.step_time_s if each.best else None for each in ranked])
    by_throughput = places([None if rate is None else -rate for rate in throughput])
    by_cost = places(cost)
    return [
        {
            "hardware": each.slice.name,
            "chips": each.slice.chips,
            "devices": each.slice.devices,
            "best": estimate_fields(each.best),
            "certificate": certificate_fields(each.certificate),
            **({"searched": searched_fields(each.searched)} if each.searched else {}),
            **({"compiled": searched_fields(each.compiled)} if each.compiled else {}),
            "tokens_per_s": throughput[i],
            "tokens_per_s_per_chip": each.best.tokens_per_s / each.slice.chips if each.best else None,
            "usd_per_million_tokens": cost[i],
            "rank": {
                "step_time_s": by_time[i],
                "tokens_per_s": by_throughput[i],
                "usd_per_million_tokens": by_cost[i],
            },
            "space": space_fields(each),
        }
        for i, each in enumerate(ranked)
    ]


def places(figures: list[float | None]) -> list[int | None]:
    """The place of each figure, 1 for the smallest; equal figures share a place, and None has none."""
    known = [figure for figure in figures if figure is not None]
    return [None if figure is None else 1 + sum(other < figure for other in known) for figure in figures]


def finite(value: Any) -> Any:
    """The value as plain JSON types, with NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [finite(each) for each in value]
    if isinstance(value, np.generic):
        return finite(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
