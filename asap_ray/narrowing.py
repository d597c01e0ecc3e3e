"""Narrowing: a mask over the fixed space, with an author and a reason, that can be lifted again.

A condition maps fields to what they may be: a value, a list of values, or a comparison such as `">=8"`:

    {tensor: 8}    {remat: [full, minimal], pipeline: 1}    {micro_batch: "<=4"}    {tensor_dcn: ">1"}
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asap_ray.errors import ConfigError
from asap_ray.plan import KNOBS
from asap_ray.problem import MESH_COLUMNS, Columns, Problem, coding

NARROWING_FIELDS = MESH_COLUMNS + KNOBS
_COMPARISONS = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """One field against a set of values (`comparison` is "in") or one bound."""

    field: str
    comparison: str
    values: tuple[int, ...]

    def holds(self, columns: Columns) -> np.ndarray:
        """Whether each row passes [plans]."""
        column = columns[self.field]
        if self.comparison == "in":
            return np.isin(column, self.values)
        return np.asarray(_COMPARISONS[self.comparison](column, self.values[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowing:
    """Keep only the plans that pass all tests (`keep`), or drop those plans."""

    name: str
    tests: tuple[Test, ...]
    keep: bool
    author: str
    reason: str

    @property
    def reads(self) -> frozenset[str]:
        """The columns that its tests read."""
        return frozenset(test.field for test in self.tests)

    def open(self, columns: Columns) -> np.ndarray:
        """Which rows stay open under this narrowing [plans]."""
        passed = np.logical_and.reduce([test.holds(columns) for test in self.tests])
        return passed if self.keep else ~passed


def fixed(
    problem: Problem, given: Mapping[str, object], author: str = "user", key: str = "space.fix"
) -> tuple[Narrowing, ...]:
    """One narrowing for each field pinned, by `space.fix` or by another key.

    Raises:
        ConfigError: a field is unknown, or its value cannot be one of the field's.
    """
    return tuple(
        Narrowing(
            name="fix",
            tests=(_test(problem, f"{key}.{field}", field, value),),
            keep=True,
            author=author,
            reason=f"{key}.{field}={value}",
        )
        for field, value in given.items()
    )


def forbidden(problem: Problem, given: Sequence[Mapping[str, object]], author: str = "user") -> tuple[Narrowing, ...]:
    """One narrowing for each entry of `space.forbid`; an entry's fields must all match for a plan to be dropped.

    Raises:
        ConfigError: an entry is no mapping, is empty, or has an unknown field or value.
    """
    narrowings = []
    for i, entry in enumerate(given):
        key = f"space.forbid[{i}]"
        if not isinstance(entry, Mapping) or not entry:
            raise ConfigError(key, entry, "allowed: a mapping of fields to values, such as {tensor: 8, remat: none}")
        tests = tuple(_test(problem, f"{key}.{field}", field, value) for field, value in entry.items())
        narrowings.append(
            Narrowing(name="forbid", tests=tests, keep=False, author=author, reason=f"{key}={dict(entry)}")
        )
    return tuple(narrowings)


def _test(problem: Problem, key: str, field: str, value: object) -> Test:
    if field not in NARROWING_FIELDS:
        owner = key.removesuffix(f".{field}")
        raise ConfigError(owner, field, f"no such field; allowed: {', '.join(NARROWING_FIELDS)}", NARROWING_FIELDS)
    codes = coding(problem).get(field)
    if isinstance(value, str) and codes is None:
        for sign in _COMPARISONS:
            if value.startswith(sign):
                return Test(field=field, comparison=sign, values=(_number(key, value.removeprefix(sign).strip()),))
    values = value if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise ConfigError(key, value, "allowed: a value or a list of at least one")
    read = tuple(
        _flag(key, v) if field == "sequence_parallel" else _code(key, v, codes) if codes else _number(key, v)
        for v in values
    )
    return Test(field=field, comparison="in", values=read)


def _code(key: str, value: object, codes: tuple[str, ...]) -> int:
    # YAML reads 1f1b as text but none as null, the name of a policy and of a schedule.
    name = "none" if value is None else str(value)
    if name not in codes:
        raise ConfigError(key, name, f"allowed: {', '.join(codes)}", codes)
    return codes.index(name)


def _flag(key: str, value: object) -> int:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ConfigError(key, value, "allowed: true, false", ("true", "false"))
    return int(text == "true")


def _number(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise ConfigError(key, value, 'allowed: a whole number, a list of them, or a comparison such as ">=8"')
