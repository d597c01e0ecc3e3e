"""What compilers have said of programs that do not fit, word for word, and what it comes to."""

from __future__ import annotations

import pytest

from asap_ray.compiler.refusal import refusal

GIB = 2.0**30
# Said by the TPU compiler of jax 0.10.2 (the first), by that of jax 0.12 (the second), and by older ones (the third).
TEMPORARIES = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (143.72G) exceeds "
    "available HBM (95.74G)."
)
NUMBERED = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. The total memory required for HLO "
    "temporaries (123.05G) exceeds available HBM (95.73G)"
)
USED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 40.90G of 31.24G "
    "hbm. Exceeded hbm capacity by 9.66G.\n\nTotal hbm usage >= 41.40G:"
)


@pytest.mark.parametrize(
    ("text", "needed", "limit", "over"),
    [(TEMPORARIES, 143.72, 95.74, 47.98), (NUMBERED, 123.05, 95.73, 27.32), (USED, 40.90, 31.24, 9.66)],
)
def test_bytes_are_read_from_each_form(text: str, needed: float, limit: float, over: float) -> None:
    found = refusal(text)
    assert found is not None
    assert found.needed_bytes == pytest.approx(needed * GIB)
    assert found.limit_bytes == pytest.approx(limit * GIB)
    assert found.over_bytes == pytest.approx(over * GIB)


def test_units_of_other_sizes() -> None:
    found = refusal("RESOURCE_EXHAUSTED: Used 900.5M of 512K hbm. Exceeded hbm capacity by 900.0M.")
    assert found is not None
    assert (found.needed_bytes, found.limit_bytes) == (900.5 * 2**20, 512 * 2**10)


def test_a_refusal_without_figures_is_one_all_the_same() -> None:
    found = refusal("RESOURCE_EXHAUSTED: Out of memory")
    assert found is not None
    assert (found.needed_bytes, found.limit_bytes, found.over_bytes) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "INVALID_ARGUMENT: No such compile option: 'xla_nothing'",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %splash. Used 20.1M "
        "of 16.0M vmem.",
        "",
    ],
)
def test_other_errors_are_no_want_of_device_memory(text: str) -> None:
    assert refusal(text) is None
