"""Which brain a command has, and, where that is a language model, who asks it within which limits.

`agents=auto` asks a model where a key or an endpoint is set, and is the playbook else. Keys stay in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from asap_ray.agents.cascade import Cascade
from asap_ray.agents.llm import KEYS, OPENAI, Endpoint, base_url_of, key_of
from asap_ray.agents.spending import Limits
from asap_ray.agents.wire import recorded
from asap_ray.config import Config
from asap_ray.errors import ConfigError
from asap_ray.ledger import Ledger

CHEAP = "gpt-5-mini"
"""OpenAI's model that is asked where none is named there; another endpoint has names of its own."""


def brain_of(config: Config, environ: Mapping[str, str] = os.environ) -> str:
    """The name of the brain."""
    if config.agents.brain != "auto":
        return config.agents.brain
    known = config.llm.model is not None or base_url_of(config.llm.base_url, environ) == OPENAI
    return "llm" if known and _is_set(config, environ) else "playbook"


def limits_of(config: Config, environ: Mapping[str, str] = os.environ) -> Limits:
    """The models to ask and what that may cost.

    Raises:
        ConfigError: the model has no name, nothing says how to reach one, or a cap cannot be kept.
    """
    llm = config.llm
    url = base_url_of(llm.base_url, environ)
    if not llm.replay and url == OPENAI and key_of(url, environ) is None:
        allowed = f"an endpoint, or a key in {' or '.join(KEYS)}; agents=playbook needs neither"
        raise ConfigError("llm.base_url", llm.base_url, allowed)
    if llm.model is None and url != OPENAI:
        raise ConfigError("llm.model", None, f"the name of a model at {urlsplit(url).netloc}")
    return Limits(
        model=llm.model or CHEAP,
        base_url=url,
        expert=llm.expert,
        max_calls=llm.max_calls,
        max_tokens=llm.max_tokens,
        max_usd=llm.max_usd,
        timeout_s=llm.timeout_s,
        prices={name: (float(price[0]), float(price[1])) for name, price in llm.prices.items()},
    )


def asker_of(config: Config, ledger: Ledger) -> Cascade | None:
    """Who asks the language model; None where the brain is another. What the events of this run hold is not asked
    again, and with `llm.replay` nothing else is.

    Raises:
        ConfigError: as `limits_of`, or another version has written the events.
    """
    if brain_of(config) != "llm":
        return None
    limits = limits_of(config)
    wire = None
    if not config.llm.replay:
        url = limits.base_url or OPENAI
        wire = Endpoint(base_url=url, key=key_of(url), timeout_s=limits.timeout_s)
    with ledger.understood():
        found = recorded(ledger.events(), live=wire is not None)
    return Cascade(limits=limits, wire=wire, recorded=found)


def asked_words(asker: Cascade) -> str:
    """Who is asked, and what that may cost, in one line."""
    limits = asker.limits
    where = urlsplit(limits.base_url or OPENAI).netloc if asker.wire else "this run's own record"
    expert = f", and {limits.expert} as its expert," if limits.expert else ""
    dollars = f" and ${limits.max_usd:g}" if limits.max_usd is not None else ""
    return (
        f"agents ask {limits.model}{expert} at {where}: at most {limits.max_calls:,} calls, {limits.max_tokens:,} "
        f"tokens{dollars}; agents=playbook asks none"
    )


def _is_set(config: Config, environ: Mapping[str, str]) -> bool:
    return config.llm.base_url is not None or any(environ.get(name) for name in (*KEYS, "OPENAI_BASE_URL"))
