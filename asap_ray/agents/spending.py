"""What calls to language models may cost, and what they did: reserved before each call, settled after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from asap_ray.agents.wire import Reply, Request, Verdict
from asap_ray.errors import ConfigError

CHARACTERS_A_TOKEN = 3.0
"""Of a prompt, for a reservation: English has about four, JSON and figures fewer."""
UNKNOWN_END = frozenset({Verdict.TIMEOUT, Verdict.DISCONNECTED})
"""Ends after which the endpoint may have worked, and charge for it, all the same."""
Price = tuple[float, float]
"""US dollars for a million tokens in, and out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The models to ask and what that may cost; None is no limit. Dollars are only known by `prices`.

    `base_url` is the endpoint's (None is OpenAI's own), `timeout_s` is for one call, with all its tries and waits;
    `answer_tokens` caps one answer.

    Raises:
        ConfigError: dollars are capped and a model has no price.
    """

    model: str
    base_url: str | None = None
    expert: str | None = None
    max_calls: int | None = 100
    max_tokens: int | None = 500_000
    max_usd: float | None = None
    timeout_s: float = 60.0
    answer_tokens: int = 4_000
    prices: Mapping[str, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for model in (self.model, self.expert):
            if self.max_usd is not None and model is not None and model not in self.prices:
                allowed = f"[dollars for a million tokens in, out] of {model}, which llm.max_usd cannot be kept without"
                raise ConfigError("llm.prices", dict(self.prices), allowed, self.prices)


@dataclass(frozen=True, slots=True)
class Charge:
    """Tokens in and out, and dollars, None where the model has no price."""

    tokens_in: int
    tokens_out: int
    usd: float | None

    @property
    def tokens(self) -> int:
        """Tokens together."""
        return self.tokens_in + self.tokens_out


@dataclass(kw_only=True)
class Budget:
    """What was spent, against its limits. `usd` is None once a call had no known price."""

    limits: Limits
    calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0

    def over(self, request: Request) -> str | None:
        """Why a request cannot be paid for, were its answer as long as it may be; None where it can."""
        limits, most = self.limits, self._charge(request.model, prompt_tokens(request), request.most_tokens)
        if limits.max_calls is not None and self.calls >= limits.max_calls:
            return f"llm.max_calls={limits.max_calls} are spent"
        if limits.max_tokens is not None and self.tokens + most.tokens > limits.max_tokens:
            left = limits.max_tokens - self.tokens
            return f"a call may take {most.tokens:,} tokens; {left:,} are left of llm.max_tokens={limits.max_tokens}"
        if limits.max_usd is not None and (self.usd or 0.0) + (most.usd or 0.0) > limits.max_usd:
            left = limits.max_usd - (self.usd or 0.0)
            return f"a call may cost ${most.usd:.4f}; ${left:.4f} are left of llm.max_usd={limits.max_usd:g}"
        return None

    def settle(self, request: Request, reply: Reply) -> Charge:
        """Count a call that was made: by what the endpoint counted, else by an estimate that is rather too high. Tries
        that were lost count as if each had used all that was reserved."""
        whole = prompt_tokens(request), request.most_tokens
        if reply.trouble in UNKNOWN_END and reply.tokens_in is None:
            tokens = whole
        elif reply.trouble is not None and reply.tokens_in is None:
            tokens = 0, 0
        else:
            written = len(reply.text) + sum(len(each.arguments) for each in reply.calls)
            estimated = prompt_tokens(request), math.ceil(written / CHARACTERS_A_TOKEN)
            tokens = reply.tokens_in or estimated[0], reply.tokens_out or estimated[1]
        charge = self._charge(request.model, *(n + reply.lost * most for n, most in zip(tokens, whole, strict=True)))
        self.calls += 1
        self.tokens += charge.tokens
        self.usd = None if self.usd is None or charge.usd is None else self.usd + charge.usd
        return charge

    def _charge(self, model: str, tokens_in: int, tokens_out: int) -> Charge:
        price = self.limits.prices.get(model)
        usd = None if price is None else (tokens_in * price[0] + tokens_out * price[1]) / 1e6
        return Charge(tokens_in, tokens_out, usd)


def prompt_tokens(request: Request) -> int:
    """An estimate of a request's own tokens that is rather too high, messages, schema and tools together."""
    return math.ceil(len(request.text.encode()) / CHARACTERS_A_TOKEN)
