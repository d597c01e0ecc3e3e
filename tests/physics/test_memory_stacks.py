"""Memory habits of single trainers, by hand, and their published peaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.physics.memory import FIGURES
from asap_ray.physics.roofline import Pricer
from asap_ray.physics.stages import stage_layers
from asap_ray.plan import Plan
from asap_ray.settings import load_group
from asap_ray.space import Space

GIB = 2**30
LLAMA_1B = {  # nanotron, scripts/scaling_benchmarks.py
    "name": "llama-1b", "layers": 16, "d_model": 2048, "vocab": 131072, "tied": True,
    "attention": {"heads": 32, "kv_heads": 32, "head_dim": 64}, "ffn": {"d_ff": 8192, "gated": True},
}  # fmt: skip


def parts(physics, problem, line: str, stage: str = "fullest") -> dict[str, float]:
    plan = Plan.parse(line)
    rows = Space(problem=problem).columns([plan])
    found = Pricer(problem, physics.calibrations["gpu"]).memory(rows, stage)
    return {name: float(column[0]) for name, column in found.items()}


def trimmed(name: str, layers: int):
    given = load_group("model")[name]
    return replace(architecture_from_mapping(given), layers=layers)


@pytest.mark.parametrize(
    ("pipeline", "first", "last"),
    # A head of 131,072 x 2,048 takes as many FLOPs as 3.56 layers of 4 x 2,048^2 + 3 x 2,048 x 8,192 weights and
    # 2,048.5 keys of attention: 19.56 in all, and the layer that passes a stage's share still belongs to it.
    [(1, 16, 16), (2, 10, 6), (4, 5, 1), (8, 3, 1)],
)
def test_nanotron_cuts_its_stages_by_cost(physics, pipeline, first, last):
    problem = physics.problem(architecture_from_mapping(LLAMA_1B), "h100x8", "nanotron", 64, 4096)
    c = {"pipeline": np.array([pipeline]), "virtual": np.array([1])}
    assert [int(side[0]) for side in stage_layers(problem, c)] == [first, last]


@pytest.mark.parametrize(
    ("line", "gib"),
    # Ultra-Scale playbook, benchmarks_interactive.html: what rank 0 reserves, in GiB.
    [
        ("data=2 tensor=4 zero=1 micro_batch=1 accumulation=128", 8.2),
        ("data=4 tensor=2 zero=1 micro_batch=1 accumulation=64", 12.5),
        ("data=4 pipeline=2 zero=0 schedule=1f1b micro_batch=1 accumulation=64", 26.8),
        ("data=2 pipeline=4 zero=1 schedule=1f1b micro_batch=2 accumulation=64", 26.2),
        ("pipeline=8 zero=0 schedule=1f1b micro_batch=1 accumulation=256", 18.4),
        ("data=2 pipeline=2 tensor=2 zero=1 schedule=1f1b micro_batch=8 accumulation=16", 47.8),
    ],
)
def test_first_stages_of_nanotron_reserve_what_its_benchmarks_say(physics, line, gib):
    problem = physics.problem(architecture_from_mapping(LLAMA_1B), "h100x8", "nanotron", 256, 4096)
    line += " remat=none" + (" sequence_parallel=true" if "tensor" in line else "")
    found = parts(physics, problem, line, "first")
    assert sum(found[name] for name in FIGURES["reserved"]) / GIB == pytest.approx(gib, rel=0.18)


@pytest.mark.parametrize(
    ("model", "layers", "line", "batch", "gib"),
    # SimuMax, docs/b200/b200_release_v1.2_summary.md: Megatron on eight B200, allocated at the fullest rank.
    [
        ("llama3_70b", 12, "data=4 tensor=2 sequence_parallel=true", 32, 60.68),
        ("llama3_70b", 12, "tensor=8 sequence_parallel=true", 32, 28.29),
        ("llama3_70b", 12, "data=4 pipeline=2 schedule=1f1b", 32, 66.55),
        ("llama3_1_405b", 4, "data=2 tensor=4 sequence_parallel=true", 8, 52.89),
        ("llama3_1_405b", 4, "data=4 pipeline=2 schedule=1f1b", 128, 87.1),
    ],
)
def test_megatron_allocates_what_was_measured(physics, model, layers, line, batch, gib):
    problem = physics.problem(trimmed(model, layers), "b200x8", "megatron", batch, 4096)
    ranks = 8 // int(line.split("tensor=")[1][0]) if "tensor" in line else 4
    found = parts(physics, problem, f"{line} zero=1 micro_batch=1 accumulation={batch // ranks} remat=none")
    assert sum(found[name] for name in FIGURES["allocated"]) / GIB == pytest.approx(gib, rel=0.05)


def test_the_last_stage_of_a_mixture_of_experts_has_no_dense_layer(physics):
    # DeepSeek-V3 of one dense layer and three mixtures, two stages: 2 of the mixtures stand on the last one.
    model = replace(trimmed("deepseek_v3", 4), dense_layers=1)
    problem = physics.problem(model, "b200x8", "megatron", 16, 4096)
    line = "data=4 pipeline=2 expert=4 zero=1 schedule=1f1b micro_batch=1 accumulation=4 remat=none"
    first, last = (parts(physics, problem, line, stage)["weights"] for stage in ("first", "last"))
    dense, mixture = (model.layer_parameters(group) - model.expert_parameters(group) for group in model.groups)
    experts = model.expert_parameters(model.groups[1]) / 4
    edge = model.vocab * model.d_model
    assert first == pytest.approx(2 * (dense + mixture + experts + edge), rel=1e-12)
    assert last == pytest.approx(2 * (2 * mixture + 2 * experts + edge), rel=1e-12)
    # SimuMax measured 114.0 GiB at the fullest rank.
    found = parts(physics, problem, line)
    assert sum(found[name] for name in FIGURES["allocated"]) / GIB == pytest.approx(114.0, rel=0.03)


def test_inputs_of_narrow_matmuls_are_kept_narrow(physics):
    # Llama 2 7B in FP8: two norms and the gate's product shrink from 2 bytes to 1, attention's output gains a copy.
    problem = physics.problem("llama2_7b", "h100x8", "megatron", 8, 2048)
    line = "data=8 zero=1 micro_batch=1 accumulation=1 remat=none precision="
    wide, narrow = (
        parts(physics, replace(problem, workload=replace(problem.workload, precision=name)), line + name)["activations"]
        for name in ("bf16", "fp8")
    )
    assert wide - narrow == pytest.approx(32 * 2048 * (2 * 4096 + 11008 - 4096), rel=1e-12)


def test_outputs_of_experts_are_kept_where_they_are_weighed(physics):
    problem = physics.problem("mixtral8x7b", "h100x8", "megatron", 8, 2048)
    weighing = replace(problem, stack=replace(problem.stack, weighs_outputs=True))
    line = "data=8 expert=8 zero=1 micro_batch=1 accumulation=1 remat=none"
    more = parts(physics, weighing, line)["activations"] - parts(physics, problem, line)["activations"]
    assert more == pytest.approx(32 * 2048 * 2 * 4096 * 2, rel=1e-12)


def test_gathered_inputs_are_kept_whole(physics):
    problem = physics.problem("llama2_13b", "a100x8", "scaling", 16, 2048)
    split = replace(problem, stack=replace(problem.stack, keeps_gathered=False))
    line = "tensor=8 micro_batch=1 accumulation=16 remat=none sequence_parallel=true"
    more = parts(physics, problem, line)["activations"] - parts(physics, split, line)["activations"]
    assert more == pytest.approx(40 * 2048 * 2 * 5120 * 2 * 7 / 8, rel=1e-12)


def test_half_a_tensor_is_half_as_large(physics):
    # torchtitan keeps every other matmul: one of the two that make the gate.
    problem = physics.problem("llama3_8b", "h100x8", "torchtitan", 16, 8192)
    line = "fsdp=8 micro_batch=1 accumulation=2 remat="
    none = parts(physics, problem, line + "full")["activations"]
    some = parts(physics, problem, line + "selective")["activations"]
    statistics = 4 * 32  # of the fused kernel, a token
    assert some - none == pytest.approx(32 * 8192 * (2 * (2 * 4096 + 14336) + statistics), rel=1e-12)


def test_gradients_of_a_layer_pass_through_its_backward_pass(physics):
    # Megatron on one device: 16-bit gradients of a layer's weights, and of the gate's product and its two inputs.
    problem = physics.problem("llama2_7b", "h100x8", "megatron", 8, 2048)
    problem = replace(problem, stack=replace(problem.stack, logit_bytes=0.0))
    found = parts(physics, problem, "data=8 zero=1 micro_batch=1 accumulation=1 remat=full")
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert found["passing"] == pytest.approx(2 * layer + 2 * 2048 * 3 * 11008, rel=1e-12)


@pytest.mark.parametrize(
    ("slice_", "line", "bytes_each"),
    # Bytes of gradients for each parameter of our trainer on a rank of fsdp=4: 2 of one micro-batch, 4 more of a sum
    # over several; a pipeline's loop adds up at once, and on a TPU holds what a tick picked besides.
    [
        ("h100x8", "data=2 fsdp=4 micro_batch=1 accumulation=1", 2),
        ("h100x8", "data=2 fsdp=4 micro_batch=1 accumulation=2", 2 + 4),
        ("h100x8", "fsdp=4 pipeline=2 schedule=gpipe micro_batch=1 accumulation=4", 4),
        ("v5e:2x4", "fsdp=4@2.2 pipeline=2@1.2 schedule=gpipe micro_batch=1 accumulation=4", 4 + 4),
    ],
)
def test_our_loops_hold_their_sums(physics, slice_, line, bytes_each):
    batch = 4 * int(line.rsplit("=", 1)[1]) * (2 if "data=2" in line else 1)
    problem = physics.problem("llama3_8b", slice_, "ours", batch, 4096)
    layers, edges = 32 * 218_103_808, 2 * 128256 * 4096  # which lie on every stage; norms are left out
    held = layers / (2 if "pipeline" in line else 1) + edges
    assert parts(physics, problem, f"{line} remat=full")["gradients"] == pytest.approx(bytes_each * held / 4, rel=2e-3)
