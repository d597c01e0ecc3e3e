"""Cards: pieces of expert knowledge as data, never code: a condition on a diagnosis, a move, why, and who says so.

    when: [bound is compute, context above 1]
    exceptions: [hbm above 0.95]
    moves: [{context: half, data: double}, {context: half, fsdp: double}]

A card fires where all conditions of `when` hold and none of its exceptions does. Conditions read facts: what bounds the
step, shares of it, memory, and the plan. A move says of each column what becomes of it; mesh axes that it does not name
keep their size. Alternatives stand in the order of preference. With `times: 2` halves and doubles may be quarters and
quadruples where one step is taken already or leads nowhere. A move `{xla: NAME}` tries the plan as it is with a bundle
of compiler flags, where the search has that bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asap_ray.errors import ConfigError
from asap_ray.physics.estimate import RESOURCES, TIME_PARTS
from asap_ray.plan import ATTENTION_KERNELS, AXES, KNOBS, PRECISIONS, SCHEDULES
from asap_ray.problem import MESH_COLUMNS
from asap_ray.settings import data_dir, read_settings

Fact = str | int | float
BOUNDS = (*RESOURCES, "input", "memory")
"""What `bound` may be: a resource, or memory where a plan does not fit."""
NUMBERS = (
    *("headroom", "overlap", "redundant", "hbm", "slices", "devices", "experts", "seq_len", "tokens"),
    *(f"share.{part}" for part in TIME_PARTS),
    *MESH_COLUMNS,
    *("micro_batch", "accumulation", "zero", "virtual"),
)
"""Facts that are numbers. `hbm` is what a plan needs of what a device has; `share.X` what part X takes of the step;
`tokens` are the rows of a device's matmuls, its part of a micro-batch."""
WORDS = (
    *("bound", "next_wall", "chip", "generation", "wrapped"),
    *("remat", "schedule", "attention", "precision", "sequence_parallel"),
)
"""Facts that are words. `generation` is the chip by name; `wrapped` whether all axes of its torus close to rings."""
KNOWN: Mapping[str, tuple[str, ...]] = {
    "bound": BOUNDS,
    "next_wall": BOUNDS,
    "chip": ("tpu", "gpu"),
    "schedule": SCHEDULES,
    "attention": ATTENTION_KERNELS,
    "precision": PRECISIONS,
    "wrapped": ("true", "false"),
    "sequence_parallel": ("true", "false"),
}
"""Words that these may be; recomputation policies are each stack's own."""
COMPARISONS = ("is", "in", "not", "above", "below")
ACTIONS = ("half", "double", "lower", "higher", "free")
"""What a move does to a column; besides, it may name its new value, and for remat `lighter` and `heavier`."""
_NAME = re.compile(r"[a-z0-9_]{1,80}")
MOST_TIMES = 4
"""Steps of half or double that one move may take at most."""
XLA = "xla"
"""What a move calls the bundle of flags that is tried with the plan as it is; it stands alone in its move."""
MOVED = (*MESH_COLUMNS, *KNOBS, XLA)


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One fact against a word, some words, or a number."""

    field: str
    comparison: str
    values: tuple[Fact, ...]

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        """Whether it holds; of a fact that is not known nothing does."""
        fact = facts.get(self.field)
        if fact is None:
            return False
        if self.comparison == "above":
            return float(fact) > float(self.values[0])
        if self.comparison == "below":
            return float(fact) < float(self.values[0])
        return (fact in self.values) != (self.comparison == "not")

    @property
    def text(self) -> str:
        """The condition as a card has it."""
        return f"{self.field} {self.comparison} {', '.join(v if isinstance(v, str) else f'{v:g}' for v in self.values)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A piece of expert knowledge: when it applies, what to do then and how many `times` over at most, why, its
    source, and when not to after all."""

    name: str
    when: tuple[Condition, ...]
    moves: tuple[Mapping[str, str], ...]
    why: str
    source: str
    exceptions: tuple[Condition, ...] = ()
    times: int = 1

    def fires(self, facts: Mapping[str, Fact]) -> bool:
        """Whether the card applies to these facts."""
        return all(each.holds(facts) for each in self.when) and not any(each.holds(facts) for each in self.exceptions)


def load_cards(folder: Path | None = None) -> tuple[Card, ...]:
    """The cards of a folder, by name; None is the folder that the package carries.

    Raises:
        ConfigError: a card cannot be read, or uses a word that is not in the vocabulary.
    """
    place = folder or data_dir("knowledge") / "cards"
    return tuple(card_from_mapping(path.stem, read_settings(path)) for path in sorted(place.glob("*.yaml")))


def card_from_mapping(name: str, given: Mapping[str, Any]) -> Card:
    """A card from plain data.

    Raises:
        ConfigError: a field is missing or unknown, or a word is not in the vocabulary.
    """
    key, known = f"cards.{name}", ("when", "moves", "why", "source", "exceptions", "times")
    if unknown := [field for field in given if field not in known]:
        raise ConfigError(key, unknown[0], f"unknown field; allowed: {', '.join(known)}", known)
    if missing := [field for field in known[:4] if not given.get(field)]:
        raise ConfigError(key, name, f"missing: {', '.join(missing)}")
    for field in ("when", "moves", "exceptions"):
        if not isinstance(given.get(field) or [], list | tuple):
            raise ConfigError(f"{key}.{field}", given[field], "allowed: a list")
    times = given.get("times", 1)
    if type(times) is not int or not 1 <= times <= MOST_TIMES:
        raise ConfigError(f"{key}.times", times, f"a whole number from 1 to {MOST_TIMES}")
    return Card(
        name=name,
        when=tuple(_condition(f"{key}.when", text) for text in given["when"]),
        moves=tuple(_move(f"{key}.moves", move) for move in given["moves"]),
        why=" ".join(str(given["why"]).split()),
        source=" ".join(str(given["source"]).split()),
        exceptions=tuple(_condition(f"{key}.exceptions", text) for text in given.get("exceptions") or ()),
        times=times,
    )


def _condition(key: str, text: object) -> Condition:
    field, comparison, rest = [*str(text).split(maxsplit=2), "", "", ""][:3]
    fields = (*NUMBERS, *WORDS)
    if field not in fields:
        raise ConfigError(key, text, f"no such fact; allowed: {', '.join(fields)}", fields)
    if comparison not in COMPARISONS or not rest:
        raise ConfigError(key, text, f"allowed: a fact, then {', '.join(COMPARISONS)}, then what it is held against")
    if (comparison in ("above", "below")) != (field in NUMBERS):
        raise ConfigError(key, text, "numbers are above or below, words are, are not, or are in a list")
    return Condition(field=field, comparison=comparison, values=_values(key, field, rest))


def _values(key: str, field: str, rest: str) -> tuple[Fact, ...]:
    words = tuple(word.strip() for word in rest.split(","))
    if field in NUMBERS:
        try:
            return (float(rest),)
        except ValueError:
            raise ConfigError(key, rest, f"a number: {field} is one") from None
    for word in words:
        _check_word(key, field, word)
    return words


def _check_word(key: str, field: str, word: str) -> None:
    allowed = KNOWN.get(field)
    if allowed is not None and word not in allowed:
        raise ConfigError(key, word, f"allowed: {', '.join(allowed)}", allowed)


def _move(key: str, given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(key, given, "allowed: a mapping of columns to what becomes of them, such as {tensor: half}")
    move = {str(column): str(action).lower() for column, action in given.items()}
    for column, action in move.items():
        if column not in MOVED:
            raise ConfigError(key, column, f"no such column; allowed: {', '.join(MOVED)}", MOVED)
        sizes = column in MESH_COLUMNS or column in ("micro_batch", "accumulation", "zero", "virtual")
        if sizes and action not in ACTIONS and not action.isdigit():
            raise ConfigError(f"{key}.{column}", action, f"allowed: {', '.join(ACTIONS)}, or a size", ACTIONS)
        if column == XLA and (len(move) > 1 or not _NAME.fullmatch(action)):
            raise ConfigError(f"{key}.{column}", action, "allowed: the name of a bundle of flags, alone in its move")
        if not sizes and action != "free":
            _check_word(f"{key}.{column}", column, action)
    return move


def axes_of(move: Mapping[str, str]) -> frozenset[str]:
    """Mesh axes that a move names, whole or at one level."""
    return frozenset(axis for axis in AXES if {axis, f"{axis}_ici", f"{axis}_dcn"} & set(move))


def fired(cards: Sequence[Card], facts: Mapping[str, Fact]) -> list[Card]:
    """The cards that apply, those with the most conditions first: what is more specific knows better."""
    found = [card for card in cards if card.fires(facts)]
    return sorted(found, key=lambda card: (-len(card.when), card.name))
