"""The page of a comparison: regret curves, who wins where the interval allows it, each ground, and why agents lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from asap_ray.contest.figures import hit
from asap_ray.contest.ground import Named
from asap_ray.contest.play import Played
from asap_ray.report import units
from asap_ray.report.comparison import ComparisonAnswer, by_source
from asap_ray.report.comparison_chart import curves, method_colours
from asap_ray.report.comparison_outline import (
    NEVER,
    agents_in,
    ground_facts,
    leader_words,
    method_grid,
    pair_grid,
)
from asap_ray.report.outline import Grid
from asap_ray.report.page import script_json, template, vega

WITHIN = 0.01


def comparison_page(answer: ComparisonAnswer, fields: Mapping[str, Any]) -> str:
    """The whole page as HTML."""
    sources = by_source(answer)
    figures = {"curves": curves(answer, answer.main)}
    if len(sources) > 1:
        figures |= {f"curves-{i}": curves(answer, grounds) for i, grounds in enumerate(sources.values())}
    agents = agents_in(fields["methods"])
    return template("comparison.html.j2").render(
        title="Search methods compared",
        lead=_lead(answer, fields),
        ground_facts=ground_facts(answer, fields),
        methods=method_grid(fields["methods"]),
        about=[(name, each["about"]) for name, each in fields["methods"].items()],
        colours=method_colours(answer),
        winner=leader_words(fields),
        pairs=[(name, pair_grid(fields["pairs"], name)) for name in agents],
        off=[(name, pair_grid(fields["pairs_where_roofline_errs"], name)) for name in agents],
        sources=[
            (name, f"curves-{i}" if len(sources) > 1 else "", method_grid(fields["by_source"][name]))
            for i, name in enumerate(sources)
        ],
        grounds=[ground_panel(answer, each, told) for each, told in zip(answer.grounds, fields["each"], strict=True)],
        lost=[panel for name in agents for panel in lost_panels(answer, fields, name)],
        provenance=_provenance(answer),
        figures=script_json(figures),
        vega=vega(),
    )


def _lead(answer: ComparisonAnswer, fields: Mapping[str, Any]) -> str:
    searches = units.count(len(answer.played))
    return f"{len(fields['methods'])} methods on {len(answer.grounds)} grounds, {searches} searches"


def ground_panel(answer: ComparisonAnswer, ground: Named, told: Mapping[str, Any]) -> dict[str, Any]:
    """One ground: what each method needed."""
    rows = []
    for name, each in told["methods"].items():
        trials = each["trials_to_1pct"]
        regrets = (units.percent(each["regret_at"][k]) for k in ("1", "3", "5", "10", "20"))
        rows.append((name, NEVER if trials is None else f"{trials:g}", *regrets))
    header = ("method", "trials to 1%", "regret after 1", "3", "5", "10", "20")
    off = told["roofline_error"]
    return {
        "name": ground.name,
        "head": f"the roofline is off by {units.percent(off)} in the median" if off is not None else ground.kind,
        "grid": Grid(header=header, rows=tuple(rows), words=("method",)),
    }


def lost_panels(answer: ComparisonAnswer, fields: Mapping[str, Any], agents: str) -> list[dict[str, Any]]:
    """The grounds on which some other method needed fewer trials, with what the agents tried and why."""
    panels = []
    for told in fields["each"]:
        needed = {name: each["trials_to_1pct"] or math.inf for name, each in told["methods"].items()}
        if agents not in needed or min(needed.values()) >= needed[agents]:
            continue
        found = next((e for e in answer.played if (e.method, e.ground) == (agents, told["name"]) and e.plans), None)
        if found is None:
            continue
        winners = [name for name, trials in needed.items() if trials == min(needed.values())]
        panels.append(
            {
                "name": told["name"],
                "head": f"{agents} needed {_words(needed[agents])}, {', '.join(winners)} {min(needed.values()):g}",
                "stopped": found.stopped,
                "grid": trial_grid(found),
            }
        )
    return panels


def _words(trials: float) -> str:
    return f"{trials:g} trials" if math.isfinite(trials) else "more trials than it had"


def trial_grid(found: Played) -> Grid:
    """The trials of one search with the words behind each, until it was there, or the first twenty."""
    needed = hit(found, WITHIN)
    last = int(needed) if math.isfinite(needed) else 20
    rows = []
    for i, plan in enumerate(found.plans[:last]):
        regret = found.regret[i]
        so_far = units.DASH if regret is None else units.percent(regret)
        rows.append((str(i + 1), "did not run" if found.bad[i] else "", so_far, f"{plan}\n{found.why[i]}"))
    return Grid(header=("#", "came to", "best so far, slower by", "plan"), rows=tuple(rows), words=("plan", "came to"))


def _provenance(answer: ComparisonAnswer) -> list[tuple[str, str]]:
    return [
        ("Command", answer.command),
        ("Took", units.seconds(answer.wall_s)),
        ("Run directory", str(answer.run_dir)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in answer.versions.items())),
    ]
