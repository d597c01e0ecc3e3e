"""How long a user waits before any plan is priced: the import, a start of the command line, the layouts of a slice.

    pytest tests/benchmarks -n 0 --benchmark-enable

On a quiet core an import takes well under 0.3 s, `--help` well under 3 s, and the layouts of a 16x16 pod under 0.3 s.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from asap_ray import topology
from asap_ray.errors import ConfigError
from asap_ray.hardware import parse_slice
from tests.problems import CHIPS


@pytest.mark.parametrize(
    "words",
    [("-c", "import asap_ray"), ("-m", "asap_ray", "--help"), ("-m", "asap_ray", "+model=lama70b")],
    ids=["import", "help", "mistake"],
)
def test_start(benchmark: BenchmarkFixture, words: tuple[str, ...]) -> None:
    benchmark.pedantic(lambda: subprocess.run([sys.executable, *words], capture_output=True), rounds=5)


@pytest.mark.parametrize("name", ["v6e-256", "v5p-1024", "v5p-8192"])
def test_layouts(benchmark: BenchmarkFixture, name: str) -> None:
    slice_ = parse_slice(name, CHIPS)
    benchmark.pedantic(lambda: topology.layouts(slice_), setup=topology._layouts.cache_clear, rounds=3)


@pytest.mark.parametrize("name", ["v5p-127", "v5p-99999999999", "x" * 10_000], ids=["near", "huge", "long"])
def test_a_bad_name(benchmark: BenchmarkFixture, name: str) -> None:
    def refused() -> None:
        with pytest.raises(ConfigError):
            parse_slice(name, CHIPS)

    benchmark(refused)
