"""The roofline: step time and memory of many plans at once, from first principles and a chip's calibration.

A step is `accumulation` micro-batches through a stage of the pipeline, plus what happens once:

    step = a * (work + exposed + launches) + bubble + exposed gradients + optimizer + overhead

`work` is compute on the critical stage (`stages.py`), `exposed` the traffic that does not hide under it. The stack says
which fraction of each kind is issued asynchronously; all of that together hides under at most the whole of `work`, and
gradients under what that leaves of the last backward pass, and weights that ZeRO gathers under the first forward pass.
The bubble is (p - 1) / v micro-batches of a stage's layers (arXiv 2104.04473, section 2.2), a third of it with
zero-bubble schedules (ZB-H1, arXiv 2401.10241). The head stands on the last stage, which is the critical one, or, where
the pipeline is a loop over the layers alone, is spread over all stages. `serial` is the same with nothing hidden, so
floor <= step <= serial for every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add

import numpy as np

from asap_ray.meshes import Meshes
from asap_ray.physics import network
from asap_ray.physics.calibration import Calibration, Machine
from asap_ray.physics.estimate import TIME_PARTS, Estimate, Levels, Prices, busy, kinds_of_time, summed
from asap_ray.physics.floor import FLOOR_PARTS, FloorPricer
from asap_ray.physics.head import HEAD_KERNELS, head_work
from asap_ray.physics.layer import CHANNELS, NUMBER_BYTES, LayerCost, LayerPricer, Units
from asap_ray.physics.memory import ActivationBytes, activation_bytes, memory_parts
from asap_ray.physics.network import Link
from asap_ray.physics.stages import stage_layers
from asap_ray.physics.state import StateShards, holds_both_edges, kv_shards, state_shards
from asap_ray.physics.traffic import StepTraffic, achieved_links, datasheet_links, step_traffic, widths
from asap_ray.plan import ATTENTION_KERNELS, PRECISIONS, Plan
from asap_ray.problem import UNFUSED, ZERO_BUBBLE, Problem
from asap_ray.space import PlanColumns
from asap_ray.stack import OVERLAPS

TOKEN_BYTES = 8.0
"""Bytes of a token that come from the host: its id and the one to be predicted, 32 bits each."""
ZERO_BUBBLE_SHARE = 1.0 / 3.0
MOST_NEIGHBOURS = 2
"""A stage of a pipeline hands tensors to the one before and the one after it."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Plans that are being priced: their unit's index and cost, and what a stage holds of the layers and of the head.

    Of the two stages that may be the slowest, the fullest without the head and the one with it, it is the slower one.
    """

    rows: PlanColumns
    c: Mapping[str, np.ndarray]
    units: Units
    cost: LayerCost
    activations: ActivationBytes
    of: np.ndarray
    held: np.ndarray
    layers: int
    head: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """The part of all layers that the stage holds [plans]."""
        return self.held / self.layers

    @property
    def others(self) -> _Batch:
        """The stages besides, on average, with what they have of the head."""
        rest = np.maximum(self.c["pipeline"] - 1, 1)
        return replace(self, held=(self.layers - self.held) / rest, head=(1.0 - self.head) / rest)

    @property
    def kernels(self) -> np.ndarray:
        """Launches of one micro-batch on the stage [plans]."""
        return self.share * self.by_policy(self.cost.kernels) + (self.head > 0) * HEAD_KERNELS

    def by_policy(self, table: np.ndarray) -> np.ndarray:
        """From [units, policies] to [plans]."""
        return table[self.of, self.c["remat"]]


class Pricer:
    """Prices the plans of one problem."""

    def __init__(self, problem: Problem, calibration: Calibration) -> None:
        """Prepare what no plan changes."""
        self.problem, self.calibration = problem, calibration
        self.machine = Machine.achieved(problem.slice.chip, calibration)
        stack = problem.stack
        self.overlap = {kind: float(getattr(calibration, f"overlap_{kind}")) for kind in OVERLAPS}
        self.layers = LayerPricer(
            problem.workload,
            self.machine,
            stack.remat,
            stack.reruns_output,
            calibration.elementwise_passes,
            stack.routes_by_matmul,
        )
        self._last: _Tables | None = None

    def floor(self, rows: PlanColumns) -> np.ndarray:
        """Floors [plans]."""
        return self._tables(rows.meshes).floors.seconds(rows)

    def price(self, rows: PlanColumns) -> Prices:
        """Estimates [plans]."""
        tables = self._tables(rows.meshes)
        batch = self._batch(rows, tables)
        work, waits, hbm = self._work(batch)
        wires = self._wires(batch, tables)
        memory = self._memory(batch, tables)
        total = {kind: ici + dcn for kind, (ici, dcn) in wires.items()}
        gradient = total.pop("gradient")
        layers = summed(work.values()) - work["head"]
        exposed, shown = self._exposed(layers, work["head"], total)
        backward = batch.share * summed(part.total_s for part in batch.cost.backward.values())[batch.of]
        # Gradients go under the last backward pass, weights that ZeRO gathers under the first forward pass.
        passes = np.where(batch.c["zero"] > 0, layers, backward)
        left = layers + work["head"] + summed(exposed.values()) - summed(total.values())
        room = np.maximum(np.minimum(passes, left), 0.0)
        # A sum of all gradients at once begins when the last of them is there.
        early = self.problem.stack.zero_scatters | (batch.c["zero"] == 0)
        hidden = np.minimum(early * self.overlap["gradient"] * gradient, room)
        others, filling = self._filling(batch, tables, layers + shown, layers + summed(total.values()))
        parts = self._parts(batch, others, work | exposed, filling[0], gradient - hidden, memory)
        serial = self._parts(batch, others, work | total, filling[1], gradient, memory)
        # The next batch is read while this one is trained on: only what takes longer than the step shows.
        fed = batch.c["accumulation"] * batch.units.tokens[batch.of] * TOKEN_BYTES / self.machine.pcie_bytes_per_s
        parts["input"], serial["input"] = np.maximum(fed - summed(parts.values()), 0.0), fed
        return Prices(
            step_time_s=summed(parts.values()),
            serial_s=summed(serial.values()),
            hbm_bytes=summed(memory.values()),
            time_parts={name: parts[name] for name in TIME_PARTS},
            busy=busy(batch.c["accumulation"], parts, wires, waits, hbm),
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
        return self._memory(self._batch(rows, tables), tables, stage)

    def _tables(self, meshes: Meshes) -> _Tables:
        # Chunks of one space share their meshes, so the last table is nearly always the right one.
        if self._last is None or self._last.meshes is not meshes:
            state = state_shards(self.problem, meshes.columns)
            links = datasheet_links(self.problem, meshes, bound=False)
            floors = FloorPricer(self.problem, meshes, state)
            self._last = self._achieved(meshes, state, links, floors)
        return self._last

    def _achieved(
        self, meshes: Meshes, state: StateShards, datasheet: Mapping[str, Link], floors: FloorPricer
    ) -> _Tables:
        links = achieved_links(datasheet, self.calibration)
        return _Tables(meshes, state, datasheet, links, step_traffic(self.problem, links, state), floors)

    def recalibrated(self, calibration: Calibration) -> Pricer:
        """The same problem with other constants; what only the meshes decide is not worked out again."""
        found = Pricer(self.problem, calibration)
        if known := self._last:
            found._last = found._achieved(known.meshes, known.state, known.datasheet, known.floors)
        return found

    def _batch(self, rows: PlanColumns, tables: _Tables) -> _Batch:
        first, of = self._distinct(rows)
        units = self._units(rows.take(first), tables)
        c = {name: rows[name] for name in KNOBS_READ}
        first, last = stage_layers(self.problem, c)
        spread = 1.0 / np.where(holds_both_edges(self.problem.stack, c), c["pipeline"], 1)
        batch = _Batch(
            rows=rows,
            c=c,
            units=units,
            cost=self.layers.price(units),
            activations=activation_bytes(self.problem, units),
            of=of,
            held=last,
            layers=self.problem.workload.architecture.layers,
            head=spread,
        )
        if not self.problem.stack.stages_by_cost:
            return batch
        plain = replace(batch, held=first, head=np.zeros(len(of)))
        slower = (c["pipeline"] > 1) & (self._pace(plain) > self._pace(batch))
        return replace(batch, held=np.where(slower, first, last), head=np.where(slower, 0.0, spread))

    def _pace(self, batch: _Batch) -> np.ndarray:
        """Seconds of one micro-batch on a stage [plans], of the device or of the host, whichever is slower."""
        device = summed(self._work(batch)[0].values()) + batch.kernels * self.calibration.kernel_launch_s
        return np.maximum(device, self._hosted(batch))

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

    def _work(self, batch: _Batch) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Seconds of kernels of one micro-batch on the critical stage, by part, and those of all of them in which the
        matrix units wait for HBM, and in which HBM is busy [plans]."""
        cost, of, share = batch.cost, batch.of, batch.share
        head, spread = head_work(self.problem.workload, batch.units, self.machine), batch.head
        parts = {part: cost.forward[part] + cost.backward[part] for part in cost.forward}
        work = {part: share * each.total_s[of] for part, each in parts.items()}
        work["recompute"] = share * batch.by_policy(cost.again.total_s)
        work["head"] = spread * head.total_s[of]
        layers = reduce(add, parts.values())
        work["head"] = np.maximum(work["head"] - self._spared(batch) * (summed(work.values()) - work["head"]), 0.0)
        waits = share * batch.by_policy(layers.waits_s[:, None] + cost.again.waits_s) + spread * head.waits_s[of]
        hbm = share * batch.by_policy(layers.hbm_s[:, None] + cost.again.hbm_s) + spread * head.hbm_s[of]
        return work, waits, hbm

    def _spared(self, batch: _Batch) -> np.ndarray:
        """Layers that the stage of the head holds less than the fullest, over what that holds [plans]: trainers that
        split layers unevenly leave half of what is missing to the first stage, for its embedding, and half to it."""
        pipeline, layers = batch.c["pipeline"], self.problem.workload.architecture.layers
        if self.problem.stack.stages_by_cost:  # what each stage holds is known
            return np.zeros(len(pipeline))
        fewer = np.ceil((batch.held * pipeline - layers) / 2.0) if self.problem.stack.uneven_layers else 0.0
        return np.where((pipeline > 1) & (not self.problem.stack.holds_all), fewer / batch.held, 0.0)

    def _wires(self, batch: _Batch, tables: _Tables) -> dict[str, Levels]:
        """Traffic of one micro-batch on one stage, by kind; `gradient` is of the whole step."""
        cost, share, (layers, edges) = batch.cost, batch.share, tables.traffic
        wide = np.searchsorted(widths(self.problem), NUMBER_BYTES[batch.c["precision"]])
        mesh = wide * len(tables.meshes) + batch.rows.mesh
        wires: dict[str, Levels] = {}
        for channel in CHANNELS:
            base, again = cost.wire[channel], cost.wire_again[channel]
            wires[channel] = _levels(lambda k, b=base, a=again: share * (b[k][batch.of] + batch.by_policy(a[k])))
        moved, ends = (2 * part.gather + part.scatter for part in (layers, edges))
        wires["fsdp"] = _levels(lambda k: share * moved[k][mesh] + ends[k][mesh])
        sent = self._sent(batch.units)
        wires["pipeline"] = _levels(lambda k: 2 * batch.c["virtual"] * sent[k][batch.of])
        inside, ends = (np.array([part.reduce, part.spread]) for part in (layers, edges))
        which = (batch.c["zero"] > 0).astype(np.intp)
        wires["gradient"] = _levels(lambda k: share * inside[which, k, mesh] + ends[which, k, mesh])
        host = batch.by_policy(batch.activations.host) * batch.held
        wires["offload"] = (2 * host / self.machine.pcie_bytes_per_s, np.zeros(len(host)))
        return wires

    def _sent(self, units: Units) -> Levels:
        """One micro-batch handed to the next stage [units]: inside or across, whichever boundary is the slower one."""
        block = units.tokens * self.problem.workload.architecture.d_model * units.number_bytes / units.sequence_shards
        ici, dcn = network.permute(units.links["pipeline"], block)
        return np.where(ici > dcn, ici, 0.0), np.where(ici > dcn, 0.0, dcn)

    def _exposed(
        self, layers: np.ndarray, head: np.ndarray, total: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Traffic that does not hide: by kind on the last stage, and in all on a stage without the head."""
        wanted = {kind: self.overlap[kind] * seconds for kind, seconds in total.items()}
        asynchronous = summed(wanted.values())
        scale = np.minimum(1.0, (layers + head) / np.maximum(asynchronous, 1e-30))
        shown = summed(total.values()) - np.minimum(asynchronous, layers)
        return {kind: total[kind] - scale * wanted[kind] for kind in total}, shown

    def _filling(
        self, batch: _Batch, tables: _Tables, hides: np.ndarray, waits: np.ndarray
    ) -> tuple[_Batch, tuple[np.ndarray, np.ndarray]]:
        """The other stages, and what one micro-batch takes on one of them where traffic hides and where it does not,
        given what it takes on the slowest one without its head."""
        if not self.problem.stack.stages_by_cost:
            return replace(batch, head=np.zeros(len(batch.of))), (hides, waits)
        others = batch.others
        work, wires = self._work(others)[0], self._wires(others, tables)
        total = {kind: ici + dcn for kind, (ici, dcn) in wires.items() if kind != "gradient"}
        layers = summed(work.values())
        return others, (layers + self._exposed(layers, 0.0 * layers, total)[1], layers + summed(total.values()))

    def _memory(self, batch: _Batch, tables: _Tables, stage: str = "fullest") -> dict[str, np.ndarray]:
        activations, state = batch.activations, tables.state
        of_plan = ActivationBytes(
            kept=batch.by_policy(activations.kept),
            host=batch.by_policy(activations.host),
            running=activations.running[batch.of],
            passing=activations.passing[batch.of],
            logits=activations.logits[batch.of],
        )
        rows = {field.name: getattr(state, field.name)[batch.rows.mesh] for field in fields(state)}
        return memory_parts(self.problem, self.calibration, StateShards(**rows), of_plan, batch.c, stage)

    def _parts(
        self,
        batch: _Batch,
        others: _Batch,
        each: Mapping[str, np.ndarray],
        stage: np.ndarray,
        gradient: np.ndarray,
        memory: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Seconds of a step on the critical path, by part [plans]: `each` is paid by every micro-batch, `stage` is what
        one takes on one of the others."""
        c, constants, batches = batch.c, self.calibration, batch.c["accumulation"]
        kernels, filled = batch.kernels, others.kernels
        handed = constants.handoff_s * 2 * c["virtual"] * np.minimum(c["pipeline"] - 1, MOST_NEIGHBOURS)
        share = np.where(c["schedule"] == ZERO_BUBBLE, ZERO_BUBBLE_SHARE, 1.0)
        moved = 2 * memory["weights"] + memory["gradients"] + 2 * memory["optimizer"]
        # The host launches ahead of the device; where it is the slower one, the device waits for it.
        device = summed(each.values()) + kernels * constants.kernel_launch_s
        waits = np.maximum(self._hosted(batch) - device, 0.0)
        filling = np.maximum(stage + filled * constants.kernel_launch_s, self._hosted(others)) + handed
        host = kernels * constants.kernel_launch_s + waits + constants.batch_overhead_s
        return {
            **{part: batches * seconds for part, seconds in {**each, "pipeline": each["pipeline"] + handed}.items()},
            "gradient": gradient,
            "bubble": share * (c["pipeline"] - 1) / c["virtual"] * filling,
            "optimizer": constants.optimizer_passes * moved / self.machine.hbm_bytes_per_s,
            "host": batches * host + constants.step_overhead_s,
        }

    def _hosted(self, batch: _Batch) -> np.ndarray:
        """Seconds in which the host launches one micro-batch on the stage [plans].

        While a pipeline's messages cross the network, threads that serve them hold up each rank's own at every layer;
        ranks of a tensor group are held up at different times, and each collective waits for all of them.
        """
        crossing = (batch.rows["pipeline_dcn"] > 1) & (batch.rows["tensor"] > 1)
        stalls = self.calibration.stall_s * np.where(crossing, batch.rows["tensor"], 0.0) * batch.held
        return batch.kernels * self.calibration.host_launch_s + stalls

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


def _levels(seconds: Callable[[int], np.ndarray]) -> Levels:
    return seconds(0), seconds(1)


def _row(columns: Mapping[str, np.ndarray], i: int) -> dict[str, float]:
    return {name: float(column[i]) for name, column in columns.items()}


def _link_rows(link: Link, rows: np.ndarray) -> Link:
    columns = {field.name: getattr(link, field.name) for field in fields(link)}
    return replace(link, **{name: v[rows] for name, v in columns.items() if isinstance(v, np.ndarray)})
