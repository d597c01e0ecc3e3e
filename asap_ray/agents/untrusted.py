"""Text of others (a model's answer, a profile's op names, a log) as data: cleaned, capped, delimited, without secrets.

Nothing here makes text safe to execute; no text of others is ever executed, used as a path, or read as a setting.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

MOST_ANSWER = 40_000
"""Characters of one answer that are read and recorded."""
MOST_STRING = 4_000
"""Characters of one string in an answer."""
MOST_DATA = 4_000
"""Characters of a piece of data in a prompt, where nothing else is said."""
REDACTED = "[redacted]"
_KEPT = "\n\t"
_LEFT_OUT = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Unicode's controls, invisible formats (overrides of direction among them), surrogates, private and unassigned."""
_SECRETS = re.compile(
    r"\b(?:(?:sk|xai|glpat)-|(?:gsk|hf|gh[opsur]|github_pat)_|AIza|ya29\.)[A-Za-z0-9_\-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"
    r"|(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)"
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/\-]{8,}=*"
    r"|(?i:\b(?:api[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret|secret|password|passwd)"
    r"[\"']?\s*[=:]\s*[\"']?)[A-Za-z0-9._~+/\-]{8,}=*"
)
"""What looks like a key of a known maker, a JSON web token, a password in a URL, or a value that is named a secret."""
_FENCE = re.compile(r"<(?=\s*/?\s*data\b)", re.IGNORECASE)


def clean(text: str, most: int = MOST_ANSWER) -> str:
    """The text without control and invisible characters (line ends and tabs stay), cut at `most` characters."""
    head = text[: most + 1].replace("\r\n", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    kept = "".join(c for c in head if c in _KEPT or unicodedata.category(c) not in _LEFT_OUT)
    return kept if len(text) <= most else kept[:most] + "…"


def cleaned(value: object, most: int = MOST_STRING) -> object:
    """A JSON value with each string of it cleaned: an escape can spell what the text around it may not hold."""
    if isinstance(value, str):
        return clean(value, most)
    if isinstance(value, list):
        return [cleaned(each, most) for each in value]
    if isinstance(value, dict):
        return {clean(str(key), most): cleaned(each, most) for key, each in value.items()}
    return value


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without whatever looks like one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    return _SECRETS.sub(REDACTED, text)


def delimited(name: str, text: str, most: int = MOST_DATA) -> str:
    """The text as a named piece of data in a prompt, which it cannot end by itself."""
    label = re.sub(r"[^\w .:-]", "", name)[:80]
    return f'<data name="{label}">\n{_FENCE.sub("(", clean(text, most))}\n</data>'
