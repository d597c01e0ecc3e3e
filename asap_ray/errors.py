"""Every error that a user can cause or cure, under one root."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AsapError(Exception):
    """Root of the package's own errors; its text is one line, fit to be shown to a user."""


class ConfigError(AsapError, ValueError):
    """A configured value cannot be used.

    The text names the key, what was given, the nearest name where `names` has one close to it, and what is allowed.
    The nearest name comes before what is allowed, which can be long.
    """

    def __init__(self, key: str, given: object, allowed: str, names: Iterable[str] = ()) -> None:
        super().__init__(key, given, allowed, tuple(names))
        self.key, self.given, self.allowed, self.names = self.args

    def __str__(self) -> str:
        """The one line: key, value, the nearest name, and what is allowed."""
        hint = nearest(shown(self.given), self.names)
        return " ".join(f"{shown(self.key)}={shown(self.given)}: {hint}{self.allowed}".split())


def nearest(given: str, names: Iterable[str]) -> str:
    """The question "did you mean X?" with the name nearest to what was given, or nothing where none is near."""
    near = difflib.get_close_matches(given, list(names), n=1, cutoff=0.5)
    return f"did you mean {near[0]}? " if near else ""


def shown(value: object, most: int = 160) -> str:
    """A value as a user would type it, fit for a terminal; a long one is cut in the middle, with its length."""
    try:
        if isinstance(value, list | tuple):
            text = f"[{','.join(map(shown, value))}]"
        else:
            text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    except ValueError:  # str() of an integer of thousands of digits
        text = f"<{type(value).__name__}>"
    text = printable(text)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]} ({len(text):,} characters)"


def printable(text: str) -> str:
    """The text with control characters escaped, so that no name can move a cursor or change colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class DoesNotFitError(AsapError):
    """No legal plan fits in memory; the text says how many bytes are missing and what would fit."""
