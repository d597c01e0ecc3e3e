"""One request to a model and its reply as values: hashed, recorded in an event, and read back from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

from asap_ray.agents.chat import Message, Tool, ToolCall

CALL = "llm_call"
"""The kind of the event that a call is."""


class Verdict(StrEnum):
    """What became of a call."""

    GOOD = "good"
    TOOLS = "asks for tools"
    REPEAT = "repeats an earlier answer"
    REJECTED = "rejected"
    INVALID = "does not fit the schema"
    MALFORMED = "no JSON"
    EMPTY = "empty"
    REFUSAL = "refusal"
    FILTERED = "content filter"
    TRUNCATED = "truncated"
    UNSUPPORTED = "form not supported"
    TOO_LONG = "prompt too long"
    BAD_REQUEST = "bad request"
    NOT_FOUND = "not found"
    DENIED = "denied"
    QUOTA = "quota"
    BUSY = "rate limited"
    SERVER_ERROR = "server error"
    UNREACHABLE = "unreachable"
    DISCONNECTED = "disconnected"
    TIMEOUT = "timeout"
    NOT_RECORDED = "not recorded"
    SPENT = "spent"


REPAIRABLE = frozenset({Verdict.REJECTED, Verdict.INVALID, Verdict.MALFORMED, Verdict.EMPTY, Verdict.TRUNCATED})
"""One more turn that quotes the reason may mend these."""
NEXT = REPAIRABLE | {
    *(Verdict.REPEAT, Verdict.REFUSAL, Verdict.FILTERED, Verdict.TOO_LONG, Verdict.BAD_REQUEST),
    *(Verdict.NOT_FOUND, Verdict.SPENT),
}
"""Another model may do better."""
FINAL = frozenset({Verdict.DENIED, Verdict.QUOTA})
"""No further call of this run can do better."""
SILENT = frozenset(
    {Verdict.BUSY, Verdict.SERVER_ERROR, Verdict.UNREACHABLE, Verdict.DISCONNECTED, Verdict.TIMEOUT},
)
"""The endpoint gave no answer at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How an answer is asked for, the strictest first: what an endpoint does not take, it is not asked again.

    `answer` is a strict schema, JSON mode with the schema in the prompt, or plain text that JSON is cut out of. `cap`
    is the name that the limit of an answer's tokens goes by.
    """

    answer: Literal["schema", "json", "text"] = "schema"
    tools: bool = False
    cap: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    swapped: bool = False

    def simpler(self, error: str) -> Form | None:
        """What to try where this was refused with that error; None where nothing is left."""
        if not self.swapped and ("max_tokens" in error or "max_completion_tokens" in error):
            other = "max_tokens" if self.cap == "max_completion_tokens" else "max_completion_tokens"
            return replace(self, cap=other, swapped=True)
        if self.tools and "tool" in error.lower():
            return replace(self, tools=False)
        if self.answer != "text":
            return replace(self, answer="json" if self.answer == "schema" else "text")
        return replace(self, tools=False) if self.tools else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request. Without `open_tools` the model may see tools and call none: it is to answer now."""

    model: str
    messages: tuple[Message, ...]
    schema: type[BaseModel]
    tools: tuple[Tool, ...] = ()
    open_tools: bool = True
    form: Form
    most_tokens: int

    @property
    def text(self) -> str:
        """All that decides the answer, as one canonical JSON text."""
        tools = [{"name": each.name, "about": each.about, "arguments": _schema(each.arguments)} for each in self.tools]
        told = {"model": self.model, "messages": [asdict(each) for each in self.messages], "tools": tools}
        told |= {"schema": _schema(self.schema), "form": asdict(self.form)}
        told |= {"open_tools": self.open_tools, "most_tokens": self.most_tokens}
        return json.dumps(told, sort_keys=True)

    @property
    def hash(self) -> str:
        """What the reply is found by."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came back, as data: cleaned, capped and without secrets. `trouble` says why there is no answer in it.

    Tokens are None where the endpoint did not count them. `tries` are requests that were sent for it, `lost`
    those of them before the last that the endpoint may have worked for.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    latency_s: float = 0.0
    tries: int = 1
    lost: int = 0
    trouble: Verdict | None = None
    error: str = ""


Wire = Callable[[Request], Reply]
"""Sends a request and waits for its reply, for a bounded time; raises for no fault of the endpoint."""
Recorded = Mapping[tuple[str, int], Reply]
"""Replies by the hash of the request and how many times it had been sent."""


def recorded(events: Iterable[Mapping[str, Any]], *, live: bool) -> Recorded:
    """The replies that the events of a run hold.

    Where there is an endpoint too (`live`), the failures after its last answer are left out: they are asked anew, since
    a run that is taken up again is often one whose key or server has been put right.

    Raises:
        LookupError, TypeError, ValueError: an event of a call is not as it is written now.
    """
    found = [((str(each["hash"]), int(each["nth"])), reply_of(each)) for each in events if each["kind"] == CALL]
    while live and found and found[-1][1].trouble in SILENT | FINAL | {Verdict.NOT_FOUND}:
        found.pop()
    return dict(found)


def reply_of(event: Mapping[str, Any]) -> Reply:
    """The reply that an event of a call holds."""
    return Reply(
        text=event["text"],
        calls=tuple(ToolCall(**each) for each in event["calls"]),
        finish=event["finish"],
        tokens_in=event["tokens_in"],
        tokens_out=event["tokens_out"],
        latency_s=event["latency_s"],
        tries=event["tries"],
        lost=event.get("lost", 0),
        trouble=Verdict(event["trouble"]) if event["trouble"] else None,
        error=event["error"],
    )


def fields_of(reply: Reply) -> dict[str, Any]:
    """The fields of an event that hold the reply."""
    return asdict(reply) | {"calls": [asdict(each) for each in reply.calls]}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()
