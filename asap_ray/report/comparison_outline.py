"""A comparison on a terminal: the methods with their intervals, then the agents against each of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asap_ray.report import units
from asap_ray.report.comparison import OFF, ComparisonAnswer
from asap_ray.report.outline import Block, Grid

NEVER = "never"
SURE_P = 0.05


def outline(answer: ComparisonAnswer, fields: Mapping[str, Any], files: Sequence[str]) -> Iterator[Block]:
    """Everything, most important first."""
    yield Block(title="Search methods compared", facts=tuple(ground_facts(answer, fields)))
    yield Block(title=f"Over {len(answer.main)} {answer.kinds[0]} grounds", grid=method_grid(fields["methods"]))
    yield Block(facts=(("best", leader_words(fields)),))
    for name in agents_in(fields["methods"]):
        yield Block(title=f"{name} against each other method", grid=pair_grid(fields["pairs"], name))
        off = fields["pairs_where_roofline_errs"]
        if off:
            title = f"{name} where the roofline is off by more than {units.percent(OFF)} in the median"
            yield Block(title=title, grid=pair_grid(off, name))
    others = {name: found for name, found in fields["by_source"].items() if len(fields["by_source"]) > 1}
    for name, found in others.items():
        yield Block(title=f"{name}: {_grounds(found)} grounds", grid=method_grid(found))
    yield Block(
        facts=(
            ("files", ", ".join(files)),
            ("in", str(answer.run_dir)),
            ("took", units.seconds(answer.wall_s)),
        )
    )


def _grounds(found: Mapping[str, Any]) -> int:
    return max(each["grounds"] for each in found.values())


def ground_facts(answer: ComparisonAnswer, fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was searched, at what cost, and what the roofline's constants left out."""
    budget, counts = fields["budget"], fields["grounds"]
    told = [
        ("grounds", ", ".join(f"{count} of {name}" for name, count in counts["by_source"].items())),
        ("trial", f"{answer.evaluator}; it costs {budget['steps']} steps and {budget['start_up_s']:g} s of start-up"),
        ("rounds", f"{budget['width']} trials side by side, {budget['trials']} at most"),
    ]
    return told + [("constants", f"{name} ({count} grounds)") for name, count in counts["constants"].items()]


def method_grid(methods: Mapping[str, Any]) -> Grid:
    """A line for each method: figures with the ends of their 95% intervals."""
    header = (
        *("method", "trials to 1%", "middle half", "solved", "to 5%", "regret after 1", "3", "10"),
        *("best of 3 within 1%", "5%", "did not run", "chip-hours to 1%"),
    )
    rows = []
    for name, each in methods.items():
        one, five = each["trials_to_1pct"], each["trials_to_5pct"]
        hours = {key: value and value / 3600.0 for key, value in each["chip_seconds_to_1pct"].items()}
        rows.append(
            (
                name,
                number(one["median"]),
                " to ".join(_plain(end) for end in one["iqr"]),
                share(one["solved"]),
                number(five["median"]),
                *(share(each["regret_at"][k]) for k in ("1", "3", "10")),
                share(each["within_after_3"]["1pct"]),
                share(each["within_after_3"]["5pct"]),
                share(each["infeasible_trials"]),
                number(hours),
            )
        )
    return Grid(header=header, rows=tuple(rows), words=("method",))


def _plain(value: float | None) -> str:
    return NEVER if value is None else f"{value:g}"


def number(figure: Mapping[str, float | None]) -> str:
    """A count with its interval."""
    value, low, high = (figure[key] for key in ("value", "low", "high"))
    text = NEVER if value is None else units.three_digits(value)
    if low == high:
        return text
    return f"{text} ({NEVER if low is None else units.three_digits(low)} to {_end(high)})"


def _end(value: float | None) -> str:
    return NEVER if value is None else units.three_digits(value)


def share(figure: Mapping[str, float | None]) -> str:
    """A share with its interval."""
    value, low, high = (figure[key] for key in ("value", "low", "high"))
    if low == high:
        return units.percent(value)
    return f"{units.percent(value)} ({units.percent(low)} to {units.percent(high)})"


def leader_words(fields: Mapping[str, Any]) -> str:
    """The winner, where there is one."""
    if fields["leader"]:
        return (
            f"{fields['leader']}: a lower mean regret over the first ten trials than each other method, beyond chance"
        )
    return "no method is better than all others beyond chance"


def agents_in(methods: Mapping[str, Any]) -> list[str]:
    """The brains of agents among the methods, alone and whole."""
    return [name for name in methods if name in ("playbook", "policy", "llm")]


def pair_grid(found: Sequence[Mapping[str, Any]], name: str) -> Grid:
    """A method against each other one: on how many grounds it needs fewer trials, and the paired tests."""
    header = ("against", "grounds", "fewer trials", "as many", "more", "p of trials", "p of regret", "so")
    rows = []
    for each in found:
        if name in (each["first"], each["second"]):
            turned = each["second"] == name
            wins, losses = (each["losses"], each["wins"]) if turned else (each["wins"], each["losses"])
            lower = each["lower_regret"] != turned
            verdict = "no difference beyond chance"
            if each["p_regret"] < SURE_P:
                verdict = "lower regret" if lower else "higher regret"
            p = (f"{each['p_trials']:.2g}", f"{each['p_regret']:.2g}")
            other = each["first"] if turned else each["second"]
            counts = (str(each["grounds"]), str(wins), str(each["ties"]), str(losses))
            rows.append((other, *counts, *p, verdict))
    return Grid(header=header, rows=tuple(rows), words=("against", "so"))
