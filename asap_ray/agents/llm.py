"""The wire to a language model: one request to an OpenAI-compatible endpoint, within a deadline, with every end typed.

The request is `chat.completions.parse` with the schema in its strict form, or a plain one where the endpoint has no
schemas. The body that comes back is read here and not by the client, which would lose the text and the tokens of an
answer that does not fit. An answer that drips in for ever is as late as none: the deadline is for the whole call, its
tries and the waits between them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from asap_ray.agents.chat import Message
from asap_ray.agents.replies import MOST_NAME, Reader, wait_of
from asap_ray.agents.untrusted import clean
from asap_ray.agents.wire import Reply, Request, Verdict
from asap_ray.errors import ConfigError

if TYPE_CHECKING:
    import openai

OPENAI = "https://api.openai.com/v1"
KEYS = ("ASAP_RAY_LLM_KEY", "OPENAI_API_KEY")
"""Variables that hold the key, the first that is set. OpenAI's goes to no stranger over an open connection."""
TRIES = 3
"""Requests for one call, at most."""
FIRST_WAIT_S = 0.5
"""Before the second try where the endpoint names no time; twice that before the third."""
GRACE_S = 5.0
"""Seconds beyond its deadline after which a call is left behind; only a name server can hold it so long."""
MOST_BODY = 4 * 2**20
"""Bytes of an answer that are read: an endpoint that does not end may not fill the memory."""
MOST_MODELS = 1_000
T = TypeVar("T")
_AGAIN = frozenset({Verdict.BUSY, Verdict.SERVER_ERROR, Verdict.UNREACHABLE, Verdict.DISCONNECTED})
_LOCAL = ("localhost", "127.0.0.1", "::1")


def base_url_of(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The endpoint: the one that was given, else the environment's, else OpenAI's own.

    Raises:
        ConfigError: it is no address, or holds a password, which would get into the record.
    """
    name, url = ("llm.base_url", given) if given else ("OPENAI_BASE_URL", environ.get("OPENAI_BASE_URL") or OPENAI)
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0 and url.isprintable()
    except ValueError:
        fine, parts = False, urlsplit("")
    if not fine or "@" in parts.netloc or parts.query or parts.fragment or " " in url:
        allowed = "an address such as http://localhost:8000/v1; a key comes from the environment"
        raise ConfigError(name, url.rpartition("@")[-1].partition("?")[0], allowed)
    return url


def key_of(base_url: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key for an endpoint, from the environment; None where there is none for it.

    Raises:
        ConfigError: a key has characters that no header can carry.
    """
    where = urlsplit(base_url)
    for name in KEYS:
        key = environ.get(name, "").strip()
        if key and (not key.isascii() or not key.isprintable() or " " in key):
            raise ConfigError(name, "(hidden)", "a key of printable ASCII characters without spaces")
        if key and (name != "OPENAI_API_KEY" or where.scheme == "https" or where.hostname in _LOCAL):
            return key
    return None


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Sends requests to one endpoint: a `wire.Wire`. Each call has its own connection, closed when it ends."""

    base_url: str = OPENAI
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0

    def __call__(self, request: Request) -> Reply:
        """The reply, at the latest a little after the deadline."""
        begun = time.monotonic()
        late = Reply(trouble=Verdict.TIMEOUT, error="the host's name was not resolved in time")
        reply = _apart(self._call(request), self.timeout_s + GRACE_S, late)
        return replace(reply, latency_s=round(time.monotonic() - begun, 3))

    def models(self) -> tuple[str, ...] | None:
        """Names of the models that the endpoint says it has; None where it does not say."""
        return _apart(self._models(), self.timeout_s + GRACE_S, None)

    async def _models(self) -> tuple[str, ...] | None:
        import openai

        async with self._client() as client:
            try:
                async with asyncio.timeout(self.timeout_s):
                    page = await client.models.list(extra_headers=self._headers())
                    return tuple(clean(str(each.id), MOST_NAME) for each in page.data[:MOST_MODELS])
            except (openai.OpenAIError, TimeoutError, AttributeError, TypeError, ValueError):
                return None

    async def _call(self, request: Request) -> Reply:
        tries, lost, left_until = 0, 0, time.monotonic() + self.timeout_s
        async with self._client() as client:
            while True:
                tries += 1
                reply, wait_s = await self._try(client, request, left_until)
                wait_s = FIRST_WAIT_S * 2 ** (tries - 1) if wait_s is None else wait_s
                if reply.trouble not in _AGAIN or tries == TRIES:
                    break
                if time.monotonic() + wait_s >= left_until:
                    reply = replace(reply, error=f"{reply.error}; to try again after {wait_s:.3g} s is too late")
                    break
                lost += reply.trouble is Verdict.DISCONNECTED
                await asyncio.sleep(wait_s)
        return replace(reply, tries=tries, lost=lost)

    async def _try(self, client: openai.AsyncOpenAI, request: Request, until: float) -> tuple[Reply, float | None]:
        """A reply, and the seconds that the endpoint asks to wait before another try."""
        import httpx2
        import openai

        reader = Reader(secret=self.key or "")
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                return reader.body(await _send(client, request, self._headers())), None
        except (TimeoutError, openai.APITimeoutError, httpx2.TimeoutException):
            return Reply(trouble=Verdict.TIMEOUT, error=f"no answer within {self.timeout_s:g} s"), None
        except openai.APIStatusError as error:
            return reader.refusal(error.status_code, error.body, error.message), wait_of(error.response.headers)
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            cause = error.__cause__ if isinstance(error, openai.OpenAIError) else error
            reached = not isinstance(cause, httpx2.ConnectError | httpx2.UnsupportedProtocol)
            trouble = Verdict.DISCONNECTED if reached else Verdict.UNREACHABLE
            return Reply(trouble=trouble, error=reader.words(f"{type(cause).__name__}: {cause}")), None
        except openai.OpenAIError as error:
            return Reply(trouble=Verdict.BAD_REQUEST, error=reader.words(f"{type(error).__name__}: {error}")), None

    def _client(self) -> openai.AsyncOpenAI:
        import openai

        where = urlsplit(self.base_url)
        http_client = openai.DefaultAsyncHttpxClient(
            trust_env=where.hostname not in _LOCAL,  # no proxy leads there
            follow_redirects=False,  # a key and a prompt go where they were told to go
            verify=where.scheme == "https",  # with no redirects, reading certificates is for nothing elsewhere
            timeout=self.timeout_s,
        )
        return openai.AsyncOpenAI(
            api_key=self.key or "none",
            base_url=self.base_url,
            timeout=self.timeout_s,
            max_retries=0,  # tries are counted here
            http_client=http_client,
        )

    def _headers(self) -> dict[str, Any]:
        """Without a key the client must be told that none is to go out."""
        import openai

        return {} if self.key else {"Authorization": openai.Omit()}


def _apart(work: Coroutine[Any, Any, T], most_s: float, late: T) -> T:
    """What a coroutine returns, in a thread and a loop of its own; `late` where it takes longer, and is left behind.

    The caller may have an event loop already, and no loop can end the look-up of a host's name.
    """
    done = Future[T]()

    def run() -> None:
        try:
            done.set_result(asyncio.run(work))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="llm call", daemon=True).start()
    try:
        return done.result(most_s)
    except TimeoutError:
        if done.done():  # its own, and no lateness
            raise
        return late


async def _send(client: openai.AsyncOpenAI, request: Request, headers: dict[str, Any]) -> bytes:
    """The body that comes back, as far as it is read."""
    import openai

    asked: dict[str, Any] = {
        "model": request.model,
        "messages": [_message(each) for each in request.messages],
        request.form.cap: request.most_tokens,
        "extra_headers": headers,
    }
    if request.form.tools:
        asked["tools"] = [
            openai.pydantic_function_tool(each.arguments, name=each.name, description=each.about)
            for each in request.tools
        ]
        asked["tool_choice"] = "auto" if request.open_tools else "none"
    if request.form.answer == "json":
        asked["response_format"] = {"type": "json_object"}
    raw = client.chat.completions.with_streaming_response
    strict = request.form.answer == "schema"
    body = bytearray()
    async with raw.parse(**asked, response_format=request.schema) if strict else raw.create(**asked) as response:
        async for part in response.iter_bytes():
            body += part
            if len(body) > MOST_BODY:
                break
    return bytes(body)


def _message(message: Message) -> dict[str, Any]:
    # A lone surrogate, as in a name that was no Unicode, has no place in a request.
    told: dict[str, Any] = {"role": message.role, "content": message.content.encode(errors="replace").decode()}
    if message.calls:
        told["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in message.calls
        ]
    return told | ({"tool_call_id": message.call} if message.role == "tool" else {})
