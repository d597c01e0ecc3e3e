"""What agents are shown, as text: figures with names, each kind in a block of its own, names and sentences inert.

The same parts are tools where an endpoint calls tools, and one fixed text where it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from asap_ray.agents.brief import Brief
from asap_ray.agents.facts import facts_of_result
from asap_ray.agents.figures import OPS, WIRES, Figures, figures_of_option, figures_of_result, name_of, sentence
from asap_ray.agents.options import Option
from asap_ray.agents.playbook import changes
from asap_ray.agents.proposal import STEP, judge
from asap_ray.agents.untrusted import delimited
from asap_ray.agents.verifier import row_of
from asap_ray.knowledge import Card, fired
from asap_ray.problem import Problem
from asap_ray.search.protocol import Result

TRIALS, CARDS, CASES, REFUTED = 6, 6, 4, 5
"""Of the trials, cards, cases and refuted ideas that are shown, at most."""
UNTOLD = ("floor_s", "serial_s", "mfu", "mxu", "hbm_use", "hbm_gb")
GB = 1e9
MOST = 8_000
"""Characters of a block at most."""


def trial_name(result: Result) -> str:
    """What a trial is called in all that is shown."""
    return f"trial {result.candidate.number}"


def block(name: str, lines: Iterable[str]) -> str:
    """Lines of data between marks that none of them holds."""
    return delimited(name, "\n".join(lines), MOST)


def figure_line(source: str, figures: Figures) -> str:
    """One source with its figures."""
    return f"{source}: " + " ".join(f"{name}={value:g}" for name, value in figures.items())


def job(problem: Problem) -> str:
    """The workload and the slice, in a line each."""
    work, chips = problem.workload, problem.slice
    model = work.architecture
    experts = f", {model.experts.experts} experts" if model.experts else ""
    peak, limit = chips.chip.peak_flops["bf16"] / 1e12, problem.hbm_limit_bytes / GB
    return block(
        "job",
        (
            f"model: {name_of(model.name)}, {model.layers} layers, width {model.d_model}{experts}; "
            f"{work.global_batch} sequences of {work.seq_len} tokens a step",
            f"slice: {chips.name}, {chips.devices} devices, {chips.slices} slice(s), topology "
            f"{'x'.join(map(str, chips.topology))}; {peak:.0f} TFLOP/s bf16 a chip, {limit:.1f} GB usable a device",
            f"trainer: {name_of(problem.stack.name)}",
        ),
    )


def summary(result: Result) -> str:
    """How a trial ended, with its figures: the step, its parts, and what was predicted of them."""
    lines = [f"{trial_name(result)} {result.status} plan: {result.candidate.plan.line}"]
    if result.reason:
        lines.append(f"reason: {sentence(result.reason)}")
    lines.append(figure_line(trial_name(result), figures_of_result(result)))
    if result.diagnosis is not None:
        lines.append(f"rules say: bound by {result.diagnosis.bound}, next {result.diagnosis.next_wall}")
    return block("trial", lines)


def top_ops(result: Result) -> str:
    """The ops that cost a trial most, with their use of the matrix units and of HBM."""
    seen = result.observation
    rows = [
        f"top{i} {name_of(op.name)} ({op.category}, {op.phase}) at {name_of(op.source)}: share={op.share:.3g} "
        f"mxu={op.mxu:.3g} hbm={op.hbm:.3g}"
        for i, op in enumerate(seen.top[:OPS] if seen else (), 1)
    ]
    return block("ops", rows or ["no profile"])


def traffic(result: Result) -> str:
    """Collectives by axis: what does not hide, and what nobody predicted."""
    seen = result.observation
    if seen is None:
        return block("collectives", ["no profile"])
    rows = [
        f"{each.category} over {each.over} on {each.level}: {each.exposed_s:.3g} s exposed of {each.seconds:.3g} s"
        for each in seen.wires[:WIRES]
    ]
    rows += [
        f"unpredicted {each.category} over {each.over}: {each.wire_bytes / GB:.3g} GB a device"
        for each in seen.unpredicted[:WIRES]
    ]
    return block("collectives", rows or ["none"])


def memory(result: Result) -> str:
    """Bytes of a device by part."""
    parts = result.observation.memory if result.observation else {}
    parts = parts or (result.estimate.memory_parts if result.estimate else {})
    rows = [f"{name_of(name)}: {size / GB:.3g} GB" for name, size in sorted(parts.items(), key=lambda each: -each[1])]
    if result.over_bytes:
        rows.append(f"over by {result.over_bytes / GB:.3g} GB")
    return block("memory", rows[:8] or ["not known"])


def difference(one: Result, other: Result) -> str:
    """What tells two trials apart: figures that both show, where they differ by more than a hundredth."""
    first, second = figures_of_result(one), figures_of_result(other)
    rows = [
        f"{name}: {first[name]:g} to {second[name]:g}"
        for name in first
        if name in second and abs(first[name] - second[name]) > 0.01 * abs(first[name])
    ]
    return block(f"{trial_name(one)} to {trial_name(other)}", rows or ["no figure differs"])


def trials(brief: Brief, base: int) -> str:
    """The trials so far, the best and the latest, one line each."""
    chosen = sorted(brief.results, key=lambda each: (each is not brief.best, -each.candidate.number))[:TRIALS]
    rows = []
    for each in sorted(chosen, key=lambda each: each.candidate.number):
        row = row_of(brief.pool, each.candidate.plan)
        told = {name: value for name, value in figures_of_result(each).items() if _brief(name)}
        words = "the base" if row == base else changes(brief.pool, base, row) if row is not None else "another plan"
        rows.append(f"{figure_line(f'{trial_name(each)} {each.status}', told)} ({words})")
    return block("trials", rows or ["none yet: options are priced by the roofline alone"])


def _brief(name: str) -> bool:
    """Whether a figure is shown where many trials are."""
    return name == f"predicted.{STEP}" or not (name.startswith(("top", "predicted.")) or name in UNTOLD)


def option_lines(brief: Brief, given: Sequence[Option], base: int) -> str:
    """The options, each with its price and what tells it from the base."""
    rows = [f"base: {brief.pool.plan(base).line}"]
    for each in given:
        card = f" [{each.card}]" if each.card else ""
        rows.append(f"{figure_line(each.name, option_figures(brief, each))} ({each.words}){card}")
    return block("options", rows)


def option_figures(brief: Brief, option: Option) -> dict[str, float]:
    """The figures of an option that are shown."""
    told = figures_of_option(brief.pool.estimate(option.row), float(brief.expected_s[option.row]))
    return {name: value for name, value in told.items() if name not in ("serial_s", "mfu", "hbm_gb")}


def card_lines(brief: Brief, cards: Sequence[Card]) -> str:
    """What experts say of the best trial."""
    facts = facts_of_result(brief.pool.problem, brief.best) if brief.best else {}
    bound = str(facts.get("bound", ""))
    told = [(each, brief.recall.record_text(each.name, bound)) for each in fired(cards, facts)[:CARDS]]
    rows = [f"{each.name}: {sentence(each.why, 160)} {record}".rstrip() for each, record in told]
    return block("cards", rows or ["none applies"])


def case_lines(brief: Brief) -> str:
    """What the memory recalls, with how the cases fared that were followed."""
    rows = []
    for each in brief.recall.cases[:CASES]:
        record = brief.recall.record_text(each.name, "")
        rows.append(
            f"{each.name} ({each.sort}, {each.similarity:.0%} alike): {sentence(each.text, 200)} {record}".rstrip()
        )
    return block("cases", rows or ["none"])


def refuted(brief: Brief) -> str:
    """Ideas whose prediction did not hold."""
    by_number: Mapping[int, Result] = {each.candidate.number: each for each in brief.results}
    rows = []
    for each in reversed(brief.results):
        idea = each.candidate.proposal
        if idea is None:
            continue
        verdict = judge(idea.prediction, each, by_number.get(idea.base) if idea.base is not None else None)
        if verdict.status != "confirmed":
            rows.append(f"{trial_name(each)}, {sentence(idea.mechanism, 100)}: {verdict.status}, {verdict.text[:120]}")
    return block("refuted", rows[:REFUTED] or ["none"])
