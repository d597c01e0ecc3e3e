"""Whether a reply is an answer to its question: JSON is cut out of it, held against the schema, and checked."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from asap_ray.agents.chat import Question
from asap_ray.agents.untrusted import clean, cleaned
from asap_ray.agents.wire import Reply, Request, Verdict

MOST_STARTS = 200
"""Places in a text where JSON is looked for."""
MOST_ERRORS = 5
"""Faults of an answer that are quoted."""
MOST_REASON = 600
_THOUGHT = re.compile(r"^.*</think(?:ing)?>", re.DOTALL)
_DECODER = json.JSONDecoder(parse_constant=lambda word: _no_number(word))


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A verdict with its reason, and the value where it is good; `unlike` says that the model never saw the schema."""

    verdict: Verdict
    reason: str = ""
    value: Any = None
    reply: Reply = field(default_factory=Reply)
    unlike: bool = False


def judged(reply: Reply, request: Request, question: Question) -> Judged:
    """What a reply is worth."""
    if reply.trouble is not None:
        unsupported = reply.trouble is Verdict.BAD_REQUEST and request.form.simpler(reply.error) is not None
        return Judged(verdict=Verdict.UNSUPPORTED if unsupported else reply.trouble, reason=reply.error, reply=reply)
    if reply.calls and request.form.tools and request.open_tools:
        return Judged(verdict=Verdict.TOOLS, reason=", ".join(each.name for each in reply.calls), reply=reply)
    if reply.finish == "length":
        return Judged(verdict=Verdict.TRUNCATED, reason=f"cut at {request.most_tokens:,} tokens", reply=reply)
    if reply.finish == "content_filter":
        return Judged(verdict=Verdict.FILTERED, reason="the endpoint's filter left the answer out", reply=reply)
    if not reply.text.strip():
        return Judged(verdict=Verdict.EMPTY, reason="the answer has no text", reply=reply)
    return _of_text(reply, question)


def _of_text(reply: Reply, question: Question) -> Judged:
    found, broken = objects(reply.text)
    failed: ValidationError | None = None
    for each in found:
        try:
            value = question.schema.model_validate(each)
        except ValidationError as error:
            failed = failed or error
            continue
        reason = question.check(value)
        verdict = Verdict.GOOD if reason is None else Verdict.REJECTED
        return Judged(verdict=verdict, reason=clean(reason or "", MOST_REASON), value=value, reply=reply)
    if failed is None or broken:
        reason = broken or "there is no JSON object in it"
        return Judged(verdict=Verdict.MALFORMED, reason=reason, reply=reply, unlike=not broken)
    unlike = any(each["type"] in ("missing", "extra_forbidden") for each in failed.errors())
    return Judged(verdict=Verdict.INVALID, reason=faults(failed), reply=reply, unlike=unlike)


def objects(text: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in a text, cleaned, the longest first: the whole, or what stands amid prose, fences, thoughts.

    With them, where most of the text is in none of them though it begins like one, what is wrong with that.
    """
    text = _THOUGHT.sub("", text)
    found: list[tuple[int, Any]] = []
    broken, start, tried = "", text.find("{"), 0
    while start >= 0 and tried < MOST_STARTS:
        tried += 1
        end = start + 1
        try:
            value, after = _DECODER.raw_decode(text, start)
            value, end = cleaned(value), after
        except (ValueError, RecursionError) as error:
            broken = broken or f"its JSON cannot be read: {error}"
        else:
            found.append((end - start, value))
        start = text.find("{", end)
    found.sort(key=lambda each: -each[0])
    covered = bool(found) and found[0][0] > len(text) / 2
    return [value for _, value in found], "" if covered else clean(broken, MOST_REASON)


def faults(error: ValidationError) -> str:
    """What a schema has against a value, in a line."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(str(part) for part in each['loc']) or 'the answer'}: {each['msg']}" for each in errors]
    more = f"; and {len(told) - MOST_ERRORS} more" if len(told) > MOST_ERRORS else ""
    return clean("; ".join(told[:MOST_ERRORS]) + more, MOST_REASON)


def schema_text(schema: type[BaseModel]) -> str:
    """The schema as a prompt has it."""
    return json.dumps(schema.model_json_schema(), separators=(",", ":"))


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON")
