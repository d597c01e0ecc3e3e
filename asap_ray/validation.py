"""A validation: all rows of some tables beside their estimates, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asap_ray.accuracy import LARGE_GROUP, ErrorBlock, RankingSummary, ranking_summary
from asap_ray.comparison import Compared, errors, split_by
from asap_ray.ranked import rankings

HEADLINE_QUALITY = "A"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One row of the table of results: errors, and the rankings among its own rows."""

    errors: ErrorBlock
    ranking: RankingSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """All rows of some tables beside their estimates.

    `read` counts the rows of the tables, `unmapped` those that stand for no plan, or have no time, by reason;
    `complete_unmapped` those of them that state shape, mesh and time. `order` are the names of the groups, as they are
    to be shown.
    """

    tables: tuple[str, ...]
    read: int
    rows: tuple[Compared, ...]
    order: tuple[str, ...]
    unmapped: Mapping[str, int]
    complete_unmapped: int

    @property
    def timed(self) -> list[Compared]:
        """The rows with a measured step time."""
        return [row for row in self.rows if row.measured_s]

    @property
    def headline(self) -> list[Compared]:
        """Timed rows of the best quality whose group counts in the headline."""
        return [row for row in self.timed if row.headline and row.quality == HEADLINE_QUALITY]

    @property
    def mapped_share(self) -> float | None:
        """Share that could be mapped of the rows with a shape, a mesh and a time."""
        timed = len(self.timed)
        return timed / (timed + self.complete_unmapped) if timed + self.complete_unmapped else None

    def groups(self) -> list[Group]:
        """The groups that have timed rows, in their order."""
        found = split_by(self.timed, lambda row: row.group)
        return [
            Group(errors=errors(name, found[name]), ranking=ranking_summary(name, rankings(found[name])))
            for name in self.order
            if name in found
        ]

    def sources(self) -> list[ErrorBlock]:
        """Errors by source; a source whose rows are in several groups, of which one is out of the headline, by group
        besides."""
        blocks = []
        for source, rows in split_by(self.timed, lambda row: row.source).items():
            blocks.append(errors(source, rows))
            parts = split_by(rows, lambda row: row.group)
            if not all(row.headline for row in rows):
                blocks += [errors(f"{source}: {name}", parts[name]) for name in self.order if name in parts]
        return blocks

    def ranking_summaries(self) -> list[RankingSummary]:
        """Over all ranked workloads, and over the large ones."""
        blocks = rankings(self.rows)
        large = [each for each in blocks if each.n >= LARGE_GROUP]
        return [
            ranking_summary("all groups", blocks),
            ranking_summary(f"groups of {LARGE_GROUP} plans or more", large),
        ]

    def worst(self, count: int) -> list[Compared]:
        """The timed rows whose predicted and measured times differ by the largest factor."""
        return sorted(self.timed, key=lambda row: -abs(float(np.log(row.ratio))))[:count]
