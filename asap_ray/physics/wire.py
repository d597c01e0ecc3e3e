"""What a plan must move: bytes that a device sends in a step, by kind of collective, mesh axes and level.

This is the account that a compiled program is held against: a collective that is not in it is a fault of the sharding
or a decision of the compiler. It follows the project's own trainer, which makes every collective explicit:

- Each layer's matrices are gathered over the axes that shard them (fsdp, context, expert; of routed experts the first
  two), once forward and once more backward, and their gradients scattered, for each micro-batch. Embedding and head are
  gathered once each. On a TPU either may go in phases, each over some of the axes (`phases`).
- Once a step gradients are summed over the axes on which a weight is replicated; with ZeRO-1 they are scattered over
  data, and the updates gathered.
- A block gathers its input over tensor before and scatters its output after (arXiv 2205.05198, section 4.2.2); the
  backward pass mirrors both and gathers the input again. What no policy keeps is scattered again, too.
- Keys and values go round the context axis in n-1 hops, forward, again unless the output is kept, and backward, where
  their gradients go round as well. A layer with a window gathers them instead.
- Copies of tokens go to their experts and back, both ways; routing is even, as plans are compiled.
- Each tick of a pipeline hands on what a stage made, and what is to enter or has left (the stream of
  `trainer/pipeline.py`).

Bytes are those of the best ring, as in `network`: (n-1)/n of what is gathered, scattered or exchanged, twice that where
it is summed everywhere, all that is passed on. On TPU slices the part that crosses is a collective of its own, over the
axes that do, on what the slice has brought together or summed: 1/n_ici of the bytes. Scalars are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asap_ray.architecture import LayerGroup
from asap_ray.layers import LatentAttention
from asap_ray.physics.phases import Phase, gather_phases, scatter_phases
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem, replica_axes, sharding_axes
from asap_ray.stack import Remat
from asap_ray.workload import number_bytes

Wire = dict[tuple[str, tuple[str, ...], str], float]
"""Bytes by (kind, axes, level)."""
GATE_BYTES, COUNT_BYTES = 4.0, 4.0


def predicted_collectives(problem: Problem, plan: Plan) -> Wire:
    """Bytes that each device sends in a step of a legal plan, without scalars."""
    account = _Account(problem, plan)
    for group in problem.workload.architecture.groups:
        runs = account.layer_runs * group.count / problem.workload.architecture.layers
        _weights(account, group, runs)
        _blocks(account, group, runs)
        _context(account, group, runs)
        if group.moe:
            _experts(account, runs)
    _edges(account)
    _gradients(account)
    _pipeline(account)
    return {key: sent for key, sent in account.wire.items() if sent}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """Devices of some axes inside a slice and across, and the axes that have more than one on each level."""

    inside: int
    across: int
    axes_inside: tuple[str, ...]
    axes_across: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Devices of the group."""
        return self.inside * self.across


class _Account:
    """What has been counted so far, and what all parts of the count need to know of a plan."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.sizes = plan.axes
        self.wire: defaultdict[tuple[str, tuple[str, ...], str], float] = defaultdict(float)
        self.number_bytes = number_bytes(plan.precision)
        self.policy: Remat = next(each for each in problem.stack.remat if each.name == plan.remat)
        workload = problem.workload
        self.tokens = plan.micro_batch * workload.seq_len / self.sizes["context"]
        stages, layers = self.sizes["pipeline"], workload.architecture.layers
        self.ticks = plan.accumulation * plan.virtual + stages - 1 if stages > 1 else plan.accumulation
        self.layer_runs = self.ticks * layers / (stages * plan.virtual) if stages > 1 else plan.accumulation * layers
        self.edge_runs = plan.accumulation / stages

    @property
    def on_torus(self) -> bool:
        """Whether the chips' links form a torus, over which collectives go in phases."""
        return self.problem.slice.chip.kind == "tpu"

    @property
    def block_bytes(self) -> float:
        """Activations of one micro-batch between blocks, whole over tensor."""
        return self.tokens * self.problem.workload.architecture.d_model * self.number_bytes

    def keeps(self, tensor: str) -> bool:
        """Whether the policy keeps a tensor for the backward pass, on the device or on its host."""
        return tensor in self.policy.saved | self.policy.offloaded

    def over(self, axes: Iterable[str]) -> _Level:
        """Some mesh axes as a group."""
        members = [AXES.index(axis) for axis in axes]
        ici, dcn = self.plan.ici, self.plan.dcn
        return _Level(
            inside=math.prod(ici[m] for m in members),
            across=math.prod(dcn[m] for m in members),
            axes_inside=tuple(AXES[m] for m in sorted(members) if ici[m] > 1),
            axes_across=tuple(AXES[m] for m in sorted(members) if dcn[m] > 1),
        )

    def add(self, kind: str, axes: Sequence[str], bytes_: float, times: float) -> None:
        """Add a collective over some mesh axes: `bytes_` is the whole array, or what is passed on."""
        group = self.over(axes)
        if group.ranks == 1 or not times:
            return
        if group.across > 1 and self.problem.slice.chip.kind != "tpu":  # one collective for all ranks
            together = tuple(axis for axis in AXES if axis in group.axes_inside + group.axes_across)
            self._sent(kind, together, "dcn", bytes_ * times, group.ranks)
        elif kind == "all_to_all" and group.across > 1:  # all of it goes through the hosts
            self._sent(kind, group.axes_across, "dcn", bytes_ * times, group.across)
        else:
            part = 1.0 if kind == "permute" else 1.0 / group.inside
            self._sent(kind, group.axes_inside, "ici", bytes_ * times, group.inside)
            self._sent(kind, group.axes_across, "dcn", bytes_ * times * part, group.across)

    def add_gather(self, axes: Sequence[str], bytes_: float, times: float) -> None:
        """Add a gather of weights, phase by phase: each makes arrays that the later ones bring together."""
        steps = gather_phases(tuple(axes), self.plan) if self.on_torus else (Phase(tuple(axes)),)
        self._add_phases("all_gather", steps[::-1], bytes_, times)

    def add_scatter(self, axes: Sequence[str], bytes_: float, times: float) -> None:
        """Add a reduce-scatter of weights' gradients, phase by phase: each leaves less for the later ones."""
        steps = scatter_phases(tuple(axes), self.plan) if self.on_torus else (Phase(tuple(axes)),)
        self._add_phases("reduce_scatter", steps, bytes_, times)

    def _add_phases(self, kind: str, steps: Sequence[Phase], bytes_: float, times: float) -> None:
        """Add phases, that of the largest arrays first."""
        for step in steps:
            ranks = len(step.groups[0]) if step.groups else self.over(step.axes).ranks
            if step.groups:
                self._sent(kind, step.axes, "ici", bytes_ * times, ranks)
            else:
                self.add(kind, step.axes, bytes_, times)
            bytes_ /= ranks

    def _sent(self, kind: str, axes: tuple[str, ...], level: str, bytes_: float, ranks: int) -> None:
        if ranks > 1:
            share = 1.0 if kind == "permute" else (ranks - 1) / ranks * (2.0 if kind == "all_reduce" else 1.0)
            self.wire[kind, axes, level] += bytes_ * share


def _weights(account: _Account, group: LayerGroup, runs: float) -> None:
    """A layer's matrices: gathered forward and backward, their gradients scattered."""
    dense, routed = _matrices(account, group)
    shards = sharding_axes(account.problem.stack)
    for parameters, axes in ((dense, shards), (routed, _routed(shards))):
        account.add_gather(axes, parameters * account.number_bytes, 2 * runs)
        account.add_scatter(axes, parameters * account.number_bytes, runs)


def _routed(axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis != "expert")


def _matrices(account: _Account, group: LayerGroup) -> tuple[float, float]:
    """Dense and routed parameters of a layer's matrices on one rank of tensor and expert, whole over the others."""
    architecture, sizes = account.problem.workload.architecture, account.sizes
    dense = routed = 0.0
    for matmul in architecture.matmuls(group):
        here = matmul.parameters / (1 if matmul.tensor == "none" else sizes["tensor"])
        if matmul.kind == "dense":
            dense += here
        elif architecture.experts is not None:
            routed += here * architecture.experts.experts / sizes["expert"]
    return dense, routed


def _blocks(account: _Account, group: LayerGroup, runs: float) -> None:
    """Sequence parallelism of a layer: its attention, and its feed-forward block or experts beside all tokens."""
    attention, block = account.problem.workload.architecture.attention, account.block_bytes
    entering = block
    if isinstance(attention, LatentAttention):
        d, latent = account.problem.workload.architecture.d_model, attention.q_lora_rank
        entering = block / d * ((latent or d) + attention.kv_lora_rank + attention.rope_head_dim)
    _gathered_block(account, entering, block, runs, again=not account.keeps("out"))
    experts = account.problem.workload.architecture.experts
    if not group.moe or account.sizes["expert"] == 1 or (experts is not None and experts.shared):
        _gathered_block(account, block, block, runs, again=False)  # nothing backward needs what leaves the layer


def _gathered_block(account: _Account, entering: float, leaving: float, runs: float, again: bool) -> None:
    account.add("all_gather", ["tensor"], entering, 2 * runs)  # for the weights' gradients once more
    account.add("reduce_scatter", ["tensor"], entering, runs)
    account.add("reduce_scatter", ["tensor"], leaving, (1 + again) * runs)
    account.add("all_gather", ["tensor"], leaving, runs)


def _context(account: _Account, group: LayerGroup, runs: float) -> None:
    attention, ranks = account.problem.workload.architecture.attention, account.sizes["context"]
    width = attention.kv_heads * (attention.qk_head_dim + attention.v_head_dim) / account.sizes["tensor"]
    own = account.tokens * width * account.number_bytes
    again = not account.keeps("context")
    if group.window:
        account.add("all_gather", ["context"], own * ranks, 2 * runs)
        account.add("reduce_scatter", ["context"], own * ranks, runs)
    else:
        account.add("permute", ["context"], own, (ranks - 1) * (3 + again) * runs)


def _experts(account: _Account, runs: float) -> None:
    """Copies of tokens go over the expert axis while the sequence is split, and are gathered over tensor there."""
    workload, sizes = account.problem.workload, account.sizes
    experts = workload.architecture.experts
    if experts is None or sizes["expert"] == 1:
        return
    tokens = account.tokens / sizes["tensor"]
    if workload.expert_capacity:
        room = min(math.ceil(workload.expert_capacity * tokens * experts.topk / experts.experts), tokens)
        rows = experts.experts * room
    else:
        most = tokens * min(experts.topk, experts.experts // sizes["expert"])
        rows = sizes["expert"] * min(math.ceil(tokens * experts.topk / sizes["expert"]), most)
    copies = rows * workload.architecture.d_model * account.number_bytes
    again = not account.keeps("expert_in")
    account.add("all_to_all", ["expert"], copies, (4 + again) * runs)
    account.add("all_to_all", ["expert"], rows * GATE_BYTES, (2 + again) * runs)
    account.add("all_gather", ["tensor"], copies * sizes["tensor"], 3 * runs)
    account.add("reduce_scatter", ["tensor"], copies * sizes["tensor"], 2 * runs)
    account.add("all_gather", ["tensor"], rows * GATE_BYTES * sizes["tensor"], 2 * runs)
    account.add("reduce_scatter", ["tensor"], rows * GATE_BYTES * sizes["tensor"], runs)


def _edges(account: _Account) -> None:
    """Embedding and head: each gathered once, its gradient scattered; the embedding's sum and the head's input."""
    architecture, stack = account.problem.workload.architecture, account.problem.stack
    embedding, head = architecture.vocab * architecture.d_model, architecture.head.parameters
    # Of one table for both the compiler gathers one copy; it adds its two gradients up first, where no pipeline's loop
    # stands between them.
    size, axes = account.number_bytes / account.sizes["tensor"], sharding_axes(stack)
    apart = not architecture.tied or account.sizes["pipeline"] > 1
    account.add_gather(axes, (embedding + (not architecture.tied) * head) * size, account.edge_runs)
    account.add_scatter(axes, (embedding + apart * head) * size, account.edge_runs)
    account.add("all_gather", ["tensor"], account.block_bytes, 2 * account.edge_runs)
    account.add("reduce_scatter", ["tensor"], account.block_bytes, 2 * account.edge_runs)
    # Of each token the largest logit, and the sum of the exponents, in float32.
    account.add("all_reduce", ["tensor"], account.tokens * 4.0, 2 * account.edge_runs)


def _gradients(account: _Account) -> None:
    """Once a step, over the axes on which a weight is replicated."""
    problem, sizes = account.problem, account.sizes
    architecture, shards = problem.workload.architecture, sharding_axes(problem.stack)
    held = 1.0 / sizes["pipeline"]
    dense = sum(group.count * _matrices(account, group)[0] for group in architecture.groups)
    routed = sum(group.count * _matrices(account, group)[1] for group in architecture.groups)
    replicas = replica_axes(problem.stack)
    _summed(account, dense * held / _ranks(sizes, shards), replicas)
    _summed(account, routed * held / _ranks(sizes, _routed(shards)), _routed(replicas))
    embedding = architecture.vocab * architecture.d_model
    edges = embedding + (0 if architecture.tied else architecture.head.parameters)
    _summed(account, edges / sizes["tensor"] / _ranks(sizes, shards), (*replicas, "pipeline"))
    # Gains and biases lie everywhere.
    vectors = sum(group.count * architecture.norms_per_layer for group in architecture.groups) * architecture.d_model
    everywhere = tuple(axis for axis in AXES if axis != "pipeline")
    _summed(account, vectors * held, everywhere)
    _summed(account, architecture.d_model, AXES)


def _summed(account: _Account, parameters: float, replicas: Sequence[str]) -> None:
    """Gradients of so many parameters, each rank's own; with ZeRO-1 each data rank keeps its part of the sums."""
    bytes_ = parameters * account.number_bytes
    if account.plan.zero and account.sizes["data"] > 1:
        account.add("all_reduce", [axis for axis in replicas if axis != "data"], bytes_, 1.0)
        account.add("reduce_scatter", ["data"], bytes_, 1.0)
        account.add("all_gather", ["data"], bytes_, 1.0)
    else:
        account.add("all_reduce", replicas, bytes_, 1.0)


def _ranks(sizes: dict[str, int], axes: Sequence[str]) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _pipeline(account: _Account) -> None:
    """What is handed on, and the stream beside it, in each tick, forward and backward; and the stream's first step."""
    if account.sizes["pipeline"] > 1:
        block = account.block_bytes / account.sizes["tensor"]
        account.add("permute", ["pipeline"], block, 2 * (2 * account.ticks + 1))
