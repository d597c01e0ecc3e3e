"""What an endpoint sends back, read as data: chat completions, errors by their status, waits by their headers.

Bodies of local servers lack fields that OpenAI's have, and have others; whatever is in them is cleaned, capped, and
without secrets before anybody sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from asap_ray.agents.chat import ToolCall
from asap_ray.agents.untrusted import MOST_ANSWER, clean
from asap_ray.agents.wire import Reply, Verdict
from asap_ray.redaction import redacted

MOST_CALLS = 8
"""Tools that one answer may ask for."""
MOST_ERROR = 300
"""Characters of an endpoint's words that are told."""
MOST_NAME = 100
MOST_TOKENS = 10**9
_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"})
_TOO_LONG = re.compile(r"context[ _](?:length|size|window)", re.IGNORECASE)
_STATUS = {
    **dict.fromkeys((301, 302, 303, 307, 308), Verdict.NOT_FOUND),
    **dict.fromkeys((401, 403), Verdict.DENIED),
    402: Verdict.QUOTA,
    404: Verdict.NOT_FOUND,
    413: Verdict.TOO_LONG,
    429: Verdict.BUSY,
    **dict.fromkeys((408, 409, 425), Verdict.SERVER_ERROR),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """Reads what comes back; the `secret` is left out of it."""

    secret: str = field(default="", repr=False)

    def body(self, body: bytes) -> Reply:
        """The reply that the body of a chat completion holds."""
        try:
            told = json.loads(body)
            choice = told["choices"][0]
            message = choice["message"]
            text, calls = _text_of(message.get("content")), message.get("tool_calls")
            refusal, finish = message.get("refusal"), str(choice.get("finish_reason") or "")
            found = tuple(self._call(each) for each in calls[:MOST_CALLS]) if isinstance(calls, list) else ()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            head = body[:MOST_ERROR].decode(errors="replace")
            return Reply(trouble=Verdict.SERVER_ERROR, error=self.words(f"this is no chat completion: {head}"))
        usage = told.get("usage")
        reply = Reply(
            text=self._clean(text),
            calls=found,
            finish=clean(finish, MOST_NAME),
            tokens_in=_count(usage, "prompt_tokens"),
            tokens_out=_count(usage, "completion_tokens"),
        )
        if isinstance(refusal, str) and refusal:
            return replace(reply, trouble=Verdict.REFUSAL, error=self.words(refusal))
        return reply

    def refusal(self, status: int, body: object, words: str) -> Reply:
        """What an error status means, with its body and, where that has no words, those of the client."""
        told = body if isinstance(body, dict) else {}
        codes = {str(told.get(name)) for name in ("code", "type")}
        words = str(told.get("message") or words)
        trouble = _STATUS.get(status, Verdict.SERVER_ERROR if status >= 500 else Verdict.BAD_REQUEST)
        if status == 429 and codes & _QUOTA:
            trouble = Verdict.QUOTA
        elif "content_filter" in codes:
            trouble = Verdict.FILTERED
        elif _TOO_LONG.search(" ".join((*codes, words))):
            trouble = Verdict.TOO_LONG
        return Reply(trouble=trouble, error=self.words(f"{status}: {words}"))

    def words(self, text: str) -> str:
        """Words of the endpoint, fit for a line of the record."""
        return " ".join(self._clean(text, MOST_ERROR).split())

    def _call(self, told: Mapping[str, Any]) -> ToolCall:
        called = told["function"]
        arguments = called.get("arguments") or "{}"
        return ToolCall(
            id=self._clean(str(told.get("id") or "call"))[:MOST_NAME],
            name=self._clean(str(called["name"]))[:MOST_NAME],
            arguments=self._clean(arguments if isinstance(arguments, str) else json.dumps(arguments)),
        )

    def _clean(self, text: str, most: int = MOST_ANSWER) -> str:
        """Cut last: a cut could leave the beginning of a secret that is not known as one any more."""
        return clean(redacted(clean(text, len(text)), (self.secret,)), most)


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `retry-after-ms` or `retry-after`; a date there, or anything else, is as none."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            wait = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= wait < float("inf"):
            return wait
    return None


def _text_of(content: object) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _count(usage: object, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < MOST_TOKENS else None
