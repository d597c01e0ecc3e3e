"""A plan as a short JAX program of its own: the mesh on real devices, and where each weight and activation lies on it.

It needs nothing but JAX and NumPy, runs on as many devices as the plan has (CPU devices, too), prints how each weight
is cut, and makes the weights where asked. It trains nothing: it is what a trainer of one's own starts from.

An expert axis that subdivides others is split off as an axis of its own behind each axis that it lies within
(`fsdp` and `fsdp_expert`): what shards over `fsdp` elsewhere shards over both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from asap_ray.interchange.exchange import Written
from asap_ray.layers import Matmul
from asap_ray.meshes import layouts_of
from asap_ray.plan import AXES, Plan
from asap_ray.problem import Problem, divided_axes, sharding_axes

PROJECT = "plain JAX"
Spec = tuple[tuple[str, ...], ...]
"""For each dimension of a weight the mesh axes that split it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """The mesh of the program: names and sizes in order, and what stands for an axis of the plan."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    stands_for: Mapping[str, tuple[str, ...]]

    def of(self, *axes: str) -> tuple[str, ...]:
        """The names that stand for some axes of the plan, without those of one device."""
        size = dict(zip(self.names, self.sizes, strict=True))
        return tuple(name for axis in axes for name in self.stands_for[axis] if size[name] > 1)

    def ranks(self, names: tuple[str, ...]) -> int:
        """Devices along some of its axes."""
        size = dict(zip(self.names, self.sizes, strict=True))
        return math.prod(size[name] for name in names)


def axes_of(problem: Problem, plan: Plan) -> Axes:
    """The mesh of a plan; an expert axis within others is taken from the nearest of their ranks."""
    if problem.stack.expert_multiplies or plan.axes["expert"] == 1:
        return Axes(names=AXES, sizes=plan.sizes, stands_for={axis: (axis,) for axis in AXES})
    left, parts = plan.axes["expert"], dict[str, int]()
    for axis in divided_axes(problem.stack):
        parts[axis] = math.gcd(left, plan.axes[axis])
        left //= parts[axis]
    names, sizes, stands_for = [], [], {"expert": tuple(f"{a}_expert" for a in AXES if parts.get(a, 1) > 1)}
    for axis in AXES:
        part = parts.get(axis, 1)
        if axis != "expert":
            cut = part > 1
            names += [axis, f"{axis}_expert"] if cut else [axis]
            sizes += [plan.axes[axis] // part, part] if cut else [plan.axes[axis]]
            stands_for[axis] = (axis, f"{axis}_expert") if cut else (axis,)
    return Axes(names=tuple(names), sizes=tuple(sizes), stands_for=stands_for)


def weights(problem: Problem, plan: Plan) -> dict[str, tuple[tuple[int, ...], Spec]]:
    """Every matrix of the model: its shape, with the layers that are alike stacked in front, and how it is split.

    With a pipeline the layers are stacked as [chunks of a stage, stages, layers of a chunk].
    """
    model, axes = problem.workload.architecture, axes_of(problem, plan)
    shards = axes.of(*sharding_axes(problem.stack))
    found: dict[str, tuple[tuple[int, ...], Spec]] = {}
    found["embedding"] = ((model.vocab, model.d_model), (axes.of("tensor"), shards))
    if not model.tied:
        found["head"] = ((model.d_model, model.vocab), (shards, axes.of("tensor")))
    if model.learned_positions:
        found["positions"] = ((model.learned_positions, model.d_model), ((), shards))
    for moe in sorted({group.moe for group in model.groups}):
        alike = [group for group in model.groups if group.moe == moe]
        front, cut = _stacked(sum(group.count for group in alike), plan, axes)
        for matmul in model.matmuls(alike[0]):
            name = f"{'sparse' if moe else 'dense'}.{matmul.name}"
            expert = (model.experts.experts,) if matmul.kind == "expert" and model.experts else ()
            found[name] = ((*front, *expert, matmul.k, matmul.n), (*cut, *_cut(matmul, axes, shards)))
    return {name: (shape, _even(shape, spec, axes)) for name, (shape, spec) in found.items()}


def _stacked(layers: int, plan: Plan, axes: Axes) -> tuple[tuple[int, ...], Spec]:
    stages = plan.axes["pipeline"]
    if stages == 1 or layers % (stages * plan.virtual):
        return (layers,), ((),)
    return (plan.virtual, stages, layers // (stages * plan.virtual)), ((), axes.of("pipeline"), ())


def _cut(matmul: Matmul, axes: Axes, shards: tuple[str, ...]) -> Spec:
    """The tensor axis splits one side, what shards weights the other; experts are dealt out over theirs."""
    expert = axes.of("expert") if matmul.kind == "expert" else ()
    rest = tuple(name for name in shards if name not in expert)
    sides = {"column": (rest, axes.of("tensor")), "row": (axes.of("tensor"), rest), "none": (rest, ())}
    return (expert, *sides[matmul.tensor]) if matmul.kind == "expert" else sides[matmul.tensor]


def _even(shape: tuple[int, ...], spec: Spec, axes: Axes) -> Spec:
    """The spec without what does not divide its dimension: JAX splits evenly."""
    return tuple(names if size % axes.ranks(names) == 0 else () for size, names in zip(shape, spec, strict=True))


def _uneven(problem: Problem, plan: Plan) -> Iterator[str]:
    """Weights that the plan splits and JAX cannot, since a size does not divide."""
    model, axes = problem.workload.architecture, axes_of(problem, plan)
    shards, tensor = axes.ranks(axes.of(*sharding_axes(problem.stack))), plan.axes["tensor"]
    if model.vocab % tensor:
        yield f"vocabulary {model.vocab} over tensor {tensor}"
    if model.d_model % shards:
        yield f"width {model.d_model} over {shards} shards"
    sparse = sum(group.count for group in model.groups if group.moe)
    for layers in {model.layers - sparse, sparse} - {0}:
        if layers % (plan.axes["pipeline"] * plan.virtual):
            yield f"{layers} layers in {plan.axes['pipeline']} x {plan.virtual} pipeline chunks"


def write(problem: Problem, plan: Plan, preset: str = "") -> Written:
    """A plan as a JAX program, with what of it is not in its mesh and its specs."""
    cannot = {}
    if uneven := list(_uneven(problem, plan)):
        cannot["uneven"] = f"{'; '.join(uneven)}: JAX splits evenly, these are left whole"
    if plan.axes["pipeline"] > 1:
        cannot["schedule"] = f"{plan.schedule} is no sharding: weights are placed by stage, and no schedule is here"
    for knob, default in (("remat", ""), ("attention", "flash"), ("precision", "bf16")):
        if getattr(plan, knob) != default:
            cannot[knob] = f"{getattr(plan, knob)} is up to the model's code"
    return Written(project=PROJECT, files={"jax.py": _program(problem, plan)}, cannot=cannot)


def _program(problem: Problem, plan: Plan) -> str:
    where, axes = problem.slice, axes_of(problem, plan)
    ici = list(plan.ici)
    if not problem.stack.expert_multiplies:
        ici[AXES.index("expert")] = 1
    dcn = [total // inside for total, inside in zip(_plain_sizes(problem, plan), ici, strict=True)]
    batch = axes.of("data", "fsdp", *(["expert"] if problem.stack.expert_multiplies else []))
    length = axes.of("context", *(["tensor"] if plan.sequence_parallel else []))
    named = {
        "PLAN": repr(plan.line),
        "NAMES": repr(axes.names),
        "SHAPE": repr(axes.sizes),
        "SLICES": repr(where.slices),
        "LINKS": repr(tuple(axis.size for axis in where.axes)),
        "ON_CHIP": repr(where.axes[-1].on_chip),
        "ACROSS": repr(tuple(dcn)),
        "STEPS": repr(_steps(problem, plan, ici)),
        "MICRO_BATCH": repr((math.prod(_shards(problem, plan)) * plan.micro_batch, problem.workload.seq_len)),
        "ACCUMULATION": repr(plan.accumulation),
        "TOKENS": _spec((batch, axes.of("context"))),
        "ACTIVATIONS": _spec((batch, length, ())),
        "ATTENTION": _spec((batch, axes.of("context"), axes.of("tensor"), ())),
    }
    values = "".join(f"{name} = {value}{_ABOUT.get(name, '')}\n" for name, value in named.items())
    rows = {name: f"({shape!r}, {_spec(spec)})" for name, (shape, spec) in weights(problem, plan).items()}
    state = {name: _spec(spec) for name, spec in _state(problem, plan).items()}
    about = "# the optimizer's state of a weight, where it lies otherwise than the weight\n"
    return f"{_HEAD}{values}WEIGHTS = {_table(rows)}\n{about}STATE = {_table(state)}\n{_TAIL}"


def _table(rows: Mapping[str, str]) -> str:
    lines = "".join(f"    {name!r}: {value},\n" for name, value in rows.items())
    return f"{{\n{lines}}}" if rows else "{}"


def _plain_sizes(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """Sizes that multiply to the devices: an expert axis within others counts as one."""
    if problem.stack.expert_multiplies:
        return plan.sizes
    return tuple(1 if axis == "expert" else size for axis, size in plan.axes.items())


def _shards(problem: Problem, plan: Plan) -> tuple[int, ...]:
    split = ("data", "fsdp", *(["expert"] if problem.stack.expert_multiplies else []))
    return tuple(plan.axes[axis] for axis in split)


def _steps(problem: Problem, plan: Plan, ici: list[int]) -> tuple[tuple[int, ...], ...]:
    """Steps of each mesh axis along each link axis: the plan's layout, or the only one or first of its sizes."""
    if plan.layout:
        return plan.layout
    if len(problem.slice.axes) == 1:
        return tuple((size,) for size in ici)
    return tuple(tuple(int(step) for step in row) for row in layouts_of(problem, plan.ici).factors[0])


def _state(problem: Problem, plan: Plan) -> dict[str, Spec]:
    """How the optimizer's state lies where ZeRO shards it over data: the first dimension that divides takes it."""
    axes, found = axes_of(problem, plan), dict[str, Spec]()
    data = axes.of("data") if plan.zero else ()
    for name, (shape, spec) in weights(problem, plan).items() if data else ():
        free = tuple(each for each in data if not any(each in names for names in spec))
        for i in reversed(range(len(shape))):
            if free and shape[i] % axes.ranks((*spec[i], *free)) == 0:
                found[name] = (*spec[:i], (*spec[i], *free), *spec[i + 1 :])
                break
    return found


def _spec(spec: Spec) -> str:
    entries = ["None" if not names else repr(names[0]) if len(names) == 1 else repr(names) for names in spec]
    return f"P({', '.join(entries)})"


_ABOUT = {
    "LINKS": "  # devices along each link axis of one slice or domain",
    "ON_CHIP": "  # whether the last of them lies inside a chip",
    "ACROSS": "  # of each mesh axis, its size across slices",
    "STEPS": "  # of each mesh axis, its steps along each link axis; the later axis is innermost",
    "MICRO_BATCH": "  # sequences of all devices, and their length",
    "ACTIVATIONS": "  # [batch, length, width] between blocks",
    "ATTENTION": "  # [batch, length, heads, head width]",
}
_HEAD = '''\
"""Run it on the plan's devices, or on as many of the CPU's:

    JAX_PLATFORMS=cpu NPROC=16 XLA_FLAGS=--xla_force_host_platform_device_count=N python THIS_FILE

It prints how each weight is cut; with --make it also makes them.
"""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

'''
_TAIL = '''

def place(device, position):
    """Where a device is: its slice, then its step along each link axis. TPUs say so, others come in order."""
    coords = getattr(device, "coords", None)
    if device.platform != "tpu" or coords is None:
        return tuple(int(i) for i in np.unravel_index(position, (SLICES, *LINKS)))
    core = (device.core_on_chip,) if ON_CHIP else ()
    return (getattr(device, "slice_index", 0) or 0, *coords[: len(LINKS) - len(core)], *core)


def make_mesh(devices):
    """The plan's mesh: each axis of the size it has across slices times the steps it takes along the links."""
    grid = np.empty((SLICES, *LINKS), object)
    for position, device in enumerate(devices):
        grid[place(device, position)] = device
    parts = [ACROSS, *zip(*STEPS)]  # [across, then each link axis][mesh axis]
    spread = grid.reshape([size for part in parts for size in part])
    order = [level * len(STEPS) + axis for axis in range(len(STEPS)) for level in range(len(parts))]
    return Mesh(spread.transpose(order).reshape(SHAPE), NAMES)


def make_weights(mesh):
    """Every weight as zeros in bfloat16, each device its own part."""
    return {
        name: jax.jit(lambda shape=shape: jnp.zeros(shape, jnp.bfloat16), out_shardings=NamedSharding(mesh, spec))()
        for name, (shape, spec) in WEIGHTS.items()
    }


def main():
    needed, devices = math.prod(SHAPE), jax.devices()
    if len(devices) != needed:
        sys.exit(f"this plan has {needed} devices, and JAX sees {len(devices)}")
    mesh = make_mesh(devices)
    print(PLAN)
    print({name: size for name, size in mesh.shape.items() if size > 1})
    for name, (shape, spec) in WEIGHTS.items():
        part = NamedSharding(mesh, spec).shard_shape(shape)
        print(f"{name:24} {shape} {spec}: {part} on a device")
    if "--make" in sys.argv:
        made = make_weights(mesh)
        print(f"{sum(each.nbytes for each in made.values()) / 1e9:.3f} GB of weights")


if __name__ == "__main__":
    main()
'''
