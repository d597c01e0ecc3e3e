"""FLOPs and HBM bytes of an instruction, from its shapes.

FLOPs are those of matmuls: two for each multiply-add. TPU programs print every matmul as a convolution, a batched one
with a window that slides over a dilated batch dimension, where most positions of the window meet only padding; so only
the pairs of a window's and an input's positions that really meet are counted, as XLA's own cost analysis does. A
fusion's FLOPs are its body's.

Bytes are those that move between HBM and the core: operands read and results written, what lies in VMEM left out. A
fusion that takes a slice of an operand, or writes one in place, moves the slice alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from asap_ray.compiler.hlo import Computation, Instruction, Module
from asap_ray.compiler.shapes import HBM, Array

MATMULS = ("dot", "convolution")
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = ("dynamic-update-slice", "scatter")
ALIASES = ("bitcast", "copy", "reshape", "convert", "transpose")
FREE = frozenset(
    {
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "opt-barrier",
        "optimization-barrier",
        "add-dependency",
        "domain",
    }
)
"""Opcodes that run nothing."""
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_GROUPS = re.compile(r"(feature|batch)_group_count=(\d+)")


def flops(module: Module, computation: Computation, instruction: Instruction) -> float:
    """FLOPs of one run of an instruction; custom calls and what a loop runs have none here."""
    if instruction.opcode == "dot":
        return _dot_flops(computation, instruction)
    if instruction.opcode == "convolution":
        return _convolution_flops(computation, instruction)
    if instruction.opcode == "fusion" and (body := module.called(instruction)):
        return sum(flops(module, body, each) for each in body.instructions)
    return 0.0


def matmul_sizes(module: Module, computation: Computation, instruction: Instruction) -> list[tuple[float, ...]]:
    """The matmuls in an instruction as (m, k, n, groups), for whoever prices them by shape."""
    return [_sizes(where, each) for where, each in matmuls(module, computation, instruction)]


def matmuls(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """Dots and convolutions of an instruction, those in a fusion's body included, each with its computation."""
    if instruction.opcode in MATMULS:
        yield computation, instruction
    elif instruction.opcode == "fusion" and (body := module.called(instruction)):
        for each in body.instructions:
            yield from matmuls(module, body, each)


def _dot_flops(computation: Computation, dot: Instruction) -> float:
    return 2.0 * dot.arrays[0].elements * _contracted(computation, dot)


def _contracted(computation: Computation, dot: Instruction) -> int:
    found = _CONTRACTED.search(dot.attributes)
    left = computation.operands(dot)[0].arrays[0]
    return math.prod(left.dims[int(d)] for d in found[1].split(",") if d) if found else 1


def _sizes(computation: Computation, matmul: Instruction) -> tuple[float, ...]:
    """(m, k, n, groups): of a dot and of a convolution the sizes that its two operands and its result imply.

    With m = A/(g k), n = B/(g k) and result g m n, FLOPs are 2 g m k n; A, B and the result determine g, k, m, n.
    """
    left, right = (each.arrays[0] for each in computation.operands(matmul)[:2])
    made = matmul.arrays[0].elements
    work = (_dot_flops if matmul.opcode == "dot" else _convolution_flops)(computation, matmul) / 2.0
    if not work or not made:
        return 1.0, 1.0, 1.0, 1.0
    k = work / made
    groups = max(round(left.elements * right.elements / (k * k * made)), 1) if k else 1
    return left.elements / (groups * k), k, right.elements / (groups * k), float(groups)


def _convolution_flops(computation: Computation, convolution: Instruction) -> float:
    """As `HloCostAnalysis::GetConvolutionFlops` of openxla/xla counts."""
    labels = _LABELS.search(convolution.attributes)
    if not labels:
        return 0.0
    inputs, kernel, outputs = labels.groups()
    left, right = (each.arrays[0] for each in computation.operands(convolution)[:2])
    made = convolution.arrays[0]
    window = _WINDOW.search(convolution.attributes)
    fields = dict(part.split("=") for part in window[1].split()) if window and window[1] else {}
    groups = {name: int(count) for name, count in _GROUPS.findall(convolution.attributes)}
    met = 1
    for axis in range(len(inputs) - 2):
        size = right.dims[kernel.index(str(axis))]
        met *= _met(
            left.dims[inputs.index(str(axis))],
            size,
            made.dims[outputs.index(str(axis))],
            _along(fields, "stride", axis, 1),
            _padding(fields, axis),
            _along(fields, "lhs_dilate", axis, 1),
            _along(fields, "rhs_dilate", axis, 1),
        )
    features = left.dims[inputs.index("f")] / groups.get("feature", 1)
    batch = left.dims[inputs.index("b")] / groups.get("batch", 1)
    return 2.0 * features * made.dims[outputs.index("f")] * batch * met


def _along(fields: dict[str, str], name: str, axis: int, default: int) -> int:
    return int(fields[name].split("x")[axis]) if name in fields else default


def _padding(fields: dict[str, str], axis: int) -> int:
    return int(fields["pad"].split("x")[axis].split("_")[0]) if "pad" in fields else 0


@lru_cache(maxsize=4096)
def _met(size: int, window: int, outputs: int, stride: int, pad: int, dilate: int, spread: int) -> int:
    """Pairs of output and window positions that meet an input along one dimension, neither padding nor dilation."""
    if window == 1 and not pad and dilate == 1:
        return outputs
    starts, found = np.arange(outputs) * stride - pad, 0
    for k in range(window):
        place = starts + k * spread  # of the dilated input
        found += int(np.count_nonzero((place >= 0) & (place % dilate == 0) & (place // dilate < size)))
    return found


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Bytes that one run moves between HBM and the core."""
    if instruction.opcode in FREE or instruction.opcode in ("while", "conditional", "call"):
        return 0.0
    if instruction.opcode == "fusion" and (body := module.called(instruction)):
        return _read(module, computation, instruction, body) + _written(module, body, instruction)
    operands = computation.operands(instruction)
    if instruction.opcode in SLICES:
        return 2.0 * sum(_resident(each) for each in instruction.arrays)
    if instruction.opcode in UPDATES and len(operands) > 1:
        return 2.0 * sum(_resident(each) for each in operands[1 if instruction.opcode != "scatter" else -1].arrays)
    return sum(_resident(array) for each in (*operands, instruction) for array in each.arrays)


def _resident(array: Array) -> float:
    return array.bytes if array.space == HBM else 0.0


def _read(module: Module, computation: Computation, fusion: Instruction, body: Computation) -> float:
    """What a fusion reads: of an operand that its body only slices, or updates in place, the slices alone."""
    total = 0.0
    for parameter, given in zip(body.parameters, computation.operands(fusion), strict=False):
        whole = sum(_resident(array) for array in given.arrays)
        total += min(whole, _touched(module, body, parameter)) if whole else 0.0
    return total


def largest_slice(module: Module, computation: Computation, value: Instruction) -> float:
    """Bytes of the largest slice of a value that a reader takes; infinite where one takes all of it."""
    return math.inf if value.root else max(_touches(module, computation, value), default=0.0)


def _touched(module: Module, body: Computation, value: Instruction) -> float:
    """Bytes of a value that its readers touch, infinite where one reads all of it."""
    return sum(_touches(module, body, value))


def _touches(module: Module, body: Computation, value: Instruction) -> Iterator[float]:
    """Bytes that each reader of a value takes of it."""
    for user in body.users.get(value.name, ()):
        if user.opcode in SLICES and user.operands[0] == value.name:
            yield sum(each.bytes for each in user.arrays)
        elif user.opcode in UPDATES and user.operands[0] == value.name:
            continue
        elif user.opcode in ALIASES and user.arrays[0].elements == value.arrays[0].elements and not user.root:
            yield from _touches(module, body, user)
        elif user.opcode == "fusion" and (inner := module.called(user)):
            for parameter, operand in zip(inner.parameters, user.operands, strict=False):
                if operand == value.name:
                    yield from _touches(module, inner, parameter)
        else:
            yield math.inf


def _written(module: Module, body: Computation, fusion: Instruction) -> float:
    """What a fusion writes: of a result that updates an operand in place, the update alone."""
    root = body.root
    parts = body.operands(root) if root.opcode == "tuple" else (root,)
    total = 0.0
    for made, part in zip(fusion.arrays, parts, strict=False):
        if made.space == HBM:
            total += min(made.bytes, _updated(module, body, part))
    return total


def _updated(module: Module, body: Computation, part: Instruction) -> float:
    while part.opcode in ALIASES and body.operands(part):
        part = body.operands(part)[0]
    if part.opcode == "dynamic-update-slice":
        return sum(each.bytes for each in body.operands(part)[1].arrays)
    if part.opcode == "fusion" and (inner := module.called(part)) and inner.root.opcode != "tuple":
        return _updated(module, inner, inner.root)
    return math.inf
