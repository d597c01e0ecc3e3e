"""The devices of a slice that is not there: what a compiler needs to know of them, from the compiler's own tables."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from asap_ray.compiler import cuda
from asap_ray.hardware import Slice

HOST_BOUNDS = (2, 2, 1)
"""Chips of one TPU host along x, y and z, as the compiler has them unless it is told otherwise."""
NAMES = {"tpu7x": "tpu7x"}
"""Chips that the compiler calls otherwise than their datasheet does."""


class NoTopologyError(ValueError):
    """The compiler knows no such slice; the text says which, and what the compiler says, in one line."""


def devices(slice_: Slice) -> list[Any]:
    """The devices of a slice in the compiler's order, `Slice.devices` of them.

    TPU devices have `coords`, `core_on_chip` and, of several slices, `slice_index`; GPUs have `process_index`, the
    domain that they are in. JAX must be imported, on the CPU platform.

    Raises:
        NoTopologyError: the compiler has no such slice, or sees another number of devices in it.
    """
    import jax

    jax.devices()  # lets JAX find its plug-ins
    try:
        found = _tpus(slice_) if slice_.chip.kind == "tpu" else cuda.devices(slice_)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
        raise NoTopologyError(f"hardware={slice_.name}: the compiler has no such slice: {_line(error)}") from error
    if len(found) != slice_.devices:
        text = f"the compiler sees {len(found)} devices in it, not {slice_.devices}"
        raise NoTopologyError(f"hardware={slice_.name}: {text}")
    return found


def _tpus(slice_: Slice) -> list[Any]:
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(**tpu_description(slice_), platform="tpu").devices)


def tpu_description(slice_: Slice) -> dict[str, Any]:
    """What JAX's `get_topology_desc` needs for a TPU slice.

    The two TensorCores of a v4 are one device, as on a real one, in the configuration named megacore; that of later
    chips is theirs by default. A slice smaller than a host, as one chip is, has hosts of its own size.
    """
    chip, shape = slice_.chip, slice_.topology
    told: dict[str, Any] = {"topology_name": f"{NAMES.get(chip.name, chip.name)}:{'x'.join(map(str, shape))}"}
    if slice_.slices > 1:
        told["num_slices"] = slice_.slices
    if chip.name == "v4":
        told["chip_config_name"] = "megacore"
    bounds = [min(size, most) for size, most in zip((*shape, 1, 1), HOST_BOUNDS, strict=False)]
    if tuple(bounds) != HOST_BOUNDS:
        told["chips_per_host_bounds"] = bounds
    return told


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set the environment of a process that compiles and does nothing else, before JAX is imported.

    What a user has set for their own runs must not decide what is compiled, so it is taken out.
    """
    for name in list(environment):
        if name.startswith("JAX_") or name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
            del environment[name]
    environment.update(
        JAX_PLATFORMS="cpu",
        JAX_ENABLE_COMPILATION_CACHE="false",  # its entries would hide what a compilation costs, and make it warn
        TPU_SKIP_MDS_QUERY="1",  # there is no metadata server to ask
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # several processes compile at once, and none has the chip
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())
