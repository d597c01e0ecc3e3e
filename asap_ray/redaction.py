"""Secrets kept out of what is written: those of this process, and whatever looks like one of a known maker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

REDACTED = "[redacted]"
LEAST = 8
"""Characters of a secret; a shorter value would be found in harmless words."""
_NAMED = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
_SECRETS = re.compile(
    r"\b(?:(?:sk|xai|glpat)-|(?:gsk|hf|gh[opsur]|github_pat)_|AIza|ya29\.)[A-Za-z0-9_\-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"
    r"|(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)"
    r"|(?P<named>(?i:\bbearer\s+|\b(?:api[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret|secret|password|passwd)"
    r"[\"']?\s*[=:]\s*[\"']?))[A-Za-z0-9._~+/\-]{8,}=*"
)
"""What looks like a key of a known maker, a JSON web token, a password in a URL, or a value that is named a secret."""


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without whatever looks like one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    return _SECRETS.sub(lambda found: (found["named"] or "") + REDACTED, text)


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of the variables that are named as a key, a token, a secret or a password; the longest first."""
    found = {value.strip() for name, value in environ.items() if _NAMED.search(name.upper())}
    return tuple(sorted((each for each in found if len(each) >= LEAST), key=lambda each: (-len(each), each)))


def hidden(value: T, environ: Mapping[str, str]) -> T:
    """A text, or plain lists and mappings of texts, without the secrets of an environment and what looks like one."""
    return _hidden(value, secrets_of(environ))


def _hidden(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, list | tuple):
        return type(value)(_hidden(each, secrets) for each in value)
    if isinstance(value, Mapping):
        return {_hidden(name, secrets): _hidden(each, secrets) for name, each in value.items()}
    return value
