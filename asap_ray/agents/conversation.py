"""One question put to one model: in a form that its endpoint takes, with tools where it has them, mended once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from asap_ray.agents.chat import Message, Question, Tool, ToolCall
from asap_ray.agents.judging import Judged, faults, schema_text
from asap_ray.agents.untrusted import clean, delimited
from asap_ray.agents.wire import FINAL, REPAIRABLE, SILENT, Form, Request, Verdict
from asap_ray.errors import AsapError

NO_ANSWER = SILENT | FINAL | {Verdict.SPENT, Verdict.NOT_RECORDED, Verdict.NOT_FOUND}
"""Ends of a probe that a question would meet too."""
MOST_QUOTED = 6_000
"""Characters of a refused answer that its model sees again."""
LONGER = 2
"""How many times as many tokens an answer gets that was cut."""


class Desk(Protocol):
    """Where requests are paid for, sent, judged and recorded."""

    def call(self, request: Request, question: Question, turn: str) -> Judged:
        """The judged reply."""
        ...


class _Nothing(BaseModel):
    """No arguments."""

    model_config = ConfigDict(extra="forbid")


class Ready(BaseModel):
    """The answer to a probe."""

    model_config = ConfigDict(extra="forbid")
    ready: bool


PROBE = Question(
    role="probe",
    prompt="probe-1",
    system="Call the tool `ready` once before you answer. Then answer with its result.",
    user="Is it ready?",
    schema=Ready,
    tools=(Tool(name="ready", about="Says whether it is ready.", arguments=_Nothing, call=lambda given: "yes"),),
    may_repeat=True,
)
"""Whether a model calls a tool that it is told to call, while its answer is bound to a schema."""


@dataclass
class Abilities:
    """What a model's endpoint was found to take so far; `tools` is None until it was probed."""

    form: Form = field(default_factory=Form)
    tools: bool | None = None


@dataclass(kw_only=True)
class Conversation:
    """Puts questions to one model, and remembers what its endpoint takes."""

    model: str
    desk: Desk
    most_tokens: int
    abilities: Abilities = field(default_factory=Abilities)

    def ask(self, question: Question) -> Judged:
        """What came of the question in the end, each call of it recorded at the desk."""
        if question.tools and (failed := self.probe_tools()) is not None:
            return failed
        form = replace(self.abilities.form, tools=bool(question.tools and self.abilities.tools))
        messages, most_tokens = opening(question, form), self.most_tokens
        turn, mended, rounds = "ask", False, 0
        while True:
            request = self._request(question, form, messages, most_tokens, open_tools=rounds < question.look_ups)
            judged = self.desk.call(request, question, turn)
            if judged.verdict is Verdict.TOOLS:
                turn, rounds = "tools", rounds + 1
                messages += answered(judged, question.tools)
            elif judged.verdict is Verdict.UNSUPPORTED:
                form = self._simpler(form, judged)
                turn, messages = "ask", opening(question, form)
            elif judged.verdict in REPAIRABLE and not mended:
                turn, mended = "repair", True
                form = self._learned(form, judged)
                messages += repair(judged, question, form)
                most_tokens *= LONGER if judged.verdict is Verdict.TRUNCATED else 1
            else:
                return judged

    def probe_tools(self) -> Judged | None:
        """Find out whether the model calls tools, with a call of its own, where that is not known; what failed of it
        that would fail for a question too."""
        form = replace(self.abilities.form, tools=True)
        while self.abilities.tools is None:
            found = self._probe(form)
            if found.verdict in NO_ANSWER:
                return found
            simpler = form.simpler(found.reason) if found.verdict is Verdict.UNSUPPORTED else None
            if simpler is not None and simpler.cap != form.cap:
                form = simpler
                self.abilities.form = replace(form, tools=False)
            else:
                self.abilities.tools = found.verdict is Verdict.TOOLS
        return None

    def _probe(self, form: Form) -> Judged:
        return self.desk.call(self._request(PROBE, form, opening(PROBE, form), self.most_tokens), PROBE, "probe")

    def _request(
        self, question: Question, form: Form, messages: tuple[Message, ...], most_tokens: int, open_tools: bool = True
    ) -> Request:
        return Request(
            model=self.model,
            messages=messages,
            schema=question.schema,
            tools=question.tools if form.tools else (),
            open_tools=open_tools,
            form=form,
            most_tokens=most_tokens,
        )

    def _simpler(self, form: Form, judged: Judged) -> Form:
        simpler = form.simpler(judged.reply.error)
        assert simpler is not None, "only what has a simpler form is called unsupported"
        if form.tools and not simpler.tools:
            self.abilities.tools = False
        self.abilities.form = replace(simpler, tools=False)
        return simpler

    def _learned(self, form: Form, judged: Judged) -> Form:
        """JSON mode from now on, where an answer shows that the endpoint took the schema and heeded it not."""
        if form.answer != "schema" or not judged.unlike:
            return form
        self.abilities.form = replace(self.abilities.form, answer="json")
        return replace(form, answer="json")


def opening(question: Question, form: Form) -> tuple[Message, ...]:
    """The first messages: with the schema where the endpoint has no schemas, with the digest where it has no tools."""
    system = question.system
    if form.answer != "schema":
        system += f"\n\nAnswer with one JSON object and nothing else. Its JSON schema:\n{schema_text(question.schema)}"
    user = question.user if form.tools or not question.digest else f"{question.user}\n\n{question.digest}"
    return Message(role="system", content=system), Message(role="user", content=user)


def repair(judged: Judged, question: Question, form: Form) -> tuple[Message, ...]:
    """The refused answer, and what is wrong with it."""
    said = clean(judged.reply.text, MOST_QUOTED).strip() or "(nothing)"
    told = f"That answer was not accepted: {judged.verdict}.\n{delimited('reason', judged.reason)}\n"
    told += "Answer the question again, shorter." if judged.verdict is Verdict.TRUNCATED else "Answer once more."
    if form.answer != "schema":
        told += f" One JSON object and nothing else, of this JSON schema:\n{schema_text(question.schema)}"
    return Message(role="assistant", content=said), Message(role="user", content=told)


def answered(judged: Judged, tools: tuple[Tool, ...]) -> tuple[Message, ...]:
    """The model's calls of tools, and what they say."""
    calls = judged.reply.calls
    asked = Message(role="assistant", content=judged.reply.text, calls=calls)
    said = [Message(role="tool", content=looked_up(each, tools), call=each.id) for each in calls]
    return asked, *said


def looked_up(call: ToolCall, tools: tuple[Tool, ...]) -> str:
    """What a tool says, as data; what is wrong with the call, where something is."""
    tool = next((each for each in tools if each.name == call.name), None)
    if tool is None:
        return f"There is no such tool; there are: {', '.join(each.name for each in tools)}."
    try:
        return delimited(tool.name, tool.call(tool.arguments.model_validate_json(call.arguments)), tool.most)
    except ValidationError as error:
        return delimited(tool.name, f"The arguments do not fit: {faults(error)}", tool.most)
    except AsapError as error:
        return delimited(tool.name, f"Not found: {error}", tool.most)
