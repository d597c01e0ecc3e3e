"""What a search stands at in figures, for whoever draws them as it goes on: each time a trial begins or ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from asap_ray.report.answer import Tried

Figure = tuple[str, Mapping[str, str], float]


@dataclass(slots=True)
class _Slice:
    ended: Counter[str] = field(default_factory=Counter)
    running: set[tuple[int, str]] = field(default_factory=set)
    rounds: int = 0
    best_s: float | None = None
    chip_hours: float = 0.0


@dataclass(kw_only=True, slots=True)
class Standing:
    """Counts trials, and shows what they come to.

    Args:
        show: takes figures: a name of `ray_metrics.METRICS`, its tags and its value.
        tokens: those that language models have taken so far.
        places: where the figures can be seen, by name, once that is known.
        say: takes a line that says so.
    """

    show: Callable[[list[Figure]], None]
    tokens: Callable[[], float] = lambda: 0.0
    places: Callable[[], Mapping[str, str]] = dict
    say: Callable[[str], None] = lambda line: None
    _said: bool = False
    _slices: dict[str, _Slice] = field(default_factory=dict)

    def began(self, where: str, number: int, bundle: str) -> None:
        """A trial begins."""
        self._of(where).running.add((number, bundle))
        self._tell(where)

    def ended(self, tried: Tried) -> None:
        """A trial has ended, or an earlier run had finished it."""
        one, found = self._of(tried.where), tried.finding
        one.running.discard((tried.number, tried.bundle))
        one.ended[found.status] += 1
        one.chip_hours += found.chip_hours
        if found.estimate is not None:
            one.best_s = min(one.best_s or float("inf"), found.estimate.step_time_s)
        self._tell(tried.where)

    def stands(self, where: str, round_: int) -> None:
        """A round begins."""
        self._of(where).rounds = round_
        self._tell(where)

    def _of(self, where: str) -> _Slice:
        return self._slices.setdefault(where, _Slice())

    def _tell(self, where: str) -> None:
        self.show(list(self._figures(where, self._of(where))))
        if not self._said and (places := self.places()):
            self._said = True
            self.say("  " + ", ".join(f"{name} at {place}" for name, place in places.items()))

    def _figures(self, where: str, one: _Slice) -> Iterator[Figure]:
        tags = {"slice": where}
        if one.best_s is not None:
            yield "asap_best_step_seconds", tags, one.best_s
        for status, count in {**one.ended, "running": len(one.running)}.items():
            yield "asap_trials", {**tags, "status": status}, float(count)
        yield "asap_rounds", tags, float(one.rounds)
        yield "asap_chip_hours", tags, one.chip_hours
        yield "asap_llm_tokens", {}, float(self.tokens())
