"""A language model as the brain: its roles read trials, decide and propose, and code checks all of it.

The Analyzer reads the first trial of a round on a thread of its own while others still run. Between rounds the
Coordinator says what is next, and the Proposal agent answers with three ideas. Whatever is not sound, and each turn in
which no answer comes, is the playbook's; so is every turn while the model's own gambles cost more than their share.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from asap_ray.agents import digest
from asap_ray.agents.answers import Decision, Ideas, Reading
from asap_ray.agents.brief import Advice, Brain, Brief
from asap_ray.agents.chat import Answer, Asker, Question
from asap_ray.agents.facts import facts_of_result
from asap_ray.agents.figures import cited, figures_of_result, sentence
from asap_ray.agents.ideas import Reader, come_last
from asap_ray.agents.lookups import analyzer_tools, proposal_tools
from asap_ray.agents.options import base_row, options
from asap_ray.agents.proposal import Proposal
from asap_ray.agents.trust import gamble, wasted
from asap_ray.knowledge import Card, fired
from asap_ray.narrowing import Narrowing
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.search.protocol import Result, Told, best_of

NAME = "llm"
STALLED = 2
"""Rounds without a gain after which the expert is asked."""
READINGS = 3
"""Readings of trials that the proposals are shown, the latest."""
VERSION = 1


@cache
def prompt(role: str) -> tuple[str, str]:
    """The name of a role's prompt, with its version, and its text."""
    name = f"{role}-{VERSION}"
    return name, (Path(__file__).parent / "prompts" / f"{name}.md").read_text(encoding="utf-8")


@dataclass(kw_only=True)
class Reasoner:
    """Brain and adviser in one, with `rules`, another brain, behind it.

    `share` of the trials, or one round, may be lost on its gambles; `cards` are what it is shown of expert knowledge.
    """

    asker: Asker
    rules: Brain
    problem: Problem
    cards: tuple[Card, ...] = ()
    share: float = 0.2
    name: str = NAME
    _readings: dict[int, Reading] = field(default_factory=dict)
    _decision: Decision | None = None
    _last: tuple[Narrowing, ...] = ()
    _gambles: set[Plan] = field(default_factory=set)
    _width: int = 1
    _lead: Plan | None = None
    _earlier: tuple[Result, ...] = ()
    _told: list[Told] = field(default_factory=list)
    _analyst: Analyst | None = None

    def propose(self, brief: Brief, count: int) -> list[Proposal]:
        """The model's sound ideas, then the rules'; the rules' alone where they have the turn."""
        found = self._proposals(brief, count)
        self._lead = found[0].plan if found else None
        return found

    def _proposals(self, brief: Brief, count: int) -> list[Proposal]:
        self._width = max(count, self._width)
        if reason := wasted(brief, self._gambles, self.share, self._width):
            return self._playbooks_turn(brief, count, reason)
        base = base_row(brief)
        shown = options(brief, self.rules, base)
        reader = self._reader(brief, base, shown)
        answer = self._ask(self._question(brief, base, reader))
        for each in reader.said:
            self._tell("refusal", plan=each.plan, author=self.name, card="", reason=each.reason)
        if answer.value is None:
            return self._playbooks_turn(brief, count, answer.reason)
        self._last = self._come_last(brief, answer.value)
        if not reader.sound:
            return self._playbooks_turn(brief, count, "no idea of its answer may be tried")
        found = reader.sound[:count]
        self._gambles |= {each.plan for each in found if gamble(brief, each)}
        taken = {each.plan for each in found}
        return [*found, *(each for each in self._by_rules(brief, 2 * count) if each.plan not in taken)][:count]

    def revise(self, brief: Brief, refused: Proposal, reason: str, others: Sequence[Proposal]) -> Proposal | None:
        """The playbook's: the model has had its second chance within its answer."""
        return self.rules.revise(brief, refused, reason, others)

    def seen(self, result: Result) -> None:
        """Let the Analyzer read the first proposal's trial while others run: to read all would cost more than it tells,
        and the rules read all of them."""
        if result.candidate.plan == self._lead and result.status in ("complete", "pruned", "infeasible"):
            self._analyst = self._analyst or Analyst()
            earlier = self._earlier
            self._analyst.begin(result.candidate.number, lambda: self._read(result, earlier))

    def advise(self, brief: Brief) -> Advice:
        """What the Coordinator says, once the readings of the round are there."""
        self._earlier = brief.results
        self._collect()
        if wasted(brief, self._gambles, self.share, self._width):
            return Advice(last=self._last)
        name, system = prompt("coordinator")
        text = self._state(brief, base_row(brief))
        answer = self._ask(
            Question(role="coordinator", prompt=name, system=system, user=text, schema=Decision, may_repeat=True)
        )
        self._decision = answer.value
        if answer.value is None:
            return Advice(last=self._last)
        decision: Decision = answer.value
        reason = sentence(decision.reason)
        self._tell("decision", author=self.name, action=decision.action, expert=decision.expert, reason=reason)
        stop = reason or "it gives no reason"
        return Advice(
            stop=stop if decision.action == "stop" else "", explore=decision.action == "explore", last=self._last
        )

    def drain(self) -> list[Told]:
        """Calls, readings, decisions and refusals since this was last asked."""
        self._collect()
        told, self._told = self._told, []
        return told

    def _ask(self, question: Question) -> Answer:
        answer = self.asker.ask(question)
        self._told += self.asker.drain()
        return answer

    def _playbooks_turn(self, brief: Brief, count: int, reason: str) -> list[Proposal]:
        self._tell("turn", brain=self.rules.name, instead_of=self.name, reason=sentence(reason))
        return self._by_rules(brief, count)

    def _by_rules(self, brief: Brief, count: int) -> list[Proposal]:
        found = self.rules.propose(brief, count)
        return [replace(each, author=each.author or self.rules.name) for each in found]

    def _reader(self, brief: Brief, base: int, shown: Sequence[Any]) -> Reader:
        figures = {digest.trial_name(each): figures_of_result(each) for each in brief.results}
        figures |= {each.name: digest.option_figures(brief, each) for each in shown}
        facts = facts_of_result(self.problem, brief.best) if brief.best else {}
        ids = frozenset(each.name for each in (*fired(self.cards, facts), *brief.recall.cases))
        return Reader(brief=brief, base=base, options=shown, figures=figures, ids=ids, author=self.name)

    def _question(self, brief: Brief, base: int, reader: Reader) -> Question:
        name, system = prompt("proposal")
        text = "\n".join(
            (
                self._state(brief, base),
                digest.option_lines(brief, reader.options, base),
                digest.card_lines(brief, self.cards),
                digest.case_lines(brief),
                digest.refuted(brief),
            )
        )
        expert = (self._decision is not None and self._decision.expert) or stalled(brief.results) >= STALLED
        return Question(
            role="proposal",
            prompt=name,
            system=system,
            user=text,
            schema=Ideas,
            check=reader.check,
            tools=proposal_tools(brief, base) if expert else (),
            expert=expert,
        )

    def _state(self, brief: Brief, base: int) -> str:
        """The job, the trials and what was read in them."""
        closed = ", ".join(f"{name} {count}" for name, count in brief.closed.items() if count)
        standing = f"{int(brief.open.sum())} plans open; closed: {closed or 'none'}"
        return "\n".join((digest.job(self.problem), f"{standing}.", digest.trials(brief, base), self._reading_lines()))

    def _reading_lines(self) -> str:
        rows = [
            f"trial {number}: bound by {each.bound}; {sentence(each.cause, 160)} {sentence(each.next, 160)}"
            for number, each in sorted(self._readings.items())[-READINGS:]
        ]
        return digest.block("readings", rows or ["none"])

    def _read(self, result: Result, earlier: Sequence[Result]) -> tuple[Reading | None, list[Told]]:
        """What the Analyzer reads in one trial, with what is to be told of the calls."""
        name, system = prompt("analyzer")
        figures = {digest.trial_name(result): figures_of_result(result)}

        def check(reading: Reading) -> str | None:
            if not reading.evidence:
                return "cite at least one figure of this trial"
            told = (cited(figures, each.source, each.figure, each.value) for each in reading.evidence)
            return next((reason for reason in told if reason), None)

        details = (digest.top_ops(result), digest.traffic(result), digest.memory(result))
        answer = self.asker.ask(
            Question(
                role="analyzer",
                prompt=name,
                system=system,
                user="\n".join((digest.job(self.problem), digest.summary(result))),
                schema=Reading,
                check=check,
                tools=analyzer_tools(result, earlier),
                digest="\n".join(details),
                look_ups=1,
                may_repeat=True,
            )
        )
        return answer.value, self.asker.drain()

    def _collect(self) -> None:
        """Readings of the round, in the order of its trials, whatever came first."""
        for number, (reading, told) in self._analyst.collect() if self._analyst else ():
            self._told += told
            if reading is None:
                continue
            self._readings[number] = reading
            plain = asdict_of(reading)
            self._tell("reading", trial=number, author=self.name, **plain)

    def _come_last(self, brief: Brief, answer: Ideas) -> tuple[Narrowing, ...]:
        found, faults = come_last(brief, answer.last, self.name)
        for each in faults:
            self._tell("refusal", plan=f"last: {each.plan}", author=self.name, card="", reason=each.reason)
        for each in found:
            self._tell("last", **asdict(each))
        return tuple(found)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._told.append(Told(kind=kind, fields=fields))


def asdict_of(reading: Reading) -> dict[str, Any]:
    """A reading as plain fields, its sentences inert."""
    return {
        "bound": reading.bound,
        "cause": sentence(reading.cause),
        "next": sentence(reading.next),
        "evidence": [each.model_dump() for each in reading.evidence],
    }


def stalled(results: Sequence[Result]) -> int:
    """Trials since the best, in rounds of three."""
    best = best_of(results)
    if best is None:
        return 0
    return sum(each.candidate.number > best.candidate.number for each in results) // 3


class Analyst:
    """One thread that reads trials in turn, while whoever began it goes on."""

    def __init__(self) -> None:
        """Start the thread; it ends with the process."""
        self._work: queue.SimpleQueue[tuple[int, Callable[[], Any]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._open = 0
        threading.Thread(target=self._run, name="analyst", daemon=True).start()

    def begin(self, number: int, read: Callable[[], Any]) -> None:
        """Have a trial read."""
        self._open += 1
        self._work.put((number, read))

    def collect(self) -> list[tuple[int, Any]]:
        """All that was begun, once it is done, by number; a call ends within its own limits of time."""
        found = []
        while self._open:
            number, value = self._done.get()
            self._open -= 1
            if isinstance(value, BaseException):
                raise value
            found.append((number, value))
        return sorted(found, key=lambda each: each[0])

    def _run(self) -> None:
        while True:
            number, read = self._work.get()
            try:
                self._done.put((number, read()))
            except BaseException as error:  # a fault of ours belongs to whoever waits for it
                self._done.put((number, error))
