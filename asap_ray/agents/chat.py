"""What is asked of a language model and what it answers, in plain types that know no client.

A `Question` is one turn of a role: its prompt, the schema that the answer must have, and the project's own check of it.
An `Asker` puts it to whatever there is, and comes back with a value that passed both, or with the reason why there is
none. Whoever asks goes on either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from asap_ray.search.protocol import Told


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool that a model asks for, with its arguments as the JSON text that the model wrote."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a conversation; `calls` are those of an assistant, `call` the id that a tool's message answers."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    call: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """Something that a model may look up.

    `call` takes validated `arguments` and returns text, which reaches the model as data: delimited, and cut at `most`
    characters. It changes nothing. An `AsapError` of it is told to the model.
    """

    name: str
    about: str
    arguments: type[BaseModel]
    call: Callable[[Any], str]
    most: int = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a role asks.

    `prompt` is the name and version of the prompt's file (`proposal-1`). `schema` must be fit for strict mode (fields
    by name, no open maps). `check` says why a value that fits the schema is not accepted, or None. `digest` is put
    below `user` where the endpoint has no tools. With `expert` the expert is asked at once. An answer equal to one that
    the role gave before is not accepted, unless it `may_repeat`. So many as `look_ups` answers may ask for tools; then
    the model is to answer without.
    """

    role: str
    prompt: str
    system: str
    user: str
    schema: type[BaseModel]
    check: Callable[[Any], str | None] = lambda value: None
    tools: tuple[Tool, ...] = ()
    look_ups: int = 3
    digest: str = ""
    expert: bool = False
    may_repeat: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A value that fits the question's schema and passed its check, with the model that gave it; or None and why."""

    value: Any
    model: str = ""
    reason: str = ""


class Asker(Protocol):
    """Puts questions to language models."""

    def ask(self, question: Question) -> Answer:
        """The answer; it comes within a bounded time, and never raises for what an endpoint does."""
        ...

    def drain(self) -> list[Told]:
        """What happened since this was last asked, for the record."""
        ...
