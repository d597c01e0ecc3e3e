"""A recipe: what a trial changes besides the plan, as data that is checked and never as code.

Its genes are a bundle of compiler flags, layers whose weights stay gathered, activations that are saved on top of what
the plan's policy saves, and tile sizes of attention. The empty recipe is today's program. A recipe is written in one
line, such as `vmem hold=8 save=gate_up+act/16 block_q=512`: the bundle's name, 8 layers held, and two tensors more
saved in the first 16 layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from asap_ray.errors import shown

GENES = ("flags", "hold", "save", "blocks")
"""What may be varied besides the plan, by the names of `search.vary`."""
PROGRAM_GENES = ("hold", "save", "blocks")
"""Those that change the program, which only our own trainer has."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Recipe:
    """What is tried besides a plan.

    `flags` names a bundle of conf/xla (empty: the one that every plan is tried with). Of the first `hold` layers the
    weights are gathered over the axes that shard them once a step, and stay whole for every micro-batch and both
    passes. The first `save_layers` layers (0: all) keep the tensors of `save` besides what the policy keeps. `block_q`
    and `block_kv` are tiles of the fused attention kernel, in queries and keys (0: the trainer's own).
    """

    flags: str = ""
    hold: int = 0
    save: tuple[str, ...] = ()
    save_layers: int = 0
    block_q: int = 0
    block_kv: int = 0

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return self != PLAIN

    @property
    def program(self) -> Recipe:
        """What of it changes the program that is compiled: all but the flags."""
        return replace(self, flags="")

    @property
    def line(self) -> str:
        """The recipe in one line that `parse` reads; empty where it is."""
        words = [self.flags] if self.flags else []
        words += [f"hold={self.hold}"] if self.hold else []
        if self.save:
            words.append(f"save={'+'.join(self.save)}" + (f"/{self.save_layers}" if self.save_layers else ""))
        words += [f"{name}={getattr(self, name)}" for name in ("block_q", "block_kv") if getattr(self, name)]
        return " ".join(words)

    def under(self, base: str) -> str:
        """The line with the bundle's name always in front: `base` where the recipe names none."""
        return replace(self, flags=self.flags or base).line

    @classmethod
    def parse(cls, line: str) -> Recipe:
        """Read what `line` wrote.

        Raises:
            ValueError: a word is no gene.
        """
        found: dict[str, object] = {}
        for word in line.split():
            name, given, value = word.partition("=")
            if not given:
                name, value = "flags", word
            if name in found or name not in _NAMES:
                raise ValueError(f"{shown(word)} is no gene of a recipe: {', '.join(_NAMES)}, each once")
            if name == "save":
                names, _, layers = value.partition("/")
                found |= {"save": tuple(names.split("+")), "save_layers": int(layers or 0)}
            else:
                found[name] = value if name == "flags" else int(value)
        return cls(**found)  # type: ignore[arg-type]


PLAIN = Recipe()
"""The plan alone, with the flags that every plan is tried with."""
_NAMES = tuple(each.name for each in fields(Recipe) if each.name != "save_layers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Genes:
    """What a search may vary besides plans: bundles of flags beside the usual one, what each is for, and which other
    genes."""

    flags: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything may be varied."""
        return bool(self.flags or self.others)
