"""The end of every comparison, whatever it was played on: its files, its event, and what is told of it."""

from __future__ import annotations

from asap_ray.config import Config
from asap_ray.ledger import Ledger
from asap_ray.report.comparison import ComparisonAnswer, comparison_fields
from asap_ray.report.comparison_files import write_comparison
from asap_ray.report.comparison_outline import outline
from asap_ray.tasks.running import tell, write_files


def conclude(config: Config, ledger: Ledger, answer: ComparisonAnswer) -> None:
    """Write and tell what a comparison came to.

    Raises:
        AsapError: a file cannot be written.
    """
    fields = comparison_fields(answer)
    files = write_files(config, lambda: write_comparison(answer, fields))
    ledger.append("compared", fields)
    tell(config, fields, outline(answer, fields, files))
