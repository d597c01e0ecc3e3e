"""What the layers of a model cost for one micro-batch on one device, by part, forward, backward and computed again.

Costs are sums over all layers of the model; a pipeline stage holds its share of them. Rows are *units*: distinct
combinations of mesh, micro-batch and the knobs that change a layer's kernels. Policies of recomputation are columns
[units, policies], since each one is a choice of terms that exist already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asap_ray.architecture import LayerGroup
from asap_ray.layers import Matmul
from asap_ray.physics import network
from asap_ray.physics.activations import kept_tensors, product_of, recomputed, recomputed_share
from asap_ray.physics.calibration import Machine
from asap_ray.physics.matmul import Work, gradients_work, matmul_work
from asap_ray.physics.network import Link
from asap_ray.physics.units import Units, attention_flops, attention_waste, sharded_matmul
from asap_ray.stack import Stack
from asap_ray.workload import Workload

BACKWARD_ATTENTION = 2.5
"""Backward over forward FLOPs of a fused attention kernel: five matmuls against two (FlashAttention-2, arXiv
2307.08691)."""
SCORE_PASSES, DROPPED_PASSES, OPERATOR_PASSES = (4.0, 8.0), (1.5, 3.0), (16.5, 21.5)
"""Reads and writes of the score matrix, in 16-bit numbers, forward and backward, by attention that is not fused: two of
raw scores and two of the softmax's output where that is one kernel, more for a mask and its result with dropout (arXiv
2205.05198, figure 3); or counted, where it is a chain of operators in float32 (cast, mask, softmax, cast)."""
KERNELS = {"matmul": (1, 2), "attention": (1, 1), "elementwise": (5, 5)}
"""Launches forward and backward: of a matmul one, then one for each gradient; of what stands around a norm or an
activation (residual, dropout, rotary embedding, casts) a handful. Counted for matmuls and attention, assumed for the
rest: eager frameworks launch more, compilers fuse to fewer."""
PASSES = {"attn_in": 4.0, "mlp_in": 4.0, "act": 3.0, "expert_in": 3.0, "expert_act": 3.0, "expert_out": 3.0}
"""Times that a forward pass moves a tensor's bytes through HBM to make it: a norm reads its input and the residual and
writes both; a gate reads twice what it writes; the copies of tokens are sorted for their experts, sent, and sorted
back. Counted, with everything around one tensor fused."""
OPERATOR_NORMS = {"attn_in": 21.0, "mlp_in": 21.0}
"""The same, in 16-bit numbers, of a norm in float32 that is a chain of operators. Counted for RMSNorm: cast, square,
mean, scaling, cast back and weight read and write 36 bytes for each number, the residual 6; the backward pass twice
as many, about."""
CHANNELS = ("tensor", "context", "expert")


@dataclass(slots=True)
class LayerCost:
    """Work of all layers for one micro-batch [units], [units, policies] where a policy decides.

    `wire` holds, for each channel, seconds on ICI and on DCN; `again` and `wire_again` are what recomputation adds;
    `kernels` counts launches.
    """

    forward: dict[str, Work]
    backward: dict[str, Work]
    again: Work
    wire: dict[str, tuple[np.ndarray, np.ndarray]]
    wire_again: dict[str, tuple[np.ndarray, np.ndarray]]
    kernels: np.ndarray


class LayerPricer:
    """Prices the layers of one workload on one machine for the policies of a stack."""

    def __init__(self, workload: Workload, machine: Machine, stack: Stack, passes: float = 1.0) -> None:
        """Keep what does not change with units; `passes` are those of elementwise kernels over what is counted."""
        self.workload, self.machine, self.stack, self.passes = workload, machine, stack, passes
        self.policies = stack.remat
        self.moves = PASSES if stack.norm_bytes == 0 else PASSES | OPERATOR_NORMS
        dropped = workload.architecture.dropout
        fused = tuple(own + dropped * more for own, more in zip(SCORE_PASSES, DROPPED_PASSES, strict=True))
        self.score_passes = fused if stack.score_bytes == 0 else OPERATOR_PASSES
        full = np.array([not policy.kept for policy in stack.remat])
        self.rerun = full & stack.reruns_output
        self.rerun_experts = recomputed(stack.remat, "expert_out") if stack.weighs_outputs else self.rerun
        self.one_hot = stack.routes_by_matmul and workload.expert_capacity > 0

    def price(self, units: Units) -> LayerCost:
        """Cost of all layers [units]."""
        n, p = len(units.tokens), len(self.policies)
        cost = LayerCost(
            forward={part: Work.none(n) for part in KERNELS},
            backward={part: Work.none(n) for part in KERNELS},
            again=Work.none(n, p),
            wire={channel: (np.zeros(n), np.zeros(n)) for channel in CHANNELS},
            wire_again={channel: (np.zeros((n, p)), np.zeros((n, p))) for channel in CHANNELS},
            kernels=np.zeros((n, p)),
        )
        for group in self.workload.architecture.groups:
            self._matmuls(cost, units, group)
            self._attention(cost, units, group)
            self._elementwise(cost, units, group)
            self._wires(cost, units, group)
        # The head gathers before and the embedding sums after: together they are one more block.
        self._tensor_wire(cost, units, 1, 1.0, np.zeros(p, bool))
        return cost

    def _add(self, cost: LayerCost, part: str, count: int, ways: tuple[Work, Work], again: np.ndarray) -> None:
        """Add an operation of `count` layers: its work forward and backward, and which policies run it `again`."""
        (forward, backward), (first, second) = ways, KERNELS[part]
        forward = forward.times(count)
        cost.forward[part] += forward
        cost.backward[part] += backward.times(count)
        cost.kernels += count * (first + second + first * again)
        if again.any():
            cost.again += Work(*(s[:, None] * again for s in (forward.total_s, forward.waits_s, forward.hbm_s)))

    def _matmuls(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        peak = self.machine.peaks[units.precision]
        for matmul in self.workload.architecture.matmuls(group):
            made = product_of(self.stack, matmul.name)
            flags = recomputed_share(self.policies, made) if made else self.rerun
            self._add(cost, "matmul", group.count, self._matmul(units, matmul, peak), flags)
            if matmul.kind == "expert":
                held = np.asarray(sharded_matmul(self.workload.architecture, matmul, units)[3])
                each = self.machine.expert_launches * (sum(KERNELS["matmul"]) + flags)
                cost.kernels += group.count * held[:, None] * each
        if group.moe and self.one_hot:
            self._route(cost, units, group)

    def _matmul(self, units: Units, matmul: Matmul, peak: np.ndarray) -> tuple[Work, Work]:
        m, k, n, groups = map(np.asarray, sharded_matmul(self.workload.architecture, matmul, units))
        if matmul.kind == "expert":
            m = m * (self.workload.expert_capacity or 1.0)  # padded to it, used or not
        shape = (m, k, n, peak, self.machine, groups, units.number_bytes)
        # Inputs are cast forward, gradients of outputs backward; narrow weights last for all of a step.
        casts = self.machine.cast_bytes[units.precision] / self.machine.hbm_bytes_per_s
        return (
            matmul_work(*shape) + Work.moved(m * k * groups * casts),
            gradients_work(*shape) + Work.moved(m * n * groups * casts),
        )

    def _route(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        """Tokens of each sequence to the slots of its experts and back, as matmuls with one-hot matrices (GShard, arXiv
        2006.16668, algorithm 1): their FLOPs grow with the square of the sequence."""
        experts, d = self.workload.architecture.experts, self.workload.architecture.d_model
        assert experts is not None
        length = self.workload.seq_len / units.context
        slots, sequences = length * experts.topk * self.workload.expert_capacity, units.tokens / length
        peak, width = self.machine.plain_peaks[units.precision], d / units.sequence_shards
        rest = (peak, self.machine, sequences, units.number_bytes)
        there, back = matmul_work(slots, length, width, *rest), matmul_work(length, slots, width, *rest)
        # The slots have no gradient on the way there; on the way back their weights have one.
        weights = matmul_work(length, width, slots, *rest)
        self._add(cost, "matmul", group.count, (there, back), recomputed(self.policies, "expert_in"))
        self._add(cost, "matmul", group.count, (back, there + weights), self.rerun)

    def _attention(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        attention = self.workload.architecture.attention
        peak = self.machine.attention_peaks[units.precision]
        flops = attention_flops(self.workload, group, units) * attention_waste(self.workload, group, self.machine)
        forward = Work(flops / peak, np.zeros(len(flops)), np.zeros(len(flops)))
        backward = forward.times(BACKWARD_ATTENTION)
        if np.any(units.unfused):
            # An unfused kernel does not skip the masked half, and moves the scores through HBM.
            keys = self.workload.seq_len
            full = 2.0 * units.tokens * keys * attention.heads / units.tensor
            compute = full * (attention.qk_head_dim + attention.v_head_dim) / self.machine.peaks[units.precision]
            compute = Work(compute, 0.0 * compute, 0.0 * compute)
            pass_s = full / 2 * units.number_bytes / self.machine.hbm_bytes_per_s
            ahead, back = (Work.moved(passes * pass_s) for passes in self.score_passes)
            forward = forward.times(~units.unfused) + (compute + ahead).times(units.unfused)
            backward = backward.times(~units.unfused) + (compute.times(2) + back).times(units.unfused)
        context = recomputed(self.policies, "context")
        scores = recomputed(self.policies, "scores")
        flags = np.where(units.unfused[:, None], context | scores, context)
        self._add(cost, "attention", group.count, (forward, backward), flags)

    def _elementwise(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        shards = units.shards
        for tensor in kept_tensors(self.workload, group):
            if tensor.name not in PASSES or not tensor.token_bytes(1.0):
                continue
            if self.one_hot and tensor.name in ("expert_in", "expert_out"):
                continue
            size = tensor.token_bytes(units.number_bytes) * units.tokens / shards[tensor.shard]
            over = self.machine.expert_passes if tensor.name.startswith("expert") else self.passes
            forward = Work.moved(over * self.moves[tensor.name] * size / self.machine.hbm_bytes_per_s)
            again = self.rerun_experts if tensor.name == "expert_out" else recomputed(self.policies, tensor.name)
            self._add(cost, "elementwise", group.count, (forward, forward.times(2)), again)

    def _wires(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        experts = self.workload.architecture.experts if group.moe else None
        self._tensor_wire(cost, units, group.count, 1.0, recomputed(self.policies, "out"))
        if experts is None:
            self._tensor_wire(cost, units, group.count, 1.0, self.rerun)
        else:
            # Tokens are exchanged between experts while the sequence is split, so each copy is gathered on its own.
            copies = np.where(units.expert > 1, experts.topk + (experts.shared > 0), 1.0)
            self._tensor_wire(cost, units, group.count, copies, self.rerun_experts)
            self._expert_wire(cost, units, group)
        self._context_wire(cost, units, group)

    def _tensor_wire(
        self, cost: LayerCost, units: Units, count: int, copies: np.ndarray | float, again: np.ndarray
    ) -> None:
        """One block's traffic over the tensor axis (arXiv 2205.05198, section 4.2.2), for `copies` of each token.

        With sequence parallelism a block gathers before and scatters after; the backward pass mirrors it, and gathers
        the input once more for the weight gradients. Without, it is one all-reduce each way. A block whose output is
        computed `again` is summed again; a trainer that runs the whole forward pass again gathers again, too.
        """
        block = copies * units.tokens * self.workload.architecture.d_model * units.number_bytes
        gather = network.all_gather(units.links["tensor"], block)
        scatter = network.reduce_scatter(units.links["tensor"], block)
        reduce = network.all_reduce(units.links["tensor"], block)
        parallel = units.sequence_shards > 1
        # Ranks reach an exchange at times that differ; of n ranks the last one is late by about log2 n times as much.
        late = self.machine.sync_s * np.log2(units.tensor)
        for level, wait in ((0, late), (1, 0.0)):
            with_sp = 3 * gather[level] + 2 * scatter[level] + 5 * wait
            cost.wire["tensor"][level][:] += count * np.where(parallel, with_sp, 2 * reduce[level] + 2 * wait)
            summed = count * (np.where(parallel, scatter[level], reduce[level]) + wait)
            gathered = count * np.where(parallel, gather[level] + wait, 0.0)
            cost.wire_again["tensor"][level][:] += summed[:, None] * again + gathered[:, None] * (again & self.rerun)

    def _context_wire(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        attention = self.workload.architecture.attention
        width = attention.kv_heads * (attention.qk_head_dim + attention.v_head_dim)
        keys = units.tokens * width * units.number_bytes / units.kv_shards * units.context
        gather = network.all_gather(units.links["context"], keys)
        scatter = network.reduce_scatter(units.links["context"], keys)
        flags = recomputed(self.policies, "context")
        for level in (0, 1):
            cost.wire["context"][level][:] += group.count * (2 * gather[level] + scatter[level])
            cost.wire_again["context"][level][:] += group.count * gather[level][:, None] * flags

    def _expert_wire(self, cost: LayerCost, units: Units, group: LayerGroup) -> None:
        experts = self.workload.architecture.experts
        assert experts is not None
        copies = units.tokens * experts.topk * (self.workload.expert_capacity or 1.0) / units.sequence_shards
        payload = copies * self.workload.architecture.d_model * units.number_bytes
        link = units.links["expert"]
        inside, across = _sent(link, experts.topk)
        merge = self.machine.expert_merge
        exchange = (
            network.all_to_all(link, payload * (1.0 + merge * (inside - 1.0)))[0],
            network.all_to_all(link, payload * (1.0 + merge * (across - 1.0)))[1],
        )
        flags = recomputed(self.policies, "expert_in").astype(float) + self.rerun_experts
        for level in (0, 1):
            cost.wire["expert"][level][:] += group.count * 4 * exchange[level]
            cost.wire_again["expert"][level][:] += group.count * exchange[level][:, None] * flags


def _sent(link: Link, topk: int) -> tuple[np.ndarray, np.ndarray]:
    """What is sent inside and across hosts, over a copy for each expert, if each host gets one copy of a token and
    passes it on to its ranks, one each [units], as DeepEP sends (github.com/deepseek-ai/DeepEP).

    Experts are drawn evenly: each of n ranks, or hosts, needs a token with probability 1 - (1 - 1/n)^topk.
    """
    ranks = link.n_ici * link.n_dcn
    held, hosts = (n * (1.0 - (1.0 - 1.0 / n) ** topk) / topk for n in (ranks, link.n_dcn))
    return held * link.n_dcn, hosts
