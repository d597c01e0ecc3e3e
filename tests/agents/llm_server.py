"""A local server that speaks OpenAI's chat completions over real HTTP, and behaves as a script says.

    with LlmServer([says({"n": 1}), fails(500)]) as server:
        Endpoint(base_url=server.base_url)(request)

A script is a list of behaviours, one a request, the last one for all that follow; or a function of a request's body
that returns a behaviour. Behaviours write the response themselves, so that they can break it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]
Script = Sequence[Behaviour] | Callable[[dict[str, Any]], Behaviour]


def says(answer: object, *, tokens: tuple[int, int] | None = (100, 20), finish: str = "stop") -> Behaviour:
    """An answer: text as it is, anything else as JSON."""
    return message({"content": answer if isinstance(answer, str) else json.dumps(answer)}, tokens, finish)


def calls(*tools: tuple[str, object], tokens: tuple[int, int] | None = (100, 20)) -> Behaviour:
    """Calls of tools, by name and arguments."""
    told = [
        {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
        for place, (name, arguments) in enumerate(tools)
    ]
    return message({"content": None, "tool_calls": told}, tokens, "tool_calls")


def refuses(text: str = "I cannot help with that.") -> Behaviour:
    return message({"content": None, "refusal": text}, (100, 8), "stop")


def message(fields: Mapping[str, Any], tokens: tuple[int, int] | None, finish: str) -> Behaviour:
    """A chat completion with a message of these fields."""
    body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted"}
    body["choices"] = [{"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": finish}]
    if tokens is not None:
        body["usage"] = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return lambda handler: handler.reply(200, body)


def fails(status: int, words: str = "no", code: str | None = None, **headers: str) -> Behaviour:
    """An error as OpenAI words it; underscores of header names become hyphens."""
    body = {"error": {"message": words, "type": code, "param": None, "code": code}}
    return lambda handler: handler.reply(status, body, {name.replace("_", "-"): each for name, each in headers.items()})


def raw(body: bytes, kind: str = "text/html") -> Behaviour:
    """A body of any bytes, with status 200."""
    return lambda handler: handler.write(200, body, {"content-type": kind})


def drips(every_s: float = 0.02, headers: bool = True) -> Behaviour:
    """One byte now and then, of the body or already of the headers, without an end."""

    def act(handler: Handler) -> None:
        begin = b"HTTP/1.1 200 OK\r\n"
        handler.wfile.write(begin + b"content-length: 100000\r\n\r\n" if not headers else begin + b"x-slow: ")
        while not handler.server.closing.wait(every_s):
            handler.wfile.write(b"a")
            handler.wfile.flush()

    return act


def hangs(handler: Handler) -> None:
    """Nothing at all, until the server closes."""
    handler.server.closing.wait()


def disconnects(status: int = 200) -> Behaviour:
    """Half of a body, and the end of the connection."""
    half = f'HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{{"choices": ['

    def act(handler: Handler) -> None:
        handler.wfile.write(half.encode())

    return act


def floods(handler: Handler) -> None:
    """An answer that goes on until the client has enough."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.closing.is_set():
        handler.wfile.write(b"x" * 2**16)


class Handler(BaseHTTPRequestHandler):
    """Notes a request and lets the script act."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.close_connection = True
        with self.server.lock:
            place = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        unknown = self.server.refused(body)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client gave up
            (unknown or self.server.act(place, body))(self)

    def do_GET(self) -> None:
        self.close_connection = True
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "us"} for name in self.server.models]
        self.reply(200, {"object": "list", "data": data})

    def reply(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        self.write(status, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})

    def write(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Script, without: Sequence[str], models: Sequence[str], port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script, self.without, self.models = script, without, models
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock, self.closing = threading.Lock(), threading.Event()

    def act(self, place: int, body: dict[str, Any]) -> Behaviour:
        if callable(self.script):
            return self.script(body)
        return self.script[min(place, len(self.script) - 1)]

    def refused(self, body: Mapping[str, Any]) -> Behaviour | None:
        """The refusal of a request that asks for what this server is `without`."""
        asked = {body.get("response_format", {}).get("type"), *body}
        unknown = sorted(asked & set(self.without), key=str)
        return fails(400, f"unsupported: {unknown[0]}") if unknown else None


class LlmServer:
    """The server, in a thread while the context lasts.

    `without` names response formats (`json_schema`, `json_object`) and keys of a request (`tools`,
    `max_completion_tokens`) that it refuses with 400. Refusals take their places in a script too.
    """

    def __init__(
        self, script: Script, *, without: Sequence[str] = (), models: Sequence[str] = ("scripted",), port: int = 0
    ) -> None:
        self._server = _Server(script, without, models, port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> LlmServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Requests so far."""
        return self._server.bodies

    @property
    def headers(self) -> list[dict[str, str]]:
        """Their headers, names in lower case."""
        return self._server.headers


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
