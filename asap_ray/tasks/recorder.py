"""Who is told what happens while plans compile: the ledger first, then whoever looks on."""

from __future__ import annotations

from asap_ray.ledger import Ledger
from asap_ray.physics.estimate import Estimate
from asap_ray.report.answer import Tried
from asap_ray.report.live import Live
from asap_ray.tasks import record


class Recorder:
    """Writes each outcome into the ledger as soon as it is known, and shows it."""

    def __init__(self, ledger: Ledger, shown: Live) -> None:
        """Write to a ledger and show on a display."""
        self._ledger, self._shown = ledger, shown

    def started(self, where: str, bundle: str, estimate: Estimate) -> None:
        """A plan begins to compile."""
        self._shown.started(where, bundle, estimate)

    def ended(self, tried: Tried) -> None:
        """A compilation ended."""
        record.tried(self._ledger, tried)
        self._shown.ended(tried)
