"""What an endpoint supports, found out by asking it: for `task=doctor`, and to be told before a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.chat import Question
from asap_ray.agents.conversation import PROBE
from asap_ray.agents.spending import Limits
from asap_ray.agents.wire import Reply, Request


class Listing(Protocol):
    """A wire that can also list the models of its endpoint."""

    def __call__(self, request: Request) -> Reply:
        """Send a request."""
        ...

    def models(self) -> tuple[str, ...] | None:
        """Names of models; None where it does not say."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Supported:
    """What a model on an endpoint takes. `answer` is how an answer was got ("none": not at all, and `reason` why);
    `models` is None where the endpoint lists none."""

    model: str
    models: tuple[str, ...] | None
    answer: Literal["schema", "json", "text", "none"]
    tools: bool
    calls: int
    tokens: int
    reason: str = ""


SAY_READY = Question(
    role="probe",
    prompt="probe-2",
    system="You answer in JSON.",
    user="Say that you are ready: true.",
    schema=PROBE.schema,
    may_repeat=True,
)


def probe(limits: Limits, endpoint: Listing) -> Supported:
    """Ask for a small answer, and for a call of a tool."""
    asker = Cascade(limits=limits, wire=endpoint)
    talk = asker.talk(limits.model)
    answer = asker.ask(SAY_READY)
    found = talk.abilities
    if answer.value is not None:
        talk.probe_tools()
    return Supported(
        model=limits.model,
        models=endpoint.models(),
        answer="none" if answer.value is None else found.form.answer,
        tools=bool(found.tools),
        calls=asker.budget.calls,
        tokens=asker.budget.tokens,
        reason=answer.reason,
    )
