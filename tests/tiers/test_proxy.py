"""Smaller jobs that stand for whole ones, and what their steps are carried to."""

from __future__ import annotations

import math

import pytest

from asap_ray.architecture import architecture_from_mapping
from asap_ray.hardware import parse_slice
from asap_ray.plan import Plan
from asap_ray.problem import Problem
from asap_ray.rules import broken
from asap_ray.settings import load_group
from asap_ray.stack import stack_from_mapping
from asap_ray.tiers.proxy import CARRIED, Proxy, carried
from asap_ray.workload import Workload
from tests.problems import CHIPS

MODEL = {name: value for name, value in load_group("model")["llama2_70b"].items() if name != "train"}
WHOLE = Problem(
    workload=Workload(architecture=architecture_from_mapping(MODEL), global_batch=1024, seq_len=4096),
    slice=parse_slice("v5p-128", CHIPS),
    stack=stack_from_mapping(load_group("stack")["maxtext"]),
)


def plan(line: str) -> Plan:
    found = Plan.parse(line)
    assert broken(WHOLE, found) is None, broken(WHOLE, found)
    return found


def test_fewer_layers_leave_the_plan_as_it_is() -> None:
    proxy, whole = Proxy(layers=8), plan("fsdp=64@4.4.4 micro_batch=1 accumulation=16 remat=full")
    assert proxy.problem(WHOLE).workload.architecture.layers == 8
    assert proxy.problem(WHOLE).workload.global_batch == WHOLE.workload.global_batch
    assert proxy.plan(WHOLE, whole) == whole
    assert proxy.words == "a proxy of 8 layers"


@pytest.mark.parametrize(
    ("line", "axes"),
    [
        ("fsdp=64@4.4.4 micro_batch=1 accumulation=16 remat=full", {"fsdp": 16}),
        ("fsdp=16@4.4.1 tensor=4@1.1.4 micro_batch=4 accumulation=16 sequence_parallel=true remat=full",
         {"fsdp": 4, "tensor": 4}),
        ("data=8@4.2.1 fsdp=8@1.2.4 micro_batch=1 accumulation=16 remat=full", {"data": 2, "fsdp": 8}),
    ],
)  # fmt: skip
def test_on_fewer_chips_the_batch_gives_way_and_each_device_keeps_its_work(line: str, axes: dict[str, int]) -> None:
    proxy, whole = Proxy(slice=parse_slice("v5p-32", CHIPS)), plan(line)
    small = proxy.plan(WHOLE, whole)
    assert isinstance(small, Plan), small
    assert {name: size for name, size in small.axes.items() if size > 1} == axes
    assert (small.micro_batch, small.accumulation) == (whole.micro_batch, whole.accumulation)
    here = proxy.problem(WHOLE)
    assert here.workload.global_batch * 4 == WHOLE.workload.global_batch
    assert broken(here, small) is None
    per_device = [each.workload.tokens_per_step / each.slice.devices for each in (here, WHOLE)]
    assert per_device[0] == per_device[1]


def test_a_plan_that_nothing_smaller_stands_for_is_said() -> None:
    tensor = plan(
        "fsdp=2@1.1.2 context=4@4.1.1 tensor=8@1.4.2 micro_batch=32 accumulation=16 sequence_parallel=true remat=full"
    )
    told = Proxy(slice=parse_slice("v5p-32", CHIPS)).plan(WHOLE, tensor)
    assert told == "data and fsdp cannot give way 2 times more, which v5p-32 needs"
    piped = plan("fsdp=16@4.4.1 pipeline=4@1.1.4 micro_batch=1 accumulation=64 schedule=gpipe remat=full")
    assert str(Proxy(layers=6).plan(WHOLE, piped)).startswith("a proxy of 6 layers: rule stages")  # 6 over 4 stages


def test_a_step_is_carried_by_what_the_roofline_says_of_both() -> None:
    """A proxy of 2 s, priced 1 s where the whole is priced 8 s: 16 s, and the interval of the run grows with ln 8."""
    step, (low, high) = carried(2.0, (1.9, 2.1), (1.0, 8.0))
    assert step == 16.0
    more = 1.645 * CARRIED * math.log(8)
    assert high == pytest.approx(16 * math.exp(math.hypot(math.log(2.1 / 2), more)))
    assert low == pytest.approx(16 / math.exp(math.hypot(math.log(2 / 1.9), more)))
    assert carried(2.0, (1.9, 2.1), (3.0, 3.0)) == (2.0, pytest.approx((1.9, 2.1)))
