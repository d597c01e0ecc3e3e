"""The roofline: step time and memory of many plans at once, from first principles and a chip's calibration.

A step is `accumulation` micro-batches through a stage of the pipeline, plus what happens once:

    step = a * (work + exposed + launches) + bubble + exposed gradients + optimizer + overhead

`work` is compute on the critical stage (`stages.py`), `exposed` the traffic that does not hide under it (`stage.py`).
The stack says which fraction of each kind is issued asynchronously; all of that together hides under at most the whole
of `work`, and gradients under what that leaves of the last backward pass, and weights that ZeRO gathers under the first
forward pass. The bubble is (p - 1) / v micro-batches of a stage's layers (arXiv 2104.04473, section 2.2), a third of it
with zero-bubble schedules (ZB-H1, arXiv 2401.10241). The head stands on the last stage, which is the critical one, or,
where the pipeline is a loop over the layers alone, is spread over all stages; where a stack cuts stages by cost, the
step is the larger one of two: with the head's stage as the critical one, and with the fullest of the others.
`serial` is the same with nothing hidden, so
floor <= step <= serial for every plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from asap_ray.meshes import Meshes
from asap_ray.physics.calibration import Calibration, Machine
from asap_ray.physics.estimate import TIME_PARTS, Estimate, Prices, busy, kinds_of_time, summed
from asap_ray.physics.floor import FLOOR_PARTS, FloorPricer
from asap_ray.physics.layer import CHANNELS, LayerPricer
from asap_ray.physics.memory import ActivationBytes, activation_bytes, memory_parts
from asap_ray.physics.network import Link
from asap_ray.physics.recipes import HELD_PASSES, shares_of
from asap_ray.physics.stage import Stage, StagePricer
from asap_ray.physics.stages import stage_layers
from asap_ray.physics.state import StateShards, holds_both_edges, kv_shards, state_shards
from asap_ray.physics.step import StepPricer, slowest
from asap_ray.physics.traffic import StepTraffic, achieved_links, datasheet_links, step_traffic
from asap_ray.physics.units import Units
from asap_ray.plan import ATTENTION_KERNELS, PRECISIONS, Plan
from asap_ray.problem import UNFUSED, Problem
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.space import PlanColumns

TOKEN_BYTES = 8.0
"""Bytes of a token that come from the host: its id and the one to be predicted, 32 bits each."""
KNOBS_READ = ("pipeline", "virtual", "accumulation", "schedule", "remat", "zero", "precision")


@dataclass(frozen=True, slots=True)
class _Tables:
    """What depends on the meshes alone [meshes]: links at datasheet and at achieved rates, and the step's traffic."""

    meshes: Meshes
    state: StateShards
    datasheet: Mapping[str, Link]
    links: Mapping[str, Link]
    traffic: tuple[StepTraffic, StepTraffic]
    floors: FloorPricer


class Pricer:
    """Prices the plans of one problem, with a recipe."""

    def __init__(self, problem: Problem, calibration: Calibration, recipe: Recipe = PLAIN) -> None:
        """Prepare what no plan changes."""
        self.given, self.recipe, self.shares = problem, recipe, shares_of(problem, recipe)
        self.problem, self.calibration = self.shares.problem, calibration
        problem = self.problem
        self.machine = Machine.achieved(problem.slice.chip, calibration)
        self.layers = LayerPricer(problem.workload, self.machine, problem.stack, calibration.elementwise_passes)
        self.stages = StagePricer(problem, calibration, self.machine, self.shares)
        self.steps = StepPricer(self.stages)
        self._last: _Tables | None = None

    def floor(self, rows: PlanColumns) -> np.ndarray:
        """Floors [plans]."""
        return self._tables(rows.meshes).floors.seconds(rows)

    def price(self, rows: PlanColumns) -> Prices:
        """Estimates [plans]."""
        tables = self._tables(rows.meshes)
        stage, *more = self._stages(rows, tables)
        memory = self._memory(stage, tables)
        step = slowest([self.steps.price(each, memory) for each in (stage, *more)])
        parts, serial, batches = dict(step.parts), dict(step.serial), stage.c["accumulation"]
        if self.shares.held:
            copied = self._copied(rows, tables)
            parts["elementwise"], serial["elementwise"] = (each["elementwise"] + copied for each in (parts, serial))
        # The next batch is read while this one is trained on: only what takes longer than the step shows.
        fed = batches * stage.units.tokens[stage.of] * TOKEN_BYTES / self.machine.pcie_bytes_per_s
        parts["input"], serial["input"] = np.maximum(fed - summed(parts.values()), 0.0), fed
        return Prices(
            step_time_s=summed(parts.values()),
            serial_s=summed(serial.values()),
            hbm_bytes=summed(memory.values()),
            time_parts={name: parts[name] for name in TIME_PARTS},
            busy=busy(batches, parts, step.wires, step.waits, step.hbm),
            memory_parts=memory,
        )

    def interval(self, prices: Prices, floors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of the intervals around estimated steps with these floors [plans]; see `Estimate.interval_s`.

        Compute, traffic and host err independently, each by its spread (`Calibration`) times its share of the step; so
        the logarithm of the step has the half-width sqrt(sum (share x spread)^2).
        """
        c = self.calibration
        spreads = np.array([c.spread_compute, c.spread_network, c.spread_host])
        wide = np.exp(np.sqrt(np.square(kinds_of_time(prices.time_parts) * spreads).sum(axis=1)))
        return np.maximum(prices.step_time_s / wide, floors), np.maximum(prices.step_time_s * wide, floors)

    def memory(self, rows: PlanColumns, stage: str = "fullest") -> dict[str, np.ndarray]:
        """Bytes of each memory part on the devices of a stage [plans], as `memory_parts` has them."""
        tables = self._tables(rows.meshes)
        return self._memory(self._stages(rows, tables)[0], tables, stage)

    def _tables(self, meshes: Meshes) -> _Tables:
        # Chunks of one space share their meshes, so the last table is nearly always the right one.
        if self._last is None or self._last.meshes is not meshes:
            state = state_shards(self.problem, meshes.columns)
            links = datasheet_links(self.problem, meshes, bound=False)
            floors = FloorPricer(self.problem, meshes, state)
            floors.again_flops = self.shares.mixed(floors.again_flops)
            self._last = self._achieved(meshes, state, links, floors)
        return self._last

    def _achieved(
        self, meshes: Meshes, state: StateShards, datasheet: Mapping[str, Link], floors: FloorPricer
    ) -> _Tables:
        links = achieved_links(datasheet, self.calibration)
        return _Tables(meshes, state, datasheet, links, step_traffic(self.problem, links, state), floors)

    def recalibrated(self, calibration: Calibration) -> Pricer:
        """The same problem with other constants; what only the meshes decide is not worked out again."""
        found = Pricer(self.given, calibration, self.recipe)
        if known := self._last:
            found._last = found._achieved(known.meshes, known.state, known.datasheet, known.floors)
        return found

    def _stages(self, rows: PlanColumns, tables: _Tables) -> tuple[Stage, ...]:
        """The stages that may be the slowest: the one with the head and, where it can differ, the fullest without."""
        first, of = self._distinct(rows)
        units = self._units(rows.take(first), tables)
        c = {name: rows[name] for name in KNOBS_READ}
        first, last = stage_layers(self.problem, c)
        spread = 1.0 / np.where(holds_both_edges(self.problem.stack, c), c["pipeline"], 1)
        stage = Stage(
            rows=rows,
            c=c,
            units=units,
            cost=self.layers.price(units),
            activations=activation_bytes(self.problem, units),
            traffic=tables.traffic,
            meshes=len(tables.meshes),
            of=of,
            held=last,
            layers=self.problem.workload.architecture.layers,
            head=spread,
            shares=self.shares,
        )
        if not self.problem.stack.stages_by_cost:
            return (stage,)
        return stage, replace(stage, held=first, head=np.zeros(len(of)))

    def _distinct(self, rows: PlanColumns) -> tuple[np.ndarray, np.ndarray]:
        # Layers cost the same for all plans that share mesh, micro-batch and kernels: each such unit is priced once.
        key = rows.mesh.astype(np.int64)
        for name, base in (
            ("micro_batch", self.problem.workload.global_batch + 1),
            ("precision", len(PRECISIONS)),
            ("attention", len(ATTENTION_KERNELS)),
            ("sequence_parallel", 2),
        ):
            key = key * base + rows.knobs[name]
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        return first, of

    def _units(self, rows: PlanColumns, tables: _Tables) -> Units:
        tensor, context = rows["tensor"], rows["context"]
        return Units(
            tokens=rows["micro_batch"] * (self.problem.workload.seq_len / context),
            tensor=tensor,
            kv_shards=kv_shards(self.problem, tensor),
            context=context,
            expert=rows["expert"],
            sequence_shards=np.where(rows["sequence_parallel"] == 1, tensor, 1),
            precision=rows["precision"],
            unfused=rows["attention"] == UNFUSED,
            links={role: _link_rows(tables.links[role], rows.mesh) for role in (*CHANNELS, "pipeline")},
        )

    def _memory(self, stage: Stage, tables: _Tables, which: str = "fullest") -> dict[str, np.ndarray]:
        activations, state = stage.activations, tables.state
        of_plan = ActivationBytes(
            kept=stage.by_policy(activations.kept),
            host=stage.by_policy(activations.host),
            running=activations.running[stage.of],
            passing=activations.passing[stage.of],
            logits=activations.logits[stage.of],
        )
        here = _rows_of(state, stage.rows)
        parts = memory_parts(self.problem, self.calibration, here, of_plan, stage.c, which)
        if self.shares.held:
            parts["gathered"] = parts["gathered"] + self.shares.held_bytes(here, stage.c)
        return parts

    def _copied(self, rows: PlanColumns, tables: _Tables) -> np.ndarray:
        """Seconds in which held weights pass through HBM where each layer gathers its own [plans]."""
        held = self.shares.held_bytes(_rows_of(tables.state, rows), rows)
        alone = rows["accumulation"] == 1
        return np.where(alone, HELD_PASSES * held / self.machine.hbm_bytes_per_s, 0.0)

    def estimates(self, rows: PlanColumns, plans: list[Plan]) -> list[Estimate]:
        """One estimate each for the rows, which are these plans."""
        prices, floors = self.price(rows), self._tables(rows.meshes).floors.parts(rows)
        workload = self.problem.workload
        again = self._tables(rows.meshes).floors.again_flops
        lows, highs = self.interval(prices, floors.max(axis=0))
        found = []
        for i, plan in enumerate(plans):
            step, floor = float(prices.step_time_s[i]), float(floors[:, i].max())
            found.append(
                Estimate(
                    plan=plan,
                    step_time_s=step,
                    interval_s=(float(lows[i]), float(highs[i])),
                    floor_s=floor,
                    serial_s=float(prices.serial_s[i]),
                    mfu=self.problem.mfu(step),
                    tokens_per_s=workload.tokens_per_step / step,
                    hbm_bytes=float(prices.hbm_bytes[i]),
                    hbm_limit_bytes=self.problem.hbm_limit_bytes,
                    time_parts=_row(prices.time_parts, i),
                    busy=_row(prices.busy, i),
                    memory_parts=_row(prices.memory_parts, i),
                    floor_parts={name: float(floors[k, i]) for k, name in enumerate(FLOOR_PARTS)},
                    redundant=float(again[int(rows["remat"][i])]) / workload.model_flops,
                    overhead_s=self.calibration.step_overhead_s,
                )
            )
        return found


def _rows_of(state: StateShards, rows: PlanColumns) -> StateShards:
    """The state of each plan's mesh [plans]."""
    return StateShards(**{field.name: getattr(state, field.name)[rows.mesh] for field in fields(state)})


def _row(columns: Mapping[str, np.ndarray], i: int) -> dict[str, float]:
    return {name: float(column[i]) for name, column in columns.items()}


def _link_rows(link: Link, rows: np.ndarray) -> Link:
    columns = {field.name: getattr(link, field.name) for field in fields(link)}
    return replace(link, **{name: v[rows] for name, v in columns.items() if isinstance(v, np.ndarray)})
