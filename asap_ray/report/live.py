"""What happens while plans are tried: a line for each that ended, and on a terminal what runs now, and how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from asap_ray.errors import printable
from asap_ray.report import units
from asap_ray.report.answer import FLAGS, Tried
from asap_ray.report.compiled import NOT_COMPILED, took, why
from asap_ray.report.terminal import takes_escapes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from asap_ray.physics.estimate import Estimate

SAID: Mapping[str, str] = {"fault": "fault", "narrowing": "narrowed", "lifted": "open again"}
"""Decisions that have a line of their own, with the word for each."""


class Live:
    """Shows trials: `lines` takes a line for each that ended, `bar` what runs (None where no bar is shown)."""

    def __init__(self, lines: TextIO, wanted: int | None, base: str, bar: Progress | None = None) -> None:
        """Show trials until `wanted` have a step time; a bundle of flags other than `base` is named."""
        self._lines, self._wanted, self._base, self._bar = lines, wanted, base, bar
        self._running: dict[tuple[str, str, str], TaskID] = {}
        self._done, self._best_s = 0, float("inf")
        self._whole = bar.add_task(self._summary(), total=wanted) if bar else None

    def started(self, where: str, bundle: str, estimate: Estimate) -> None:
        """A trial begins."""
        if self._bar:
            flags = "" if bundle == self._base else f" ({bundle})"
            words = printable(f"  {where}{flags} {estimate.plan.line}")
            self._running[where, bundle, estimate.plan.line] = self._bar.add_task(words, total=None)

    def ended(self, tried: Tried) -> None:
        """A trial ended."""
        found = tried.finding
        if found.estimate:
            self._done += tried.author != FLAGS
            self._best_s = min(self._best_s, found.estimate.step_time_s)
        self._print(self._line(tried))
        if self._bar and self._whole is not None:
            if (task := self._running.pop((tried.where, tried.bundle, found.plan.line), None)) is not None:
                self._bar.remove_task(task)
            self._bar.update(self._whole, completed=self._done, description=self._summary())

    def told(self, where: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Something was decided or found: what a reader should know of it has a line."""
        if kind in SAID:
            text = fields.get("text") or f"{units.count(fields['plans'])} plans are closed, {fields.get('reason')}"
            self.say(f"  {where} {SAID[kind]}: {text if kind != 'lifted' else fields['name']}")
        elif kind == "turn":
            self.say(f"  {where} the {fields['brain']} has the turn: {fields['reason']}")
        elif kind == "decision" and fields["action"] != "go_on":
            self.say(f"  {where} the {fields['author']} says {fields['action']}: {fields['reason']}")

    def stands(self, where: str, round_: int, best_s: float | None, gap: float | None, left_s: float) -> None:
        """A round begins: how the search stands."""
        words = [f"  {where} round {round_}"]
        words += [f"best so far {units.seconds(best_s)}"] if best_s is not None else []
        words += [f"at most {100 * gap:,.0f}% above the lowest floor"] if gap is not None else []
        words += [f"{left_s / 60:.1f} minutes left"] if left_s != float("inf") else []
        self.say("; ".join(words))

    def say(self, line: str) -> None:
        """One line."""
        self._print(line)

    def _line(self, tried: Tried) -> str:
        found = tried.finding
        flags = "" if tried.bundle == self._base else f"bundle {tried.bundle} "
        head = f"  {tried.where} {flags}{took(tried)}: "
        if found.estimate is None:
            return f"{head}{NOT_COMPILED[found.status]}, {why(tried)}; {found.plan.line}"
        now, before = found.estimate.step_time_s, tried.roofline.step_time_s
        step = f"{units.seconds(now)} ({100 * (now / before - 1):+.1f}% on the roofline)"
        memory = units.gigabytes(found.hbm_bytes)
        return f"{head}step {step}, {memory}, best so far {units.seconds(self._best_s)}; {found.plan.line}"

    def _summary(self) -> str:
        best = f", best so far {units.seconds(self._best_s)}" if self._done else ""
        of = f" of {self._wanted}" if self._wanted else ""
        return f"tried {self._done}{of}{best}"

    def _print(self, line: str) -> None:
        text = printable(line)
        if self._bar and takes_escapes(self._lines):
            self._bar.console.print(text, markup=False, highlight=False, emoji=False)
            return
        encoding = getattr(self._lines, "encoding", None) or "utf-8"
        self._lines.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._lines.flush()


@contextmanager
def live(lines: TextIO, moving: TextIO, wanted: int | None, base: str) -> Iterator[Live]:
    """Show trials while they run.

    Args:
        lines: where a line for each outcome goes.
        moving: where what runs is shown, if it is a terminal that takes escape codes; nothing of it is left behind.
        wanted: how many plans are to come to a step time; None where another budget says when to stop.
        base: the bundle of flags that they all have.
    """
    if not takes_escapes(moving):
        yield Live(lines, wanted, base)
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(file=moving),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        yield Live(lines, wanted, base, bar)
