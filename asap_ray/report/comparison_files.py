"""The files of a comparison, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asap_ray.drafts import write_whole
from asap_ray.report.comparison import ComparisonAnswer
from asap_ray.report.comparison_page import comparison_page


def write_comparison(answer: ComparisonAnswer, fields: Mapping[str, Any]) -> list[str]:
    """Write the run's files; returns their names.

    Raises:
        OSError: the directory cannot be written.
    """
    texts = {
        "report.html": comparison_page(answer, fields),
        "comparison.json": json.dumps(fields, indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        write_whole(answer.run_dir / name, text)
    return list(texts)
