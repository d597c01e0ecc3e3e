"""Experts as the real TPU compiler leaves them: FLOPs of the model and no more, traffic that physics predicts."""

from __future__ import annotations

import re
from collections import Counter
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asap_ray.trainer.experts import ExpertShape, ExpertWeights, apply_experts
from asap_ray.trainer.grouped import KERNELS

EXPERTS, TOPK, D, D_FF = 8, 2, 512, 1024
TOKENS = 1024  # of one rank's tensor group
BYTES = {"bf16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1}
COLLECTIVE = re.compile(
    r"= (\w+)\[([\d,]*)\]\S* (all-to-all|all-gather|reduce-scatter|all-reduce)\(.*"
    r" channel_id=(\d+).*?(op_name=\S+ stack_frame_id=\d+|$)",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def chips() -> np.ndarray:
    """Four v5e chips of libtpu's compiler, which needs none."""
    pytest.importorskip("libtpu", reason="the TPU compiler is not installed")
    from jax.experimental import topologies

    with pytest.MonkeyPatch.context() as env:
        env.setenv("TPU_SKIP_MDS_QUERY", "1")
        env.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        return np.array(topologies.get_topology_desc("v5e:2x2", platform="tpu").devices)


def compiled(chips: np.ndarray, how: ExpertShape) -> jax.stages.Compiled:
    """Forward and backward passes of one layer's experts over all chips; a backward pass gathers its inputs again."""
    mesh = Mesh(chips.reshape(-1, how.expert, how.tensor), ("data", "expert", "tensor"))
    tokens = PartitionSpec(("data", "expert"), "tensor")
    specs = ExpertWeights(
        PartitionSpec(), PartitionSpec("expert", None, "tensor"), PartitionSpec("expert", "tensor"), None
    )
    saved = jax.checkpoint_policies.save_only_these_names("router", "expert_in", "expert_gate_up", "expert_act")

    def rank(x: jax.Array, weights: ExpertWeights) -> tuple[jax.Array, ExpertWeights]:
        layer = jax.checkpoint(lambda x, weights: apply_experts(x, weights, how)[0], policy=saved)
        return jax.grad(lambda *parts: (layer(*parts) ** 2).astype(jnp.float32).sum(), (0, 1))(x, weights)

    def array(spec: PartitionSpec, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    x = array(tokens, mesh.size // how.tensor, TOKENS, D)
    shapes = (D, EXPERTS), (EXPERTS, D, 2 * D_FF), (EXPERTS, D_FF, D)
    weights = ExpertWeights(*(array(spec, *shape) for spec, shape in zip(specs[:3], shapes, strict=True)))
    run = jax.shard_map(rank, mesh=mesh, in_specs=(tokens, specs), out_specs=(tokens, specs), check_vma=False)
    return jax.jit(run).trace(x, weights).lower(lowering_platforms=("tpu",)).compile()


def wire_bytes(program: jax.stages.Compiled, how: ExpertShape) -> Counter[str]:
    """Bytes of what each kind of collective brings together, splits or exchanges: of its larger side."""
    total: Counter[str] = Counter()
    # One that is fused with computation appears in several computations, each time the same.
    for number, sizes, kind, _, _ in set(COLLECTIVE.findall(program.as_text())):
        ways = how.tensor if kind == "reduce-scatter" else 1
        total[kind] += BYTES[number] * prod(int(size) for size in sizes.split(",")) * ways
    return total


@pytest.mark.parametrize(("expert", "tensor", "capacity"), [(4, 1, 1.0), (2, 2, 0.0), (1, 4, 0.0)], ids=str)
def test_flops_and_traffic_are_those_of_physics(chips: np.ndarray, expert: int, tensor: int, capacity: float) -> None:
    how = ExpertShape(
        experts=EXPERTS,
        topk=TOPK,
        capacity=capacity,
        expert=expert,
        tensor=tensor,
        room=1.0,  # the even share, as physics has it
        kernel=KERNELS["tpu"],
    )
    program = compiled(chips, how)
    routed = TOKENS * TOPK * 2 * 3 * D * D_FF / tensor
    router = TOKENS / tensor * 2 * D * EXPERTS
    assert program.cost_analysis()["flops"] == pytest.approx(3 * (routed + router), rel=0.03)

    traffic = wire_bytes(program, how)
    copies = TOPK if expert > 1 else 1
    block = copies * TOKENS * D * 2  # bytes of a tensor group's tokens, or of their copies
    # One exchange each way, forward and backward; two scatters, and three gathers (physics/layer.py).
    expected = {
        "all-to-all": 4 * block / tensor if expert > 1 else 0,
        "all-gather": 3 * block if tensor > 1 else 0,
        "reduce-scatter": 2 * block if tensor > 1 else 0,
    }
    # The router's weights and the counts of rows travel, too: a few numbers a token, however wide it is.
    small = 6 * 4 * TOPK * TOKENS
    for kind in expected | traffic:
        assert expected.get(kind, 0) <= traffic[kind] <= expected.get(kind, 0) + small, kind
