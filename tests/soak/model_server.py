"""A language model in a process of its own, that can be killed and stopped as any: `python -m tests.soak.model_server
PORT FILE`. What it answers is sound as long as FILE, read with each request, is not there; else it is garbled in one of
many ways."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from typing import Any

from tests.agents.llm_server import Behaviour, LlmServer, calls, disconnects, fails, message, raw, refuses, says
from tests.agents.scripted import good

KEY = "sk-soak-0123456789abcdef0123456789"
ROLES = {"You read the profile": "analyzer", "You lead the search": "coordinator", "You propose": "proposal"}
GARBLED = (
    says('{"ideas": ['),
    says({"plans": 3}),
    says("colourless green ideas sleep furiously"),
    says(""),
    says('{"ideas": [', finish="length"),
    says("[" * 100_000),
    says({"ideas": [{"option": "\x00\ud800"}]}),
    refuses(),
    message({"content": ""}, (10, 0), "content_filter"),
    fails(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"),
    fails(500, f"trouble with {KEY}"),
    fails(429, "slow down", "rate_limit_exceeded", retry_after="0.01"),
    raw(f"<html>proxy {KEY}</html>".encode()),
    raw(b"\xff\xfe\x00{", "application/json"),
    disconnects(),
    calls(("price", {"changes": []})),
    calls(("no such tool", "{")),
)


def main() -> None:
    """Serve until this process is ended."""
    port, garble, turn = int(sys.argv[1]), Path(sys.argv[2]), itertools.count()

    def act(body: dict[str, Any]) -> Behaviour:
        if garble.exists():
            return GARBLED[(int(garble.read_text()) + next(turn)) % len(GARBLED)]
        system = body["messages"][0]["content"]
        role = next((role for words, role in ROLES.items() if system.startswith(words)), "")
        text = "\n".join(str(each.get("content") or "") for each in body["messages"][1:])
        return says(good(role, text) if role else {"ready": True})

    with LlmServer(act, port=port):
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
