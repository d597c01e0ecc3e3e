"""What custom calls do: fused attention, grouped matmuls, libraries' matmuls; by their names and their shapes.

A compiler gives no cost to a call that it cannot see into. A model's own FLOPs of attention are those of the keys that
a query sees, two matmuls forward and four backward; a fused kernel does the scores once more backward, and where dq
has a kernel of its own, dp too (Splash without its fused backward pass). These come on top.

How many keys are seen is no part of a call. A scope `pairs=N` in the call's name says how many (query, key) pairs one
head computes; without it a block of equal sides that is as long as a rank's part of the sequence is the causal one,
every other block is full.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from asap_ray.compiler.hlo import Computation, Instruction
from asap_ray.compiler.shapes import Array
from asap_ray.workload import Workload

FREE_CALLS = frozenset(
    {
        "AllocateBuffer",
        "ConcatBitcast",
        "PrepareAsyncCallStart",
        "PrepareAsyncCallDone",
        "AssumeGatherIndicesInBound",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "MoveToHost",
        "MoveToDevice",
    }
)
"""Targets that run nothing."""
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_PAIRS = re.compile(r"pairs=(\d+)")
_ATTENTION = re.compile(r"splash|flash_attention|mha|fmha|attention", re.IGNORECASE)
_GROUPED = re.compile(r"\bt?gmm\b|ragged[-_]dot|megablox|grouped", re.IGNORECASE)
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_FLOATS = ("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelWork:
    """What one run of a custom call does: its category, FLOPs, FLOPs done again, and the matmuls' sizes (m, k, n,
    groups) where that prices it."""

    category: str
    flops: float = 0.0
    redone_flops: float = 0.0
    sizes: tuple[float, ...] = ()


def target(instruction: Instruction) -> str:
    """The library or kernel entry that a custom call goes to."""
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def kernel_work(
    computation: Computation, call: Instruction, workload: Workload | None = None, context: int = 1
) -> KernelWork:
    """What a custom call does; `workload` and the size of the context axis say which keys are seen."""
    name = f"{call.name} {call.op_name} {target(call)}"
    given = [array for each in computation.operands(call) for array in each.arrays if array.dtype in _FLOATS]
    if "cublas" in target(call) or "$gemm" in target(call):
        return _library_matmul(computation, call)
    if _GROUPED.search(name) and len(given) >= 2:
        return _grouped_matmul(given, call)
    if _ATTENTION.search(name):
        blocks = [array for array in given if len(array.dims) >= 3]
        if len(blocks) >= 3:
            return _attention(blocks, call, workload, context)
    return KernelWork(category="custom")


def _library_matmul(computation: Computation, call: Instruction) -> KernelWork:
    left, right = (each.arrays[0] for each in computation.operands(call)[:2])
    found = _CONTRACTED.search(call.attributes)
    axes = [int(axis.strip('" ')) for axis in found[1].split(",") if axis.strip()] if found else [len(left.dims) - 1]
    k = math.prod(left.dims[axis] for axis in axes)
    made = call.arrays[0].elements
    groups = max(round(left.elements * right.elements / (k * k * made)), 1)
    sizes = (left.elements / (groups * k), float(k), right.elements / (groups * k), float(groups))
    return KernelWork(category="matmul", flops=2.0 * made * k, sizes=sizes)


def _grouped_matmul(given: list[Array], call: Instruction) -> KernelWork:
    """Rows sorted by group, times each group's matrix; or, for the gradient of the matrices, rows turned, times rows.

    Either way it is 2 x elements of the rows x the last dimension of the result.
    """
    rows = next((array for array in given if len(array.dims) == 2), given[0])
    made = max(
        (array for array in call.arrays if array.dtype in _FLOATS), key=lambda array: array.elements, default=rows
    )
    matrices = [array for array in (*given, made) if len(array.dims) == 3]
    groups = matrices[0].dims[0] if matrices else 1
    m, k, n = rows.dims[0], rows.elements / rows.dims[0], made.dims[-1]
    if len(made.dims) == 3:
        m, k = made.dims[1], rows.elements / made.dims[1]
        return KernelWork(category="matmul", flops=2.0 * m * k * n, sizes=(m, k / groups, n, groups))
    return KernelWork(category="matmul", flops=2.0 * m * k * n, sizes=(m / groups, k, n, groups))


def _attention(blocks: list[Array], call: Instruction, workload: Workload | None, context: int) -> KernelWork:
    """q [.., s, qk], k [.., t, qk], v [.., t, v], then whatever else a pass takes; in cuDNN's s precedes the heads."""
    q, k, v = blocks[:3]
    length = -3 if "__cudnn" in target(call) else -2
    queries, keys, wide_qk, wide_v = q.dims[length], k.dims[length], q.dims[-1], v.dims[-1]
    rows = math.prod(q.dims[:-1]) // queries
    made = [array for array in call.arrays if len(array.dims) >= 3 and array.elements >= k.elements]
    each = 2.0 * rows * _pairs(call, queries, keys, workload, context)
    name = f"{call.name} {call.op_name.rsplit('/', 2)[0]}"
    if not re.search(r"dq|dkv|bwd|backward|Backward", call.name + target(call)) and not re.search(r"dq|dkv|bwd", name):
        return KernelWork(category="attention", flops=each * (wide_qk + wide_v))
    if "dkv" not in call.name and "dq" in call.name:
        return KernelWork(category="attention", flops=each * wide_qk, redone_flops=each * (wide_qk + wide_v))
    dkv = each * (wide_qk + 2 * wide_v)
    fused = len(made) >= 3 or "dkv" not in call.name
    return KernelWork(category="attention", flops=dkv + fused * each * wide_qk, redone_flops=each * wide_qk)


def _pairs(call: Instruction, queries: int, keys: int, workload: Workload | None, context: int) -> float:
    """(query, key) pairs that one head computes in a call."""
    if found := _PAIRS.search(call.op_name) or _PAIRS.search(call.attributes):
        return float(found[1])
    whole = float(queries * keys)
    if workload is None or not workload.causal or queries != keys or queries * context != workload.seq_len:
        return whole
    if context > 1:
        return queries * (queries + 1) / 2
    groups = workload.architecture.groups
    layers = sum(group.count for group in groups)
    return sum(group.count * queries * workload.attended(group.window) for group in groups) / layers
