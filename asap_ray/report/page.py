"""`report.html`: one page that works from a file, without a network.

Vega and the data are inside it, and a content security policy keeps it from loading anything. Every text goes through
Jinja's escaping, and the data of the charts cannot close the element that holds them: names and paths are data.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from asap_ray.errors import printable
from asap_ray.report import sentences, units
from asap_ray.report.answer import Answer, SliceAnswer, usd_per_million_tokens
from asap_ray.report.bars import shown_parts
from asap_ray.report.certified import certificate_facts, tighten_rows
from asap_ray.report.charts import PICTURES, charts
from asap_ray.report.compiled import slice_blocks
from asap_ray.report.leaderboard import plan_id
from asap_ray.report.observed import observed_blocks
from asap_ray.report.outline import Block, Grid, ranking
from asap_ray.report.roofline_chart import roof_colours
from asap_ray.report.search import recall_blocks, round_block, round_words, table_blocks, told_rounds
from asap_ray.report.search_chart import author_colours

if TYPE_CHECKING:
    import jinja2

    from asap_ray.physics.estimate import Estimate

MAP_POINTS = 6000
LEADERS = 20


def page(answer: Answer) -> str:
    """The whole report as HTML."""
    points = MAP_POINTS // len(answer.slices)
    slices = answer.by_step_time
    figures = {
        f"{i}-{name}": spec
        for i, one in enumerate(slices)
        for name, spec in charts(one, answer.workload, points).items()
    }
    return template("report.html.j2").render(
        title=f"{answer.model} on {', '.join(one.slice.name for one in slices)}",
        lead=sentences.workload_line(answer.workload),
        note=sentences.note(slices),
        ranking=ranking(answer).grid if len(answer.slices) > 1 else None,
        sections=[section(answer, one, str(i), figures.keys()) for i, one in enumerate(slices)],
        provenance=provenance(answer),
        chips=[chip_facts(one) for one in _chips(answer)],
        figures=script_json(figures),
        vega=vega(),
    )


def section(answer: Answer, one: SliceAnswer, key: str, figures: Collection[str]) -> dict[str, Any]:
    """What the page says of one slice; `figures` are the ids of the pictures there are."""
    return {
        "name": one.slice.name,
        "about": sentences.slice_line(one.slice, answer.workload.precision),
        "cards": cards(one) if one.best else [],
        "line": one.best.plan.line if one.best else None,
        "why": why(one, answer.baseline if one is answer.winner else None),
        "certificate": certificate_facts(one),
        "tighten": tighten(one),
        "space": sentences.space_line(one),
        "removed": removed(one),
        "compiled": compiled(answer, one),
        "search": search(one),
        "authors": author_colours(one.searched) if one.searched else {},
        "leaders": leaders(one),
        "too_big": too_big(one),
        "time_parts": shown_parts("time", one),
        "roofs": roof_colours(one.slice),
        "memory_parts": shown_parts("memory", one),
        "figures": {name: f"{key}-{name}" for name in PICTURES if f"{key}-{name}" in figures},
    }


def cards(answer: SliceAnswer) -> list[tuple[str, str, str]]:
    """Headline figures of the best plan: a name, the figure, and what to hold it against."""
    best, where = answer.best, answer.slice
    assert best is not None
    low, high = best.interval_s
    price = where.chip.usd_per_chip_hour
    priced = f"at {units.dollars(price)} a chip-hour" if price else "no price given"
    used = f"{units.percent(best.hbm_bytes / best.hbm_limit_bytes)} of {units.gigabytes(best.hbm_limit_bytes)} allowed"
    return [
        (
            f"Step time, {best.source}",
            units.seconds(best.step_time_s),
            f"likely {units.seconds(low)} to {units.seconds(high)}",
        ),
        ("MFU", units.percent(best.mfu), f"of {where.chip.name}'s bf16 datasheet peak"),
        ("Tokens/s", units.scaled(best.tokens_per_s), f"{units.scaled(best.tokens_per_s / where.chips)} a chip"),
        ("Floor", units.seconds(best.floor_s), f"step is {units.times(best.step_time_s / best.floor_s)} of it"),
        ("Memory", units.gigabytes(best.hbm_bytes), used),
        ("$ per million tokens", units.dollars(usd_per_million_tokens(where, best)), priced),
    ]


def compiled(answer: Answer, one: SliceAnswer) -> list[dict[str, Any]]:
    """What a compiler said of the best plans, as titled facts and tables; none where none was asked."""
    blocks = []
    for found in one.searches:
        blocks += slice_blocks(answer, one, found)
        if found.observed is not None:
            blocks += observed_blocks(found.observed)
    return [_shown_block(each) for each in blocks]


def _shown_block(block: Block) -> dict[str, Any]:
    return {"title": block.title, "grid": block.grid, "facts": block.facts}


def search(one: SliceAnswer) -> dict[str, Any]:
    """How the search went: its rounds, which a reader opens one by one, and the tables about all of them."""
    rounds = [(found, each) for found in one.searches for each in told_rounds(found)]
    several = len({found.source for found, _ in rounds}) > 1
    return {
        "rounds": [
            {
                **_shown_block(round_block(each, found, one.slice.name)),
                "title": f"Round {each.number}{f', {found.source}' if several else ''}",
                "head": round_words(each, found),
            }
            for found, each in rounds
        ],
        "tables": [_shown_block(each) for each in (*recall_blocks(one), *table_blocks(one))],
    }


def why(answer: SliceAnswer, baseline: Estimate | None) -> list[tuple[str, list[str]]]:
    """The roofline's diagnosis of its best plan and its gain over the user's own, as titled lists."""
    found = [("Why it is first", list(answer.reasons[:1]))]
    diagnosis = answer.diagnosis
    if answer.priced is not None:
        if baseline is not None:
            found.append(("Against the baseline", [sentences.baseline_line(baseline, answer.priced)]))
        found.append(("Busy, hidden or not", [sentences.busy_line(answer.priced)]))
    if diagnosis is not None:
        found.append(("What bounds it", [sentences.bound_line(diagnosis)]))
        found.append(("Evidence", list(diagnosis.evidence)))
        found.append(("Next wall", [sentences.wall_line(diagnosis)]))
        found.append(("Why the mesh is not the problem", [diagnosis.abstains] if diagnosis.abstains else []))
    return [(title, lines) for title, lines in found if lines]


def tighten(answer: SliceAnswer) -> Grid:
    """The plans whose trials would tighten the certificate most."""
    header = ("tightens", "step", "floor", "lower end", "then at most", "plan")
    rows = tuple(tighten_rows(answer.certificate)) if answer.certificate else ()
    return Grid(header=header, rows=rows, words=("tightens", "plan"))


def removed(answer: SliceAnswer) -> list[tuple[str, str, str]]:
    """Each rule with the plans it removed and their share of the space."""
    total = max(answer.total, 1)
    return [(rule, units.count(n), units.percent(n / total)) for rule, n in sentences.removed(answer)]


def leaders(answer: SliceAnswer) -> Grid:
    """The ranked plans in full, with the reason for each one's place."""
    header = ("#", "step", "slower", "x floor", "MFU", "tokens/s", "memory", "plan", "id")
    rows = []
    for place, each in enumerate(answer.ranked[:LEADERS], start=1):
        slower = each.step_time_s / answer.ranked[0].step_time_s - 1
        reason = answer.reasons[place - 1] if len(answer.reasons) >= place else ""
        rows.append((str(place), *_figures(each, slower), f"{each.plan.line}\n{reason}", plan_id(each.plan)))
    return Grid(header=header, rows=tuple(rows), words=("plan", "id"))


def _figures(each: Estimate, slower: float) -> tuple[str, ...]:
    return (
        units.seconds(each.step_time_s),
        f"+{units.percent(slower)}" if slower else "",
        f"{each.step_time_s / each.floor_s:.2f}",
        units.percent(each.mfu),
        units.scaled(each.tokens_per_s),
        units.gigabytes(each.hbm_bytes),
    )


def too_big(answer: SliceAnswer) -> Grid:
    """The fastest plans that miss the memory, and by how much."""
    rows = tuple(
        (
            units.seconds(each.step_time_s),
            units.gigabytes(each.hbm_bytes),
            units.gigabytes(each.hbm_bytes - each.hbm_limit_bytes),
            each.plan.line,
        )
        for each in answer.too_big
    )
    return Grid(header=("step", "needs", "over by", "plan"), rows=rows, words=("plan",))


def provenance(answer: Answer) -> list[tuple[str, str]]:
    """Where the figures come from and how to get them again."""
    facts = [
        ("Command", answer.command),
        ("Task", answer.task),
        ("Stack", answer.stack),
        ("Seed", str(answer.seed)),
        ("Model's source", answer.workload.architecture.source),
        ("Figures from", ", ".join(sorted({each.source for one in answer.slices for each in _shown(one)}))),
        ("Stopped because", answer.stop_reason),
        ("Took", units.seconds(answer.wall_s)),
        ("Run directory", str(answer.run_dir)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in answer.versions.items())),
    ]
    return [(name, text) for name, text in facts if text]


def _shown(one: SliceAnswer) -> tuple[Estimate, ...]:
    return (*one.ranked, *((one.proven,) if one.proven else ()))


def _chips(answer: Answer) -> list[SliceAnswer]:
    return list({one.slice.chip.name: one for one in answer.by_step_time}.values())


def chip_facts(answer: SliceAnswer) -> dict[str, Any]:
    """The datasheet figures that the estimates of one chip rest on, with their sources."""
    chip = answer.slice.chip
    peaks = ", ".join(f"{units.scaled(peak, 'FLOP/s')} {dtype}" for dtype, peak in chip.peak_flops.items())
    facts = [
        ("Peak", peaks),
        ("HBM", f"{units.gigabytes(chip.hbm_bytes)} at {units.scaled(chip.hbm_bytes_per_s, 'B/s')}"),
        ("Links inside", f"{units.scaled(chip.link_bytes_per_s, 'B/s')} one way ({chip.fabric})"),
        ("Network between", f"{units.scaled(chip.nic_bytes_per_s, 'B/s')} a chip"),
        ("Devices a chip", str(chip.devices_per_chip)),
        ("Price", f"{units.dollars(chip.usd_per_chip_hour)} a chip-hour" if chip.usd_per_chip_hour else "not given"),
    ]
    return {"name": chip.name, "facts": facts, "sources": chip.sources}


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no `<`, `>` or `&` is left that could end it or open a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def vega() -> str:
    """Vega and its embedding as one script, with nothing in it that could end the element that holds it."""
    import vl_convert

    return (
        vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        .replace("</script", "<\\/script")
        .replace("<!--", "<\\!--")
    )


def _seen(value: Any) -> Any:
    """What a reader sees of a value; markup of our own stays as it is."""
    if type(value) is not str or value.isprintable():
        return value
    return "\n".join(printable(line) for line in value.expandtabs().split("\n"))


@cache
def template(name: str) -> jinja2.Template:
    """A template of this package; every text that it is given is escaped, and free of what moves a cursor or turns the
    direction of what follows."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("asap_ray.report", "templates"),
        autoescape=True,
        finalize=_seen,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
