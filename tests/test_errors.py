"""An error is one line that a terminal can show, whatever was given."""

from __future__ import annotations

import pytest

from asap_ray.errors import ConfigError, shown


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("red\x1b[31m", r"red\x1b[31m"),
        ("two\nlines", r"two\nlines"),
        ("\u202eleft", r"\u202eleft"),
        ("ab" * 100, "ab" * 40 + "…" + "ab" * 20 + " (200 characters)"),
        (10**5000, "<int>"),
        (["a.csv", None, 2], "[a.csv,null,2]"),
    ],
    ids=range(9),
)
def test_a_value_is_shown_as_typed_escaped_and_cut(given: object, text: str) -> None:
    assert shown(given) == text
    line = str(ConfigError("key", given, "allowed: less", ("names",)))
    assert line == f"key={text}: allowed: less"
    assert line.isprintable()


def test_the_nearest_name_is_offered_where_one_is_near() -> None:
    near = str(ConfigError("axis", "tensr", "allowed: data, tensor", ("data", "tensor")))
    assert near == "axis=tensr: did you mean tensor? allowed: data, tensor"
    assert "mean" not in str(ConfigError("axis", "xyz", "allowed: data, tensor", ("data", "tensor")))
