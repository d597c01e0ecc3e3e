"""What custom calls do: fused attention, grouped matmuls, libraries' matmuls; by their names and their shapes.

A compiler gives no cost to a call that it cannot see into. A model's own FLOPs of attention are those of the keys that
a query sees, two matmuls forward and four backward; a fused kernel does the scores once more backward, and where dq
has a kernel of its own, dp too (Splash without its fused backward pass). These come on top.

How many keys are seen is no part of a call. The trainer says in a scope `pairs=N` how many (query, key) pairs one head
sees, and gives its kernels a cost of what they execute, masked parts of tiles included, which stands in the program
(`trainer/priced.py`). Without that scope a block of equal sides that is as long as a rank's part of the sequence is the
causal one, every other block is full.
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
_EXECUTED = re.compile(r'"cost_estimate":\{"flops":"?(\d+)')
_ATTENTION = re.compile(r"splash|flash_attention|mha|fmha|attention", re.IGNORECASE)
_BACKWARD = re.compile(r"dq|dkv|bwd|backward", re.IGNORECASE)
_GROUPED = re.compile(r"\bt?gmm\b|ragged[-_]dot|megablox|grouped", re.IGNORECASE)
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_FLOATS = ("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelWork:
    """What one run of a custom call does: its category, FLOPs, FLOPs done again.

    `sizes` of a matmul are (m, k, n, groups). `widths` of attention are those of keys and of values; `masked` says
    whether the FLOPs hold the masked parts of tiles.
    """

    category: str
    flops: float = 0.0
    redone_flops: float = 0.0
    sizes: tuple[float, ...] = ()
    widths: tuple[int, ...] = ()
    masked: bool = False


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
    queries, keys = q.dims[length], k.dims[length]
    own, again = _matmuls(call, q, k, v)
    each = 2.0 * math.prod(q.dims[:-1]) // queries * _pairs(call, queries, keys, workload, context)
    executed = _EXECUTED.search(call.attributes)
    done = max(float(executed[1]) if executed else 0.0, each * (own + again))
    return KernelWork(
        category="attention",
        flops=each * own,
        redone_flops=done - each * own,
        masked=executed is not None,
        widths=(q.dims[-1], v.dims[-1]),
    )


def _matmuls(call: Instruction, q: Array, k: Array, v: Array) -> tuple[int, int]:
    """Widths that a kernel contracts or makes for each pair: of a model's own matmuls, and of those done again.

    Forward are q k and p v; backward dp = do v, dv = p do, dq = ds k and dk = ds q; the scores of the backward pass are
    done again, and dp too in a kernel of dq alone.
    """
    qk, wide = q.dims[-1], v.dims[-1]
    made = [array for array in call.arrays if len(array.dims) >= 3 and array.elements >= k.elements]
    if not _BACKWARD.search(f"{call.name} {target(call)}"):
        return qk + wide, 0
    if "dq" in call.name and "dkv" not in call.name:
        return qk, qk + wide
    fused = len(made) >= 3 or "dkv" not in call.name
    return (1 + fused) * qk + 2 * wide, qk


def _pairs(call: Instruction, queries: int, keys: int, workload: Workload | None, context: int) -> float:
    """(query, key) pairs that one head computes in a call."""
    if found := _PAIRS.search(call.op_name):
        return float(found[1])
    whole = float(queries * keys)
    if workload is None or not workload.causal or queries != keys or queries * context != workload.seq_len:
        return whole
    if context > 1:
        return queries * (queries + 1) / 2
    groups = workload.architecture.groups
    layers = sum(group.count for group in groups)
    return sum(group.count * queries * workload.attended(group.window) for group in groups) / layers
