"""What one micro-batch costs on a stage of a pipeline: kernels, traffic, and the host that launches both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from asap_ray.physics import network
from asap_ray.physics.calibration import Calibration, Machine
from asap_ray.physics.estimate import Levels, summed
from asap_ray.physics.head import HEAD_KERNELS, head_work
from asap_ray.physics.layer import CHANNELS, LayerCost
from asap_ray.physics.memory import ActivationBytes
from asap_ray.physics.recipes import Shares
from asap_ray.physics.traffic import StepTraffic, widths
from asap_ray.physics.units import NUMBER_BYTES, Units
from asap_ray.problem import Problem
from asap_ray.space import PlanColumns
from asap_ray.stack import OVERLAPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of each of some plans: their unit's index and cost, and what the stage holds of layers and head.

    `traffic` is that of the layers' and of the edges' weights [widths * meshes], `meshes` how many there are.
    """

    rows: PlanColumns
    c: Mapping[str, np.ndarray]
    units: Units
    cost: LayerCost
    activations: ActivationBytes
    traffic: tuple[StepTraffic, StepTraffic]
    meshes: int
    of: np.ndarray
    held: np.ndarray
    layers: int
    head: np.ndarray
    shares: Shares

    @property
    def share(self) -> np.ndarray:
        """The part of all layers that the stage holds [plans]."""
        return self.held / self.layers

    @property
    def others(self) -> Stage:
        """The stages besides, on average, with what they have of the head."""
        rest = np.maximum(self.c["pipeline"] - 1, 1)
        return replace(self, held=(self.layers - self.held) / rest, head=(1.0 - self.head) / rest)

    @property
    def kernels(self) -> np.ndarray:
        """Launches of one micro-batch on the stage [plans]."""
        return self.share * self.by_policy(self.cost.kernels) + (self.head > 0) * HEAD_KERNELS

    @property
    def backward(self) -> np.ndarray:
        """Seconds of the layers' backward pass, without what is computed again [plans]."""
        return self.share * summed(part.total_s for part in self.cost.backward.values())[self.of]

    def by_policy(self, table: np.ndarray) -> np.ndarray:
        """From [units, policies] to [plans]."""
        return self.shares.mixed(table)[self.of, self.c["remat"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Seconds of one micro-batch's kernels by part, those in which the matrix units wait for HBM, and those in which
    HBM is busy [plans].

    Layers are those of the fullest stage. `spared` is the share of them that the head's stage lacks, as far as the head
    takes their place: `parts` has what of the head is left.
    """

    parts: Mapping[str, np.ndarray]
    spared: np.ndarray
    waits: np.ndarray
    hbm: np.ndarray

    @property
    def head(self) -> np.ndarray:
        """Seconds of the head [plans]."""
        return self.parts["head"]

    @property
    def layers(self) -> np.ndarray:
        """Seconds of all but the head [plans]."""
        return summed(self.parts.values()) - self.head


class StagePricer:
    """Prices the stages of one problem's plans."""

    def __init__(self, problem: Problem, calibration: Calibration, machine: Machine, shares: Shares) -> None:
        """Prepare what no plan changes."""
        self.problem, self.calibration, self.machine, self.shares = problem, calibration, machine, shares
        self.overlap = {kind: float(getattr(calibration, f"overlap_{kind}")) for kind in OVERLAPS}

    def kernels(self, stage: Stage) -> Kernels:
        """Kernels of one micro-batch."""
        cost, of, share = stage.cost, stage.of, stage.share
        head, spread = head_work(self.problem.workload, stage.units, self.machine), stage.head
        parts = {part: cost.forward[part] + cost.backward[part] for part in cost.forward}
        work = {part: share * each.total_s[of] for part, each in parts.items()}
        work["recompute"] = share * stage.by_policy(cost.again.total_s)
        whole, each = summed(work.values()), spread * head.total_s[of]
        spared = np.minimum(self._spared(stage), each / np.maximum(whole, 1e-30))
        work["head"] = np.maximum(each - spared * whole, 0.0)
        layers = reduce(add, parts.values())
        waits = share * stage.by_policy(layers.waits_s[:, None] + cost.again.waits_s) + spread * head.waits_s[of]
        hbm = share * stage.by_policy(layers.hbm_s[:, None] + cost.again.hbm_s) + spread * head.hbm_s[of]
        return Kernels(parts=work, spared=spared, waits=waits, hbm=hbm)

    def _spared(self, stage: Stage) -> np.ndarray:
        """Layers that the stage of the head holds less than the fullest, over what that holds [plans]: trainers that
        split layers unevenly leave half of what is missing to the first stage, for its embedding, and half to it."""
        pipeline, layers = stage.c["pipeline"], self.problem.workload.architecture.layers
        if self.problem.stack.stages_by_cost:  # what each stage holds is known
            return np.zeros(len(pipeline))
        fewer = np.ceil((stage.held * pipeline - layers) / 2.0) if self.problem.stack.uneven_layers else 0.0
        # It can lack no more than all of them.
        fewer = np.minimum(fewer, stage.held)
        return np.where((pipeline > 1) & (not self.problem.stack.holds_all), fewer / stage.held, 0.0)

    def wires(self, stage: Stage) -> dict[str, Levels]:
        """Traffic of one micro-batch, by kind; `gradient` is of the whole step."""
        cost, share, (layers, edges) = stage.cost, stage.share, stage.traffic
        wide = np.searchsorted(widths(self.problem), NUMBER_BYTES[stage.c["precision"]])
        mesh = wide * stage.meshes + stage.rows.mesh
        wires: dict[str, Levels] = {}
        for channel in CHANNELS:
            base, again = cost.wire[channel], cost.wire_again[channel]
            wires[channel] = _levels(lambda k, b=base, a=again: share * (b[k][stage.of] + stage.by_policy(a[k])))
        moved, ends = (2 * part.gather + part.scatter for part in (layers, edges))
        if self.shares.held:
            gathers = self.shares.gathers(stage.c["accumulation"])
            inside = lambda k: gathers * layers.gather[k][mesh] + layers.scatter[k][mesh]  # noqa: E731
        else:
            inside = lambda k: moved[k][mesh]  # noqa: E731
        wires["fsdp"] = _levels(lambda k, e=ends: share * inside(k) + e[k][mesh])
        sent = self._sent(stage.units)
        wires["pipeline"] = _levels(lambda k: 2 * stage.c["virtual"] * sent[k][stage.of])
        reduced, ends = (np.array([part.reduce, part.spread]) for part in (layers, edges))
        which = (stage.c["zero"] > 0).astype(np.intp)
        wires["gradient"] = _levels(lambda k: share * reduced[which, k, mesh] + ends[which, k, mesh])
        host = stage.by_policy(stage.activations.host) * stage.held
        wires["offload"] = (2 * host / self.machine.pcie_bytes_per_s, np.zeros(len(host)))
        return wires

    def _sent(self, units: Units) -> Levels:
        """One micro-batch handed to the next stage [units]: inside or across, whichever boundary is the slower one.

        Where sequences are whole on each tensor rank, so are the tensors that it sends, unless the stack splits them
        (arXiv 2104.04473, section 4.1).
        """
        block = units.tokens * self.problem.workload.architecture.d_model * units.number_bytes
        ways = units.tensor if self.problem.stack.splits_sends else units.sequence_shards
        ici, dcn = network.permute(units.links["pipeline"], block / ways)
        gathered = np.where(units.sequence_shards < ways, network.all_gather(units.links["tensor"], block), 0.0)
        gathered = np.where(units.links["pipeline"].n_ici * units.links["pipeline"].n_dcn > 1, gathered, 0.0)
        return np.where(ici > dcn, ici, 0.0) + gathered[0], np.where(ici > dcn, 0.0, dcn) + gathered[1]

    def exposed(
        self, layers: np.ndarray, head: np.ndarray, total: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Traffic that does not hide: by kind on a stage with this head, and in all on one without it."""
        wanted = {kind: self.overlap[kind] * seconds for kind, seconds in total.items()}
        asynchronous = summed(wanted.values())
        scale = np.minimum(1.0, (layers + head) / np.maximum(asynchronous, 1e-30))
        shown = summed(total.values()) - np.minimum(asynchronous, layers)
        return {kind: total[kind] - scale * wanted[kind] for kind in total}, shown

    def hosted(self, stage: Stage) -> np.ndarray:
        """Seconds in which the host launches one micro-batch [plans].

        While a pipeline's messages cross the network, threads that serve them hold up each rank's own at every layer;
        ranks of a tensor group are held up at different times, and each collective waits for all of them.
        """
        crossing = (stage.rows["pipeline_dcn"] > 1) & (stage.rows["tensor"] > 1)
        stalls = self.calibration.stall_s * np.where(crossing, stage.rows["tensor"], 0.0) * stage.held
        return stage.kernels * self.calibration.host_launch_s + stalls


def of_a_batch(wires: Mapping[str, Levels]) -> dict[str, np.ndarray]:
    """Seconds of traffic on both levels by kind, without the gradients of the whole step [plans]."""
    return {kind: ici + dcn for kind, (ici, dcn) in wires.items() if kind != "gradient"}


def _levels(seconds: Callable[[int], np.ndarray]) -> Levels:
    return seconds(0), seconds(1)
