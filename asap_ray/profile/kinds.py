"""What an op is, by its name alone or by what a profiler says of it.

Names are XLA's (`all-gather-start.3`, `loop_add_fusion`), a library's (`ncclDevKernel_AllReduce_Sum_bf16_RING_LL`,
`nvjet_tst_…`), or, on TPUs, the whole instruction as it is printed. A TPU's trace also has XProf's category of each op.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from asap_ray.profile.sweep import CONTROL, COPY, CORE, INPUT, WIRE
from asap_ray.profile.table import COLLECTIVES, Op

_PRINTED = re.compile(r"%?([\w.\-]+) = ")
_OPCODE = re.compile(r"[\]})] ([a-z][\w\-]*)\(")
_FIRST_OPERAND = re.compile(r"\([^%]*%([\w.\-]+)")
_NUMBERS = re.compile(r"(\.(\d+|clone|remat\d*))+$")
_PART = re.compile(r"-(start|done|update)$")
_WIRES = (
    ("all_gather", re.compile(r"all[-_]?gather|collective[-_]broadcast|nccl\w*broadcast", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce[-_]?scatter", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all[-_]?reduce", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all[-_]?to[-_]?all", re.IGNORECASE)),
    ("permute", re.compile(r"collective[-_]?permute|^(host )?(send|recv)\b|nccl\w*(send|recv)", re.IGNORECASE)),
)
_CONTROLS = re.compile(r"(while|conditional|call|async-computation)$")
_INPUTS = re.compile(r"(infeed|outfeed)", re.IGNORECASE)
_ATTENTION = re.compile(r"splash|flash|fmha|\bmha\b|attention", re.IGNORECASE)
_MATMUL = re.compile(
    r"\bdot\b|_dot\b|^dot|convolution|\bconv\b|gemm|matmul|cublas|cutlass|nvjet|wgmma|xmma|ragged[-_]dot|\bt?gmm\b",
    re.IGNORECASE,
)
_COPIES = re.compile(
    r"^(wrapped_)?(copy|transpose|bitcast|reshape|slice|dynamic[-_](update[-_])?slice|concatenate|pad|gather|reverse|"
    r"mem(cpy|set)\w*|data formatting)([-_ ]|$)(?!.*(add|sub|mul|div|reduce|select|exp|tanh|compare|convert))",
    re.IGNORECASE,
)
_SHUFFLES = frozenset(
    (
        *("broadcast", "concatenate", "data formatting", "dynamic-slice", "dynamic-update-slice", "gather", "pad"),
        *("reverse", "scatter", "select", "select-and-scatter", "shuffle", "slice", "sort"),
    )
)
"""XProf's categories of moving data within a device (smart_suggestion/signal_provider.h)."""
_CUSTOM = re.compile(r"^custom[-_]?call", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of event: the row that it counts for, its rank on the critical path, and whether it is a run of the op
    or only the end of one that was started before."""

    op: Op
    module: str = ""
    rank: int = CORE
    counts: bool = True


def short_name(text: str) -> str:
    """The name of an instruction that may be printed whole."""
    found = _PRINTED.match(text)
    return found[1] if found else text.removeprefix("%")


def started_by(text: str) -> str:
    """The name of the row that an event counts for: a done is its start's, where the printed instruction says whose."""
    name = short_name(text)
    bare = _NUMBERS.sub("", name)
    if bare.endswith(("-done", "-update")):
        found = _FIRST_OPERAND.search(text)
        if found and _PART.search(_NUMBERS.sub("", found[1])):
            return found[1]
        return re.sub(r"-(done|update)", "-start", name, count=1)
    return name


def category_of(name: str, said: str = "", opcode: str = "") -> str:
    """The category of an op: by what XProf says of it, then by its opcode, then by its name."""
    if _INPUTS.match(opcode or name) or _INPUTS.match(said):
        return "input"
    if _CONTROLS.match(opcode) or _CONTROLS.match(said):
        return "other"
    for text in (said, opcode, name):
        for kind, pattern in _WIRES:
            if text and pattern.search(text):
                return kind
    texts = (name, said, opcode)
    for kind, pattern in (("attention", _ATTENTION), ("matmul", _MATMUL)):
        if any(pattern.search(text) for text in texts):
            return kind
    bare = _NUMBERS.sub("", name)
    if said in _SHUFFLES or any(_COPIES.search(text) for text in (said, opcode, bare) if text):
        return "copy"
    return "custom" if any(_CUSTOM.search(text) for text in (said, opcode, bare)) else "elementwise"


def kind_of(text: str, *, said: str = "", known: Op | None = None, module: str = "") -> Kind:
    """The kind of an event.

    Args:
        text: its name, or the whole instruction.
        said: XProf's category of it, where the trace has one.
        known: what the program says of the op; its figures are of one run.
        module: the program that it belongs to.
    """
    name = started_by(text)
    opcode = found[1] if (found := _OPCODE.search(text)) else _NUMBERS.sub("", name)
    category = known.category if known else category_of(name, said, opcode)
    done = bool(re.search(r"-(done|update)(\.|$)", short_name(text)))
    op = replace(known, count=0.0, seconds=0.0, exposed_s=0.0) if known else Op(name=name, category=category)
    return Kind(op=op, module=module, rank=_rank(name, op), counts=not done)


def _rank(name: str, op: Op) -> int:
    ranks = {**dict.fromkeys(COLLECTIVES, WIRE), "input": INPUT, "other": CONTROL}
    if op.category in ranks:
        return ranks[op.category]
    beside = bool(re.search(r"-(start|done)(\.|$)", name)) or bool(re.match(r"mem(cpy|set)", name, re.IGNORECASE))
    return COPY if op.category == "copy" and beside else CORE


def phase_of(scope: str) -> str:
    """The phase that a path of JAX scopes belongs to, or nothing where it does not say."""
    if "rematted_computation" in scope:
        return "recompute"
    if "transpose(" in scope:
        return "backward"
    if "optimizer" in scope:
        return "optimizer"
    return "forward" if "jvp(" in scope else ""
