"""Bundles of compiler flags by name, as `conf/xla/` holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asap_ray.chip import Chip
from asap_ray.errors import ConfigError
from asap_ray.settings import load_group

AUTO = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Flags that belong together: what they are for, their values by chip or kind of chip, and where they are from.

    A chip's own values go before those of its kind (`tpu`, `gpu`); a chip with neither has no such bundle.
    """

    name: str
    about: str
    flags: Mapping[str, Mapping[str, str]]
    sources: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def flags_for(self, chip: Chip) -> Mapping[str, str] | None:
        """The flags for a chip, None where the bundle is not for it."""
        return self.flags.get(chip.name, self.flags.get(chip.kind))


def bundle_from_mapping(name: str, given: Mapping[str, Any]) -> Bundle:
    """Build a bundle from the plain mapping of a `conf/xla/*.yaml`.

    Raises:
        ConfigError: a field is missing, unknown or of the wrong type.
    """
    key = f"xla.{name}"
    known = ("name", "about", "flags", "sources", "notes")
    if unknown := sorted(given.keys() - set(known)):
        raise ConfigError(f"{key}.{unknown[0]}", given[unknown[0]], f"allowed: {', '.join(known)}", known)
    about, flags = given.get("about", ""), given.get("flags")
    if not isinstance(about, str) or not about.strip():
        raise ConfigError(f"{key}.about", about, "one line of text that says what the flags are for")
    if not isinstance(flags, Mapping) or not all(isinstance(each, Mapping) for each in flags.values()):
        raise ConfigError(
            f"{key}.flags", flags, "a mapping from chips or tpu and gpu to flags: {tpu: {xla_flag: true}}"
        )
    sources, notes = given.get("sources") or [], given.get("notes") or {}
    if not isinstance(sources, list | tuple):
        raise ConfigError(f"{key}.sources", sources, "a list of texts: [a, b]")
    if not isinstance(notes, Mapping):
        raise ConfigError(f"{key}.notes", notes, "a mapping from chips to texts: {tpu: text}")
    return Bundle(
        name=name,
        about=about.strip(),
        flags={
            str(chip): {str(flag): _written(str(flag), value) for flag, value in each.items()}
            for chip, each in flags.items()
        },
        sources=tuple(map(str, sources)),
        notes={str(chip): str(note) for chip, note in notes.items()},
    )


def _written(flag: str, value: object) -> str:
    # The compilers read truth values by different rules: XLA's own options take True and False alone.
    if isinstance(value, bool) and not flag.startswith("xla_gpu_"):
        return str(value).lower()
    return str(value)


def load_bundles(names: Sequence[str], chips: Sequence[Chip], config_dir: str | None) -> list[Bundle]:
    """The bundles of `compile.xla`, in the order given; `auto` is the one that trainers set, where all are TPUs.

    Raises:
        ConfigError: there is no bundle of a name, or it is not for one of the chips.
    """
    known = {name: bundle_from_mapping(name, given) for name, given in load_group("xla", config_dir).items()}
    usual = "async" if all(chip.kind == "tpu" for chip in chips) else "default"
    names = list(dict.fromkeys(usual if name == AUTO else name for name in names))
    for name in names:
        if name not in known:
            allowed = (AUTO, *known)
            raise ConfigError("compile.xla", name, f"allowed: {', '.join(allowed)}", allowed)
        for chip in chips:
            if known[name].flags_for(chip) is None:
                fit = [each for each, bundle in known.items() if bundle.flags_for(chip) is not None]
                raise ConfigError("compile.xla", name, f"not for {chip.name}; allowed: {', '.join(fit)}")
    return [known[name] for name in names]
