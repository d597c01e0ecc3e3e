"""Small problems for tests of plans and spaces, made of the settings that the package carries."""

from __future__ import annotations

from asap_ray.architecture import Architecture, architecture_from_mapping
from asap_ray.chip import Chip, chip_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.layers import Attention, Experts, FeedForward
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.settings import load_group
from asap_ray.space import Space
from asap_ray.stack import Stack, stack_from_mapping
from asap_ray.workload import Workload

CHIPS: dict[str, Chip] = {name: chip_from_mapping(given) for name, given in load_group("hardware").items()}
STACKS: dict[str, Stack] = {name: stack_from_mapping(given) for name, given in load_group("stack").items()}

# Sizes with a factor of 3, so that not only powers of two divide them.
DENSE = Architecture(
    name="dense",
    layers=6,
    d_model=24,
    vocab=64,
    attention=Attention(heads=6, kv_heads=2, head_dim=4),
    ffn=FeedForward(d_ff=48),
)
MOE = Architecture(
    name="moe",
    layers=4,
    d_model=24,
    vocab=64,
    attention=Attention(heads=4, kv_heads=4, head_dim=6),
    experts=Experts(experts=6, topk=2, d_ff=24),
)
# The first layer dense, one expert shared: a mixture that has the tensors of both kinds.
MIXED = Architecture(
    name="mixed",
    layers=4,
    d_model=24,
    vocab=64,
    attention=Attention(heads=4, kv_heads=4, head_dim=6),
    ffn=FeedForward(d_ff=48),
    experts=Experts(experts=8, topk=2, d_ff=24, shared=1),
    dense_layers=1,
)


def make_problem(
    slice_: str,
    stack: str | Stack,
    model: Architecture | str = DENSE,
    batch: int = 12,
    seq_len: int = 24,
    numerics: tuple[str, ...] = (),
) -> Problem:
    """A problem on a slice by name; the model too may be one of conf/model/."""
    if isinstance(model, str):
        model = architecture_from_mapping(load_group("model")[model])
    return Problem(
        workload=Workload(architecture=model, global_batch=batch, seq_len=seq_len),
        slice=parse_slice(slice_, CHIPS),
        stack=STACKS[stack] if isinstance(stack, str) else stack,
        numerics=numerics,
    )


def all_plans(space: Space) -> list[Plan]:
    """Every plan that a space yields, in its order."""
    return [space.plan(rows, i) for rows in space.chunks() for i in range(len(rows))]
