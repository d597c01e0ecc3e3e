"""Text of others (a model's answer, a profile's op names, a log) as data: cleaned, capped, delimited.

Nothing here makes text safe to execute; no text of others is ever executed, used as a path, or read as a setting.
"""

from __future__ import annotations

import re
import unicodedata

MOST_ANSWER = 40_000
"""Characters of one answer that are read and recorded."""
MOST_STRING = 4_000
"""Characters of one string in an answer."""
MOST_DATA = 4_000
"""Characters of a piece of data in a prompt, where nothing else is said."""
_KEPT = "\n\t"
_LEFT_OUT = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Unicode's controls, invisible formats (overrides of direction among them), surrogates, private and unassigned."""
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


def delimited(name: str, text: str, most: int = MOST_DATA) -> str:
    """The text as a named piece of data in a prompt, which it cannot end by itself."""
    label = re.sub(r"[^\w .:-]", "", name)[:80]
    return f'<data name="{label}">\n{_FENCE.sub("(", clean(text, most))}\n</data>'
