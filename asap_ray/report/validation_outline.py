"""A validation on a terminal: the groups, then what was ranked, what fits, how wide intervals are, what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple

from asap_ray.accuracy import CoverageBlock, ErrorBlock, RankingSummary
from asap_ray.comparison import coverages, errors, floors, memory_errors, memory_verdicts, split_by, summed
from asap_ray.ranked import certificates, rankings
from asap_ray.report import units
from asap_ray.report.blame import blame_line
from asap_ray.report.outline import Block, Grid
from asap_ray.report.validation import ValidationAnswer
from asap_ray.validation import Validation

WORST = 5
REASONS = 8
ERROR_HEADER = ("rows", "inferred", "median", "mean", "p90", "bias")


def outline(answer: ValidationAnswer, files: Sequence[str]) -> Iterator[Block]:
    """Everything, most important first."""
    found = answer.validation
    yield _tables(found, answer.left_out)
    yield Block(title="Errors of the step time", grid=error_grid("rows of", totals(found), words=True))
    yield Block(title="By group, with the rankings among its own rows", grid=group_grid(found))
    hardware = [errors(*each) for each in split_by(found.timed, lambda row: row.hardware).items()]
    yield Block(title="By hardware", grid=error_grid("hardware", hardware))
    yield Block(title="Rankings of the plans of one workload", grid=ranking_grid(found.ranking_summaries()))
    yield Block(title="Credible certificate, on the ranked workloads", grid=certificate_grid(found))
    yield Block(title="Memory", facts=memory_facts(found))
    yield Block(title="90% intervals", grid=coverage_grid(found))
    yield Block(title="Floor", facts=floor_facts(found))
    if found.unmapped:
        yield Block(title="Rows left out", facts=tuple(unmapped_facts(found)[:REASONS]))
    if found.timed:
        yield Block(title="Furthest off", facts=tuple((row.id, blame_line(row)) for row in found.worst(WORST)))
    facts = [("files", ", ".join(files)), ("in", str(answer.run_dir)), ("took", units.seconds(answer.wall_s))]
    yield Block(facts=tuple(facts))


def _tables(found: Validation, left_out: int) -> Block:
    facts = [("table" if i == 0 else "", path) for i, path in enumerate(found.tables)]
    failed = sum(row.status != "ok" for row in found.rows)
    counts = (
        f"{units.count(found.read)} read, {units.count(len(found.timed))} priced beside a time, "
        f"{units.count(failed)} that failed, {units.count(sum(found.unmapped.values()))} left out"
    )
    share = f"{units.percent(found.mapped_share)} of those with shape, mesh and time"
    fitted = (
        f"{units.count(left_out)} timed rows with constants that were fitted without them (their source for what is of "
        "a chip, their model for what is of a stack), the others with those of conf/calibration"
    )
    return Block(title="Measured runs", facts=(*facts, ("rows", counts), ("mapped", share), ("predicted", fitted)))


def totals(found: Validation) -> list[ErrorBlock]:
    """The headline, and all timed rows with their parts."""
    timed = found.timed
    return [
        errors("headline (quality A)", found.headline),
        errors("all timed rows", timed),
        errors("  nothing assumed", [row for row in timed if not row.inferred]),
        errors("  a field assumed", [row for row in timed if row.inferred]),
    ]


def error_grid(title: str, blocks: Sequence[ErrorBlock], *, words: bool = False) -> Grid:
    """Error blocks as a table, the largest first unless they are `words` in an order of their own."""
    ordered = list(blocks) if words else sorted(blocks, key=lambda each: -each.n)
    return Grid(
        header=(title, *ERROR_HEADER), rows=tuple((each.name, *_errors(each)) for each in ordered), words=(title,)
    )


def _errors(block: ErrorBlock) -> tuple[str, ...]:
    bias = units.DASH if block.bias is None else f"{block.bias:+.1%}"
    shares = (units.percent(value) for value in (block.median_ape, block.mean_ape, block.p90_ape))
    return (units.count(block.n), units.count(block.inferred), *shares, bias)


def group_grid(found: Validation) -> Grid:
    """Errors and rankings of each group."""
    header = ("group", *ERROR_HEADER, "rankings", "tau", "regret", "p90 regret")
    rows = []
    for each in found.groups():
        rank = each.ranking
        tau = units.DASH if rank.kendall_tau is None else f"{rank.kendall_tau:.2f}"
        regret = (units.percent(rank.regret_top1), units.percent(rank.regret_top1_p90))
        rows.append((each.errors.name, *_errors(each.errors), units.count(rank.groups), tau, *regret))
    return Grid(header=header, rows=tuple(rows), words=("group",))


def ranking_grid(summaries: Sequence[RankingSummary]) -> Grid:
    """What the rankings say together."""
    header = ("over", "groups", "tau", "regret of the best", "p90", "of the best 3", "p90 of 3")
    rows = []
    for each in summaries:
        tau = units.DASH if each.kendall_tau is None else f"{each.kendall_tau:.2f}"
        rows.append((each.name, units.count(each.groups), tau, *map(units.percent, astuple(each)[3:])))
    return Grid(header=header, rows=tuple(rows), words=("over",))


def ranking_rows(found: Validation) -> Grid:
    """Every ranked workload."""
    rows = []
    for each in rankings(found.rows):
        tau = units.DASH if each.kendall_tau is None else f"{each.kendall_tau:.2f}"
        regrets = (units.percent(each.regret_top1), units.percent(each.regret_top3))
        rows.append((each.name, units.count(each.n), tau, *regrets))
    header = ("workload", "plans", "tau", "regret of the best", "of the best 3")
    return Grid(header=header, rows=tuple(rows), words=("workload",))


def certificate_grid(found: Validation) -> Grid:
    """How often nothing beat what the certificate says, after the best predicted plans were tried."""
    rows = [
        (
            str(each.tried),
            units.count(each.groups),
            units.percent(each.holds),
            units.percent(each.above),
            units.percent(each.probability),
        )
        for each in certificates(found.rows)
    ]
    header = ("plans tried", "workloads", "held", "plans above their lower end", "stated")
    return Grid(header=header, rows=tuple(rows))


def memory_facts(found: Validation) -> tuple[tuple[str, str], ...]:
    """Which runs out of memory were foreseen, and how far the measured peaks are off."""
    blocks = memory_verdicts(found.rows)
    whole, peaks = summed("overall", blocks), memory_errors("peaks", found.rows)
    return (
        ("ran out", f"{units.percent(whole.recognised)} of {units.count(whole.tp + whole.fn)} foreseen"),
        ("ran well", f"{units.percent(whole.refused)} of {units.count(whole.fp + whole.tn)} would be refused"),
        ("marked by", ", ".join(each.name for each in blocks) or "no table says which runs ended out of memory"),
        (
            "peaks",
            f"{units.count(peaks.n)} measured: median error {units.percent(peaks.median_ape)}, "
            f"p90 {units.percent(peaks.p90_ape)}, bias {units.percent(peaks.bias)}",
        ),
    )


def coverage_grid(found: Validation) -> Grid:
    """How often intervals hold the measured time, by chip kind and stack."""
    timed = found.timed
    blocks = [coverages("headline", found.headline), coverages("all timed rows", timed)]
    blocks += [coverages(*each) for each in split_by(timed, lambda row: row.problem.slice.chip.kind).items()]
    blocks += [coverages(*each) for each in split_by(timed, lambda row: row.problem.stack.name).items()]
    header = ("rows of", "rows", "inside", "half-width", "median error")
    return Grid(header=header, rows=tuple(map(_coverage, blocks)), words=("rows of",))


def _coverage(block: CoverageBlock) -> tuple[str, ...]:
    shares = (units.percent(value) for value in (block.share, block.half_width, block.median_ape))
    return (block.name, units.count(block.n), *shares)


def floor_facts(found: Validation) -> tuple[tuple[str, str], ...]:
    """How far below the measured times the floors lie."""
    known = floors(found.timed)
    below = ", ".join(known.violations[:REASONS]) or "none"
    share = f"{units.percent(known.median)} of the measured time (median), {units.percent(known.max)} at most"
    return (("floor", share), ("measured below it", f"{len(known.violations)}: {below}"))


def unmapped_facts(found: Validation) -> list[tuple[str, str]]:
    """How many rows are left out, by reason, the most frequent first."""
    return [(units.count(n), reason) for reason, n in found.unmapped.items()]
