"""What the trainer's parts must know: the shapes of the model and of the mesh, the number formats, the kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp

from asap_ray.plan import AXES, Plan
from asap_ray.recipe import PLAIN, Recipe
from asap_ray.stack import Remat, Stack
from asap_ray.trainer.attention import KernelName
from asap_ray.trainer.experts import ROOM
from asap_ray.trainer.sharding import Rules, rules
from asap_ray.workload import Workload

Platform = Literal["tpu", "cuda", "cpu"]
FLASH_KERNELS: dict[str, KernelName] = {"tpu": "splash", "cuda": "cudnn", "cpu": "reference"}
"""The attention kernel that does not keep the scores, on each platform; a CPU has none, and materialises them."""


class NotTrainedError(ValueError):
    """The trainer has no program for a plan; the text says which knob is to blame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """A workload and a plan as the model reads them; `sizes` are those of the mesh axes by name.

    `remat` is the plan's policy, with what a recipe saves in all layers.
    """

    workload: Workload
    plan: Plan
    remat: Remat
    rules: Rules
    platform: Platform
    room: float = ROOM
    recipe: Recipe = PLAIN

    @property
    def sizes(self) -> dict[str, int]:
        """Devices along each mesh axis."""
        return dict(self.rules.sizes)

    @property
    def dtype(self) -> jnp.dtype:
        """The format of activations, of gathered weights and of gradients on the wire."""
        return jnp.dtype(jnp.float32 if self.plan.precision == "fp32" else jnp.bfloat16)

    @property
    def fp8(self) -> bool:
        """Whether the layers' matmuls multiply 8-bit numbers."""
        return self.plan.precision == "fp8"

    @property
    def kernel(self) -> KernelName:
        """The attention kernel."""
        return FLASH_KERNELS[self.platform] if self.plan.attention == "flash" else "reference"


def spec_of(
    workload: Workload, plan: Plan, stack: Stack, platform: Platform, room: float = ROOM, recipe: Recipe = PLAIN
) -> Spec:
    """What the trainer needs to know of a plan of a stack, with a recipe.

    Raises:
        NotTrainedError: the stack, the plan or the recipe has something that this trainer lacks.
    """
    policy = next((each for each in stack.remat if each.name == plan.remat), None)
    for bad, why in (
        (policy is None, f"no remat policy {plan.remat}"),
        (not stack.expert_multiplies, f"the expert axis of {stack.name} subdivides others; here it multiplies"),
        (policy is not None and bool(policy.halves), f"remat={plan.remat} keeps halves of tensors"),
        (plan.precision not in ("bf16", "fp32", "fp8"), f"precision={plan.precision}; it has bf16, fp32 and fp8"),
        (plan.schedule not in ("none", "gpipe", "interleaved"), f"schedule={plan.schedule}; its pipeline is a loop"),
        (plan.zero > 1, f"zero={plan.zero}; it has 0 and 1"),
        (plan.axes["tensor"] > 1 and not plan.sequence_parallel, "tensor without sequence_parallel"),
        (bool(recipe.hold) and workload.architecture.experts is not None, f"hold={recipe.hold} with experts"),
        (plan.axes["pipeline"] > 1 and cuts_layers(recipe), f"{recipe.line} with a pipeline"),
    ):
        if bad:
            raise NotTrainedError(f"the trainer has no program for this plan: {why}")
    assert policy is not None
    sizes: dict[str, int] = dict(zip(AXES, plan.sizes, strict=True))
    if recipe.save and not recipe.save_layers:
        policy = replace(policy, saved=policy.saved | set(recipe.save))
    return Spec(
        workload=workload,
        plan=plan,
        remat=policy,
        rules=rules(stack, sizes),
        platform=platform,
        room=room,
        recipe=recipe,
    )


def cuts_layers(recipe: Recipe) -> bool:
    """Whether a recipe treats some layers otherwise than others."""
    return bool(recipe.hold or (recipe.save and recipe.save_layers))


def psum(value: jax.Array, spec: Spec, *axes: str) -> jax.Array:
    """The sum over those of some mesh axes that have more than one device."""
    over = tuple(axis for axis in axes if spec.sizes[axis] > 1)
    return jax.lax.psum(value, over) if over else value
