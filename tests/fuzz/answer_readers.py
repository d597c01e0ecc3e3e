"""Ways in for what language models and their endpoints say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from asap_ray.agents.answers import Decision, Ideas, Reading
from asap_ray.agents.chat import Question, Tool, ToolCall
from asap_ray.agents.conversation import answered, looked_up
from asap_ray.agents.judging import Judged, judged, objects
from asap_ray.agents.replies import Reader as Wire
from asap_ray.agents.replies import wait_of
from asap_ray.agents.wire import Form, Reply, Request, Verdict, recorded
from tests.fuzz import bombs
from tests.fuzz.mutations import as_json, lines, torn, values
from tests.fuzz.running import Reader

CHANGE = {"knob": "tensor", "value": "4"}
IDEA = {
    **{
        "option": "",
        "changes": [CHANGE],
        "hypothesis": "fewer gathers",
        "mechanism": "tensor",
        "falsification": "none",
    },
    **{"trade_off": "memory", "figure": "step_time_s", "low": 0.5, "high": 1.5, "cites": ["card"]},
    "evidence": [{"source": "m1", "figure": "expected_s", "value": 0.9}],
}
IDEAS = {"ideas": [IDEA, IDEA], "last": [{"knob": "pipeline", "comparison": "above", "value": "2", "reason": "bubble"}]}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": json.dumps({"evidence": IDEA["evidence"]})},
}
BODY = {
    "id": "x",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": json.dumps(IDEAS), "tool_calls": [CALL], "refusal": None},
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 20},
}
PROSE = (
    f'<think>Let me see. {{"a": 1}}</think>\nHere it is:\n```json\n{json.dumps(IDEAS, indent=1)}\n```\nGood luck.',
    f"data: {json.dumps(BODY)}\n\ndata: [DONE]\n",
    json.dumps(IDEAS),
)
SCHEMAS = (Ideas, Reading, Decision)
TOOL = Tool(name="look", about="Looks.", arguments=Decision, call=lambda given: str(given))


def readers() -> Iterator[Reader]:
    """All of them."""
    yield Reader(
        name="bodies of completions",
        read=_body,
        inputs=torn(values([BODY]).map(as_json)) | torn(lines(PROSE)),
        bombs=(
            *bombs.JSON,
            *(
                lambda each=each: as_json({"choices": [{"message": {"content": each().decode("utf-8", "replace")}}]})
                for each in bombs.JSON
            ),
        ),
    )
    yield Reader(
        name="answers in prose",
        read=_answer,
        inputs=torn(lines(PROSE)),
        bombs=(
            *bombs.JSON,
            *bombs.TEXT,
            lambda: b'{"a":' * 300,
            lambda: b"{" * 2_000_000,
            lambda: b'{"ideas": [' * 150 + b"]}" * 150,
        ),
    )
    yield Reader(
        name="calls of tools",
        read=_call,
        inputs=torn(values([json.loads(CALL["function"]["arguments"])]).map(as_json)),
        bombs=bombs.JSON,
    )
    yield Reader(
        name="refusals of endpoints",
        read=_refused,
        inputs=values([{"message": "context length", "code": "x", "type": None}]),
    )
    yield Reader(
        name="headers to wait by",
        read=lambda text: wait_of({"retry-after": text}),
        inputs=st.text(max_size=30) | st.sampled_from(("1e999", "nan", "-1", "9" * 5000, "5")),
    )
    yield Reader(
        name="recorded calls",
        read=partial(recorded, live=False),
        inputs=values([[_event()]]).filter(
            lambda each: (
                isinstance(each, list)
                and all(isinstance(one, dict) and isinstance(one.get("kind"), str) for one in each)
            )
        ),
        own=(LookupError, TypeError, ValueError, AttributeError),
    )


def _question(schema: Any) -> Question:
    return Question(role="proposal", prompt="p-1", system="", user="", schema=schema, tools=(TOOL,))


def _asked(schema: Any) -> Request:
    return Request(model="m", messages=(), schema=schema, tools=(TOOL,), form=Form(tools=True), most_tokens=100)


def _judge(reply: Reply) -> None:
    for schema in SCHEMAS:
        found = judged(reply, _asked(schema), _question(schema))
        _fit(found)
        if found.verdict is Verdict.TOOLS:
            for message in answered(found, (TOOL,)):
                message.content.encode()


def _fit(found: Judged) -> None:
    assert found.reason.isprintable(), found.reason


def _body(data: bytes) -> None:
    _judge(Wire(secret="sk-verysecretkey").body(data))


def _answer(data: bytes) -> None:
    text = Wire().words(data.decode("utf-8", "replace")) if len(data) % 2 else data.decode("utf-8", "replace")
    objects(text)
    _judge(Reply(text=text, finish="stop"))


def _call(data: bytes) -> None:
    looked_up(ToolCall(id="c", name="look", arguments=data.decode("utf-8", "surrogateescape")), (TOOL,)).encode(
        "utf-8", "surrogateescape"
    )


def _refused(body: Any) -> None:
    for status in (301, 400, 401, 429, 500, 599):
        found = Wire().refusal(status, body, "words")
        assert found.error.isprintable()


def _event() -> dict[str, Any]:
    return {
        **{
            "kind": "llm_call",
            "request_hash": "ab",
            "hash": "ab",
            "model": "m",
            "verdict": "good",
            "reason": "",
            "charged": 5,
        },
        **{
            "reply": {
                "text": "{}",
                "calls": [],
                "finish": "stop",
                "tokens_in": 1,
                "tokens_out": 2,
                "trouble": None,
                "error": "",
            }
        },
    }
