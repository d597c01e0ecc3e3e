"""The page of a validation: pictures, the tables of results, and the rows that are furthest off, part by part."""

from __future__ import annotations

from typing import Any

from asap_ray.comparison import Compared, errors, memory_errors, memory_verdicts, split_by
from asap_ray.report import units
from asap_ray.report.blame import blame_line, blames, factor_text
from asap_ray.report.outline import Grid
from asap_ray.report.page import script_json, template, vega
from asap_ray.report.scatter import ratio_chart, scatter_chart
from asap_ray.report.validation import ValidationAnswer
from asap_ray.report.validation_outline import (
    certificate_grid,
    coverage_grid,
    error_grid,
    floor_facts,
    group_grid,
    memory_facts,
    ranking_grid,
    ranking_rows,
    totals,
    unmapped_facts,
)
from asap_ray.validation import Validation

WORST = 20


def validation_page(answer: ValidationAnswer) -> str:
    """The whole page as HTML."""
    found = answer.validation
    timed = found.timed
    figures = {"scatter": scatter_chart(found), "ratio": ratio_chart(found)} if timed else {}
    hardware = [errors(*each) for each in split_by(timed, lambda row: row.hardware).items()]
    return template("validation.html.j2").render(
        title="Predicted against measured",
        lead=_lead(found),
        cards=cards(found),
        figures_shown=bool(figures),
        totals=error_grid("rows of", totals(found), words=True),
        groups=group_grid(found),
        sources=error_grid("source", found.sources(), words=True),
        hardware=error_grid("hardware", hardware),
        ranking=ranking_grid(found.ranking_summaries()),
        rankings=ranking_rows(found),
        certificates=certificate_grid(found),
        memory=memory_facts(found),
        verdicts=verdict_grid(found),
        peaks=peak_grid(found),
        coverage=coverage_grid(found),
        floor=floor_facts(found),
        worst=[worst_row(row) for row in found.worst(WORST)],
        worst_by_group=worst_by_group(found),
        unmapped=unmapped_facts(found),
        provenance=_provenance(answer),
        figures=script_json(figures),
        vega=vega(),
    )


def _lead(found: Validation) -> str:
    return (
        f"{units.count(len(found.timed))} measured step times from {units.count(len(found.sources()))} sources, each "
        f"beside what the roofline says of the same plan; {units.percent(found.mapped_share)} of the runs with shape, "
        "mesh and time could be mapped"
    )


def cards(found: Validation) -> list[tuple[str, str, str]]:
    """Headline figures: a name, the figure, and what to hold it against."""
    head, whole = errors("", found.headline), errors("", found.timed)
    large = found.ranking_summaries()[1]
    below = dict(floor_facts(found))["measured below it"].split(":")[0]
    memory = dict(memory_facts(found))
    return [
        ("Median error", units.percent(head.median_ape), f"{units.percent(whole.median_ape)} of all timed rows"),
        ("p90 error", units.percent(head.p90_ape), f"{units.percent(whole.p90_ape)} of all timed rows"),
        ("Bias", units.DASH if head.bias is None else f"{head.bias:+.1%}", "median of predicted over measured, less 1"),
        ("Regret of the best 3", units.percent(large.regret_top3), f"p90 {units.percent(large.regret_top3_p90)}"),
        (
            "Out of memory",
            memory["ran out"].split(" of ")[0],
            f"foreseen; {memory['ran well'].split(' of ')[0]} refused",
        ),
        ("Below the floor", below, "measured rows; a floor is never above a measurement"),
    ]


def verdict_grid(found: Validation) -> Grid:
    """What was foreseen of runs out of memory, by source."""
    rows = tuple(
        (each.name, *map(units.count, (each.tp, each.fn, each.fp, each.tn))) for each in memory_verdicts(found.rows)
    )
    header = ("source", "ran out, foreseen", "not foreseen", "ran well, refused", "accepted")
    return Grid(header=header, rows=rows, words=("source",))


def peak_grid(found: Validation) -> Grid:
    """Errors of the peak memory by source."""
    blocks = [memory_errors(*each) for each in split_by(found.rows, lambda row: row.source).items()]
    return error_grid("source", [each for each in blocks if each.n])


def worst_row(row: Compared) -> dict[str, Any]:
    """One row taken apart: what was measured, what is predicted and of what parts, what alone would have to be off."""
    problem, estimate = row.problem, row.estimate
    step = estimate.step_time_s
    parts = [
        (each.part, units.seconds(each.seconds), units.percent(each.seconds / step), factor_text(each.factor))
        for each in blames(row)
    ]
    low, high = estimate.interval_s
    facts = [
        ("Plan", estimate.plan.line),
        ("Job", f"{row.model}, {problem.workload.global_batch} x {problem.workload.seq_len} tokens a step"),
        ("Where", f"{problem.slice.name} with {problem.stack.name}"),
        ("Interval", f"{units.seconds(low)} to {units.seconds(high)}; floor {units.seconds(estimate.floor_s)}"),
        ("Serial", f"{units.seconds(estimate.serial_s)} with nothing hidden"),
        ("Memory", f"{units.gigabytes(estimate.hbm_bytes)} of {units.gigabytes(estimate.hbm_limit_bytes)}"),
        ("Quality", f"{row.quality}, time from: {row.time_basis}"),
        ("Source", f"{row.source}; {row.url}"),
        ("Assumed", "; ".join(row.inferred) or "nothing"),
    ]
    return {
        "name": row.id,
        "head": f"measured {units.seconds(row.measured_s)}, predicted {units.seconds(step)} ({row.ratio:.2f} of it)",
        "group": row.group,
        "blame": blame_line(row),
        "facts": facts,
        "parts": Grid(
            header=("part", "predicted", "share", "alone would have to be"), rows=tuple(parts), words=("part",)
        ),
    }


def worst_by_group(found: Validation) -> Grid:
    """The row of each group that is furthest off."""
    rows = []
    worst = {name: each[0] for name, each in split_by(found.worst(len(found.rows)), lambda row: row.group).items()}
    for name in found.order:
        if name in worst:
            row = worst[name]
            times = (units.seconds(row.measured_s), units.seconds(row.estimate.step_time_s))
            rows.append((name, row.id, *times, f"{row.ratio:.2f}", f"{row.estimate.plan.line}\n{blame_line(row)}"))
    header = ("group", "run", "measured", "predicted", "ratio", "plan")
    return Grid(header=header, rows=tuple(rows), words=("group", "run", "plan"))


def _provenance(answer: ValidationAnswer) -> list[tuple[str, str]]:
    return [
        ("Command", answer.command),
        ("Tables", ", ".join(answer.validation.tables)),
        ("Took", units.seconds(answer.wall_s)),
        ("Run directory", str(answer.run_dir)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in answer.versions.items())),
    ]
