"""A profile of a compiled program: its schedule, played on one device.

All devices run the same program, so one stands for all. The core takes its ops in order. Work that is started runs
beside it as soon as its resources are free: collectives on the links of the axes they run over, one at a time on each,
copies on the copy engine, transfers on the network between slices. A done moves the clock to the end of what it waits
for; where that had to queue for a link, the time until it began is exposed by those that held the link. Loop bodies are
played until a turn begins as the one before it did, all resources at rest or equally far ahead; the rest of the turns
are alike. Of a conditional's branches the longest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from asap_ray.compiler.costs import Costs, Resource
from asap_ray.compiler.hlo import HloError, Module, understood
from asap_ray.compiler.schedule import Branch, Key, Loop, Program, Run, Start, Step, Wait
from asap_ray.physics.calibration import Calibration
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.profile.table import Op, Profile

MOST_STEPS = 5_000_000
"""Steps that are played: turns of a loop are alike after two or three, and the largest programs have 100,000 ops."""
SAME_S = 1e-12
"""Moments nearer than this are one."""
Tally = dict[Key, tuple[float, float, float]]
"""Runs, busy seconds and exposed seconds of each op."""


def profile_of(
    module: Module,
    problem: Problem,
    plan: Plan,
    calibration: Calibration,
    memory: Mapping[str, float] | None = None,
    largest: tuple[tuple[str, float], ...] = (),
) -> Profile:
    """The profile of a program that was compiled for a plan; `memory` and `largest` are passed on into it.

    Raises:
        HloError: the program is for other devices, or does not say how often one of its loops runs.
    """
    with understood():
        program = Program(module, Costs(module, problem, plan, calibration))
        _, tally = Player(program).play()
    return Profile(
        ops=(*_rows(program.ops, tally), *_dispatch(calibration)),
        chip=problem.slice.chip.name,
        clock_hz=problem.slice.chip.clock_hz,
        source="compile",
        memory=dict(memory or {}),
        largest=largest,
        flags=tuple(program.flags),
    )


def _rows(ops: Mapping[Key, Op], tally: Tally) -> list[Op]:
    """Rows with what a step makes of them; figures of one run become those of all."""
    found = []
    for key, (count, busy, exposed) in tally.items():
        op = ops[key]
        found.append(
            replace(
                op,
                count=count,
                seconds=busy,
                exposed_s=exposed,
                flops=op.flops * count,
                redone_flops=op.redone_flops * count,
                hbm_bytes=op.hbm_bytes * count,
                wire_bytes=op.wire_bytes * count,
            )
        )
    return found


def _dispatch(calibration: Calibration) -> list[Op]:
    """What the host needs to launch a step."""
    overhead = calibration.step_overhead_s
    return [Op(name="dispatch", category="other", seconds=overhead, exposed_s=overhead)] if overhead else []


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Work beside the core, and what it had to wait for before it could begin."""

    key: Key
    begins: float
    ends: float
    behind: _Transfer | None = None


class Player:
    """Plays a program's steps; the clock starts at 0."""

    def __init__(self, program: Program) -> None:
        self.steps = program.steps
        self.entry = program.module.entry
        self.now = 0.0
        self.last: dict[Resource, _Transfer] = {}
        self.under_way: dict[Key, _Transfer] = {}
        self._left = MOST_STEPS
        self._quiet: dict[str, tuple[float, Tally]] = {}

    def play(self) -> tuple[float, Tally]:
        """Seconds of the whole program, and what each op has of them."""
        tally: Tally = {}
        self._computation(self.entry, tally)
        return self.now, tally

    def _computation(self, name: str, tally: Tally) -> None:
        self._left -= 1 + len(self.steps[name])
        if self._left < 0:
            raise HloError(f"it takes more than {MOST_STEPS:,} steps to play: its loops do not settle")
        for step in self.steps[name]:
            self._step(step, tally)

    def _step(self, step: Step, tally: Tally) -> None:
        if isinstance(step, Run):
            self.now += step.seconds
            _count(tally, step.key, 1.0, step.seconds, step.seconds)
        elif isinstance(step, Start):
            self._begin(step, tally)
        elif isinstance(step, Wait):
            self._wait(step.key, tally)
        elif isinstance(step, Loop):
            self._loop(step, tally)
        else:
            self._branch(step, tally)

    def _begin(self, start: Start, tally: Tally) -> None:
        holders = [self.last[each] for each in start.resources if each in self.last]
        behind = max(holders, key=lambda each: each.ends, default=None)
        if behind is not None and behind.ends <= self.now:
            behind = None
        begins = behind.ends if behind else self.now
        transfer = _Transfer(start.key, begins, begins + start.seconds, behind)
        self.last.update(dict.fromkeys(start.resources, transfer))
        self.under_way[start.key] = transfer
        _count(tally, start.key, 1.0, start.seconds, 0.0)
        if start.waits:
            self._wait(start.key, tally)

    def _wait(self, key: Key, tally: Tally) -> None:
        transfer = self.under_way.pop(key, None)
        until = transfer.ends if transfer else self.now
        if until <= self.now:
            return
        ends = until
        while transfer is not None and until > self.now:
            since = max(self.now, transfer.begins)
            _count(tally, transfer.key, 0.0, 0.0, until - since)
            until, transfer = since, transfer.behind
        self.now = ends

    def _loop(self, loop: Loop, tally: Tally) -> None:
        left = loop.trips
        while left:
            ahead = self._ahead()
            if not ahead and loop.body in self._quiet:
                seconds, turn = self._quiet[loop.body]
                alike = left
            else:
                began, turn = self.now, {}
                self._computation(loop.body, turn)
                seconds, left = self.now - began, left - 1
                _scale_into(tally, turn, 1.0)
                after = self._ahead()
                if not ahead and not after:
                    self._quiet[loop.body] = seconds, turn
                alike = left if _alike(ahead, after) else 0
            if alike:
                self._skip(seconds * alike)
                _scale_into(tally, turn, float(alike))
                left -= alike

    def _skip(self, seconds: float) -> None:
        """Move the clock on, and with it whatever is ahead of it."""
        for resource in self._ahead():
            held = self.last[resource]
            self.last[resource] = _Transfer(held.key, held.begins + seconds, held.ends + seconds)
        self.now += seconds

    def _ahead(self) -> dict[Resource, float]:
        """How long each resource is still busy, those at rest left out."""
        return {each: held.ends - self.now for each, held in self.last.items() if held.ends > self.now + SAME_S}

    def _branch(self, branch: Branch, tally: Tally) -> None:
        """Play each branch from here, and go on from the longest."""
        now, last, under_way = self.now, self.last, self.under_way
        played = []
        for body in branch.bodies:
            self.now, self.last, self.under_way = now, dict(last), dict(under_way)
            own: Tally = {}
            self._computation(body, own)
            played.append((self.now, self.last, self.under_way, own))
        self.now, self.last, self.under_way, own = max(played, key=lambda each: each[0])
        _scale_into(tally, own, 1.0)


def _alike(one: Mapping[Resource, float], other: Mapping[Resource, float]) -> bool:
    return one.keys() == other.keys() and all(abs(one[each] - other[each]) < SAME_S for each in one)


def _count(tally: Tally, key: Key, runs: float, busy: float, exposed: float) -> None:
    old = tally.get(key, (0.0, 0.0, 0.0))
    tally[key] = old[0] + runs, old[1] + busy, old[2] + exposed


def _scale_into(tally: Tally, turn: Tally, times: float) -> None:
    for key, (runs, busy, exposed) in turn.items():
        _count(tally, key, times * runs, times * busy, times * exposed)
