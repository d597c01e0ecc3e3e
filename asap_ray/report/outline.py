"""What the terminal shows and in which order: blocks of facts and tables, before any colour or column width."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asap_ray.report import sentences, units
from asap_ray.report.answer import Answer, SliceAnswer
from asap_ray.report.certified import certificate_facts
from asap_ray.report.summary import hardware_ranking

if TYPE_CHECKING:
    from asap_ray.hardware import Slice
    from asap_ray.physics.estimate import Estimate
    from asap_ray.workload import Workload

MOST_ROWS = 200
"""Rows of a table that a reader is shown at most."""
NEXT_PLANS = 5
TOO_BIG_PLANS = 3
DERIVED = ("trials.parquet", "optuna.journal")
FILES = ("report.html", "summary.json", "leaderboard.csv", "leaderboard.json", "leaderboard.md", *DERIVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table of texts; the columns in `words` are set left, the others hold figures and are set right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()


def shortened(grid: Grid, most: int = MOST_ROWS) -> Grid:
    """The first rows of a table that nobody would read to its end, and a row that says where the others are."""
    if len(grid.rows) <= most:
        return grid
    left = f"{len(grid.rows) - most:,} more, as all are, in {DERIVED[0]}"
    last = tuple(left if name == grid.words[-1] else "" for name in grid.header)
    return replace(grid, rows=(*grid.rows[:most], last))


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A titled part of the output: a table, then labelled facts. The first fact is the headline where `strong`."""

    title: str = ""
    grid: Grid | None = None
    facts: tuple[tuple[str, str], ...] = ()
    strong: bool = False


def heading(model: str, workload: Workload, slices: tuple[Slice, ...]) -> Block:
    """The job in a few lines, known before any plan is priced."""
    facts = [(model, sentences.workload_line(workload))]
    facts += [(where.name, sentences.slice_line(where, workload.precision)) for where in slices]
    return Block(facts=tuple(facts))


def outline(answer: Answer, *, compiles: bool = False) -> Iterator[Block]:
    """What the roofline said, most important first; `compiles` says that a compiler has the last word."""
    if len(answer.slices) > 1:
        yield ranking(answer)
    winner = answer.winner
    yield space(winner)
    if winner.priced is not None:
        yield best(winner, winner.priced, answer.baseline, " by the roofline" if compiles else "")
        yield why(winner)
    if len(winner.ranked) > 1:
        yield runners_up(winner)
    if facts := certificate_facts(winner):
        yield Block(title="How much better another plan could be", facts=tuple(facts))
    if winner.too_big:
        yield too_big(winner)
    for other in answer.by_step_time[1:]:
        yield elsewhere(other)


def ranking(answer: Answer) -> Block:
    """Each slice's best plan, fastest first."""
    header = ("#", "hardware", "chips", "step", "tokens/s", "per chip", "$/Mtoken", "memory", "by")
    rows = []
    for place, (fields, each) in enumerate(zip(hardware_ranking(answer), answer.by_step_time, strict=True), start=1):
        found = each.best
        rows.append(
            (
                str(place),
                each.slice.name,
                units.count(each.slice.chips),
                units.seconds(found.step_time_s) if found else "no fit",
                units.scaled(fields["tokens_per_s"]),
                units.scaled(fields["tokens_per_s_per_chip"]),
                units.dollars(fields["usd_per_million_tokens"]),
                units.percent(found.hbm_bytes / found.hbm_limit_bytes) if found else units.DASH,
                found.source if found else units.DASH,
            )
        )
    if all(one.proven is None for one in answer.slices):  # all are the roofline's then
        header, rows = header[:-1], [row[:-1] for row in rows]
    grid = Grid(header=header, rows=tuple(rows), words=("hardware", "by"))
    return Block(title="Hardware, fastest step first", grid=grid)


def space(answer: SliceAnswer) -> Block:
    """How large the space is and what each rule removed."""
    return Block(
        title=f"Space of {answer.slice.name}",
        facts=(("plans", sentences.space_line(answer)), ("removed", sentences.removed_line(answer))),
    )


def best(answer: SliceAnswer, found: Estimate, baseline: Estimate | None, source: str = "") -> Block:
    """The best plan with its figures, and how it compares with the user's own; `source` ends its title."""
    where = answer.slice
    compared = (("baseline", sentences.baseline_line(baseline, found)),) if baseline else ()
    return Block(
        title=f"Best plan on {where.name}{source}",
        strong=True,
        facts=(
            ("plan", found.plan.line),
            ("step", sentences.step_line(found)),
            *compared,
            ("speed", sentences.speed_line(where, found)),
            ("floor", sentences.floor_line(found)),
            ("time", sentences.parts_line(found.time_parts, found.step_time_s)),
            ("busy", sentences.busy_line(found)),
            ("memory", sentences.memory_line(where, found)),
            ("", sentences.parts_line(found.memory_parts, found.hbm_bytes)),
            ("cost", sentences.cost_line(where, found)),
        ),
    )


def why(answer: SliceAnswer) -> Block:
    """What bounds the best plan, and why it is first."""
    facts = [("first", reason) for reason in answer.reasons[:1]]
    diagnosis = answer.diagnosis
    if diagnosis is not None:
        facts.append(("bound", sentences.bound_line(diagnosis)))
        facts += [("evidence" if i == 0 else "", text) for i, text in enumerate(diagnosis.evidence)]
        facts.append(("next wall", sentences.wall_line(diagnosis)))
        if diagnosis.abstains:
            facts.append(("abstains", diagnosis.abstains))
    return Block(title="Why", facts=tuple(facts))


def runners_up(answer: SliceAnswer) -> Block:
    """The next few plans: what differs from the best, and why they are behind it."""
    first, *rest = answer.ranked
    rows, facts = [], []
    for place, each in enumerate(rest[:NEXT_PLANS], start=2):
        slower = each.step_time_s / first.step_time_s - 1
        rows.append(
            (
                str(place),
                units.seconds(each.step_time_s),
                f"+{units.percent(slower)}",
                f"{each.step_time_s / each.floor_s:.2f}",
                units.gigabytes(each.hbm_bytes),
                " ".join(sentences.differences(each.plan, first.plan)) or "same knobs",
            )
        )
        if len(answer.reasons) >= place:
            facts.append((f"#{place}", answer.reasons[place - 1]))
    header = ("#", "step", "slower", "x floor", "memory", "differs from the best in")
    return Block(title="Next", grid=Grid(header=header, rows=tuple(rows), words=header[-1:]), facts=tuple(facts))


def too_big(answer: SliceAnswer) -> Block:
    """The fastest plans that miss the memory, and by how much."""
    header = ("step", "needs", "over by", "plan" if answer.priced is None else "differs from the best in")
    rows = []
    for each in answer.too_big[:TOO_BIG_PLANS]:
        line = each.plan.line
        if answer.priced is not None:
            line = " ".join(sentences.differences(each.plan, answer.priced.plan))
        over = each.hbm_bytes - each.hbm_limit_bytes
        rows.append((units.seconds(each.step_time_s), units.gigabytes(each.hbm_bytes), units.gigabytes(over), line))
    limit = units.gigabytes(answer.too_big[0].hbm_limit_bytes)
    faster = answer.priced is not None and answer.too_big[0].step_time_s < answer.priced.step_time_s
    what = "Faster, nearest miss first, but too big for" if faster else "Fastest of what is too big for"
    title = f"{what} the {limit} allowed on a device"
    return Block(title=title, grid=Grid(header=header, rows=tuple(rows), words=header[-1:]))


def elsewhere(answer: SliceAnswer) -> Block:
    """The best plan of a slice that is not the fastest, in short."""
    facts = [("plans", sentences.space_line(answer))]
    if answer.priced is None:
        facts += [("too big", f"the fastest plan is {sentences.over_line(each)}") for each in answer.too_big[:1]]
        return Block(title=f"No plan fits on {answer.slice.name}", facts=tuple(facts))
    facts += [("plan", answer.priced.plan.line), ("floor", sentences.floor_line(answer.priced))]
    facts += [("first", reason) for reason in answer.reasons[:1]]
    return Block(title=f"Best plan on {answer.slice.name}", facts=tuple(facts))


def closing(answer: Answer) -> Block:
    """Where the files are, how long it took, and what the figures are worth."""
    facts = files_facts(answer.run_dir)
    facts.append(("stopped", f"{answer.stop_reason} ({units.seconds(answer.wall_s)})"))
    if not any(answer.trials.values()):
        facts.append(("note", sentences.NO_TRIAL))
    elif any(one.proven for one in answer.slices):
        facts.append(("note", sentences.note(answer.slices)))
    return Block(facts=tuple(facts))


def files_facts(run_dir: Path) -> list[tuple[str, str]]:
    """Which files a run has left, and where."""
    written = [name for name in FILES if (run_dir / name).exists()]
    written += [str(path.relative_to(run_dir)) for path in sorted(run_dir.glob("plans/best.*"))]
    return [("files", ", ".join(written)), ("in", str(run_dir)), *dashboard_facts(run_dir)] if written else []


def dashboard_facts(run_dir: Path) -> list[tuple[str, str]]:
    """What to type to look at the trials in Optuna's dashboard, where there are some."""
    journal = run_dir / DERIVED[1]
    return [("dashboard", f"optuna-dashboard {shlex.quote(str(journal))}")] if journal.exists() else []
