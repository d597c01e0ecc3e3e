"""Inputs that are nearly right: a sound sample with a few parts dropped, doubled, swapped, or put in from elsewhere.

Random text is refused by the first check that it meets. What is one step away from sound gets past it, and finds the
check that is missing behind it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
WORDS = (
    *(
        "",
        " ",
        "\x00",
        "\x1b[2J\x1b[31mred\x1b[0m",
        "\u202eabc",
        "\ud800",
        "a\nb",
        "a\r\nb",
        "\u2028",
        "Ünïcode",
        "x" * 5000,
    ),
    *(
        "../../../etc/passwd",
        "/etc/passwd",
        "a/../b",
        "~nobody/x",
        "con.txt",
        "--help",
        "-",
        "$(id)",
        "`id`",
        "; rm -rf x",
    ),
    *(
        "{0}",
        "{x.__class__}",
        "%s%n",
        "${oc.env:HOME}",
        "${a.b}",
        "???",
        "[red]x[/red]",
        "[/]",
        "</script><script>x",
        "]]>",
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "1e999",
        "0x" + "f" * 50,
        "1_000",
        "1e3",
        "-1",
        "0",
        "1",
        "true",
        "null",
        "None",
        "NaN",
        "\u0663",
    ),
    *(
        "2026-01-01",
        "2026-13-45",
        "12:30:00",
        "1:2:3:4",
        "0o777",
        "9" * 400,
        "=",
        "a=b",
        "@",
        "@2.2",
        "4@",
        "1x1",
        "x",
        "*a",
    ),
)
"""Texts that mean something to a terminal, a shell, a page, a path, a number or a grammar."""
LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63, 10**30, 10**400, -(10**30)),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "a", None], [[1], [2, 3]], *WORDS),
)
NUMBERS = ("0", "-1", "00", "1e999", "nan", "99999999999999999999", "9" * 5000, "1.5", "", "0x10", "\u0661")
"""What a number in a text is replaced by."""


def paths(value: Any, most: int = 4000) -> list[tuple[Any, ...]]:
    """The ways to each part of a plain value, the whole of it first, in breadth."""
    found: list[tuple[Any, ...]] = [()]
    for at in found:
        inner = part(value, at)
        names = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        found += [(*at, name) for name in names]
        if len(found) > most:
            break
    return found


def part(value: Any, path: Sequence[Any]) -> Any:
    for name in path:
        value = value[name]
    return value


def _put(value: Any, path: Sequence[Any], new: Any) -> Any:
    if not path:
        return new
    part(value, path[:-1])[path[-1]] = new
    return value


def _changed(draw: Draw, value: Any, donors: Sequence[Any]) -> Any:
    """One change somewhere in a plain value."""
    ways = paths(value)
    at = draw(st.sampled_from(ways))
    act = draw(
        st.sampled_from(
            ("leaf", "leaf", "leaf", "drop", "rename", "double", "swap", "wrap", "donor", "scale", "unwrap")
        )
    )
    owner = part(value, at[:-1]) if at else None
    if act == "drop" and at:
        del owner[at[-1]]
    elif act == "rename" and isinstance(owner, dict):
        owner[draw(st.sampled_from((*WORDS, *map(str, owner), "x")))] = owner.pop(at[-1])
    elif act == "double" and isinstance(owner, list):
        owner.insert(at[-1], copy.deepcopy(owner[at[-1]]))
    elif act in ("swap", "donor"):
        source = value if act == "swap" else draw(st.sampled_from(donors))
        return _put(value, at, copy.deepcopy(part(source, draw(st.sampled_from(paths(source))))))
    elif act == "wrap":
        inner = part(value, at)
        return _put(value, at, draw(st.sampled_from(([inner], {"x": inner}, str(inner)[:10_000]))))
    elif act == "scale" and type(part(value, at)) in (int, float):
        factor = draw(st.sampled_from((-1, 0, 2, 3, 0.5, 1e6, 1e-6, 2**40)))
        return _put(value, at, part(value, at) * factor)
    elif act == "unwrap" and at and isinstance(part(value, at), list | dict) and part(value, at):
        inner = part(value, at)
        return _put(value, at, next(iter(inner.values() if isinstance(inner, dict) else inner)))
    else:
        return _put(value, at, copy.deepcopy(draw(st.sampled_from(LEAVES))))
    return value


@st.composite
def values(draw: Draw, samples: Sequence[Any]) -> Any:
    """Plain values near the samples."""
    value = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 4))):
        value = _changed(draw, value, samples)
    return value


def mappings(samples: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings from texts near the samples, as whoever reads settings hands them on."""
    return values(samples).filter(lambda value: isinstance(value, dict)).map(_keyed)


def _keyed(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): inner for name, inner in value.items()}


def as_json(value: Any) -> bytes:
    """JSON as Python writes it, NaN and lone surrogates included."""
    return json.dumps(value, default=str).encode("utf-8", "surrogatepass")


def as_yaml(value: Any) -> bytes:
    """YAML without aliases; what YAML has no way to write is written as JSON."""
    try:
        return yaml.dump(value, Dumper=_Plain, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, UnicodeError):
        return as_json(value)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@st.composite
def torn(draw: Draw, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a few places cut, doubled, spliced or flipped; mostly as they were."""
    data = draw(whole)
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 2)))):
        first = draw(st.integers(0, max(len(data) - 1, 0)))
        last = min(len(data), first + draw(st.sampled_from((0, 1, 1, 2, 4, 16, 100, 5000))))
        act = draw(st.sampled_from(("cut", "end", "double", "splice", "flip", "word")))
        if act == "end":
            data = data[:first]
        elif act == "cut":
            data = data[:first] + data[last:]
        elif act == "double":
            data = data[:last] + data[first:last] + data[last:]
        elif act == "splice":
            data = data[:first] + draw(st.binary(max_size=12)) + data[last:]
        elif act == "flip" and data:
            data = data[:first] + bytes([data[first] ^ 1 << draw(st.integers(0, 7))]) + data[first + 1 :]
        elif act == "word":
            word = draw(st.sampled_from(WORDS)).encode("utf-8", "surrogatepass")
            data = data[:first] + word + data[last:]
    return data


@st.composite
def lines(draw: Draw, samples: Sequence[str], sep: str = "\n") -> bytes:
    """Texts near the samples by line (or word): some dropped, doubled, swapped, cut, or with other numbers in them."""
    found = draw(st.sampled_from(samples)).split(sep)
    for _ in range(draw(st.integers(0, 4))):
        if not found:
            break
        at, other = draw(st.integers(0, len(found) - 1)), draw(st.integers(0, len(found) - 1))
        act = draw(st.sampled_from(("drop", "double", "swap", "cut", "number", "number", "word", "join")))
        if act == "drop":
            del found[at]
        elif act == "double":
            found.insert(other, found[at])
        elif act == "swap":
            found[at], found[other] = found[other], found[at]
        elif act == "cut":
            found[at] = found[at][: draw(st.integers(0, len(found[at])))]
        elif act == "join":
            found[at] += found[other]
        else:
            found[at] = _word_changed(draw, found[at], act)
    return sep.join(found).encode("utf-8", "surrogatepass")


def _word_changed(draw: Draw, line: str, act: str) -> str:
    """A line with a run of digits (or a place in it) replaced."""
    spans = [at for at, sign in enumerate(line) if sign.isdigit() and not line[at - 1 : at].isdigit()]
    if act == "number" and spans:
        at = draw(st.sampled_from(spans))
        end = next((i for i in range(at, len(line)) if not line[i].isdigit()), len(line))
        return line[:at] + draw(st.sampled_from(NUMBERS)) + line[end:]
    at = draw(st.integers(0, len(line)))
    return line[:at] + draw(st.sampled_from(WORDS)) + line[at:]
