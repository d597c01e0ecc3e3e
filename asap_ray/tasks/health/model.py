"""Whether the language model that agents are to ask answers, and what its endpoint takes; a few hundred tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from asap_ray.agents.llm import KEYS, OPENAI, Endpoint, key_of
from asap_ray.agents.probing import Supported, probe
from asap_ray.agents.spending import Limits
from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.report.health import Check
from asap_ray.tasks.thinking import brain_of, limits_of
from asap_ray.tiers.protocol import Job, Outcome

AREA = "Language model"
CALLS = 8
"""Calls that a look may take."""
CALL_S, LOOK_S = 20.0, 60.0
"""Seconds that a call and the whole look may take."""
MOST_NAMES = 6
FORMS = {"schema": "strict schemas", "json": "JSON mode", "text": "plain text alone"}


def model_jobs(config: Config) -> list[Job]:
    """The work that asks each model, where the brain is one."""
    if brain_of(config) != "llm":
        return []
    try:
        limits = limits_of(config)
    except ConfigError:  # told by `language_model`
        return []
    limits = replace(limits, max_calls=CALLS, max_usd=None, timeout_s=min(limits.timeout_s, CALL_S))
    models = dict.fromkeys(each for each in (limits.model, limits.expert) if each is not None)
    asked = {f"llm {name}": (replace(limits, model=name, expert=None),) for name in models}
    return [Job(name=name, work=ask, arguments=given, timeout_s=LOOK_S, isolated=True) for name, given in asked.items()]


def ask(limits: Limits) -> Supported:
    """What a model supports: the work of a job. The key is read where it runs."""
    url = limits.base_url or OPENAI
    return probe(limits, Endpoint(base_url=url, key=key_of(url), timeout_s=limits.timeout_s))


def language_model(config: Config, outcomes: dict[str, Outcome]) -> Iterator[Check]:
    """All checks of the language model, given how the jobs ended."""
    status = "lacking" if config.agents.brain == "llm" else "without"
    if brain_of(config) != "llm":
        if config.agents.brain == "auto":
            found = "no key and no endpoint is set: the playbook proposes"
            fix = f"export {KEYS[1]}=…, or llm.base_url=http://HOST:PORT/v1 llm.model=NAME"
            yield Check(area=AREA, name="agents", status="without", found=found, fix=fix)
        return
    try:
        url = limits_of(config).base_url or OPENAI
    except ConfigError as error:
        yield Check(area=AREA, name=error.key, status=status, found=str(error), fix=f"{error.key}=…, {error.allowed}")
        return
    for job in model_jobs(config):
        outcome = outcomes[job.name]
        told = outcome.value if isinstance(outcome.value, Supported) else None
        if told is None or told.answer == "none":
            why = told.reason if told else " ".join(outcome.reason.split())
            yield Check(area=AREA, name=job.name, status=status, found=why, fix=_fix(told, url))
        else:
            takes = f"{FORMS[told.answer]}, {'tools' if told.tools else 'no tools'}"
            found = f"{told.model} at {urlsplit(url).netloc}: {takes}; {told.calls} calls, {told.tokens} tokens"
            yield Check(area=AREA, name=job.name, status="ok", found=found)


def _fix(told: Supported | None, url: str) -> str:
    """What to type where a model gives no answer."""
    verdict = told.reason.partition(":")[0] if told else ""
    if verdict in ("denied", "quota"):
        return f"export {KEYS[0]}=… (or {KEYS[1]}), a key of {urlsplit(url).netloc} with a quota; or agents=playbook"
    if told and told.models and told.model not in told.models:
        more = ", …" if len(told.models) > MOST_NAMES else ""
        return f"llm.model= (or llm.expert=) one that it has: {', '.join(told.models[:MOST_NAMES])}{more}"
    return f"start what should answer at {url}, or llm.base_url=…; or agents=playbook"
