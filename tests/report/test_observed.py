"""How a profile's findings are shown: figures in, words out."""

from __future__ import annotations

import io

from asap_ray.observation import Avoidable, CostlyOp, Observation, Unpredicted, Wire
from asap_ray.report.observed import observed_blocks
from asap_ray.report.summary import observed_fields
from asap_ray.report.terminal import print_blocks

SEEN = Observation(
    source="compile",
    step_time_s=10.0,
    floor_s=6.0,
    serial_s=14.0,
    seconds={"matmul": 7.0, "collectives": 2.5, "host": 0.5},
    resources={"compute": 7.0, "hbm": 0.0, "ici": 2.5, "dcn": 0.0, "host": 0.5},
    mxu=0.62,
    hbm=0.2,
    top=(
        CostlyOp(
            name="dot.7", category="matmul", phase="backward", source="asap_ray/trainer/layers.py:100", count=160.0,
            seconds=5.0, exposed_s=5.0, share=0.5, mxu=0.91, hbm=0.3,
        ),
    ),
    wires=(
        Wire(category="all_to_all", axes=("tensor",), level="ici", wire_bytes=8e9, seconds=2.0, exposed_s=2.0,
             predicted=False),
        Wire(category="all_gather", axes=("fsdp", "context"), level="ici", wire_bytes=40e9, seconds=3.0, exposed_s=0.5,
             predicted=True),
        Wire(category="all_reduce", axes=("fsdp",), level="ici", wire_bytes=1e6, seconds=0.0, exposed_s=0.0,
             predicted=False),
        Wire(category="all_reduce", axes=("fsdp",), level="ici", wire_bytes=4e9, seconds=1.0, exposed_s=0.0,
             predicted=True, serves_as="reduce_scatter"),
    ),
    unpredicted=(Unpredicted(category="all_to_all", axes=("tensor",), level="ici", wire_bytes=8e9),),
    avoidable=Avoidable(compiler="XLA:TPU", wire_bytes=2e9, seconds=0.5, exposed_s=0.0),
    flops={"forward": 33e15, "backward": 67e15, "recompute": 30e15},
    redone_flops=4e15,
    model_flops=100e15,
    policy_flops=32e15,
    memory={"weights": 10e9, "temporaries": 30e9, "code": 0.0},
)  # fmt: skip


def shown() -> str:
    stream = io.StringIO()
    print_blocks(observed_blocks(SEEN), "plain", stream)
    return stream.getvalue()


def test_everything_that_an_engineer_asks_is_told() -> None:
    text = " ".join(shown().split())
    for words in (
        "50.0% 5.00 s 5.00 s 160 91% 30% matmul, backward asap_ray/trainer/layers.py:100",
        "fsdp+context all_gather ici 40.0 GB 3.00 s 500 ms yes",
        "bound compute",
        "50% of the way from the floor 6 s to no overlap at all 14 s",
        "fsdp all_reduce for reduce_scatter ici 4.00 GB 1.00 s 0 s yes",
        "58.3% hides, 2.50 s of the step is waited for",
        "recomputation +30.0% FLOPs (the policy is priced at +32.0%), kernels +4.0%, all else +0.0% of the model's own",
        "would do; it moves 2 GB more, 0.5 s on the links, 0 s of the step (0%)",
        "UNPREDICTED all_to_all over tensor 8.00 GB",
        "temporaries 30.0 GB 75.0%",
    ):
        assert words in text, words


def test_what_nobody_predicted_is_marked_by_what_it_weighs() -> None:
    rows = {" ".join(line.split(" ici ")[0].split()): line for line in shown().splitlines() if " ici " in line}
    assert rows["tensor all_to_all"].endswith("NO, 8.00 GB more")
    assert rows["fsdp all_reduce"].endswith("no, a few bytes")


def test_the_fields_hold_all_of_it() -> None:
    found = observed_fields(SEEN)
    assert found is not None
    assert (found["place"], found["recomputed"], round(found["surplus"], 9)) == (0.5, 0.3, 0.0)
    assert [each["category"] for each in found["unpredicted"]] == ["all_to_all"]
    assert found["diagnosis"]["bound"] == "compute"
    assert observed_fields(None) is None
