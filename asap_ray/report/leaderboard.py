"""The ranked plans as files that other tools read: `leaderboard.csv`, `.json` and `.md`.

One row a plan over all slices, those that were compiled before the others, each fastest first; behind them, without a
rank, what could not be compiled and the fastest plans that do not fit. A plan's
id is a hash of its line, the same in every run.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asap_ray.errors import printable
from asap_ray.plan import AXES, KNOBS
from asap_ray.report import units
from asap_ray.report.answer import Answer, Searched, SliceAnswer, Tried, usd_per_million_tokens
from asap_ray.report.summary import finite

if TYPE_CHECKING:
    from asap_ray.physics.estimate import Estimate
    from asap_ray.plan import Plan

ID_BYTES = 5
MOST = 1000
"""Trials of one search that are listed: the fastest that came to a step, then those that did not. All are in
`trials.parquet`."""


def plan_id(plan: Plan) -> str:
    """Ten hex digits that stand for a plan, stable over runs, machines and versions of Python."""
    return hashlib.blake2b(plan.line.encode(), digest_size=ID_BYTES).hexdigest()


def records(answer: Answer) -> list[dict[str, Any]]:
    """One flat record a plan, with units in the names of its figures; what is not known is None.

    Plans that were run come first, then those that were compiled, with the figures of their trial and, under
    `roofline_`, the roofline's; so a plan's place rests on the best evidence there is for it. What no trial came
    through with has no place.
    """
    run, compiled, priced, missing = [], [], [], []
    for each in answer.slices:
        told = dict(zip((priced.plan for priced in each.ranked), each.reasons, strict=False))
        tried = set()
        for searched, places in ((each.searched, run), (each.compiled, compiled)):
            trials = [found for found in leading(searched) if found.finding.plan not in tried] if searched else []
            for found in trials:
                record = _compiled_record(each, found, told.get(found.finding.plan))
                (places if found.finding.estimate else missing).append(record)
            tried |= {found.finding.plan for found in trials}
        priced += [_record(each, found, told.get(found.plan)) for found in each.ranked if found.plan not in tried]
        missing += [_record(each, found, None) for found in each.too_big]
    for records_ in (run, compiled, priced, missing):
        records_.sort(key=lambda record: record["step_time_s"])
    for rank, record in enumerate(run + compiled + priced, start=1):
        record["rank"] = rank
    return finite(run + compiled + priced + missing)


def leading(found: Searched) -> Sequence[Tried]:
    """The trials of a search, or, of more than `MOST`, the fastest."""
    if len(found.trials) <= MOST:
        return found.trials
    return heapq.nsmallest(MOST, found.trials, key=_place)


def _place(tried: Tried) -> tuple[bool, float, int]:
    estimate = tried.finding.estimate
    return estimate is None, estimate.step_time_s if estimate else tried.roofline.step_time_s, tried.number


def _compiled_record(answer: SliceAnswer, tried: Tried, reason: str | None) -> dict[str, Any]:
    found = tried.finding
    record = _record(answer, found.estimate or tried.roofline, reason)
    if found.hbm_bytes is not None:
        record |= {"hbm_bytes": found.hbm_bytes, "fits": found.status != "infeasible"}
    return record | {
        "trial": found.status,
        "trial_tier": found.source,
        "trial_bundle": tried.bundle,
        "trial_reason": found.reason or None,
        "trial_over_bytes": found.over_bytes,
        "trial_took_s": tried.took_s,
        "trial_cached": found.cached,
        "evidence": found.evidence,
        "roofline_step_time_s": tried.roofline.step_time_s,
        "roofline_hbm_bytes": tried.roofline.hbm_bytes,
    }


def _record(answer: SliceAnswer, found: Estimate, reason: str | None) -> dict[str, Any]:
    return {
        "rank": None,
        "plan_id": plan_id(found.plan),
        "hardware": answer.slice.name,
        "fits": bool(found.hbm_bytes <= found.hbm_limit_bytes),
        "step_time_s": found.step_time_s,
        "interval_low_s": found.interval_s[0],
        "interval_high_s": found.interval_s[1],
        "floor_s": found.floor_s,
        "serial_s": found.serial_s,
        "mfu": found.mfu,
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_per_chip": found.tokens_per_s / answer.slice.chips,
        "usd_per_million_tokens": usd_per_million_tokens(answer.slice, found),
        "hbm_bytes": found.hbm_bytes,
        "hbm_limit_bytes": found.hbm_limit_bytes,
        "source": found.source,
        "plan": found.plan.line,
        **{axis: found.plan.axes[axis] for axis in AXES},
        **{knob: getattr(found.plan, knob) for knob in KNOBS},
        **{f"time_{part}_s": value for part, value in found.time_parts.items()},
        **{f"memory_{part}_bytes": value for part, value in found.memory_parts.items()},
        "reason": reason,
    }


def csv_text(rows: list[dict[str, Any]]) -> str:
    """The records as CSV with one header line; None is an empty field."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(rows: list[dict[str, Any]]) -> str:
    """The records as a JSON array of objects."""
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def markdown_text(rows: list[dict[str, Any]]) -> str:
    """The records as a table for people: figures rounded, plans as code."""
    header = ("rank", "id", "hardware", "by", "step", "x floor", "MFU", "tokens/s", "$/Mtoken", "memory", "plan")
    lines = ["| " + " | ".join(header) + " |", "|--:|" + "---|" * 3 + "--:|" * 6 + "---|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    memory = units.gigabytes(row["hbm_bytes"])
    over = row.get("trial_over_bytes") or row["hbm_bytes"] - row["hbm_limit_bytes"]
    if not row["fits"]:
        memory += f", {units.gigabytes(over)} too big"
    return (
        str(row["rank"] or units.DASH),
        f"`{row['plan_id']}`",
        _text(row["hardware"]),
        _text(row["source"] if row.get("trial", "complete") == "complete" else f"{row['trial_tier']}: {row['trial']}"),
        units.seconds(row["step_time_s"]),
        f"{row['step_time_s'] / row['floor_s']:.2f}",
        units.percent(row["mfu"]),
        units.scaled(row["tokens_per_s"]),
        units.dollars(row["usd_per_million_tokens"]),
        memory,
        f"`{_text(row['plan'])}`",
    )


def _text(text: str) -> str:
    """A text that ends neither its cell nor its code."""
    return printable(text).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
