"""Arrays as HLO prints them: `bf16[4,512,1024]{2,1,0:T(8,128)(2,1)S(1)}`, alone or in tuples.

Sizes are logical: what a tiled layout pads is not counted. The memory space stands at the end of a layout: none is the
device's HBM, `S(1)` a TPU's VMEM, `S(5)` the host's memory; others are flags and scalars.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

HBM, VMEM, HOST = 0, 1, 5
"""Memory spaces that bytes are counted in."""
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)$")
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Array:
    """One array: element type, dimensions, and the memory space that it lies in."""

    dtype: str
    dims: tuple[int, ...]
    space: int = HBM

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> float:
        """Bytes of the elements, without what tiles pad."""
        return self.elements * bits(self.dtype) / 8


@lru_cache(maxsize=256)
def bits(dtype: str) -> int:
    """Bits of one element of a type such as `bf16`, `s32`, `f8e4m3fn` or `u4`."""
    if dtype in _BITS:
        return _BITS[dtype]
    found = _DIGITS.search(dtype)
    return int(found[0]) if found else 0


@lru_cache(maxsize=1 << 16)
def arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a printed shape, a tuple's flattened."""
    return tuple(_array(*found.groups()) for found in _ARRAY.finditer(text))


def _array(dtype: str, dims: str, layout: str | None) -> Array:
    space = _SPACE.search(layout) if layout else None
    sizes = tuple(int(size.removeprefix("<=")) for size in dims.split(",") if size)
    return Array(dtype, sizes, int(space[1]) if space else HBM)
