"""Which row of the table of results a measured run belongs to, and among the plans of which workloads it is ranked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asap_ray.interchange.measured import MeasuredRow

SEVERAL = re.compile(r"\s*[;\n]\s*")
"""What stands between the names in a cell of `rank_group` that holds several."""


@dataclass(frozen=True, slots=True)
class MeasuredGroups:
    """The patterns of `knowledge/measured/groups.yaml`."""

    settings: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The groups in the order in which they are shown."""
        return tuple(str(entry["name"]) for entry in self.settings["groups"])

    def group_of(self, row: MeasuredRow) -> tuple[str, bool]:
        """The group of a row, and whether it counts in the headline."""
        entry = next(entry for entry in self.settings["groups"] if _matches(entry, row))
        return str(entry["name"]), bool(entry.get("headline", True))

    def ranks_of(self, row: MeasuredRow) -> tuple[str, ...]:
        """The workloads among whose plans the row is ranked: those that it names, or its own where its source ranks
        every one."""
        named = tuple(dict.fromkeys(name for name in SEVERAL.split(row.rank_group.strip()) if name))
        if named or not re.search(self.settings["ranked_by_workload"], row.source, re.IGNORECASE):
            return named
        problem = row.problem
        shape = (problem.workload.global_batch, problem.workload.seq_len, problem.workload.precision)
        return ("|".join(map(str, (row.model, problem.slice.name, problem.stack.name, *shape))),)


def _matches(entry: Mapping[str, Any], row: MeasuredRow) -> bool:
    chip, most = row.problem.slice.chip, entry.get("most", {})
    return (
        bool(re.search(entry["source"], row.source, re.IGNORECASE))
        and entry.get("kind", chip.kind) == chip.kind
        and row.plan.axes["tensor"] <= most.get("tensor", row.plan.axes["tensor"])
        and row.problem.slice.chips <= most.get("chips", row.problem.slice.chips)
    )
