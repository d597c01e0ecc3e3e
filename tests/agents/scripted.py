"""A model that reads what it is shown and answers by a script, and an asker without a wire."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from asap_ray.agents.chat import Answer, Question
from asap_ray.search.protocol import Told

Plain = dict[str, Any]
_SHOWN = re.compile(r"^((?:trial \d+)|(?:m\d+))(?: \w+)?: (\w[\w.+]*=\S+.*)$", re.MULTILINE)


def sources(text: str) -> dict[str, dict[str, float]]:
    """Every source that a text shows, with its figures."""
    return {
        name: {key: float(value) for key, value in re.findall(r"([\w.+]+)=([-+\d.e]+)(?= |$)", rest)}
        for name, rest in _SHOWN.findall(text)
    }


def idea(option: str, shown: Plain, **changes: Any) -> Plain:
    """A sound proposal of an option: the step that is expected, within 10%."""
    expected = shown["expected_s"]
    return {
        "option": option,
        "changes": [],
        "hypothesis": f"{option} is expected to be fast",
        "mechanism": "less of what is exposed",
        "figure": "step_time_s",
        "low": 0.9 * expected,
        "high": 1.1 * expected,
        "falsification": "a step outside",
        "trade_off": "memory",
        "cites": [],
        "evidence": [{"source": option, "figure": "expected_s", "value": expected}],
        **changes,
    }


def good(role: str, text: str) -> Plain:
    """What a model answers that has read what it was shown."""
    shown = sources(text)
    if role == "analyzer":
        (name, figures), *_ = shown.items()
        figure = "step_time_s" if "step_time_s" in figures else next(iter(figures))
        cited = {"source": name, "figure": figure, "value": figures[figure]}
        return {"bound": "compute", "cause": "matmuls fill it", "next": "smaller mesh axes", "evidence": [cited]}
    if role == "coordinator":
        return {"action": "go_on", "expert": False, "reason": "something may be faster"}
    chosen = [name for name in shown if name.startswith("m")][:3]
    return {"ideas": [idea(name, shown[name]) for name in chosen], "last": []}


@dataclass
class Scripted:
    """Asks `answers`, a list of tries for a role and a text; what passes schema and check is the answer."""

    answers: Callable[[str, str], list[Plain]] = lambda role, text: [good(role, text)]
    asked: list[Question] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        reason = "no answer"
        for each in self.answers(question.role, question.user):
            try:
                value = question.schema.model_validate(each)
            except ValidationError as error:
                reason = str(error)
                continue
            if (wrong := question.check(value)) is None:
                return Answer(value=value, model="scripted")
            reason = wrong
            self.refused.append(reason)
        return Answer(value=None, reason=reason)

    def drain(self) -> list[Told]:
        return []


def nothing(role: str, text: str) -> list[Plain]:
    return []
