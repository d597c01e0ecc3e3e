"""Who is told what happens in a search: the ledger first, then whoever looks on."""

from __future__ import annotations

from typing import Any

from asap_ray.ledger import Ledger
from asap_ray.report.answer import Tried
from asap_ray.report.live import Live
from asap_ray.tasks import record
from asap_ray.tasks.standing import Standing
from asap_ray.tasks.trials import Wanted


class Recorder:
    """Writes each outcome and decision into the ledger as soon as it is known, and shows it."""

    def __init__(self, ledger: Ledger, shown: Live, standing: Standing | None = None) -> None:
        """Write to a ledger and show on a display, and in figures where somebody draws them."""
        self._ledger, self._shown, self._standing = ledger, shown, standing

    def started(self, wanted: Wanted, where: str, bundle: str) -> None:
        """A trial begins."""
        record.began(self._ledger, where, bundle, wanted.number, wanted.roofline.plan)
        self._shown.started(where, bundle, wanted.roofline)
        if self._standing is not None:
            self._standing.began(where, wanted.number, bundle)

    def ended(self, tried: Tried) -> None:
        """A trial ended, or was found again."""
        record.tried(self._ledger, tried)
        self._shown.ended(tried)
        if self._standing is not None:
            self._standing.ended(tried)

    def told(self, where: str, kind: str, fields: dict[str, Any]) -> None:
        """Something was decided or found."""
        record.told(self._ledger, where, kind, fields)
        self._shown.told(where, kind, fields)

    def stands(self, where: str, round_: int, best_s: float | None, gap: float | None, left_s: float) -> None:
        """A round begins."""
        self._shown.stands(where, round_, best_s, gap, left_s)
        if self._standing is not None:
            self._standing.stands(where, round_)

    def say(self, line: str) -> None:
        """A line for whoever looks on alone."""
        self._shown.say(line)
