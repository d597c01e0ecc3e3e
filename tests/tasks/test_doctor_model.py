"""`task=doctor` and the language model: what it takes is told, and what to type where it gives no answer."""

from __future__ import annotations

from typing import Any

import pytest

from asap_ray.config import AgentsConfig, Config, LlmConfig
from asap_ray.report.health import Check
from asap_ray.tasks.health.model import language_model, model_jobs
from asap_ray.tiers.protocol import Outcome
from tests.agents.llm_server import Behaviour, LlmServer, calls, fails, says


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ASAP_RAY_LLM_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("asap_ray.agents.llm.FIRST_WAIT_S", 0.001)


def looked(brain: str, **llm: Any) -> list[Check]:
    """What the doctor tells, its jobs done here and now."""
    config = Config(agents=AgentsConfig(brain=brain), llm=LlmConfig(**llm))
    outcomes = {
        job.name: Outcome(job=job, status="complete", value=job.work(*job.arguments)) for job in model_jobs(config)
    }
    return list(language_model(config, outcomes))


def able(body: dict[str, Any]) -> Behaviour:
    return calls(("ready", {})) if "tools" in body else says({"ready": True})


def test_a_model_and_its_expert_are_asked_for_little():
    with LlmServer(able) as server:
        cheap, dear = looked("auto", base_url=server.base_url, model="cheap", expert="dear")
        where = server.base_url.split("/")[2]
    assert (cheap.name, cheap.status) == ("llm cheap", "ok")
    assert cheap.found == f"cheap at {where}: strict schemas, tools; 2 calls, 240 tokens"
    assert (dear.name, dear.status) == ("llm dear", "ok")


@pytest.mark.parametrize(
    ("behaviour", "found", "fix"),
    [
        (fails(401, "bad key"), "denied: 401: bad key", "export ASAP_RAY_LLM_KEY="),
        (fails(404, "unknown"), "not found: 404: unknown", "llm.model= (or llm.expert=) one that it has: big, small"),
        (fails(500, "oops"), "server error: 500: oops", "start what should answer at http://127.0.0.1"),
    ],
)
def test_what_gives_no_answer_comes_with_what_to_type(behaviour: Behaviour, found: str, fix: str):
    models = ("big", "small") if "404" in found else ("cheap",)
    for brain, status in (("llm", "lacking"), ("auto", "without")):
        with LlmServer([behaviour], models=models) as server:
            (check,) = looked(brain, base_url=server.base_url, model="cheap")
        assert (check.status, check.found) == (status, found)
        assert check.fix.startswith(fix)


def test_without_a_key_and_an_endpoint_the_playbook_is_enough_unless_a_model_is_asked_for():
    (check,) = looked("auto")
    assert (check.status, check.name) == ("without", "agents")
    (check,) = looked("llm")
    assert (check.status, check.name) == ("lacking", "llm.base_url")
    assert looked("playbook") == []
