"""The compile tier's validation on a terminal: steps by source, each run, memory, what is refused and left out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from asap_ray.accuracy import ErrorBlock
from asap_ray.report import units
from asap_ray.report.compiled_validation import COMPILER, ROOFLINE, THEIRS, Beside, CompiledAnswer
from asap_ray.report.outline import Block, Grid
from asap_ray.report.validation_outline import error_grid

WORST = 5
SHOWN_IDS = 8


def compiled_outline(answer: CompiledAnswer, files: Sequence[str]) -> Iterator[Block]:
    """Everything, most important first."""
    yield _record(answer)
    if answer.timed:
        told = tuple((name, text) for name, text in answer.differs.items())
        yield Block(title="Step against measured runs, by source", grid=step_grid(answer), facts=told)
        yield Block(title="Run by run", grid=run_grid(answer))
    memory = error_grid("roofline against compiler", answer.memory(), words=True)
    yield Block(title="Memory", grid=memory, facts=tuple(memory_facts(answer)))
    if worst := _furthest(answer.complete):
        yield Block(title="Memory furthest off", facts=tuple((_name(row), memory_words(row)) for row in worst))
    if facts := program_facts(answer):
        yield Block(title="Programs", facts=tuple(facts))
    if failed := [row for row in answer.rows if row.recorded.status in ("failed", "timeout")]:
        yield Block(title="Did not compile", facts=tuple((_name(row), _failure(row)) for row in failed))
    if answer.left_out:
        yield Block(title="Measured runs on TPUs that are left out", facts=tuple(left_out_facts(answer)))
    facts = [("files", ", ".join(files)), ("in", str(answer.run_dir)), ("took", units.seconds(answer.wall_s))]
    yield Block(facts=tuple(facts))


def _record(answer: CompiledAnswer) -> Block:
    ended = Counter(row.recorded.status for row in answer.rows)
    spent = [row.recorded.core_s for row in answer.rows if row.recorded.core_s]
    facts = [
        ("record", str(answer.record)),
        ("plans", f"{len(answer.rows)}: " + ", ".join(f"{n} {status}" for status, n in ended.most_common())),
    ]
    facts += [("with", f"{name} ({n})") for name, n in Counter(_with(row) for row in answer.rows).most_common()]
    if spent:
        facts.append(("took", f"median {units.seconds(statistics.median(spent))} of one core a plan when it was made"))
    if answer.unrecorded:
        text = f"{len(answer.unrecorded)} listed plans; validate.recompile=true compiles them"
        facts.append(("not compiled", text))
    return Block(title="Compiled plans", facts=tuple(facts))


def _with(row: Beside) -> str:
    return row.recorded.compiled_with or "unknown"


def step_grid(answer: CompiledAnswer) -> Grid:
    """Errors of the compiler and of the roofline side by side, by source."""
    header = ("source", "runs")
    for name in ("compiler", "roofline", "roofline of theirs"):
        header = (*header, f"{name}: median", "p90", "bias")
    rows = []
    for source, found in answer.steps():
        cells = [cell for by in (COMPILER, ROOFLINE, THEIRS) for cell in _errors(found[by])]
        rows.append((source, units.count(found[COMPILER].n), *cells))
    return Grid(header=header, rows=tuple(rows), words=("source",))


def _errors(block: ErrorBlock) -> tuple[str, str, str]:
    bias = units.DASH if block.bias is None else f"{block.bias:+.1%}"
    return units.percent(block.median_ape), units.percent(block.p90_ape), bias


def run_grid(answer: CompiledAnswer) -> Grid:
    """Each measured run with what is predicted of it."""
    header = ("run", "model", "hardware", "measured", "compiler", "roofline", "theirs", "compiler less roofline")
    rows = []
    for row in answer.timed:
        found = row.recorded
        steps = (_beside(row, by) for by in (COMPILER, ROOFLINE, THEIRS))
        names = (found.row, found.model, found.hardware)
        rows.append((*names, units.seconds(row.measured_s), *steps, row.differs or "alike"))
    words = ("run", "model", "hardware", "compiler less roofline")
    return Grid(header=header, rows=tuple(rows), words=words)


def _beside(row: Beside, by: str) -> str:
    predicted, measured = row.predicted(by), row.measured_s
    if not predicted or not measured:
        return units.DASH
    return f"{units.seconds(predicted)} ({predicted / measured - 1:+.0%})"


def memory_facts(answer: CompiledAnswer) -> Iterator[tuple[str, str]]:
    """What the compilers refuse and the roofline does not, and the other way round."""
    refused, through, out = answer.refused, answer.let_through, answer.kept_out
    yield "too big", f"{len(refused)} plans by their compiler, of which the roofline would let {len(through)} through"
    yield from ((_name(row), f"let through: {row.over:.1%} too big, {row.recorded.plan}") for row in through)
    yield "fit", f"{len(answer.complete)} plans by their compiler, of which the roofline would refuse {len(out)}"


def memory_words(row: Beside) -> str:
    """The memory of a plan by both."""
    needed, ratio = units.gigabytes(row.recorded.needed_bytes), row.memory_ratio or 0.0
    return f"{needed}, roofline {units.gigabytes(row.roofline.hbm_bytes)} ({ratio - 1:+.1%}): {row.recorded.plan}"


def program_facts(answer: CompiledAnswer) -> list[tuple[str, str]]:
    """FLOPs and traffic of the programs against what is predicted of them."""
    flops = [ratio - 1 for row in answer.complete if (ratio := row.flops_ratio)]
    shares = [row.recorded.unpredicted for row in answer.complete if row.recorded.unpredicted is not None]
    facts = []
    if flops:
        most = max(flops, key=abs)
        text = f"the model's own and the policy's {statistics.median(flops):+.1%} (median), {most:+.1%} at most"
        facts.append(("FLOPs", text))
    if shares:
        facts.append(("unpredicted", f"{max(shares):.2%} of the bytes on wires at most"))
    return facts


def left_out_facts(answer: CompiledAnswer) -> Iterator[tuple[str, str]]:
    """How many measured runs are left out, by reason, with the first of their ids."""
    for reason, ids in answer.left_out.items():
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        yield units.count(len(ids)), f"{reason}: {', '.join(ids[:SHOWN_IDS])}{more}"


def _furthest(rows: Sequence[Beside]) -> list[Beside]:
    return sorted(rows, key=lambda row: -abs((row.memory_ratio or 1.0) - 1.0))[:WORST]


def _name(row: Beside) -> str:
    return row.recorded.row or f"{row.recorded.model} {row.recorded.hardware}"


def _failure(row: Beside) -> str:
    return f"{row.recorded.status}: {row.recorded.reason or 'no reason given'}; {row.recorded.plan}"
