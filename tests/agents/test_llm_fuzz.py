"""Whatever comes over the wire: an ask ends within its caps, and gives a value of the schema that was checked, or why
there is none."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.chat import Question, Tool, ToolCall
from asap_ray.agents.judging import objects
from asap_ray.agents.replies import Reader
from asap_ray.agents.spending import Limits
from asap_ray.agents.untrusted import clean, delimited
from asap_ray.agents.wire import Reply, Request, Verdict, recorded
from asap_ray.redaction import redacted


class Move(BaseModel):
    model_config = ConfigDict(extra="forbid")
    axis: str
    size: int = Field(ge=1, le=64)


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    row: int


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("size"), inner, max_size=3)
    ),
    max_leaves=8,
)
MOVES = st.fixed_dictionaries({"axis": st.text(max_size=8), "size": st.integers(-2, 70)})
AMID = st.builds("{}{}{}".format, st.text(max_size=20), MOVES.map(json.dumps), st.text(max_size=20))
TEXTS = st.text(max_size=60) | st.builds(json.dumps, JSON) | AMID
TOOL_CALLS = st.builds(
    ToolCall, id=st.text(max_size=3), name=st.sampled_from(["look", "rm", ""]), arguments=TEXTS | st.just('{"row": 1}')
)
COUNTS = st.none() | st.integers(0, 5000)
ENDS = [each for each in Verdict if each not in (Verdict.GOOD, Verdict.TOOLS, Verdict.UNSUPPORTED, Verdict.SPENT)]
ANSWERS = st.builds(Reply, text=AMID.map(clean), finish=st.just("stop"))
WILD = st.builds(
    Reply,
    text=TEXTS.map(clean),
    calls=st.lists(TOOL_CALLS, max_size=2).map(tuple),
    finish=st.sampled_from(["stop", "length", "content_filter", "tool_calls", "odd"]),
    tokens_in=COUNTS,
    tokens_out=COUNTS,
    trouble=st.none() | st.none() | st.sampled_from(ENDS),
    error=st.sampled_from(["", "tools", "max_tokens", "no"]),
)
REPLIES = ANSWERS | ANSWERS | WILD
LIMITS = Limits(model="cheap", expert="dear", max_calls=25, max_tokens=60_000, answer_tokens=1000)
LOOK = Tool(name="look", about="A row.", arguments=Place, call=lambda given: f"row {given.row}")


def ask(asked: Cascade, rounds: int) -> list[tuple[Any, str]]:
    found = []
    for place in range(rounds):
        question = Question(
            role="proposal",
            prompt="fuzz-1",
            system="Propose.",
            user=f"round {place}",
            schema=Move,
            check=lambda value: None if value.size % 2 == 0 else "odd",
            tools=(LOOK,) if place % 2 else (),
            expert=place == 2,
        )
        answer = asked.ask(question)
        assert (answer.value is None) == bool(answer.reason)
        assert answer.reason.isprintable() or "\n" in answer.reason
        found.append((answer.value, answer.reason))
    return found


@settings(max_examples=200, deadline=None)
@given(replies=st.lists(REPLIES, min_size=1, max_size=30), rounds=st.integers(1, 6))
def test_an_ask_ends_within_its_caps_with_a_checked_value_or_a_reason(replies: list[Reply], rounds: int):
    sent: list[Request] = []

    def wire(request: Request) -> Reply:
        sent.append(request)
        return replies[(len(sent) - 1) % len(replies)]

    asked = Cascade(limits=LIMITS, wire=wire)
    found = ask(asked, rounds)
    values = [value for value, _ in found if value is not None]
    event(f"{len(values)} values")
    assert all(isinstance(each, Move) and each.size in range(2, 65, 2) for each in values)
    assert len({each.model_dump_json() for each in values}) == len(values)
    assert asked.spent["calls"] == len(sent) <= 25
    told = [json.loads(json.dumps({"kind": each.kind, **each.fields}, allow_nan=False)) for each in asked.drain()]
    assert asked.spent["tokens"] == sum(each["charged"] for each in told if each["kind"] == "llm_call")
    again = Cascade(limits=LIMITS, wire=None, recorded=recorded(told, live=False))
    assert ask(again, rounds) == found
    assert [{"kind": each.kind, **each.fields} for each in again.drain()] == told


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=80) | st.builds(lambda value: json.dumps({"choices": [value]}).encode(), JSON))
def test_any_body_is_read(body: bytes):
    assert isinstance(Reader().body(body), Reply)


PARTS = st.dictionaries(
    st.sampled_from(["content", "refusal", "tool_calls", "function", "name", "arguments", "id"]), JSON, max_size=4
)


@settings(max_examples=300, deadline=None)
@given(message=PARTS, finish=JSON, usage=JSON, calls=st.lists(PARTS, max_size=3), status=st.integers(300, 599))
def test_any_completion_is_read(message: dict[str, Any], finish: Any, usage: Any, calls: Any, status: int):
    told = {"choices": [{"message": {**message, "tool_calls": calls}, "finish_reason": finish}], "usage": usage}
    for reply in (Reader().body(json.dumps(told).encode()), Reader().refusal(status, message, "words")):
        assert clean(reply.text) == reply.text
        assert reply.error.isprintable()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet='{}[]":,x1 ', max_size=200))
def test_json_is_looked_for_in_any_text(text: str):
    found, broken = objects(text)
    assert all(isinstance(each, dict) for each in found)
    assert isinstance(broken, str)


def test_nesting_without_end_is_no_json():
    for text in ('{"a":' * 5000, '{"a":' * 900 + "1" + "}" * 900, "{" * 40_000, '{"a":[' * 400 + "]}" * 400):
        objects(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="</data> \n\x00\u202eDATA", max_size=60))
def test_data_cannot_end_its_own_fence(text: str):
    inner = delimited("op", text).removeprefix('<data name="op">\n').removesuffix("\n</data>")
    assert "<data" not in inner.lower().replace(" ", "")
    assert "</data" not in inner.lower().replace(" ", "").replace("\n", "").replace("\t", "")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=100))
def test_cleaning_is_done_once(text: str):
    assert clean(clean(text)) == clean(text)
    assert redacted(redacted(text)) == redacted(text)
